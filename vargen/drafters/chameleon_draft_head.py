"""LANTERN's head for Chameleons beside their target: the prompt's own tokens, and positions of a text.

Belongs here: what differs from other heads beside a model of transformers. Does not belong here: pairs and the cache
(`picture_draft_head.py`), and the network (`chameleon_head.py`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vargen.base.errors import UserError
from vargen.drafters.picture_draft_head import check_sizes
from vargen.drafters.transformers_draft_head import TransformersDraftHead


class ChameleonDraftHead(TransformersDraftHead):
    """`DraftHead` for one batch of pictures.

    Args:
        drafter: a `ChameleonHead`, in eval mode.
        target: with two more attributes, in the model's whole vocabulary: `prompt_ids` [R, T] int64, the prompts of all
            rows, and `ids` [V] int64, the tokens that it draws.
        most_new_pairs, caches: as for `PictureDraftHead`.

    Raises:
        UserError: the head was trained for another model.
    """

    target: Any

    def most_tokens(self, drafter: Any, target: Any) -> int:
        """See `TransformersDraftHead.most_tokens`. Positions have no end, so it is what the target draws."""
        text = target.model.config.get_text_config()
        check_sizes(drafter, int(text.num_hidden_layers), dim=int(text.hidden_size))
        if drafter.config.vocab_size != text.vocab_size:
            raise UserError(
                f"drafter was trained for another model: a vocabulary of {drafter.config.vocab_size:,} tokens, this "
                f"model has {text.vocab_size:,}; give one trained for it"
            )
        return int(target.max_new_tokens)

    def names(self, tokens: Tensor) -> Tensor:
        """See `PictureDraftHead.names`."""
        ids: Tensor = self.target.ids
        return ids[tokens]

    def condition_tokens(self, length: int) -> Tensor:
        """See `PictureDraftHead.condition_tokens`: pair k has token k + 1 of its row's prompt."""
        prompts: Tensor = self.target.prompt_ids
        return prompts[:, 1 : length + 1]

    def condition_positions(self, length: int) -> Tensor:
        """See `PictureDraftHead.condition_positions`: they end just before that of the picture's first token."""
        return torch.arange(-length, 0, device=self._device)[None]
