"""LVSpec's looseness against its controls: random loosening, and FLy, on the shipped pair's held-out videos.

Three questions of the paper: does visual relevance tell words about what is seen from fillers (area under the curve,
over the words of plain decoding's answers); how do accepted length and caption accuracy move with lambda; and, at an
equal share of accepted tokens, does looseness by relevance keep more accuracy than looseness by chance.

    python benchmarks/loose_verification.py --videos 200

Beside the paper's settings: N, the row of hidden states that relevance is taken from, drafting by the target itself,
and its appendix E's tree of two branches; beside chance, the target's own uncertainty as a control; and lambda 0
without shift, which is lossless at the same window and view.

Every ten videos are kept in runs/loose_verification as soon as they are through, so the same command goes on after a
kill, and a longer one begins where a shorter one ended; those of other weights or other videos are watched anew. Writes
benchmarks/results/loose_verification.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from metrics.bootstrap import mean_interval
from metrics.provenance import provenance, write_result
from scenes.captions.story_captions import MAX_CAPTION_TOKENS, visual_words, written_accuracy
from scenes.cases import scene_video_cases
from scenes.shipped import VIDEO_FRAMES, VIDEO_SIDE
from specdecode.loop import decode
from specdecode.roles import TargetOutput
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import TokenOrigin
from specdecode.verifiers.loose import LooseVerifier
from specdecode.verifiers.windowed import WindowedVerifier
from vargen.base.resources import find_video_model
from vargen.jobs.cases import VideoCase
from vargen.methods.video.base import VideoMethod
from vargen.methods.video.lvspec import LVSpecConfig
from vargen.models.model_folder import weights_fingerprint
from vargen.models.video_llms.frames import CAPTION_PROMPTS, processor_inputs
from vargen.pipelines.video.answering import VideoAnswerer
from vargen.runs.files import append_jsonl, read_jsonl
from vargen.runs.progress import progress

RESULTS = Path(__file__).resolve().parent / "results"
KEPT = RESULTS.parent.parent / "runs" / "loose_verification" / "videos.jsonl"
RATIOS = (0.0, 0.2, 0.5, 0.7, 0.9, 1.0)
THRESHOLDS = (0.01, 0.03, 0.1, 0.3)
NEAREST = (1, 10, 100)
WINDOW = 10
_AT_ONCE = 10
"""Videos that are answered about in one batch; every row by itself."""


class RandomVerifier(LooseVerifier):
    """As many tokens loosened as by relevance, but any."""

    generator: torch.Generator

    def _relevance(self, output: TargetOutput) -> Tensor:
        return torch.rand(output.logits.shape[:2], generator=self.generator)


class EntropyVerifier(LooseVerifier):
    """As many tokens loosened as by relevance, but those of which the target is least sure."""

    def _relevance(self, output: TargetOutput) -> Tensor:
        return -torch.distributions.Categorical(logits=output.logits).entropy()


CONTROLS = {"random": RandomVerifier, "entropy": EntropyVerifier}


@dataclass(frozen=True)
class Variant:
    """A verifier to try, and who drafts.

    Args:
        kind: "lvspec", its controls "random" and "entropy", "fly" or "gate".
        dial: lambda, or FLy's threshold.
        position_shift, num_nearest, relevance_from, drafter, branches: as of `LVSpecConfig`.
    """

    kind: str
    dial: float
    position_shift: bool = True
    num_nearest: int = 10
    relevance_from: str = "token"
    drafter: str = "pair"
    branches: int = 1

    @property
    def label(self) -> str:
        """Everything that differs from the paper's settings."""
        parts = [self.kind, str(self.dial), *(["with shift"] if self.position_shift else [])]
        parts += [f"N {self.num_nearest}"] * (self.num_nearest != 10)
        parts += [f"from {self.relevance_from}"] * (self.relevance_from != "token")
        parts += ["drafted by itself"] * (self.drafter == "self")
        parts += [f"{self.branches} branches"] * (self.branches != 1)
        return " ".join(parts)


def variants() -> list[Variant]:
    """All that are compared; lambda 0 without shift is the exact walk of the same window and view."""
    chosen = [
        Variant(kind, ratio, shift)
        for shift in (True, False)
        for ratio in RATIOS
        for kind in ("lvspec", "random", "entropy")
    ]
    chosen += [Variant("lvspec", 0.7, num_nearest=count) for count in NEAREST if count != 10]
    chosen += [Variant("lvspec", ratio, relevance_from="prediction") for ratio in (0.5, 0.7, 0.9)]
    chosen += [Variant("lvspec", ratio, shift, drafter="self") for ratio, shift in ((0.0, False), (0.7, True))]
    chosen += [Variant("lvspec", ratio, shift, branches=2) for ratio, shift in ((0.0, False), (0.7, True))]
    return chosen + [Variant(kind, threshold, False) for threshold in THRESHOLDS for kind in ("fly", "gate")]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--videos", type=int, default=60)
    parser.add_argument("--model")
    parser.add_argument("--draft_model")
    parser.add_argument("--num_frames", type=int, default=VIDEO_FRAMES)
    parser.add_argument("--image_size", type=int, default=VIDEO_SIDE)
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the videos that are through")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()
    folders = [find_video_model(options.model), find_video_model(options.draft_model or "video-llm-draft")]
    identity = {
        "models": [weights_fingerprint(folder) for folder in folders],
        **{name: getattr(options, name) for name in ("num_frames", "image_size")},
    }
    through = {
        (row["first"], row["count"]): row
        for row in read_jsonl(options.kept)
        if {name: row[name] for name in identity} == identity
    }
    answerer, chosen = VideoAnswerer.from_pretrained(options.model, options.draft_model), variants()
    batches = []
    with progress(options.videos, "videos", options.quiet) as shown:
        for first in range(0, options.videos, _AT_ONCE):
            count = min(_AT_ONCE, options.videos - first)
            if (first, count) not in through:
                found = watch(answerer, chosen, options, first, count)
                through[first, count] = {**identity, "first": first, "count": count, **found}
                options.kept.parent.mkdir(parents=True, exist_ok=True)
                append_jsonl(options.kept, through[first, count])
                shown.update(count)
            else:
                shown.skip(count)
            batches.append(through[first, count])
    relevance = {
        row: [(visual, value) for batch in batches for visual, value in batch["relevance"][row]]
        for row in ("token", "prediction")
    }
    rows = []
    for each in chosen:
        found = [one for batch in batches for one in batch["variants"][each.label]]
        accuracies = torch.tensor([one["accuracy"] for one in found])
        names = ("accepted_length", "accept_rate", "relaxed_share")
        rows.append(
            {
                "label": each.label,
                **asdict(each),
                "accuracy": float(accuracies.mean()),
                "accuracy_interval": mean_interval(accuracies),
                **{name: sum(one[name] for one in found) / len(found) for name in names},
            }
        )
    areas = {row: area_under_curve(labelled) for row, labelled in relevance.items()}
    for row, area in areas.items():
        print(f"relevance from {row}, of visual words against fillers: area under the curve {area:.3f}")
    for row in rows:
        print(
            f"{row['label']:<32} accepted {row['accepted_length']:.2f}  rate {row['accept_rate']:.3f}  "
            f"relaxed {100 * row['relaxed_share']:.1f} %  accuracy {100 * row['accuracy']:.1f} %"
        )
    record = {
        "videos": options.videos,
        "frames": options.num_frames,
        "relevance_area_under_curve": areas["token"],
        "relevance_area_under_curve_from_prediction": areas["prediction"],
        "rows": rows,
        "provenance": provenance(),
    }
    if not options.dry_run:
        write_result(RESULTS / "loose_verification.json", record)


def watch(
    answerer: VideoAnswerer, chosen: Sequence[Variant], options: argparse.Namespace, first: int, count: int
) -> dict[str, dict[str, list]]:
    """Of `count` videos from number `first` on: for each variant what its answers are like, and for each row of hidden
    states the relevance of plain decoding's words, each with whether it is about what is seen."""
    room, visual = MAX_CAPTION_TOKENS, visual_words()
    relevance: dict[str, list[tuple[bool, float]]] = {"token": [], "prediction": []}
    cases = scene_video_cases(count, "heldout", options.num_frames, options.image_size, first)
    for case in cases:
        plain = answerer.answer(case.frames, CAPTION_PROMPTS[0], max_new_tokens=room)
        values = answerer.relevance(case.frames, CAPTION_PROMPTS[0], plain)
        is_visual = [word in visual for word in plain.tokens]
        relevance["token"] += zip(is_visual, values, strict=True)
        # The hidden state at a token predicts the next one; that of the first is the prompt's.
        relevance["prediction"] += zip(is_visual[1:], values[:-1], strict=True)
    return {
        "variants": {each.label: run(answerer, cases, each, first, room) for each in chosen},
        "relevance": relevance,
    }


def run(
    answerer: VideoAnswerer, cases: Sequence[VideoCase], variant: Variant, seed: int, room: int
) -> list[dict[str, float]]:
    """Greedy answers with one verifier; windows of 10, a tenth of the video for the drafter, as in the paper."""
    config = LVSpecConfig(
        draft_length=WINDOW,
        drafter=variant.drafter,
        loose_ratio=variant.dial if variant.kind in ("lvspec", "random", "entropy") else 0.0,
        position_shift=variant.position_shift,
        num_nearest=variant.num_nearest,
        # How unsure the target is of a token is said by the row before it.
        relevance_from="prediction" if variant.kind == "entropy" else variant.relevance_from,
        branches=variant.branches,
    )
    inputs = [processor_inputs(answerer.processor, case.frames, CAPTION_PROMPTS[0]) for case in cases]
    players = config.build(answerer.components(inputs, room))
    assert isinstance(players, VideoMethod)
    if variant.kind in CONTROLS:
        players.verifier.__class__ = CONTROLS[variant.kind]
        players.verifier.generator = torch.Generator().manual_seed(seed)  # type: ignore[union-attr]
    elif variant.kind in ("fly", "gate"):
        players = replace(players, verifier=WindowedVerifier(variant.dial, 4 if variant.kind == "fly" else None))
    result = decode(
        players.target,
        drafter=players.drafter,
        verifier=players.verifier,
        max_new_tokens=room,
        sampling=SamplingConfig(temperature=0),
        streams=RandomStreams.from_seeds([seed + row for row in range(len(cases))]),
        stop_token=answerer.stop_tokens,
    )
    found = []
    for row, case in enumerate(cases):
        tokens = result.tokens[row, : int(result.lengths[row])].tolist()
        accepted = result.trace.accepted_lengths[row]
        text = answerer.processor.tokenizer.decode(tokens, skip_special_tokens=True)
        found.append(
            {
                "accuracy": written_accuracy(case.truth, text),
                "accepted_length": sum(accepted) / len(accepted),
                "accept_rate": sum(accepted) / (WINDOW * len(accepted)),
                "relaxed_share": result.trace.token_origins[row].count(TokenOrigin.RELAXED) / len(tokens),
            }
        )
    return found


def area_under_curve(labelled: list[tuple[bool, float]]) -> float:
    """Chance that a visual word's value is above a filler's, ties by half."""
    values = torch.tensor([value for _, value in labelled], dtype=torch.float64)
    visual = torch.tensor([label for label, _ in labelled])
    difference = values[visual][:, None] - values[~visual][None, :]
    return float((difference > 0).double().mean() + 0.5 * (difference == 0).double().mean())


if __name__ == "__main__":
    main()
