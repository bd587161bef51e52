"""One question about one video, as the language model inside a Video-LLM reads it: embeddings and positions.

Belongs here: merging the vision tower's output into the prompt once (the target and a drafter of the same weights
share it), positions that belong to the request, and leaving visual tokens out. Does not belong here: which tokens to
leave out (`pruning.py`), caches and decoding (`target.py`).

transformers keeps the offset between a Qwen-VL sequence's length and its next position as state of the model object, so
a second request, or a pruned drafter of the same weights, silently breaks the first. Here positions are worked out
once, belong to the request and are always passed explicitly. Differences between architectures are in
`vargen.video.models.architectures`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor

from vargen.video.models.architectures.base import VideoFeatures
from vargen.video.models.architectures.catalogue import architecture_of
from vargen.video.models.pruning import (
    keep_jittered,
    keep_low_discrepancy,
    keep_random,
    keep_uniform,
    token_budget,
    visual_gain,
)


@dataclass(frozen=True)
class VideoRequest:
    """A prompt of T tokens, m of them visual.

    Attributes:
        input_ids: [1, T] int64.
        inputs_embeds: [1, T, dim], the video's features in their places.
        position_ids: [A, 1, T] int64: A is 3 for M-RoPE (time, height, width), 1 for plain positions.
        is_visual: [T] bool.
        next_position: of the first generated token, on every axis; the one after stands one further.
        num_separators: visual tokens at the end that show nothing and are never left out: LLaVA-OneVision's new line.
        deepstack: [m, dim] each: what is added to the hidden states of the visual tokens after the first decoder layer,
            the second, and so on; empty where the architecture has none.
    """

    input_ids: Tensor
    inputs_embeds: Tensor
    position_ids: Tensor
    is_visual: Tensor
    next_position: int
    num_separators: int = 0
    deepstack: tuple[Tensor, ...] = ()

    @property
    def length(self) -> int:
        """T."""
        return self.input_ids.shape[1]

    @cached_property
    def num_visual(self) -> int:
        """m; the first time it is asked for, that waits for the device."""
        return int(self.is_visual.sum())

    @property
    def question_places(self) -> Tensor:
        """[n] int64: places of the text after the video, which says what is asked for. Raises ValueError for none."""
        last = int(self.is_visual.nonzero()[-1, 0])
        length = len(self.is_visual)
        if last + 1 == length:
            raise ValueError(
                "request has no text after the video, so nothing says what matters in it; put the question last"
            )
        return torch.arange(last + 1, length, device=self.is_visual.device)


@torch.no_grad()
def encode_video(model: Any, inputs: Mapping[str, Tensor]) -> VideoFeatures:
    """What the vision tower makes of the video.

    Args:
        model: of transformers, of an architecture in `vargen.video.models.architectures.catalogue`.
        inputs: of its processor, with `pixel_values_videos`.

    Raises:
        UserError: another architecture.
        ValueError: there is no video, one without frames, or something the architecture needs is missing.
    """
    architecture = architecture_of(model)
    pixels = inputs.get("pixel_values_videos")
    if pixels is None:
        raise ValueError("inputs must hold pixel_values_videos: the prompt has no video; give the processor one")
    if pixels.numel() == 0:
        raise ValueError("inputs: the video has no frames; give at least as many as the model reads at once")
    for name in architecture.needs:
        if name not in inputs:
            raise ValueError(
                f"inputs must hold {name}: without it this model silently falls back to other positions; use the "
                "processor of transformers 5.3 or later"
            )
    return architecture.encode(model, inputs)


@torch.no_grad()
def prepare_request(model: Any, inputs: Mapping[str, Tensor]) -> VideoRequest:
    """A request out of what the model's processor gives.

    Args:
        model: as for `encode_video`.
        inputs: `input_ids` [1, T] and the video's tensors; for Qwen's architectures `mm_token_type_ids`, too.

    Raises:
        UserError: another architecture.
        ValueError: more than one prompt, no video, an input missing, or another number of visual tokens than features.
    """
    architecture, input_ids = architecture_of(model), inputs["input_ids"]
    if input_ids.shape[0] != 1:
        raise ValueError(f"inputs must hold one prompt, got {input_ids.shape[0]}; make a request of each")
    is_visual = architecture.is_visual(model.config, input_ids)[0]
    if not is_visual.any():
        raise ValueError("inputs: the prompt has no place for the video; use the processor's chat template")
    features = encode_video(model, inputs)
    if any(len(each) != int(is_visual.sum()) for each in (features.embeds, *features.deepstack)):
        raise ValueError(
            f"inputs: the prompt has {int(is_visual.sum())} visual tokens, the video gives {len(features.embeds)}; "
            "both must come from one call of the processor"
        )
    embeds = model.get_input_embeddings()(input_ids)  # [1, T, dim]
    embeds = embeds.masked_scatter(is_visual[None, :, None], features.embeds.to(embeds))
    position_ids, next_position = architecture.positions(model, inputs)
    return VideoRequest(
        input_ids,
        embeds,
        position_ids,
        is_visual,
        next_position,
        architecture.num_separators,
        tuple(each.to(embeds) for each in features.deepstack),
    )


def keep_share(request: VideoRequest, keep_ratio: float, choose: Callable[[int, int], Tensor]) -> Tensor:
    """[k] int64, ascending: numbers of the visual tokens to keep, separators on top.

    Args:
        keep_ratio: share of the tokens that show something; see `vargen.video.models.pruning.token_budget`.
        choose: gives [budget] numbers, ascending, of how many tokens and what budget it is told.
    """
    shown = request.num_visual - request.num_separators
    kept = choose(shown, token_budget(shown, keep_ratio))
    separators = torch.arange(shown, request.num_visual, device=request.is_visual.device)
    return torch.cat((kept.to(separators.device), separators))


def keep_spread(request: VideoRequest, keep_ratio: float, by: str, seed: int) -> Tensor:
    """[k] int64, ascending, separators on top: visual tokens that are chosen without a look at any.

    Args:
        keep_ratio: see `keep_share`.
        by: one of `vargen.video.methods.base.SPREADS`.
        seed: of what is drawn at random, by a generator of this request alone.

    Raises:
        ValueError: another word.
    """
    generator = torch.Generator().manual_seed(seed)

    def low_discrepancy(shown: int, budget: int) -> Tensor:
        places = request.position_ids[:, 0, request.is_visual][:, :shown]  # [A, m]
        return keep_low_discrepancy(places, budget, generator)

    ways: dict[str, Callable[[int, int], Tensor]] = {
        "uniform": keep_uniform,
        "random": partial(keep_random, generator=generator),
        "jittered": partial(keep_jittered, generator=generator),
        "low_discrepancy": low_discrepancy,
    }
    if by not in ways:
        raise ValueError(f"by must be one of {', '.join(ways)}, got {by!r}")
    return keep_share(request, keep_ratio, ways[by])


def visual_gain_scorer(request: VideoRequest) -> Callable[[Tensor, Tensor], Tensor]:
    """UV-Prune's score of each visual token by the text after the video; see `pruning.visual_gain`.

    Returns:
        A function of the prompt's hidden states [T, dim] at the embeddings and after a layer, which gives [m] and never
        waits for the device: it may be called in the middle of a prefill.
    """
    visual, asks = request.is_visual.nonzero()[:, 0], request.question_places
    return lambda before, after: visual_gain(before[visual], after[visual], before[asks], after[asks])


def keep_visual(request: VideoRequest, kept: Tensor) -> VideoRequest:
    """The request with some of its visual tokens only. All text stays, and everything keeps its order and position.

    Args:
        request: the whole one.
        kept: [k] int64 numbers of visual tokens, counted among the visual tokens, ascending.

    Raises:
        ValueError: numbers out of range or out of order.
    """
    count = request.num_visual
    if len(kept) and (int(kept.min()) < 0 or int(kept.max()) >= count or bool((kept.diff() <= 0).any())):
        raise ValueError(f"kept must be ascending numbers of visual tokens below {count}")
    stays = ~request.is_visual
    places = request.is_visual.nonzero()[:, 0]
    stays[places[kept]] = True
    return replace(
        request,
        input_ids=request.input_ids[:, stays],
        inputs_embeds=request.inputs_embeds[:, stays],
        position_ids=request.position_ids[..., stays],
        is_visual=request.is_visual[stays],
        deepstack=tuple(each[kept.to(each.device)] for each in request.deepstack),
    )
