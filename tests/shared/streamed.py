"""Pictures of a stream by number: all asked for at once, or one after the other while others are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def streamed(
    pipeline: Any, prompts: Sequence[str], seeds: Sequence[int], arrive: bool = False, **arguments: Any
) -> list[Any]:
    asked = [(prompt, torch.Generator().manual_seed(seed)) for prompt, seed in zip(prompts, seeds, strict=True)]
    begun, later = (asked[:1], asked[1:]) if arrive else (asked, [])

    def arriving(places: int, fits: Callable[[str], bool]) -> list[tuple[str, torch.Generator]]:
        assert places > 0 and all(fits(prompt) for prompt, _ in later[:1])
        return [later.pop(0)] if later else []

    stream = pipeline.stream(
        [prompt for prompt, _ in begun],
        generator=[generator for _, generator in begun],
        arriving=arriving if arrive else None,
        **arguments,
    )
    return sorted(stream, key=lambda picture: picture.index)
