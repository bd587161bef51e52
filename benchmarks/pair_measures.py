"""What a pair of Video-LLMs is like, measured on videos whose truth is known, as the papers describe theirs.

How early the target reads its video, what ways of pruning keep of the objects, and how long the drafter is right in a
row for what it is shown. Belongs here: measures of one video. Does not belong here: figures over many and tables
(`benchmarks/video_pair.py`), pruning itself (`vargen.video.pipelines`).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from baselines.lossy import PruningTarget
from torch import Tensor

from scenes.rendering.story import Story
from scenes.shipped import VIDEO_FRAMES, VIDEO_SIDE
from scenes.training.grounding import cell_attributes, cell_owners
from specdecode.loop import decode
from specdecode.roles import DecodeState, Target
from specdecode.runs.parallel.loop import chain_layout
from specdecode.sampling import RandomStreams, SamplingConfig
from vargen.base.resources import find_video_model
from vargen.video.methods.base import SPREADS, VideoMethod
from vargen.video.models.pruned_draft import PrunedDraft
from vargen.video.models.pruning import keep_by_attention, keep_highest
from vargen.video.models.request import VideoRequest, keep_spread, visual_gain_scorer
from vargen.video.models.target import VideoTarget

PRUNINGS = (*SPREADS, "attention", "visual_gain")


def add_pair_options(parser: ArgumentParser) -> None:
    """Which pair a script looks at, which videos of the scene world, and what it shows and writes."""
    parser.add_argument("--model", help="folder of the target, or the name of a shipped one")
    parser.add_argument("--draft_model", help="likewise, the smaller one")
    parser.add_argument("--num_frames", type=int, default=VIDEO_FRAMES)
    parser.add_argument("--image_size", type=int, default=VIDEO_SIDE)
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--dry_run", action="store_true", help="write no record")


def pair_folders(options: Namespace) -> list[Path]:
    """Of the target and the draft model that these options name."""
    return [find_video_model(options.model), find_video_model(options.draft_model or "video-llm-draft")]


class EarlyTarget(PruningTarget):
    """A target without any visual token after some layers, so that it can only tell what it has read by then.

    Args:
        model, request, options: see `VideoTarget`.
        layer: after how many layers they are taken away, 1 or more.

    Raises:
        ValueError: a layer that is none, or the last one, after which nothing is read.
    """

    def __init__(self, model: Any, request: VideoRequest, layer: int, **options: Any) -> None:
        super().__init__(model, request, {layer: 1.0}, **options)

    def _raters(self, request: VideoRequest) -> Tensor:
        return torch.tensor([request.length - 1], device=self.device)

    def _choose(self, states: Tensor, scores: Tensor, budget: int) -> tuple[Tensor, Tensor]:
        return torch.empty(0, dtype=torch.int64, device=states.device), states[:0]


def answer_tokens(target: Target, max_new_tokens: int, stop: Sequence[int]) -> list[int]:
    """Likeliest answer of a target of one row, by plain decoding, with the token of `stop` that ends it."""
    result = decode(
        target,
        max_new_tokens=max_new_tokens,
        sampling=SamplingConfig(temperature=0.0),
        streams=RandomStreams.from_seeds([0]),
        stop_token=tuple(stop) or None,
    )
    return result.tokens[0, : int(result.lengths[0])].tolist()


@torch.no_grad()
def agreements(target: VideoTarget, tokens: Sequence[int]) -> list[bool]:
    """Whether a model says each token of an answer, given those before it.

    Token-wise agreement with a target's own greedy answer is ParallelVLM's A; and where a drafter disagrees it is
    rejected, in whatever windows it drafts, so the runs in between are its M (`run_lengths`).

    Args:
        target: over one request; room for all tokens.
        tokens: the answer.
    """
    prompt = target.prefill()
    fed = torch.tensor([tokens[:-1]], device=target.device)
    said = [prompt.logits[0, -1:]]
    if len(tokens) > 1:
        places, mask = chain_layout(fed)
        said.append(target.forward(fed, mask, places).logits[0])
    return [a == b for a, b in zip(torch.cat(said).argmax(-1).tolist(), tokens, strict=True)]


def run_lengths(matches: Sequence[bool]) -> list[int]:
    """Tokens that are right in a row, from one that is wrong to the next; the end ends the last run."""
    runs = [0]
    for match in matches:
        if match:
            runs[-1] += 1
        else:
            runs.append(0)
    return runs[:-1] if len(runs) > 1 and not matches[-1] else runs


def shows_object(video: Story, grid_size: int) -> Tensor:
    """bool [m]: which visual tokens of Qwen2.5-VL show an object; of two frames in a step the later one counts."""
    cells = cell_attributes(video.frames[1::2], grid_size)["shape"]
    return cells.flatten() > 0


def touches_object(video: Story, grid_size: int) -> Tensor:
    """bool [m]: which visual tokens any part of an object's box touches, in either of the two frames of a step."""
    touched = cell_owners(video.frames, grid_size, margin=0.5) > 0  # [F, grid_size, grid_size]
    return touched.unflatten(0, (-1, 2)).any(1).flatten()


def pruning_scores(target: VideoTarget, layer: int, seed: int) -> Mapping[str, Callable[[int], Tensor]]:
    """Ways to choose visual tokens: by name, a function of how many that gives their ascending numbers.

    Args:
        target: prefilled, of one row, with `capture_attention` and `capture_layers` (0, layer).
        layer: which UV-Prune compares with the embeddings.
        seed: of "random".
    """
    seen = target.prompts[0]
    gain = visual_gain_scorer(seen.request)(seen.captured[0], seen.captured[layer])
    attention = target.video_attention(0)

    def spread(by: str) -> Callable[[int], Tensor]:
        return lambda budget: keep_spread(seen.request, budget / len(gain), by, seed)

    return {
        **{by: spread(by) for by in SPREADS},
        "attention": lambda budget: keep_by_attention(attention, budget),
        "visual_gain": lambda budget: keep_highest(gain, budget),
    }


def drafted_agreements(players: VideoMethod, **decoding: Any) -> list[list[bool]]:
    """Whether each token that a draft head drafts in a chain is the answer's at its place, by step.

    Whatever was drafted wrong before it in the chain: the answer of an exact method is the target's own.

    Args:
        players: of an exact method, over one request.
        decoding: of `specdecode.loop.decode`.
    """
    drafts: list[tuple[int, list[int]]] = []
    propose = players.drafter.propose  # type: ignore[union-attr]

    def noted(state: DecodeState) -> Any:
        draft = propose(state)
        drafts.append((int(state.lengths[0]), draft.tree.tokens[0, 1:].tolist()))
        return draft

    players.drafter.propose = noted  # type: ignore[union-attr, method-assign]
    result = decode(players.target, drafter=players.drafter, verifier=players.verifier, **decoding)
    answer = result.tokens[0, : int(result.lengths[0])].tolist()
    return [[a == b for a, b in zip(drafted, answer[start:], strict=False)] for start, drafted in drafts]


def drafter_of(model: Any, request: VideoRequest, kept: Tensor, room: int) -> PrunedDraft:
    """A drafter that is shown these visual tokens, with room to feed it so many tokens at once."""
    return PrunedDraft(model, request, lambda _: kept, max_new_tokens=room, max_draft_nodes=room)


def shown_figures(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for the terminal: rounded, intervals left out."""
    told = {name: value["value"] if isinstance(value, Mapping) else value for name, value in row.items()}
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in told.items()}
