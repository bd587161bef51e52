"""Guidance of every target: its scale, which a callback may change, and where it leads the first tokens alone.

Belongs here: the scale, guided logits, when conditional rows are enough, and whose logits count. Does not belong here:
rows, caches and passes, which each target has.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdecode.loop import DelayedRead
from specdecode.sampling import guide
from vargen.base.errors import UserError


class Guided:
    """A target that feeds null rows below the conditional ones where guidance is on.

    Attributes:
        guidance_scale: classifier-free guidance on logits; off at values <= 1.
        guided_tokens: guidance leads the first so many tokens of a picture; None: all.
        is_guided: whether null rows are computed.
    """

    def set_guidance(self, guidance_scale: float, device: torch.device, guided_tokens: int | None = None) -> None:
        """A target calls this first in its constructor, before it makes the rows."""
        self.guidance_scale = guidance_scale
        self.is_guided = guidance_scale > 1
        self.guided_tokens = guided_tokens if self.is_guided else None
        self._delayed_read = DelayedRead(int(device.type == "cuda"))  # a GPU is asked one pass late
        self._scale = torch.tensor(float(guidance_scale), device=device)  # a tensor, for compiled passes

    def change_guidance(self, guidance_scale: float) -> None:
        """Guide the passes to come with another scale; a scale up to 1 is 1, and the null rows stay. Raises UserError
        where there are no null rows."""
        if not self.is_guided:
            raise UserError(
                "guidance_scale cannot be changed in a callback where a call began without guidance; begin with one "
                "above 1"
            )
        self.guidance_scale = max(float(guidance_scale), 1.0)
        self._scale.fill_(self.guidance_scale)

    def guided(self, logits: Tensor) -> Tensor:
        """Guided logits [B, n, V] of the rows' logits [2B, n, V]; without guidance [B, n, V] as they are."""
        if not self.is_guided:
            return logits
        conditional, null = logits.chunk(2)
        return guide(conditional, null, self._scale)


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
