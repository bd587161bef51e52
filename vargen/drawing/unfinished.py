"""A picture that is still being drawn: what is decided of it, and nothing where nothing is.

Belongs here: what of a token grid can be shown before its end. Does not belong here: the pixels of tokens, which are a
model's.
"""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor


def continue_downwards(tokens: Tensor, lengths: Tensor, grid_size: int) -> Tensor:
    """Tokens of a whole grid, so that an image tokenizer can decode it: below the last that is decided of a column,
    that one goes on. Where nothing is decided in a column, the first token of all does.

    Args:
        tokens: int64 [B, grid_size ** 2] in raster order, of which the first `lengths` mean something.
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
    """The picture, transparent where its tokens are not decided.

    Args:
        image: of the whole grid, such as that of `continue_downwards`.
        num_decided: tokens, in raster order.
        grid_size: tokens a side.
    """
    decided = torch.arange(grid_size**2) < num_decided
    mask = Image.fromarray((decided.view(grid_size, grid_size) * 255).byte().numpy())
    shown = image.convert("RGB")
    shown.putalpha(mask.resize(image.size, Image.Resampling.NEAREST))
    return shown
