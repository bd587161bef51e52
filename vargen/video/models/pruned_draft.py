"""A drafter's model that watches the video without some of its visual tokens, chosen when the target has seen it whole.

Belongs here: the moment of choosing. Does not belong here: scores and choices (`pruning.py`, `attention.py`), shapes of
drafts (`specdecode.drafters`).

SpecVLM chooses by the target's attention, UV-Prune by its early hidden states: both are known only after the target's
prefill, which is when the loop asks the drafter's model for its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from specdecode.roles import TargetOutput
from vargen.video.models.request import VideoRequest, keep_visual
from vargen.video.models.target import VideoTarget


class PrunedDraft(VideoTarget):
    """`specdecode.drafters.draft_model.DraftModel` over parts of requests.

    Args:
        model: the drafter's own, or the target's.
        requests: whole, made with `model`.
        choose: gives for a row [k] int64 numbers of the visual tokens to keep, ascending, when the target has been
            prefilled.
        home: device of whoever asks, where that is not the model's; what it gives and takes lies there.
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
        home: torch.device | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, requests, **options)
        self.choose = choose
        self.home = self.device if home is None else home
        self._whole = self.requests

    def prefill(self) -> TargetOutput:
        """Choose, and feed what is left of the prompts. Raises ValueError for numbers out of range or out of order."""
        self.requests = tuple(
            keep_visual(request, self.choose(row).to(self.device)) for row, request in enumerate(self._whole)
        )
        return self._sent_home(super().prefill())

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        return self._sent_home(super().forward(*(each.to(self.device) for each in (tokens, mask, depths))))

    def commit(self, node_indices: Tensor | None, counts: Tensor) -> None:
        super().commit(None if node_indices is None else node_indices.to(self.device), counts.to(self.device))

    def rewind(self, counts: Tensor) -> None:
        super().rewind(counts.to(self.device))

    def _sent_home(self, output: TargetOutput) -> TargetOutput:
        states = None if output.hidden_states is None else output.hidden_states.to(self.home)
        return TargetOutput(output.logits.to(self.home), states)
