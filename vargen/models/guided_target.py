"""Guidance for targets over models of transformers: conditional and null rows side by side in one batch.

Belongs here: what Janus and Emu3 share. Does not belong here: null prompts, which each family makes in its own way, and
passes (`specdecode.targets.transformers`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.roles import TargetOutput
from specdecode.sampling import guide
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError

Rows = tuple[Tensor, Tensor | None]
"""Tokens int64 [B, T] of prompts, padded on the left, and their mask [B, T]; None: nothing is padded."""

NO_NULL_ROWS = (
    "guidance_scale cannot be changed in a callback where a call began without guidance; begin with one above 1"
)


class GuidedTarget(TransformersTarget):
    """A target whose model runs on 2B rows with guidance, conditional rows first, and on B rows without.

    Attributes:
        guidance_scale: classifier-free guidance on logits; off at values <= 1.
        is_guided: whether null rows are computed.
    """

    def set_guidance(self, guidance_scale: float, device: torch.device) -> None:
        """A family calls this first in its constructor, before it makes the rows."""
        self.guidance_scale = guidance_scale
        self.is_guided = guidance_scale > 1
        self._scale = torch.tensor(float(guidance_scale), device=device)  # a tensor, for compiled passes
        self.rows_per_sequence = 2 if self.is_guided else 1

    def change_guidance(self, guidance_scale: float) -> None:
        """Guide the passes to come with another scale; a scale up to 1 is 1, and the null rows stay. Raises UserError
        where there are no null rows."""
        if not self.is_guided:
            raise UserError(NO_NULL_ROWS)
        self.guidance_scale = max(float(guidance_scale), 1.0)
        self._scale.fill_(self.guidance_scale)

    def combine(self, output: TargetOutput) -> TargetOutput:
        """Guided logits, and the hidden states [B, n, 2 dim] of both rows of a picture, the conditional one's first."""
        if not self.is_guided:
            return output
        hidden_states = None if output.hidden_states is None else torch.cat(output.hidden_states.chunk(2), dim=-1)
        return TargetOutput(self.guided_logits(output.logits), hidden_states)

    def guided_logits(self, logits: Tensor) -> Tensor:
        """[B, n, V] of the rows' logits [2B, n, V]."""
        conditional, null = logits.chunk(2)
        return guide(conditional, null, self._scale)


def side_by_side(prompts: Sequence[Rows]) -> tuple[Tensor, Tensor | None]:
    """Prompts of all kinds of rows below each other, padded on the left to one length."""
    if len(prompts) == 1:
        return prompts[0]
    length = max(ids.shape[1] for ids, _ in prompts)
    masks = [torch.ones_like(ids) if mask is None else mask for ids, mask in prompts]
    padded = [[F.pad(each, (length - each.shape[1], 0)) for each in kind] for kind in ([p[0] for p in prompts], masks)]
    return torch.cat(padded[0]), torch.cat(padded[1])
