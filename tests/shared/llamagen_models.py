"""Small LlamaGen transformers whose every weight matters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.models.llamagen.transformer import LlamaGenTransformer

CONDITION_LENGTH = 5
LENGTHS = [5, 3, 1]
"""Of captions in a batch."""


def make_model(**changes: Any) -> LlamaGenTransformer:
    """A small text-conditional model whose every weight matters (the head would start at zero)."""
    torch.manual_seed(0)
    arguments = {
        "dim": 32,
        "num_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 29,
        "grid_size": 4,
        "condition_type": "text",
        "caption_dim": 12,
        "condition_length": CONDITION_LENGTH,
        "num_classes": 7,
    } | changes
    if arguments["condition_type"] == "class":
        arguments["condition_length"] = None
    model = LlamaGenTransformer(**arguments).eval()
    for parameter in model.parameters():
        # Larger than the usual 0.02, so that a wrong mask or position shows in the logits.
        torch.nn.init.normal_(parameter, std=parameter[0].numel() ** -0.5 if parameter.ndim > 1 else 1.0)
    return model


def valid_mask(lengths: list[int], total: int = CONDITION_LENGTH) -> Tensor:
    return torch.arange(total) >= total - torch.tensor(lengths)[:, None]


def ragged_target(
    model: LlamaGenTransformer, rows: slice = slice(None), guidance_scale: float = 3.0, nodes: int = 6
) -> LlamaGenTarget:
    """Of captions of several lengths, each embedded by itself, and some of their rows."""
    captions = torch.randn(len(LENGTHS), CONDITION_LENGTH, 12, generator=torch.Generator().manual_seed(1))[rows]
    embeds = torch.cat([model.embed_condition(caption_embeds=row[None].to(model.dtype)) for row in captions])
    mask = valid_mask(LENGTHS)[rows]
    return LlamaGenTarget(model, embeds, mask, guidance_scale=guidance_scale, max_draft_nodes=nodes)
