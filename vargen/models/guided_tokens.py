"""Guidance that leads the first tokens of a picture alone: when conditional rows are enough, and whose logits count.

Belongs here: these two rules. Does not belong here: rows, caches and passes, which each target has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdecode.loop import DelayedRead


def guidance_is_over(guided_tokens: int | None, read: DelayedRead, places: Callable[[], Tensor]) -> bool:
    """Whether guidance leads no token that the next pass or a later one judges.

    Args:
        guided_tokens: guidance leads so many first tokens; None: all.
        read: at the least place, which a GPU tells a pass late.
        places: int64, of the tokens to be fed; no later pass feeds earlier ones.
    """
    if guided_tokens is None:
        return False
    least = read(places().min())
    return least is not None and int(least) + 1 >= guided_tokens


def where_guided(guided_tokens: int, guided: Tensor, conditional: Tensor, places: Tensor) -> Tensor:
    """Logits [B, n, V]: `guided` ones where guidance leads, else `conditional` ones; places are [1 or B, n] int64."""
    return torch.where((places < guided_tokens)[..., None], guided, conditional)
