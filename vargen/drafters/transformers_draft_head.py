"""The EAGLE head beside a target over a model of transformers: the sizes that must fit, its logits and its prompt mask.

Belongs here: what targets of transformers have in common. Does not belong here: pairs, positions and the cache
(`picture_draft_head.py`), how trees grow (`specdecode.drafters.eagle`), the network and its training.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from specdecode.roles import TargetOutput
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError
from vargen.drafters.picture_draft_head import PictureDraftHead, check_sizes
from vargen.models.kept_caches import KeptCaches


class TransformersDraftHead(PictureDraftHead):
    """`DraftHead` for one batch of pictures. The target's `combine` gives the halves' features side by side.

    Args:
        drafter, target, most_new_pairs, caches: as for `PictureDraftHead`.

    Raises:
        UserError: the head was trained for another model or another size of picture.
    """

    def __init__(
        self, drafter: Any, target: TransformersTarget, most_new_pairs: int, caches: KeptCaches | None = None
    ) -> None:
        num_tokens = self.most_tokens(drafter, target)
        lengths = target.prompt_length, target.longest_prompt
        super().__init__(drafter, target, target.rows_per_sequence, num_tokens, *lengths, most_new_pairs, caches)
        self.target = target

    def most_tokens(self, drafter: Any, target: Any) -> int:
        """The most tokens of a picture. Raises UserError if the head does not fit the target."""
        text = target.model.config.get_text_config()
        check_sizes(drafter, int(text.num_hidden_layers), vocab_size=target.vocab_size, dim=int(text.hidden_size))
        if target.max_new_tokens > drafter.num_image_tokens:
            raise UserError(
                f"drafter was trained on pictures of {drafter.num_image_tokens} tokens, these have "
                f"{target.max_new_tokens}; train one for this size"
            )
        return int(drafter.num_image_tokens)

    def states(self, output: TargetOutput) -> Tensor:
        assert output.hidden_states is not None
        return output.hidden_states

    def condition_mask(self) -> Tensor | None:
        return self.target.prompt_mask

    def guided_logits(self, hidden_states: Tensor) -> Tensor:
        logits = self.target.logits(hidden_states.to(self.target.model.dtype))
        return self.target.combine(TargetOutput(logits)).logits
