"""EAGLE heads beside targets over models of transformers: the sizes that must fit, logits, and how prompts are read.

Belongs here: code for all targets of transformers, and LANTERN's head for Chameleons. Does not belong here: pairs and
the cache (`eagle_draft_head.py`), texts (`text_draft_head.py`), how trees grow (`specdecode.drafters.eagle`), the
networks and their training.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specdecode.roles import TargetOutput
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError
from vargen.drafters.eagle_draft_head import EagleDraftHead, check_sizes
from vargen.drafters.kept_caches import KeptCaches


class TransformersDraftHead(EagleDraftHead):
    """`DraftHead` for one batch of pictures. The target's `combine` gives the halves' features side by side.

    Args:
        drafter, target, most_new_pairs, caches: as for `EagleDraftHead`.

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


class PromptReadingHead(TransformersDraftHead):
    """A head that reads the prompt's own tokens, at positions of a text, which have no end.

    Args:
        drafter, most_new_pairs, caches: as for `EagleDraftHead`.
        target: with `prompt_ids` [R, T] int64, the prompts of all rows.
    """

    target: Any

    def most_tokens(self, drafter: Any, target: Any) -> int:
        """See `TransformersDraftHead.most_tokens`: what is asked for."""
        return int(target.max_new_tokens)

    def condition_tokens(self, length: int) -> Tensor:
        """See `EagleDraftHead.condition_tokens`: pair k has token k + 1 of its row's prompt."""
        prompts: Tensor = self.target.prompt_ids
        return prompts[:, 1 : length + 1]

    def condition_positions(self, length: int) -> Tensor:
        """See `EagleDraftHead.condition_positions`: they end just before that of the first new token."""
        return torch.arange(-length, 0, device=self._device)[None]


class ChameleonDraftHead(PromptReadingHead):
    """A `ChameleonHead` beside its target. Raises UserError for a head that was trained for another model.

    The target also has `ids` [V] int64, the tokens that it draws, in the model's whole vocabulary.
    """

    def most_tokens(self, drafter: Any, target: Any) -> int:
        """See `PromptReadingHead.most_tokens`."""
        text = target.model.config.get_text_config()
        check_sizes(drafter, int(text.num_hidden_layers), dim=int(text.hidden_size))
        if drafter.config.vocab_size != text.vocab_size:
            raise UserError(
                f"drafter was trained for another model: a vocabulary of {drafter.config.vocab_size:,} tokens, this "
                f"model has {text.vocab_size:,}; give one trained for it"
            )
        return super().most_tokens(drafter, target)

    def names(self, tokens: Tensor) -> Tensor:
        """See `EagleDraftHead.names`."""
        ids: Tensor = self.target.ids
        return ids[tokens]
