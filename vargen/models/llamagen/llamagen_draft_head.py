"""The EAGLE head beside a LlamaGen target: the sizes that must fit, its logits, and how it reads the condition.

Belongs here: code for LlamaGen alone. Does not belong here: pairs, positions and the cache (`eagle_draft_head.py`), how
trees grow (`specdecode.drafters.eagle`), the network and its training.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from specdecode.roles import TargetOutput
from vargen.base.errors import UserError
from vargen.drafters.eagle_draft_head import EagleDraftHead, check_sizes
from vargen.drafters.eagle_head import EagleHead
from vargen.drafters.kept_caches import KeptCaches
from vargen.models.llamagen.llamagen_target import LlamaGenTarget, LlamaGenTargetOutput
from vargen.models.llamagen.transformer import LlamaGenTransformer


def check_drafter(drafter: EagleHead, transformer: LlamaGenTransformer) -> None:
    """Refuse a head that was not made for this transformer. Raises UserError, see `check_sizes`."""
    config = transformer.config
    sizes = {name: config[name] for name in ("vocab_size", "grid_size", "dim")}
    check_sizes(drafter, config.num_layers, **sizes)


class LlamaGenDraftHead(EagleDraftHead):
    """`DraftHead` for one batch of pictures.

    Args:
        drafter: the network, in eval mode.
        target: lends its output head, its guidance and the mask of its condition.
        most_new_pairs, caches: as for `EagleDraftHead`.

    Raises:
        UserError: see `check_drafter`; or the head needs prompts in full length and this one is shorter.
    """

    def __init__(
        self, drafter: EagleHead, target: LlamaGenTarget, most_new_pairs: int, caches: KeptCaches | None = None
    ) -> None:
        check_drafter(drafter, target.transformer)
        full_length = target.transformer.config.condition_length
        if drafter.config.attend_to_padding and target.condition_length != full_length:
            raise UserError(
                f"drafter reads prompts in their full length of {full_length} tokens, padding included; this one has "
                f"{target.condition_length}"
            )
        halves = 2 if target.is_guided else 1
        lengths = target.condition_length, target.longest_condition
        super().__init__(drafter, target, halves, drafter.num_image_tokens, *lengths, most_new_pairs, caches)
        self.target = target
        self._logits_dtype = target.transformer.dtype  # diffusers searches all parameters for it, at every access

    def states(self, output: TargetOutput) -> Tensor:
        assert isinstance(output, LlamaGenTargetOutput) and output.hidden_states is not None
        if self._halves == 1:
            return output.hidden_states
        assert output.unconditional_hidden_states is not None
        return torch.cat((output.hidden_states, output.unconditional_hidden_states), dim=-1)

    def condition_mask(self) -> Tensor | None:
        return None if self.drafter.config.attend_to_padding else self.target.condition_mask

    def output_head(self) -> tuple[nn.Linear | None, float | None]:
        return self.target.transformer.lm_head, self.target.guidance_scale if self._halves == 2 else None

    def guided_logits(self, hidden_states: Tensor) -> Tensor:
        return self.target.guided(self.target.transformer.lm_head(hidden_states.to(self._logits_dtype)).float())
