"""Codes as vectors of one length, by which relaxed methods compare tokens.

Belongs here: arithmetic on a codebook. Does not belong here: where a codebook is found (`pixels.py`), and neighbours
(`specdecode.verifiers.neighbours`).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def unit_codebook(codes: Tensor, has_row_end: bool) -> Tensor:
    """Codes [C, d], and the end-of-row token if there is one, as fp32 unit vectors [V, d + 1 or d + 2].

    These tokenizers do not normalise codes, so codes of one direction differ. They are divided by the greatest length
    and get one more coordinate, their height, which makes them unit vectors. Codes of equal length keep their distances
    up to that factor; others are further apart by their difference in height. The end-of-row token is orthogonal to all
    codes.
    """
    codes = codes.detach().float()
    codes = codes / codes.norm(dim=1).max()
    height = (1 - codes.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
    extra = int(has_row_end)
    vectors = F.pad(torch.cat((codes, height), 1), (0, extra, 0, extra))
    if has_row_end:
        vectors[-1, -1] = 1.0
    return vectors
