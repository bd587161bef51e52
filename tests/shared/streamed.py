"""Pictures of a stream by number: all asked for at once, or one after the other while others are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from seeds import seeded

FIGURES = ("accepted_lengths", "token_origins", "row_passes", "drafted", "skipped_tokens")


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


def check_stream(
    pipeline: Any, prompts: Sequence[str], seeds: Sequence[int], batch_size: int, figures: Sequence[str] = FIGURES,
    **arguments: Any,
) -> None:  # fmt: skip
    """Every picture, and what its trace counts, is that of one call for all of them, and that of a call of its own."""
    arguments["output_type"] = "latent"

    def called(part: slice) -> Any:
        generators = seeded(*seeds[part])
        return pipeline(prompts[part], generator=generators, **arguments)

    together, last = called(slice(None)), called(slice(-1, None))
    assert torch.equal(together.tokens[-1:], last.tokens), "rows of one call are those of calls of their own"
    for arrive in (False, True):
        pictures = streamed(pipeline, prompts, seeds, arrive, batch_size=batch_size, **arguments)
        assert [picture.index for picture in pictures] == list(range(len(seeds)))
        for row, each in enumerate(pictures):
            assert torch.equal(each.tokens, together.tokens[row]) and torch.equal(each.image, together.images[row])
            for figure in figures:
                assert getattr(each.trace, figure) == getattr(together.trace.of_row(row), figure), figure
