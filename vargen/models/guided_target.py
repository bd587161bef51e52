"""Guidance for targets over models of transformers: conditional and null rows side by side in one batch.

Belongs here: code of Janus and Emu3 alike. Does not belong here: null prompts, which each family makes in its own way,
and passes (`specdecode.targets.transformers`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.roles import Positions, TargetOutput
from specdecode.targets.transformers import SlotCache, TransformersTarget
from vargen.models.guided_tokens import Guided, guidance_is_over, where_guided

Rows = tuple[Tensor, Tensor | None]
"""Tokens int64 [B, T] of prompts, padded on the left, and their mask [B, T]; None: nothing is padded."""


class GuidedTarget(Guided, TransformersTarget):
    """A target whose model runs on 2B rows with guidance, conditional rows first, and on B rows without."""

    graph_state = (*TransformersTarget.graph_state, "_scale")

    def set_guidance(self, guidance_scale: float, device: torch.device, guided_tokens: int | None = None) -> None:
        """A family calls this first in its constructor, before it makes the rows."""
        super().set_guidance(guidance_scale, device, guided_tokens)
        self.rows_per_sequence = 2 if self.is_guided else 1

    @torch.no_grad()
    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """See `TransformersTarget.forward`."""
        output = self._run_new(tokens, mask, depths, self._length_with(tokens.shape[1]))
        return self.combine_at(output, lambda: self._committed() + depths + 1)

    @torch.no_grad()
    def forward_places(self, tokens: Tensor, placed: Positions) -> TargetOutput:
        """See `TransformersTarget.forward_places`."""
        return self.combine_at(self._run_places(tokens, placed), lambda: placed.positions + 1)

    def _run_new(
        self, tokens: Tensor, mask: Tensor, depths: Tensor, kv_length: int, last_only: bool = False
    ) -> TargetOutput:
        alone = guidance_is_over(self.guided_tokens, self._delayed_read, self._committed)
        run = self._conditional()._run_new if alone else super()._run_new
        return run(tokens, mask, depths, kv_length, last_only)

    def _run_places(self, tokens: Tensor, placed: Positions) -> TargetOutput:
        alone = guidance_is_over(self.guided_tokens, self._delayed_read, lambda: placed.positions)
        return (self._conditional()._run_places if alone else super()._run_places)(tokens, placed)

    def _committed(self) -> Tensor:
        """[B, 1], tokens of each picture in the cache."""
        return (self._cache.allocated().lengths - self._prompt_lengths)[: self.batch_size, None]

    def _conditional(self) -> Self:
        """The conditional rows alone, in this cache."""
        alone, count = copy.copy(self), self.batch_size
        alone.guided_tokens, alone.rows_per_sequence, alone._num_rows = None, 1, count
        static = self._cache.allocated()
        alone._cache = SlotCache(type(self.model).__name__, static.num_layers, count, static.first_rows(count))
        alone._cache.continue_prompt()
        alone._prompt_lengths, alone._onward_from = self._prompt_lengths[:count], self._onward_from[:count]
        return alone

    def replace_rows(self, rows: Tensor, other: TransformersTarget) -> None:
        """See `TransformersTarget.replace_rows`."""
        self._delayed_read.forget()
        super().replace_rows(rows, other)

    def combine_at(self, output: TargetOutput, places: Callable[[], Tensor]) -> TargetOutput:
        """`combine`, with the places of the logits, [1 or B, n] int64, where it reads them."""
        return self.combine(output, None if self.guided_tokens is None else places())

    def combine(self, output: TargetOutput, places: Tensor | None = None) -> TargetOutput:
        """Guided logits, and the hidden states [B, n, 2 dim] of both rows of a picture, the conditional one's first.

        Args:
            output: of all rows, [2B, n, ...]; of the conditional ones alone, it stays as it is.
            places: [1 or B, n] int64 of the logits, where guidance ends before the picture; None: it leads them all.
        """
        if not self.is_guided or len(output.logits) == self.batch_size:
            return output
        hidden_states = None if output.hidden_states is None else torch.cat(output.hidden_states.chunk(2), dim=-1)
        return TargetOutput(self.where_guided(self.guided(output.logits), output.logits, places), hidden_states)

    def where_guided(self, guided: Tensor, logits: Tensor, places: Tensor | None) -> Tensor:
        """[B, n, V]: `guided` where guidance leads, else the conditional rows' own, the first B of `logits`."""
        if self.guided_tokens is None or places is None:
            return guided
        return where_guided(self.guided_tokens, guided, logits[: self.batch_size], places)


def side_by_side(prompts: Sequence[Rows]) -> tuple[Tensor, Tensor | None]:
    """Prompts of all kinds of rows below each other, padded on the left to one length."""
    if len(prompts) == 1:
        return prompts[0]
    length = max(ids.shape[1] for ids, _ in prompts)
    masks = [torch.ones_like(ids) if mask is None else mask for ids, mask in prompts]
    padded = [[F.pad(each, (length - each.shape[1], 0)) for each in kind] for kind in ([p[0] for p in prompts], masks)]
    return torch.cat(padded[0]), torch.cat(padded[1])
