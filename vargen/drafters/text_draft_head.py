"""The EAGLE head for text beside its model: `specdecode.generate(..., drafter=load_text_drafter(folder, model))`.

Belongs here: which tokens are drafted, and reading a folder. Does not belong here: prompts
(`transformers_draft_head.py`), pairs and the cache (`picture_draft_head.py`), the network (`text_head.py`) and its
training.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from specdecode.draft_size import DraftSizer
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.roles import TargetOutput
from specdecode.sampling import SamplingConfig
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError
from vargen.drafters.picture_draft_head import check_sizes
from vargen.drafters.target_states import are_alike, fixed_tokens, sample_states
from vargen.drafters.text_head import TextHead
from vargen.drafters.transformers_draft_head import PromptReadingHead
from vargen.models.finite import check_weights
from vargen.models.kept_caches import KeptCaches
from vargen.models.model_folder import check_component_folder


class TextDraftHead(PromptReadingHead):
    """`DraftHead` for one batch of texts.

    Args:
        drafter: a `TextHead`, in eval mode, which has borrowed from the target's model.
        target: without a decoder of its own; its prompts are tokens.
        most_new_pairs, caches: as for `PictureDraftHead`.
    """

    drafter: TextHead

    def __init__(
        self, drafter: TextHead, target: TransformersTarget, most_new_pairs: int, caches: KeptCaches | None = None
    ) -> None:
        drafter.rotary_rows.reserve(target.longest_prompt, target.max_new_tokens + 1)
        super().__init__(drafter, target, most_new_pairs, caches)
        if not drafter.feature_layers:
            target.feature_layers = (int(target.model.config.get_text_config().num_hidden_layers),)

    def guided_logits(self, hidden_states: Tensor) -> Tensor:
        return self.drafter.spread(self.drafter.draft_logits(hidden_states))


class TextDrafter:
    """A trained head, ready for `specdecode.generate(model, ..., drafter=...)`; plays its `DrafterMaker`.

    Args:
        network: made for the model.
        model: a causal language model of transformers.

    Attributes:
        draft_length: tokens drafted in a step where the call does not say.

    Raises:
        UserError: it was trained for another model.
    """

    draft_length = 4

    def __init__(self, network: TextHead, model: Any) -> None:
        text = model.config.get_text_config()
        sizes = {"vocab_size": int(text.vocab_size), "dim": int(text.hidden_size)}
        check_sizes(network, int(text.num_hidden_layers), **sizes)
        network.borrow(model)
        stored = network.config.target_states
        if stored is not None and not are_alike(stored, describe_states(model, network.feature_layers), model):
            raise UserError(
                "drafter was trained for another model: the hidden states of this one are not those it learned from; "
                "give one that was trained for it"
            )
        self.network, self.model = network, model

    def __call__(self, target: TransformersTarget, sizer: DraftSizer, sampling: SamplingConfig) -> EagleDrafter:
        """The drafter of a batch; see `DrafterMaker`. Raises ValueError for another model than its own."""
        if target.model is not self.model:
            raise ValueError("drafter was loaded for another model; load it with this one")
        shape = StaticTree.chain(sizer.largest.depth)
        pairs = EagleDrafter.most_new_pairs(shape, sizer.largest, beside=target.max_draft_nodes)
        head = TextDraftHead(self.network, target, pairs)
        return EagleDrafter(head, shape, sizer, "top" if sampling.is_greedy else "sampled")


@torch.no_grad()
def describe_states(model: Any, layers: tuple[int, ...]) -> list[float]:
    """A few numbers of a model's hidden states after some layers, see `target_states.py`; none: after the last."""
    tokens = fixed_tokens(int(model.config.get_text_config().vocab_size), model.get_input_embeddings().weight.device)
    return sample_states(text_states(model, tokens, layers)[0])


def text_states(model: Any, tokens: Tensor, layers: tuple[int, ...]) -> Tensor:
    """[1, L, k dim]: hidden states of a text [1, L] after some layers, side by side, as a head reads them.

    They are those of decoding, for which `TransformersTarget` feeds the same text bit by bit.
    """
    target = TransformersTarget(model, tokens, max_new_tokens=1)
    target.feature_layers = layers or (int(model.config.get_text_config().num_hidden_layers),)
    output: TargetOutput = target.prefill()
    assert output.hidden_states is not None
    return output.hidden_states


def load_text_drafter(folder: str | os.PathLike[str], model: Any) -> TextDrafter:
    """A trained head for a model, on its device and of its dtype.

    Args:
        folder: `export` of a run of `vargen train drafter --task text`.
        model: the causal language model that it was trained for.

    Raises:
        UserError: no such folder, damaged files, or a head of another model.
    """
    check_component_folder(folder, TextHead)
    weight = model.get_input_embeddings().weight
    network = TextHead.from_pretrained(folder, torch_dtype=weight.dtype)
    check_weights(network, folder)
    return TextDrafter(network.to(weight.device).eval().requires_grad_(False), model)
