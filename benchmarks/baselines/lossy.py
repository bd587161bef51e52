"""Targets that lose visual tokens on their way through the layers: FastV and SparseVLM.

Two published ways to make a Video-LLM faster that change what it says: baselines to compare with.

The library's layers are as they are. While the prompt is fed, tokens are taken out between two layers, together with
their places in masks and position embeddings; all that is left keeps its own position. Later layers then cache less,
at the end of the prompt's slots, and for new tokens each gets the part of the mask that fits what it has.

"After layer k" means after k decoder layers, as in `VideoTarget.capture_layers`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from scenes.training.video_views import at_places
from specdecode.roles import TargetOutput
from specdecode.targets.arguments import cache_among
from specdecode.targets.transformers import SlotCache
from vargen.base.options import option
from vargen.video.methods.base import VideoMethod, VideoMethodConfig
from vargen.video.models.attention import watch_attention
from vargen.video.models.pruning import keep_highest, token_budget
from vargen.video.models.request import VideoRequest
from vargen.video.models.target import SeenPrompt, VideoTarget
from vargen.video.pipelines.components import VideoLLMComponents


@dataclass
class PrunedPrompt(SeenPrompt):
    """A prompt of which layers have cached less and less.

    Attributes:
        places: for every layer [T'] int64, ascending: the tokens that it has cached.
    """

    places: list[Tensor] = field(default_factory=list)


class ShortenedCache(SlotCache):
    """Its later layers hold only the end of the prompt: new tokens read from slot `first_slots[layer]` on."""

    first_slots: Sequence[int] = ()

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        """See `SlotCache.update`."""
        read = super().update(key_states, value_states, layer_idx, *args, **kwargs)
        return read if self._is_prompt else tuple(each[:, :, self.first_slots[layer_idx] :] for each in read)


class PruningTarget(VideoTarget):
    """A target that leaves out visual tokens after some layers, by the attention that some text pays in the last one.

    Args:
        model, requests, options: see `VideoTarget`.
        stages: after which layer which share of the m visual tokens is kept.

    Raises:
        ValueError: a stage after the last layer or before the first, or a share outside (0, 1].
    """

    def __init__(
        self, model: Any, requests: VideoRequest | Sequence[VideoRequest], stages: Mapping[int, float], **options: Any
    ) -> None:
        super().__init__(model, requests, **options)
        own = self._cache
        self._cache: SlotCache = ShortenedCache(own._name, own._num_layers, own._num_rows)
        last = len(self.language_model.layers) - 1
        for layer, share in stages.items():
            if not 1 <= layer <= last:
                raise ValueError(f"tokens can be left out after layer 1 to {last} of this model, got layer {layer}")
            token_budget(1, share)
        self.stages = dict(stages)
        self._attention = torch.empty(0)
        self._starts: list[Tensor] = []

    def _raters(self, request: VideoRequest) -> Tensor:
        """[n] int64 places in the prompt: whose attention decides."""
        raise NotImplementedError

    def _choose(self, states: Tensor, scores: Tensor, budget: int) -> tuple[Tensor, Tensor]:
        """Which visual tokens go on, and what they are.

        Args:
            states: [m', dim] hidden states of those that have come so far. scores: [m'] float32. budget: how many stay.

        Returns:
            [k] int64 numbers among the m', ascending, and [k, dim] hidden states.
        """
        raise NotImplementedError

    def start_prompts(self) -> None:
        """Empty the cache; every layer is to have all tokens."""
        super().start_prompts()
        num_layers = len(self.language_model.layers)
        self._prompts = [
            PrunedPrompt(each, places=[torch.arange(each.length, device=self.device)] * num_layers)
            for each in self.requests
        ]

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        """See `TransformersTarget.forward`; each layer is shown what it has."""
        handles = self._narrowing()
        try:
            return super().forward(tokens, mask, depths)
        finally:
            for handle in handles:
                handle.remove()

    def finish_prompts(self) -> None:
        """All prompts lie in the cache; of later layers the first slots are empty."""
        super().finish_prompts()
        lengths = torch.tensor([[len(places) for places in prompt.places] for prompt in self.prompts])  # [B, layers]
        starts = self.prompt_length - lengths
        cast(ShortenedCache, self._cache).first_slots = starts.amin(0).tolist()
        self._starts = [each[:, None, None, None] for each in starts.T.to(self.device)]

    def _hooks(self, prompt: Any) -> list[RemovableHandle]:
        layers, raters, handles = self.language_model.layers, self._raters(prompt.request), super()._hooks(prompt)
        for number in range(1, len(layers)):
            if number in self.stages:
                handles.append(self._watch(layers[number - 1].self_attn, prompt, number - 1, raters))
            handles.append(layers[number].register_forward_pre_hook(self._cutter(prompt, number), with_kwargs=True))
        return handles

    def _deepener(self, prompt: Any, number: int) -> Any:
        """As `VideoTarget` has it, at the visual tokens that are left."""
        request = prompt.request

        def add(module: Any, args: Any, inputs: dict[str, Any], output: Tensor) -> Any:
            if cache_among(inputs) is not self._cache:
                return None  # another request's pass through the same model
            places = prompt.places[number]
            visual = request.is_visual[places]
            rows = (request.is_visual.cumsum(0) - 1)[places[visual]]
            return output.index_add(1, visual.nonzero()[:, 0], request.deepstack[number][None, rows].to(output))

        return add

    def _watch(self, module: Any, prompt: Any, number: int, raters: Tensor) -> RemovableHandle:
        """Keep what attention the raters pay in a layer."""

        def keep(attention: Tensor) -> None:  # [heads, T']
            self._attention = attention.mean(0)

        # Text is never left out, so every rater is among the places.
        rows = lambda: torch.searchsorted(prompt.places[number], raters)  # noqa: E731
        return watch_attention(module, self._cache, rows, keep)

    def _cutter(self, prompt: Any, number: int) -> Any:
        """A hook before layer `number`, counted from 0, while a prompt is fed."""

        def cut(module: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
            if cache_among(inputs) is not self._cache:
                return None  # another request's pass through the same model
            hidden_states = args[0]  # [1, T', dim]
            if number in self.stages:
                hidden_states = self._leave_out(prompt, hidden_states, number)
            return (hidden_states, *args[1:]), at_places(inputs, prompt.places[number])

        return cut

    def _narrowing(self) -> list[RemovableHandle]:
        """What takes part in a pass over new tokens."""
        return [
            layer.register_forward_pre_hook(self._narrower(number), with_kwargs=True)
            for number, layer in enumerate(self.language_model.layers)
        ]

    def _narrower(self, number: int) -> Any:
        """A hook before layer `number`, counted from 0, while new tokens are fed."""

        def narrow(module: Any, args: tuple[Any, ...], inputs: dict[str, Any]) -> Any:
            if cache_among(inputs) is not self._cache or not isinstance(self._cache, ShortenedCache):
                return None
            first = self._cache.first_slots[number]
            mask = inputs["attention_mask"][..., first:]  # [B, 1, n, S]
            slots = torch.arange(first, first + mask.shape[-1], device=mask.device)
            mask = mask.masked_fill(slots < self._starts[number], torch.finfo(mask.dtype).min)
            return args, {**inputs, "attention_mask": mask}

        return narrow

    def _leave_out(self, prompt: Any, hidden_states: Tensor, number: int) -> Tensor:
        """What goes into layer `number`, counted from 0, of the hidden states [1, T', dim]; the places are noted."""
        places = prompt.places[number]
        is_visual = prompt.request.is_visual[places]
        visual = is_visual.nonzero()[:, 0]
        budget = token_budget(prompt.request.num_visual, self.stages[number])
        kept, states = self._choose(hidden_states[0, visual], self._attention[visual], budget)
        stays = ~is_visual
        stays[visual[kept]] = True
        hidden_states = hidden_states.clone()
        hidden_states[0, visual[kept]] = states.to(hidden_states)
        prompt.places[number:] = [places[stays]] * (len(prompt.places) - number)
        return hidden_states[:, stays]


class FastVTarget(PruningTarget):
    """FastV (arXiv 2403.06764): after layer k, the visual tokens to which the prompt's last token pays most attention.

    Args:
        model, requests, options: see `VideoTarget`.
        keep_ratio: share of the visual tokens that is kept, 1 - R in the paper.
        layer: k, 1 or more. Its attention is the mean over its heads.

    Raises:
        ValueError: a layer or a share out of range.
    """

    def __init__(
        self,
        model: Any,
        requests: VideoRequest | Sequence[VideoRequest],
        keep_ratio: float,
        layer: int = 2,
        **options: Any,
    ) -> None:
        super().__init__(model, requests, {layer: keep_ratio}, **options)

    def _raters(self, request: VideoRequest) -> Tensor:
        return torch.tensor([request.length - 1], device=self.device)

    def _choose(self, states: Tensor, scores: Tensor, budget: int) -> tuple[Tensor, Tensor]:
        kept = keep_highest(scores, budget)
        return kept, states[kept]


class SparseVLMTarget(PruningTarget):
    """SparseVLM (arXiv 2410.04417): fewer and fewer visual tokens, by the attention of the text that speaks of them.

    The raters are the tokens after the video that are likelier to the video than their average: with softmax over
    these tokens of the embeddings' products, and the mean over visual tokens. Of those left out at a stage, the 30 %
    with most attention are clustered, and each cluster goes on as one token, their mean, at the place of its centre:
    recycled tokens, which come on top of the budget and may be left out at a later stage.

    Args:
        model, requests, stages, options: see `PruningTarget` and `sparsevlm_stages`.

    Raises:
        ValueError: a layer or a share out of range, or, in the prefill, no text after the video.
    """

    def _raters(self, request: VideoRequest) -> Tensor:
        return sparsevlm_raters(request)

    def _choose(self, states: Tensor, scores: Tensor, budget: int) -> tuple[Tensor, Tensor]:
        kept = keep_highest(scores, min(budget, len(scores)))
        is_left = torch.ones_like(scores, dtype=torch.bool)
        is_left[kept] = False
        left = is_left.nonzero()[:, 0]
        if not len(left):
            return kept, states
        recycled = left[scores[left].topk(int(len(left) * _RECYCLED_SHARE) + 1).indices]
        points = states[recycled].float()
        centres, cluster = density_peaks(points, len(recycled) // _TOKENS_OF_A_CLUSTER + 1)
        sums = torch.zeros_like(points[centres]).index_add(0, cluster, points)
        means = sums / cluster.bincount(minlength=len(centres))[:, None]
        states = states.index_copy(0, recycled[centres], means.to(states))
        kept = torch.cat((kept, recycled[centres])).sort().values
        return kept, states[kept]


_RECYCLED_SHARE, _TOKENS_OF_A_CLUSTER = 0.3, 10


def sparsevlm_raters(request: VideoRequest) -> Tensor:
    """[n] int64 places of the text tokens that decide; all after the video, where none is likelier than the others.

    Raises:
        ValueError: there is no text after the video.
    """
    rows = request.question_places
    embeds = request.inputs_embeds[0].float()
    relevance = (embeds[request.is_visual] @ embeds[rows].T).softmax(-1).mean(0)  # [tokens after the video]
    above = relevance > relevance.mean()
    return rows[above] if bool(above.any()) else rows


def sparsevlm_stages(num_layers: int, keep_ratio: float) -> dict[int, float]:
    """After which layer which share of the visual tokens is kept: the release's three stages, for any depth and share.

    The release has three schedules for a model of 32 layers and 576 tokens, of 64, 128 and 192 tokens "on average";
    between these shares, and up to keeping all, the counts are interpolated, and below they shrink in proportion.
    Shallow models have fewer layers than stages: there the last stage of a layer counts.

    Args:
        num_layers: of the model, 2 or more.
        keep_ratio: share of the visual tokens, in (0, 1].

    Raises:
        ValueError: a share out of range, or a single layer.
    """
    if not 0 < keep_ratio <= 1:
        raise ValueError(f"keep_ratio must lie above 0 and at most at 1, got {keep_ratio}")
    if num_layers < 2:
        raise ValueError(f"num_layers must be at least 2: nothing can be left out between layers of {num_layers}")
    right = min(bisect_right(_RATIOS, keep_ratio), len(_RATIOS) - 1)
    weight = (keep_ratio - _RATIOS[right - 1]) / (_RATIOS[right] - _RATIOS[right - 1])
    stages: dict[int, float] = {}
    for number, layer in enumerate(_LAYERS):
        low, high = _KEPT[right - 1][number], _KEPT[right][number]
        share = (low + weight * (high - low)) / _TOKENS
        stages[min(max(1, round(layer / _DEPTH * num_layers)), num_layers - 1)] = share
    return stages


# The release prunes the outputs of layers 2, 6 and 15, counted from 0.
_DEPTH, _TOKENS, _LAYERS = 32, 576, (3, 7, 16)
_KEPT = ((0, 0, 0), (66, 30, 17), (303, 110, 36), (300, 200, 110), (576, 576, 576))
_RATIOS = tuple(average / _TOKENS for average in (0, 64, 128, 192, 576))


def density_peaks(points: Tensor, num_clusters: int) -> tuple[Tensor, Tensor]:
    """Clusters around points that have near neighbours and stand far from any point with nearer ones (DPC-kNN).

    Source: Du et al. 2016, "Study on density peaks clustering based on k-nearest neighbors and principal component
    analysis"; k is the number of clusters, as in SparseVLM's release.

    Args:
        points: [n, dim] float32.
        num_clusters: 1 to n.

    Returns:
        [num_clusters] int64 numbers of the centres, and [n] int64 which cluster each point belongs to.
    """
    count = len(points)
    distance = torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist") / points.shape[1] ** 0.5
    nearest = distance.topk(num_clusters, largest=False).values  # itself among them
    density = (-nearest.square().mean(-1)).exp()
    order = torch.arange(count, device=points.device)
    # The first of two points of equal density counts as the denser.
    denser = (density > density[:, None]) | ((density == density[:, None]) & (order < order[:, None]))
    separation = torch.where(denser, distance, distance.max()).amin(-1)
    centres = (separation * density).argsort(descending=True, stable=True)[:num_clusters]
    cluster = distance[:, centres].argmin(-1)
    cluster[centres] = torch.arange(num_clusters, device=points.device)
    return centres, cluster


@dataclass(frozen=True)
class FastVConfig(VideoMethodConfig):
    """FastV (arXiv 2403.06764): plain decoding with part of the video dropped early. Loses quality."""

    name: ClassVar[str] = "fastv"
    summary: ClassVar[str] = "FastV: plain decoding; most visual tokens are dropped after an early layer"
    exact: ClassVar[bool] = False

    layer: int = option(2, least=1)
    """K, the decoder layer after which visual tokens are dropped."""
    drop_ratio: float = option(0.5, least=0.0, below=1.0)
    """R, the share that is dropped."""

    def _players(self, components: VideoLLMComponents) -> VideoMethod:
        return VideoMethod(
            target=FastVTarget(
                components.model, components.requests, 1 - self.drop_ratio, self.layer, **components.sizes(1)
            )
        )


@dataclass(frozen=True)
class SparseVLMConfig(VideoMethodConfig):
    """SparseVLM (arXiv 2410.04417): plain decoding; visual tokens are dropped step by step, some recycled."""

    name: ClassVar[str] = "sparsevlm"
    summary: ClassVar[str] = "SparseVLM: plain decoding; visual tokens are dropped layer by layer, some merged"
    exact: ClassVar[bool] = False

    keep_ratio: float = option(0.25, above=0.0, most=1.0)
    """Share of visual tokens that is left in the end."""

    def _players(self, components: VideoLLMComponents) -> VideoMethod:
        stages = sparsevlm_stages(components.num_layers, self.keep_ratio)
        return VideoMethod(target=SparseVLMTarget(components.model, components.requests, stages, **components.sizes(1)))
