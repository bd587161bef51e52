"""Rotary positions on three axes (time, height, width) of prompts, of pictures in them, and of drawn grids.

The rule is that of `GlmImageModel.get_rope_index`, which stores its result on the model, where a second batch
overwrites it. Here the positions belong to the request.

Text counts up on all axes alike. A picture begins at the next position p: its token at (row, column) stands at (p, p +
row, p + column), and the next token stands at p + max(rows, columns).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Grid = tuple[int, int]
"""Tokens down and across."""


def grid_positions(start: int, grid: Grid) -> Tensor:
    """[3, rows * columns] int64 of a picture in raster order that begins at position `start`."""
    rows, columns = torch.meshgrid(torch.arange(grid[0]), torch.arange(grid[1]), indexing="ij")
    return start + torch.stack((torch.zeros_like(rows), rows, columns)).flatten(1)


def prompt_positions(tokens: Sequence[int], pictures: Sequence[Grid], beginning: int, end: int) -> tuple[Tensor, int]:
    """Positions of one prompt, without padding.

    Args:
        tokens: of the prompt.
        pictures: grids of its pictures, in order.
        beginning, end: the tokens before and after each picture.

    Returns:
        [3, T] int64, and the position of the first token that is drawn.
    """
    starts = [place + 1 for place, token in enumerate(tokens) if token == beginning]
    ends = [place for place, token in enumerate(tokens) if token == end]
    parts, position, reached = [], 0, 0
    for start, stop, grid in zip(starts, ends, pictures, strict=False):  # the last beginning is of the picture to draw
        text = start - reached
        parts += [_text(position, text), grid_positions(position + text, grid)]
        position, reached = position + text + max(grid), stop
    parts.append(_text(position, len(tokens) - reached))
    return torch.cat(parts, 1), position + len(tokens) - reached


def drawn_positions(start: int, grids: Sequence[Grid]) -> Tensor:
    """[3, N] int64 of grids that are drawn one after another, from position `start` on."""
    parts = []
    for grid in grids:
        parts.append(grid_positions(start, grid))
        start += max(grid)
    return torch.cat(parts, 1)


def _text(start: int, length: int) -> Tensor:
    return torch.arange(start, start + length).expand(3, -1)
