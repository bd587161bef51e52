"""Guidance for targets over models of transformers: conditional and null rows side by side in one batch.

Belongs here: what Janus and Emu3 share. Does not belong here: null prompts, which each family makes in its own way, and
passes (`specdecode.targets.transformers`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.roles import TargetOutput
from specdecode.sampling import guide
from specdecode.targets.transformers import TransformersTarget


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
