"""What grows with the video, on random weights: passes, STD's drafts over a sparse cache, LVSpec's relevance.

Layers of two sizes: the shipped target's, and Qwen2.5-0.5B's, of which two are measured and stand for all. Random
weights say what passes cost and nothing of what is accepted, so of STD (arXiv 2505.19155) two figures are reckoned from
measured seconds: its speed-up if every drafted token were accepted, and the share of drafted tokens that has to be
accepted for it to pay at all. Of LVSpec (arXiv 2604.05650): the seconds that looseness adds to a step in which the
model drafts for itself over such a cache.

    python benchmarks/long_videos.py --record benchmarks/results/long_videos.json

It times: keep the machine to itself.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from random_video_llm import build_model, video_inputs

from metrics.provenance import provenance
from specdecode.parallel.loop import chain_layout
from specdecode.roles import DecodeState, Draft
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.targets.grouped_attention import use_grouped_attention
from specdecode.tree import TokenTree
from specdecode.verifiers.loose import LooseVerifier
from vargen.models.video_llms.architectures.base import VideoFeatures
from vargen.models.video_llms.pruning import token_budget
from vargen.models.video_llms.request import prepare_request
from vargen.models.video_llms.sparse_cache import SparseDraft
from vargen.models.video_llms.target import VideoTarget

WINDOW, KEPT, TIMED = 9, 0.25, 15


@dataclass(frozen=True)
class Geometry:
    """Sizes of a model.

    Args:
        sizes: as `build_model` takes them, `layers` being those that are measured.
        layers: those of the model.
        visual_tokens: of the videos.
    """

    sizes: dict[str, int]
    layers: int
    visual_tokens: tuple[int, ...]

    @property
    def depth(self) -> float:
        """Layers of the model for each one measured."""
        return self.layers / self.sizes["layers"]


GEOMETRIES = {
    "shipped": Geometry(
        {"layers": 12, "heads": 5, "key_value_heads": 1, "head_dim": 32, "intermediate_size": 320},
        12,
        (1_000, 2_500, 5_000, 10_000, 25_000),
    ),
    "Qwen2.5-0.5B": Geometry(
        {"layers": 2, "heads": 14, "key_value_heads": 2, "head_dim": 64, "intermediate_size": 4864},
        24,
        (1_000, 2_500, 5_000, 10_000, 25_000),
    ),
}


def seconds_of(works: Sequence[Callable[[], object]]) -> list[float]:
    """Median of each, by turns, after two turns that do not count."""
    taken: list[list[float]] = [[] for _ in works]
    for _ in range(TIMED + 2):
        for number, work in enumerate(works):
            began = time.perf_counter()
            work()
            taken[number].append(time.perf_counter() - began)
    return [statistics.median(each[2:]) for each in taken]


def passing(target: Any, count: int) -> Callable[[], object]:
    """A pass over so many tokens, of which nothing is kept."""
    tokens = torch.zeros(1, count, dtype=torch.int64)
    places, mask = chain_layout(tokens)
    return lambda: target.forward(tokens, mask, places)


def expected_tokens(accepted: float, window: int) -> float:
    """Of a step whose every drafted token is accepted with this probability, the target's own included."""
    return sum(accepted**length for length in range(window + 1))


def speedup(accepted: float, plain: float, draft: float, judged: float, window: int) -> float:
    """Over plain decoding, of steps of `window` drafts and one pass over them."""
    return expected_tokens(accepted, window) * plain / (window * draft + judged)


def break_even(plain: float, draft: float, judged: float, window: int) -> float | None:
    """The least share of drafted tokens accepted at which it is as fast as plain decoding; None: it never is."""
    low, high = 0.0, 1.0
    if speedup(high, plain, draft, judged, window) < 1:
        return None
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if speedup(middle, plain, draft, judged, window) >= 1 else (middle, high)
    return high


@torch.no_grad()
def measure(name: str, geometry: Geometry, model: Any, visual_tokens: int) -> dict[str, Any]:
    """One row; seconds of passes are those of the whole model."""
    width = geometry.sizes["heads"] * geometry.sizes["head_dim"]
    request = prepare_request(model, video_inputs(visual_tokens), VideoFeatures(torch.randn(visual_tokens, width)))
    room = {"max_new_tokens": 16, "max_draft_nodes": WINDOW + 1}
    target = VideoTarget(model, request, capture_attention=True, **room)
    target.prefill()
    draft = SparseDraft(target, [token_budget(visual_tokens, KEPT)], **room)
    draft.prefill()
    chain = torch.arange(WINDOW + 1)[None]
    places, mask = chain_layout(chain)
    output = target.forward(chain, mask, places)
    state = DecodeState(
        torch.zeros(1, 16, dtype=torch.int64),
        torch.zeros(1, dtype=torch.int64),
        torch.ones(1, dtype=torch.bool),
        16,
        SamplingConfig(temperature=0),
        RandomStreams.from_seeds([0]),
    )
    loose, strict = (LooseVerifier(lambda: [target.prompts[0].visual_hidden_states], each) for each in (0.7, 0.0))
    rules = [partial(each.accept, Draft(TokenTree.chain(chain)), output, state) for each in (loose, strict)]
    passes = [passing(target, 1), passing(target, WINDOW + 1), passing(draft, 1)]
    plain, judged, drafting, relaxed, exact = seconds_of([*passes, *rules])
    plain, judged, drafting = (geometry.depth * each for each in (plain, judged, drafting))
    added = relaxed - exact
    return {
        "model": name,
        "visual_tokens": visual_tokens,
        "plain_seconds": plain,
        "judging_seconds": judged,
        "sparse_draft_seconds": drafting,
        "speedup_at_most": speedup(1.0, plain, drafting, judged, WINDOW),
        "break_even": break_even(plain, drafting, judged, WINDOW),
        "loose_seconds": added,
        "loose_share": added / (judged + WINDOW * drafting + added),
    }


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", type=Path, help="JSON file for the figures")
    parser.add_argument("--models", nargs="+", choices=GEOMETRIES, default=list(GEOMETRIES))
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in options.models:
        geometry = GEOMETRIES[name]
        model = build_model(**geometry.sizes)
        use_grouped_attention(model)
        for count in geometry.visual_tokens:
            rows.append(measure(name, geometry, model, count))
            print(json.dumps(rows[-1]), flush=True)
    if options.record is not None:
        record = {"window": WINDOW, "kept": KEPT, "dtype": "float32", "rows": rows, "provenance": provenance()}
        options.record.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
