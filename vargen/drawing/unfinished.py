"""A picture that is still being drawn: its decided part, and nothing elsewhere.

Belongs here: showing a token grid before its end. Does not belong here: the pixels of tokens, which a model decodes.
"""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor


def continue_downwards(tokens: Tensor, decided: Tensor, grid_size: int) -> Tensor:
    """Tokens of a whole grid, so that an image tokenizer can decode it. The last decided token of a column fills the
    places below it. In a column without one, the first token of the picture does.

    Args:
        tokens: int64 [B, grid_size ** 2] in raster order.
        decided: bool [B, grid_size ** 2], which of them are decided: the first place, and in a column those above one.
        grid_size: tokens a side.

    Returns:
        int64 [B, grid_size ** 2].
    """
    rows = torch.arange(grid_size, device=tokens.device)[:, None]  # [G, 1]
    columns = torch.arange(grid_size, device=tokens.device)[None]  # [1, G]
    decided_rows = decided.to(tokens.device).view(-1, grid_size, grid_size).sum(1, keepdim=True)  # [B, 1, G]
    source = torch.minimum(rows, decided_rows - 1) * grid_size + columns  # [B, G, G]
    return tokens.gather(1, torch.where(decided_rows > 0, source, 0).flatten(1))


def hide_undecided(image: Image.Image, decided: Tensor, grid_size: int) -> Image.Image:
    """The picture of a whole grid, `grid_size` tokens a side, transparent where bool [grid_size ** 2] is not set."""
    mask = Image.fromarray((decided.view(grid_size, grid_size) * 255).byte().cpu().numpy())
    shown = image.convert("RGB")
    shown.putalpha(mask.resize(image.size, Image.Resampling.NEAREST))
    return shown
