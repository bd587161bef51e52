"""A drafter's model that watches the video without some of its visual tokens, chosen when the target has seen it whole.

Belongs here: the moment of choosing. Does not belong here: scores and choices (`pruning.py`, `attention.py`), shapes of
drafts (`specdecode.drafters`).

SpecVLM chooses by the target's attention, UV-Prune by its early hidden states: both are known only after the target's
prefill, which is when the loop asks the drafter's model for its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from specdecode.roles import TargetOutput
from vargen.video.request import VideoRequest, keep_visual
from vargen.video.target import VideoTarget


class PrunedDraft(VideoTarget):
    """`specdecode.drafters.draft_model.DraftModel` over a part of a request.

    Args:
        model: the drafter's own, or the target's.
        request: whole, made with `model`.
        choose: gives [k] int64 numbers of the visual tokens to keep, ascending, when the target has been prefilled.
        compact: see `vargen.video.request.keep_visual`.
        vocab_size: see `VideoTarget`; the target's.

    Attributes:
        request: what is left of it, after the prefill.
    """

    def __init__(
        self,
        model: Any,
        request: VideoRequest,
        choose: Callable[[], Tensor],
        *,
        compact: bool = False,
        vocab_size: int | None = None,
    ) -> None:
        super().__init__(model, request, vocab_size=vocab_size)
        self.choose = choose
        self.compact = compact
        self._whole = request

    def prefill(self) -> TargetOutput:
        """Choose, and feed what is left of the prompt. Raises ValueError for numbers out of range or out of order."""
        self.request = keep_visual(self._whole, self.choose().to(self.device), self.compact)
        return super().prefill()
