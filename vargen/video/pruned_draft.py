"""A drafter's model that watches the video without some of its visual tokens, chosen when the target has seen it whole.

Belongs here: the moment of choosing. Does not belong here: scores and choices (`pruning.py`, `attention.py`), shapes of
drafts (`specdecode.drafters`).

SpecVLM chooses by the target's attention, UV-Prune by its early hidden states: both are known only after the target's
prefill, which is when the loop asks the drafter's model for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from specdecode.roles import TargetOutput
from vargen.video.request import VideoRequest, keep_visual
from vargen.video.target import VideoTarget


class PrunedDraft(VideoTarget):
    """`specdecode.drafters.draft_model.DraftModel` over parts of requests.

    Args:
        model: the drafter's own, or the target's.
        requests: whole, made with `model`.
        choose: gives for a row [k] int64 numbers of the visual tokens to keep, ascending, when the target has been
            prefilled.
        compact: see `vargen.video.request.keep_visual`.
        options: see `VideoTarget`.

    Attributes:
        requests: what is left of them, after the prefill.
    """

    def __init__(
        self,
        model: Any,
        requests: VideoRequest | Sequence[VideoRequest],
        choose: Callable[[int], Tensor],
        *,
        compact: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(model, requests, **options)
        self.choose = choose
        self.compact = compact
        self._whole = self.requests

    def prefill(self) -> TargetOutput:
        """Choose, and feed what is left of the prompts. Raises ValueError for numbers out of range or out of order."""
        self.requests = tuple(
            keep_visual(request, self.choose(row).to(self.device), self.compact)
            for row, request in enumerate(self._whole)
        )
        return super().prefill()
