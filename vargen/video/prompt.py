"""From a method's settings to its players, for one answer about one video.

Belongs here: one branch per method of `methods.py` that plays in `specdecode.loop.decode`. Does not belong here:
settings, how any player works, and methods that run in a loop of their own (`answering.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from specdecode.draft_size import DraftSize, DraftSizer, FixedDraftSize
from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
from specdecode.roles import Drafter, Verifier
from specdecode.verifiers.exact import ExactVerifier
from specdecode.verifiers.loose import LooseVerifier
from specdecode.verifiers.windowed import WindowedVerifier
from vargen.errors import UserError
from vargen.methods.catalogue import MethodConfig
from vargen.video.attention import rows_after_video, video_attention
from vargen.video.drafters.feature_drafter import FeatureDrafter
from vargen.video.drafters.feature_head import FeatureHead, feature_drafter
from vargen.video.methods.catalogue import (
    FastVConfig,
    FlyConfig,
    LVSpecConfig,
    PlainConfig,
    SparseToDenseConfig,
    SparseVLMConfig,
    SpeculativeConfig,
    SpecVLMConfig,
    TrainedDrafterConfig,
)
from vargen.video.methods.lossy import FastVTarget, SparseVLMTarget, sparsevlm_stages
from vargen.video.methods.sparse_draft import SparseDraft
from vargen.video.pruned_draft import PrunedDraft
from vargen.video.pruning import keep_by_attention, keep_highest, keep_uniform, token_budget, visual_gain
from vargen.video.request import VideoRequest, keep_share, prepare_request
from vargen.video.target import VideoTarget

_DRAFT_LENGTH = 8  # of trained drafters that guess one place at a time


@dataclass
class Players:
    """As `specdecode.loop.decode` takes them.

    Args:
        network: what the drafter drafts with, where that is a model or a trained head beside the target.
    """

    target: VideoTarget
    drafter: Drafter | None = None
    verifier: Verifier | None = None
    network: VideoTarget | FeatureHead | None = None


@dataclass
class Prompt:
    """A prompt as the models of a pair see it.

    Args:
        model: the target's.
        inputs: of the processor.
        draft_model: the smaller one, if there is one.
        protected_tokens: special tokens, which nobody may loosen.
        trained_drafter: gives the network that a method's settings ask for.
    """

    model: Any
    inputs: Mapping[str, Tensor]
    draft_model: Any | None
    protected_tokens: tuple[int, ...] = ()
    trained_drafter: Callable[[TrainedDrafterConfig], FeatureDrafter] | None = None

    def __post_init__(self) -> None:
        self._request: VideoRequest | None = None

    @property
    def request(self) -> VideoRequest:
        """The target's; its vision tower has run once."""
        if self._request is None:
            self._request = prepare_request(self.model, self.inputs)
        return self._request

    def draft_request(self, drafter: str) -> tuple[Any, VideoRequest]:
        """The drafter's model and its request, whole. The target's own weights share what its vision tower made.

        Raises:
            UserError: there is no smaller model, or it has another vocabulary.
        """
        if drafter == "self":
            return self.model, self.request
        if self.draft_model is None:
            raise UserError('draft_model must be given: this method drafts with a smaller model; or set drafter "self"')
        return self.draft_model, prepare_request(self.draft_model, self.inputs)

    @property
    def vocab_size(self) -> int:
        """Of the logits that are compared: the shorter one, since models of one family pad theirs differently."""
        models = [self.model] if self.draft_model is None else [self.model, self.draft_model]
        return min(int(model.config.get_text_config().vocab_size) for model in models)


def build_players(config: MethodConfig, prompt: Prompt) -> Players:
    """The players of a method.

    Raises:
        UserError: the method needs what is not there, or plays in no loop of this kind.
    """
    target = partial(VideoTarget, prompt.model, prompt.request, vocab_size=prompt.vocab_size)
    try:
        if isinstance(config, PlainConfig):
            return Players(target())
        if isinstance(config, FastVConfig):
            keep_ratio = 1 - config.drop_ratio
            return Players(FastVTarget(prompt.model, prompt.request, keep_ratio, config.layer, prompt.vocab_size))
        if isinstance(config, SparseVLMConfig):
            stages = sparsevlm_stages(len(prompt.model.model.language_model.layers), config.keep_ratio)
            return Players(SparseVLMTarget(prompt.model, prompt.request, stages, prompt.vocab_size))
        if isinstance(config, SparseToDenseConfig):
            dense = target(capture_attention=True)
            budget = token_budget(prompt.request.num_visual, config.keep_ratio)
            return Players(dense, _chain(SparseDraft(dense, budget), config.draft_length), ExactVerifier())
        if isinstance(config, TrainedDrafterConfig):
            return _trained(config, prompt, target)
        if isinstance(config, SpeculativeConfig):
            return _speculative(config, prompt, target)
    except ValueError as error:
        raise UserError(f"{config.name}: {error}") from error
    raise UserError(f"method {config.name!r} plays in no loop of this kind")


def _speculative(config: SpeculativeConfig, prompt: Prompt, make_target: Callable[..., VideoTarget]) -> Players:
    layer = pruning_layer(config, prompt.model)
    target = make_target(
        capture_attention=config.pruning == "attention" and config.keep_ratio < 1,
        capture_layers=(0, layer) if config.pruning == "visual_gain" and config.keep_ratio < 1 else (),
    )
    model, request = prompt.draft_request(config.drafter)
    draft = PrunedDraft(
        model, request, partial(_choose, config, target, layer), compact=config.compact, vocab_size=prompt.vocab_size
    )
    if isinstance(config, SpecVLMConfig) and config.tree != "chain":
        return Players(target, DraftModelTreeDrafter(draft, StaticTree.published(config.tree)), ExactVerifier(), draft)
    return Players(target, _chain(draft, config.draft_length), _verifier(config, prompt, target), draft)


def _trained(config: TrainedDrafterConfig, prompt: Prompt, make_target: Callable[..., VideoTarget]) -> Players:
    if prompt.trained_drafter is None:
        raise UserError("drafter must be given: there are no trained drafters here")
    network = prompt.trained_drafter(config)
    target = make_target(capture_layers=network.config.capture_layers)
    depth = config.depth
    if depth is None:
        depth = network.config.draft_length if network.config.draft_length > 1 else _DRAFT_LENGTH
    drafter = feature_drafter(network, target, *_shape(config, depth))
    assert isinstance(drafter.head, FeatureHead)
    return Players(target, drafter, ExactVerifier(), drafter.head)


def _shape(config: TrainedDrafterConfig, depth: int) -> tuple[DynamicTree | StaticTree, DraftSizer]:
    """What is drafted: its shape, and how much of it."""
    if config.tree == "dynamic":
        most = 1 + config.tree_top_k + max(depth - 1, 0) * config.tree_top_k**2  # candidates that there are at all
        size = DraftSize(min(config.total_tokens, most), min(depth, config.total_tokens - 1))
        return DynamicTree(config.tree_top_k), FixedDraftSize(size)
    shape = StaticTree.chain(depth) if config.tree == "chain" else StaticTree.published(config.tree)
    return shape, FixedDraftSize(DraftSize(shape.num_nodes, min(depth, shape.max_depth)))


def _chain(model: VideoTarget, draft_length: int) -> DraftModelDrafter:
    """Likeliest tokens: judged by one draw from the target, they are accepted as often as any, and never cost
    exactness."""
    return DraftModelDrafter(model, FixedDraftSize(DraftSize(draft_length + 1, draft_length)), children="top")


def _verifier(config: SpeculativeConfig, prompt: Prompt, target: VideoTarget) -> Verifier:
    if isinstance(config, FlyConfig):
        return WindowedVerifier(config.threshold, config.window, config.mode)
    if isinstance(config, LVSpecConfig):

        def visual_hidden_states() -> Tensor:
            assert target.visual_hidden_states is not None
            return target.visual_hidden_states

        return LooseVerifier(
            visual_hidden_states,
            config.loose_ratio,
            config.num_nearest,
            config.position_shift,
            prompt.protected_tokens,
            config.relevance_from,
        )
    return ExactVerifier()


def pruning_layer(config: SpeculativeConfig, model: Any) -> int:
    """The layer that UV-Prune compares with the embeddings. The paper gives no rule; a quarter of them is ours."""
    num_layers = len(model.model.language_model.layers)
    if config.pruning_layer is None:
        return max(1, num_layers // 4)
    if config.pruning_layer > num_layers:
        raise UserError(f"{config.name}.pruning_layer must be at most the model's {num_layers}")
    return config.pruning_layer


def visual_gain_scorer(request: VideoRequest) -> Callable[[Tensor, Tensor], Tensor]:
    """UV-Prune's score of each visual token by the text after the video.

    Returns:
        A function of the prompt's hidden states [T, dim] at the embeddings and after a layer, which gives [m] and never
        waits for the device: it may be called in the middle of a prefill.
    """
    visual = request.is_visual.nonzero()[:, 0]
    asks = rows_after_video(request.is_visual)
    return lambda before, after: visual_gain(before[visual], after[visual], before[asks], after[asks])


def _choose(config: SpeculativeConfig, target: VideoTarget, layer: int) -> Tensor:
    """What the drafter is shown, when the target has seen everything."""

    def chosen(shown: int, budget: int) -> Tensor:
        if config.pruning == "uniform" or budget == shown:
            return keep_uniform(shown, budget)
        if config.pruning == "attention":
            share = config.attention_share if isinstance(config, SpecVLMConfig) else 0.4
            return keep_by_attention(video_attention(target)[:shown], budget, share)
        gain = visual_gain_scorer(target.request)(target.captured[0], target.captured[layer])
        return keep_highest(gain[:shown], budget)

    return keep_share(target.request, config.keep_ratio, chosen)
