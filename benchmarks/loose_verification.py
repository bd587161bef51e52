"""LVSpec's looseness against its controls: random loosening, and FLy, on the shipped pair's held-out videos.

Three questions of the paper: does visual relevance tell words about what is seen from fillers (area under the curve,
over the words of plain decoding's answers); how do accepted length and caption accuracy move with lambda; and, at an
equal share of accepted tokens, does looseness by relevance keep more accuracy than looseness by chance.

    python benchmarks/loose_verification.py --videos 60

Writes benchmarks/results/loose_verification.json.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics.bootstrap import mean_interval
from metrics.provenance import provenance, write_result
from specdecode.loop import decode
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import TokenOrigin
from specdecode.verifiers.loose import LooseVerifier
from specdecode.verifiers.windowed import WindowedVerifier
from vargen.jobs.cases import VideoCase
from vargen.runs.progress import progress
from vargen.video.answering import VideoAnswerer
from vargen.video.frames import CAPTION_PROMPTS, processor_inputs
from vargen.video.methods.lvspec import LVSpecConfig
from vargen.video.players import Players
from vargen.world.captions.video_captions import caption_accuracy
from vargen.world.cases import scene_video_cases
from vargen.world.scenes.scene import COLOURS, GROUNDS, MATERIALS, SHAPES, SIZES, SKIES

RESULTS = Path(__file__).resolve().parent / "results"
RATIOS = (0.0, 0.2, 0.5, 0.7, 0.9, 1.0)
THRESHOLDS = (0.01, 0.03, 0.1, 0.3)
VISUAL_WORDS = {
    *COLOURS, *SHAPES, *SIZES, *MATERIALS, *GROUNDS, *SKIES, "left", "right", "middle", "near", "far", "one", "two",
    "three", "closer", "away", "appears", "disappears", "vanishes", "shows", "turns", "becomes", "bumps",
}  # fmt: skip


class RandomVerifier(LooseVerifier):
    """As many tokens loosened as by relevance, but any."""

    generator: torch.Generator

    def _loosened(self, output: Any, there: Tensor) -> Tensor:
        rank = torch.rand(there.shape, generator=self.generator).masked_fill(~there, torch.inf).argsort(1).argsort(1)
        return (rank < (self.loose_ratio * there.sum(1) + 1e-6).floor()[:, None]) & there


def variants(position_shift: bool) -> dict[str, tuple[str, Any]]:
    """Verifiers by label: what kind, and its dial."""
    shift = " with shift" if position_shift else ""
    chosen: dict[str, tuple[str, Any]] = {}
    for ratio in RATIOS:
        chosen[f"lvspec {ratio}{shift}"] = ("lvspec", ratio)
        chosen[f"random {ratio}{shift}"] = ("random", ratio)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--videos", type=int, default=60)
    parser.add_argument("--model")
    parser.add_argument("--draft_model")
    options = parser.parse_args()
    answerer = VideoAnswerer.from_pretrained(options.model, options.draft_model)
    cases = scene_video_cases(options.videos, "heldout", 8, 96)
    chosen = {**variants(True), **variants(False)}
    for threshold in THRESHOLDS:
        chosen[f"fly {threshold}"] = ("fly", threshold)
        chosen[f"fly gate only {threshold}"] = ("gate", threshold)
    kept: dict[str, list[dict[str, float]]] = {label: [] for label in chosen}
    relevance: list[tuple[bool, float]] = []
    with progress(len(cases), "videos", False) as shown:
        for number, case in enumerate(cases):
            plain = answerer.answer(case.frames, CAPTION_PROMPTS[0])
            values = answerer.relevance(case.frames, CAPTION_PROMPTS[0], plain)
            relevance += [(word in VISUAL_WORDS, value) for word, value in zip(plain.tokens, values, strict=True)]
            for label, (kind, dial) in chosen.items():
                kept[label].append(run(answerer, case, kind, dial, "shift" in label, number))
            shown.update()
    rows = []
    for label, (kind, dial) in chosen.items():
        accuracies = torch.tensor([each["accuracy"] for each in kept[label]])
        rows.append(
            {
                "label": label,
                "kind": kind,
                "dial": dial,
                "position_shift": "shift" in label,
                "accuracy": float(accuracies.mean()),
                "accuracy_interval": mean_interval(accuracies),
                **{
                    name: sum(each[name] for each in kept[label]) / len(cases)
                    for name in ("accepted_length", "accept_rate", "relaxed_share")
                },
            }
        )
    area = area_under_curve(relevance)
    print(f"relevance of visual words against fillers: area under the curve {area:.3f}")
    for row in rows:
        print(
            f"{row['label']:<24} accepted {row['accepted_length']:.2f}  rate {row['accept_rate']:.3f}  "
            f"relaxed {100 * row['relaxed_share']:.1f} %  accuracy {100 * row['accuracy']:.1f} %"
        )
    record = {"videos": len(cases), "relevance_area_under_curve": area, "rows": rows, "provenance": provenance()}
    write_result(RESULTS / "loose_verification.json", record)


def run(
    answerer: VideoAnswerer, case: VideoCase, kind: str, dial: float, position_shift: bool, seed: int
) -> dict[str, float]:
    """One greedy answer with one verifier; windows of 10, a tenth of the video for the drafter, as in the paper."""
    config = LVSpecConfig(loose_ratio=dial if kind in ("lvspec", "random") else 0.0, position_shift=position_shift)
    players = config.build(answerer.prompt([processor_inputs(answerer.processor, case.frames, CAPTION_PROMPTS[0])]))
    assert isinstance(players, Players)
    if kind == "random":
        players.verifier.__class__ = RandomVerifier
        players.verifier.generator = torch.Generator().manual_seed(seed)  # type: ignore[union-attr]
    elif kind in ("fly", "gate"):
        players = replace(players, verifier=WindowedVerifier(dial, 4 if kind == "fly" else None))
    result = decode(
        players.target,
        drafter=players.drafter,
        verifier=players.verifier,
        max_new_tokens=256,
        sampling=SamplingConfig(temperature=0),
        streams=RandomStreams.from_seeds([seed]),
        stop_token=answerer.stop_tokens,
    )
    tokens = result.tokens[0, : int(result.lengths[0])].tolist()
    trace = result.trace
    assert case.truth is not None
    return {
        "accuracy": caption_accuracy(case.truth, answerer.processor.tokenizer.decode(tokens, skip_special_tokens=True)),
        "accepted_length": trace.mean_accepted_length,
        "accept_rate": sum(map(sum, trace.accepted_lengths)) / max(trace.drafted, 1),
        "relaxed_share": trace.token_origins[0].count(TokenOrigin.RELAXED) / len(tokens),
    }


def area_under_curve(labelled: list[tuple[bool, float]]) -> float:
    """Chance that a visual word's value is above a filler's, ties by half."""
    values = torch.tensor([value for _, value in labelled], dtype=torch.float64)
    visual = torch.tensor([label for label, _ in labelled])
    difference = values[visual][:, None] - values[~visual][None, :]
    return float((difference > 0).double().mean() + 0.5 * (difference == 0).double().mean())


if __name__ == "__main__":
    main()
