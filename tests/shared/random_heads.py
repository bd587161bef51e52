"""Heads that nobody trained, for tests of what is done with what they draft."""

from __future__ import annotations

from pathlib import Path

import torch

from vargen.drafters.eagle_head import EagleHead


def save_random_head(folder: Path, vocab_size: int, grid_size: int = 4, dim: int = 32) -> str:
    """A random one in a folder, large enough that its guesses differ from place to place."""
    torch.manual_seed(3)
    drafter = EagleHead(
        dim=dim, num_attention_heads=4, intermediate_size=48, vocab_size=vocab_size, grid_size=grid_size
    )
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.3)
    drafter.save_pretrained(folder)
    return str(folder)
