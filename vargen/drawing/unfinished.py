"""A picture that is still being drawn: its decided part, and nothing elsewhere.

Belongs here: showing a token grid before its end. Does not belong here: the pixels of tokens, which a model decodes.
"""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor


def continue_downwards(tokens: Tensor, lengths: Tensor, grid_size: int) -> Tensor:
    """Tokens of a whole grid, so that an image tokenizer can decode it. The last decided token of a column fills the
    places below it. In a column without one, the first token of the picture does.

    Args:
        tokens: int64 [B, grid_size ** 2] in raster order; the first `lengths` are decided.
        lengths: int64 [B], 1 to grid_size ** 2.
        grid_size: tokens a side.

    Returns:
        int64 [B, grid_size ** 2].
    """
    rows = torch.arange(grid_size, device=tokens.device)[:, None]  # [G, 1]
    columns = torch.arange(grid_size, device=tokens.device)[None]  # [1, G]
    lengths = lengths.to(tokens.device)[:, None, None]
    decided_rows = (lengths - columns + grid_size - 1) // grid_size  # [B, 1, G] in a column
    source = torch.minimum(rows, decided_rows - 1) * grid_size + columns  # [B, G, G]
    return tokens.gather(1, torch.where(decided_rows > 0, source, 0).flatten(1))


def hide_undecided(image: Image.Image, num_decided: int, grid_size: int) -> Image.Image:
    """The picture of a whole grid, `grid_size` tokens a side, transparent after its first `num_decided` tokens."""
    decided = torch.arange(grid_size**2) < num_decided
    mask = Image.fromarray((decided.view(grid_size, grid_size) * 255).byte().numpy())
    shown = image.convert("RGB")
    shown.putalpha(mask.resize(image.size, Image.Resampling.NEAREST))
    return shown
