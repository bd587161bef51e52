"""A Video-LLM and its draft model with the prompts of one batch: plays `vargen.video.methods.base.VideoComponents`.

Belongs here: the parts that methods build their players from. Does not belong here: methods, loops (`decoding.py`), and
anything that outlives a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from torch import Tensor

from specdecode.drafters.draft_model import MOST_WAITING
from specdecode.drafters.draft_size import NO_DRAFT, DraftSize, DraftSizer, FixedDraftSize
from vargen.models.draft_sizes import MeasuredDraftSizes
from vargen.video.drafters.video_draft_head import VideoDraftHead
from vargen.video.drafters.video_head import VideoHead
from vargen.video.methods.base import SPREADS, Pruning
from vargen.video.models.pruned_draft import PrunedDraft
from vargen.video.models.pruning import keep_by_attention, keep_highest
from vargen.video.models.request import VideoRequest, keep_share, keep_spread, prepare_request, visual_gain_scorer
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.loading import LazyModel
from vargen.video.pipelines.parallel_pair import ParallelLoop, ParallelPair

_RATE = 0.7
"""The acceptance rate that is expected of a draft token before any is measured."""


@dataclass
class VideoLLMComponents:
    """Plays `vargen.video.methods.base.VideoComponents`.

    Args:
        model: the target's.
        inputs: the processor's output for each prompt.
        max_new_tokens: tokens of an answer, at most.
        draft_model: loaded, or loaded when it is asked for; None: there is none.
        protected_tokens: special tokens, which no relaxed verifier may replace.
        load_draft_head: gives the network of a kind, in a folder or (None) the one that came with the model; None: no
            draft heads are there.
        lasting: what methods keep from one answer to the next, by keys that begin with their names. Its owner closes
            what is in it.
        repetition_penalty: of `generate`; 1 does nothing.
        source: where the target's weights came from; None: its folder.
        draft_sizes: what draft sizes turned out to cost and to be worth in earlier answers.
    """

    model: Any
    inputs: Sequence[Mapping[str, Tensor]]
    max_new_tokens: int
    draft_model: Any | None = None
    protected_tokens: tuple[int, ...] = ()
    load_draft_head: Callable[[str, str | None], VideoHead] | None = None
    lasting: MutableMapping[Hashable, Any] = field(default_factory=dict)
    repetition_penalty: float = 1.0
    source: LazyModel | None = None
    draft_sizes: MeasuredDraftSizes = field(default_factory=MeasuredDraftSizes)

    @property
    def batch_size(self) -> int:
        return len(self.inputs)

    @property
    def num_layers(self) -> int:
        return int(self.model.config.get_text_config().num_hidden_layers)

    @property
    def vocab_size(self) -> int:
        """Length of the logits that are compared: the shorter one, since models of a family pad theirs differently."""
        models = [self.model] if self.draft_model is None else [self.model, self.draft_model]
        return min(int(model.config.get_text_config().vocab_size) for model in models)

    @cached_property
    def requests(self) -> list[VideoRequest]:
        """The target's requests; its vision tower has run once."""
        return [prepare_request(self.model, each) for each in self.inputs]

    def sizes(self, num_nodes: int) -> dict[str, Any]:
        """Options of `VideoTarget` for a model that is fed so many nodes at once, or what has waited of a draft."""
        return {
            "max_new_tokens": self.max_new_tokens,
            "max_draft_nodes": max(num_nodes, MOST_WAITING + 2),
            "vocab_size": self.vocab_size,
            "repetition_penalty": self.repetition_penalty,
        }

    def draft_weights(self, drafter: str) -> Any:
        """The model that drafts: the target's own ("self") or the draft model ("pair")."""
        if drafter == "self":
            return self.model
        source = self.draft_source(drafter)
        return source.load() if isinstance(source, LazyModel) else source

    def draft_source(self, drafter: str) -> Any:
        """What `draft_weights` gives, or a `LazyModel` of it for another process to load."""
        if drafter == "self":
            return self.model if self.source is None else self.source
        return self.draft_model

    def _draft_requests(self, model: Any) -> list[VideoRequest]:
        """The requests of the model that drafts. The target's own weights share what its vision tower made."""
        if model is self.model:
            return self.requests
        return [
            prepare_request(model, {name: value.to(model.device) for name, value in each.items()})
            for each in self.inputs
        ]

    # What methods ask for: see `vargen.video.methods.base.VideoComponents`.

    def target(self, num_nodes: int, **options: Any) -> VideoTarget:
        return VideoTarget(self.model, self.requests, **options, **self.sizes(num_nodes))

    def visual_states(self, target: VideoTarget) -> list[Tensor]:
        return [seen.visual_hidden_states for seen in target.prompts]

    def pruned_draft(self, target: VideoTarget, drafter: str, pruning: Pruning, num_nodes: int) -> PrunedDraft:
        model = self.draft_weights(drafter)
        return PrunedDraft(
            model,
            self._draft_requests(model),
            partial(kept_tokens, target, pruning),
            home=target.device,
            **self.sizes(num_nodes),
        )

    def draft_head(self, network: VideoHead, target: VideoTarget) -> VideoDraftHead:
        return VideoDraftHead(network, target)

    def draft_sizer(self, sizes: Sequence[DraftSize], drafter: str) -> DraftSizer:
        if self.model.device.type != "cpu":
            return FixedDraftSize(sizes[-1])
        geometry = {
            "device": "cpu",
            "drafter": drafter,
            "model": self.model.config.get_text_config().to_dict(),
            "dtype": str(self.model.dtype),
            "rows": self.batch_size,
        }
        return self.draft_sizes.sizer([NO_DRAFT, *sizes], geometry, None, lambda: None, _RATE)

    def parallel_pair(self, drafter: str, workers: str, pruning: Pruning, draft_length: int | None) -> ParallelLoop:
        """Target and draft model working at the same time; the draft model's side is started once for all answers."""
        key = ("parallelvlm", drafter, workers)
        if key not in self.lasting:
            load = self.draft_source if workers == "processes" else self.draft_weights
            self.lasting[key] = ParallelPair(load(drafter), workers)
        (inputs,) = self.inputs
        return ParallelLoop(
            self.lasting[key],
            partial(self.target, self.max_new_tokens),
            lambda: self.requests[0],
            inputs,
            self.sizes(self.max_new_tokens),
            pruning,
            draft_length,
        )


def kept_tokens(target: VideoTarget, pruning: Pruning, row: int) -> Tensor:
    """[k] int64, ascending: numbers of a row's visual tokens that the drafter is shown, after the target's prefill."""
    seen = target.prompts[row]
    if pruning.keep_ratio == 1 or pruning.by in SPREADS:
        by = pruning.by if pruning.by in SPREADS else "uniform"  # of all there is nothing to choose
        return keep_spread(seen.request, pruning.keep_ratio, by, pruning.seed)

    def chosen(shown: int, budget: int) -> Tensor:
        if pruning.by == "attention":
            return keep_by_attention(target.video_attention(row)[:shown], budget)
        gain = visual_gain_scorer(seen.request)(seen.captured[0], seen.captured[pruning.layer])
        return keep_highest(gain[:shown], budget)

    return keep_share(seen.request, pruning.keep_ratio, chosen)
