"""The EAGLE head for text beside its model: `specdecode.generate(..., drafter=load_text_drafter(folder, model))`.

Belongs here: which tokens are drafted, and reading a folder. Does not belong here: prompts
(`transformers_draft_head.py`), pairs and the cache (`eagle_draft_head.py`), the network (`text_head.py`) and its
training.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

from specdecode.drafters.draft_size import DraftSizer
from specdecode.drafters.eagle import EagleDrafter
from specdecode.drafters.tree_growth import DraftHeadOutput
from specdecode.drafters.tree_shapes import StaticTree
from specdecode.kernels.build import library
from specdecode.ragged import take
from specdecode.roles import TargetOutput
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError
from vargen.checkpoints.finite import check_weights
from vargen.checkpoints.model_folder import check_component_folder
from vargen.drafters.eagle_draft_head import EagleDraftHead, check_sizes
from vargen.drafters.kept_caches import KeptCaches
from vargen.drafters.target_states import are_alike, fixed_tokens, sample_states
from vargen.drafters.text_head import TextHead
from vargen.drafters.transformers_draft_head import PromptReadingHead


class TextDraftHead(PromptReadingHead):
    """`DraftHead` of chains for one batch of texts. What nothing is drafted from is never read: the prompt waits until
    the first pairs are fed, and a pair's feature is the target's states as they are, until it is fed.

    Args:
        drafter: a `TextHead`, in eval mode, which has borrowed from the target's model.
        target: without a decoder of its own; its prompts are tokens.
        most_new_pairs, caches: as for `EagleDraftHead`.
    """

    drafter: TextHead

    def __init__(
        self, drafter: TextHead, target: TransformersTarget, most_new_pairs: int, caches: KeptCaches | None = None
    ) -> None:
        drafter.rotary_rows.reserve(target.longest_prompt, target.max_new_tokens + 1)
        super().__init__(drafter, target, most_new_pairs, caches)
        if not drafter.feature_layers:
            target.feature_layers = (int(target.model.config.get_text_config().num_hidden_layers),)

    def start(self, prompt: TargetOutput) -> Tensor:
        """See `DraftHead.start`; the prompt is fed later."""
        self._prompt: Tensor | None = self.states(prompt)
        return self._prompt[:, -1:]

    def features(self, output: TargetOutput) -> Tensor:
        """[B, n, k dim]: the target's states after k layers, side by side."""
        return self.states(output)

    def forward(self, tokens: Tensor, features: Tensor, mask: Tensor, depths: Tensor) -> DraftHeadOutput:
        """See `DraftHead.forward`; features are the target's states, or guesses [B, q, dim]."""
        if self._prompt is not None:
            self._read(self._fused(self._prompt))
            self._prompt = None
        if features.shape[-1] != self.drafter.config.dim:
            features = self._fused(features)
        self._last = depths.amax(-1, keepdim=True)  # of pairs that follow each other
        return super().forward(tokens, features, mask, depths)

    def replace_rows(self, rows: Tensor, other: EagleDraftHead) -> None:
        """Rows of a text stay to its end. Raises ValueError."""
        raise ValueError("a head for text cannot take other prompts in; decode in fixed batches")

    def guided_logits(self, hidden_states: Tensor) -> Tensor:
        """Logits of the last pair, in the place of every one's: chains are drafted from it alone."""
        count = hidden_states.shape[1]
        if count > 1:
            hidden_states = take(hidden_states, self._last.expand(len(hidden_states), -1))
        return self.drafter.spread(self.drafter.draft_logits(hidden_states)).expand(-1, count, -1)


class TextDrafter:
    """A trained head, ready for `specdecode.generate(model, ..., drafter=...)`; plays its `DrafterMaker`.

    Args:
        network: made for the model.
        model: a causal language model of transformers.

    Attributes:
        draft_length: tokens drafted in a step where the call does not say.
        most_waiting: copied tokens that wait until the head guesses again; then it reads them at once.

    Raises:
        UserError: it was trained for another model.
    """

    draft_length = 4
    most_waiting = 256

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

    def __call__(self, target: TransformersTarget, sizer: DraftSizer) -> EagleDrafter:
        """The drafter of a batch; see `DrafterMaker`. Raises ValueError for another model than its own."""
        if target.model is not self.model:
            raise ValueError("drafter was loaded for another model; load it with this one")
        shape = StaticTree.chain(sizer.largest.depth)
        waiting = min(self.most_waiting, target.max_new_tokens)
        pairs = EagleDrafter.most_new_pairs(shape, sizer.largest, target.max_draft_nodes, waiting)
        head = TextDraftHead(self.network, target, pairs)
        return EagleDrafter(head, shape, sizer, most_waiting=waiting)


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
    """A trained head for a model, on its device and of its dtype; on a CPU with kernels its matrices have eight bits.

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
    drafter = TextDrafter(network.to(weight.device).eval().requires_grad_(False), model)
    if weight.device.type == "cpu" and library() is not None:
        network.round_weights()
    return drafter
