"""Semi-autoregressive drafting: one forward pass of the draft head guesses several tokens ahead.

Belongs here: growing a draft from one output. Does not belong here: the network, its input (`eagle.py`), and shapes
(`tree_shapes.py`).

The guess for a position is the same whatever was drafted before it. So every node of a level has the same candidates,
and a tree contains their best combinations.

Source: FLASH (arXiv 2505.12728, section 3.3 and algorithm 1), which drafts chains.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from specdecode.drafters.draft_size import DraftSizer
from specdecode.drafters.eagle import DraftHead, EagleDrafter
from specdecode.drafters.tree_growth import Children, DraftHeadOutput
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.roles import DecodeState


class SemiAutoregressiveHead(DraftHead, Protocol):
    """A `DraftHead` whose guessed features [B, q, F] are those of several positions.

    Its `forward` gives the logits of the first position.
    """

    @property
    def draft_length(self) -> int:
        """K, positions guessed at once."""

    def later_logits(self, features: Tensor) -> Tensor:
        """[B, K - 1, V] float32: logits of the later positions, from the guessed features [B, F] of a pair."""


class SemiAutoregressiveDrafter(EagleDrafter):
    """The Drafter role over a `SemiAutoregressiveHead`: one forward pass of it per step.

    Args:
        head: the network.
        shape: a dynamic tree, or a fixed one; a chain is a fixed tree of width one.
        sizer: how much to draft.
        children: see `EagleDrafter`.

    Raises:
        ValueError: see `EagleDrafter`; or more levels than the network guesses.
    """

    def __init__(
        self,
        head: SemiAutoregressiveHead,
        shape: DynamicTree | StaticTree,
        sizer: DraftSizer,
        children: Children = "coupled",
    ) -> None:
        super().__init__(head, shape, sizer, children)
        if sizer.largest.depth > head.draft_length:
            raise ValueError(
                f"draft_length must be at most {head.draft_length}, the tokens that this drafter was trained to guess "
                f"at once, got {sizer.largest.depth}"
            )
        self._ahead = head

    def _feed_waiting(self, state: DecodeState) -> tuple[Tensor, Tensor]:
        logits, features = super()._feed_waiting(state)
        self._later_logits = self._ahead.later_logits(features[:, 0])  # [B, K - 1, V]
        return logits, features

    def _guess(self, depth: int, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """The guess for a position, whatever the tokens."""
        logits = self._later_logits[:, depth - 1, None]  # [B, 1, V]
        return DraftHeadOutput(logits.expand(-1, tokens.shape[1], -1), features)
