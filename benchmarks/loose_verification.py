"""LVSpec's looseness against its controls, on the shipped pair's held-out videos.

    scores        how well relevance tells the words of the target's answers that are about what is seen: area under the
                  curve by layer, row of hidden states and centring, over videos of their own
    mismatches    how many of the words on which draft model and target differ are about what is seen, and so by how
                  much perfect loosening of the others could raise the accepted length
    curves        accepted length and caption accuracy of each rule against lambda, for two views of the draft model
    equal_length  what rules keep of the accuracy at the same accepted length, against loosening by chance
    theorem       the paper's appendix G: the share of draft tokens not accepted, by lambda, beside the share that its
                  theorem 2.2 reckons from the exact walk's
    settings      the rule as printed by its settings, beside the paper's tables 2, 3 and 5

    python benchmarks/loose_verification.py --videos 100 --scored_videos 0 --settings_videos 0

Studies of no videos keep the rows that are recorded of the same weights.

Every ten videos are kept in runs/loose_verification as soon as they are through, so the same command goes on after a
kill, and a longer one begins where a shorter one ended; those of other weights or other videos are watched anew. Writes
benchmarks/results/loose_verification.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pair_measures import add_pair_options, agreements, drafter_of, pair_folders
from torch import Tensor

from metrics.bootstrap import mean_interval, percentile_interval
from metrics.provenance import provenance, write_result
from scenes.captions.story_captions import MAX_CAPTION_TOKENS, visual_words, written_accuracy
from scenes.cases import scene_video_cases
from specdecode.loop import decode
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.runs.parallel.loop import chain_layout
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import TokenOrigin
from specdecode.verifiers.loose import LooseVerifier, relevance_to
from specdecode.verifiers.windowed import WindowedVerifier
from vargen.models.model_folder import weights_fingerprint
from vargen.runs.files import append_jsonl, read_jsonl
from vargen.runs.progress import progress
from vargen.video.jobs.cases import VideoCase
from vargen.video.methods.base import VideoMethod
from vargen.video.methods.lvspec import LVSpecConfig
from vargen.video.models.frames import CAPTION_PROMPTS, processor_inputs
from vargen.video.models.pruning import keep_uniform, token_budget
from vargen.video.models.request import VideoRequest
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.answering import VideoAnswerer
from vargen.video.pipelines.components import VideoLLMComponents

RESULTS = Path(__file__).resolve().parent / "results"
KEPT = RESULTS.parent.parent / "runs" / "loose_verification" / "videos.jsonl"
WINDOW, LONG_WINDOW = 10, 16
VIEWS = (0.02, 0.1)
SCORED_FROM = 1000
"""Number of the first video by which layers are compared; the curves are of others."""
LAYERS = (-1, -2, -3, -4, -5, -7)
TIMES = (1.35, 1.5, 1.7, 1.9)
"""Accepted lengths, over the exact walk's, at which rules are compared."""
AS_PRINTED: dict[str, Any] = {"relevance_from": "token", "relevance_layer": -1, "relevance_centred": False}
NO_FLOOR: dict[str, Any] = {"min_p": 0.0, "relevant_min_p": 1.0}
FLOORS: dict[str, Any] = {"min_p": 0.3, "relevant_min_p": 0.7}
"""Those of `lvspec`; they, its lambda of 0.6 and the higher one of a long window were chosen on videos 2000 to
2499."""
HIGHER: tuple[tuple[str, Any], ...] = (("relevant_min_p", 0.8),)
_WAYS = {
    f"{layer} {row} {centred}": (layer, row, centred)
    for layer in LAYERS
    for row in ("token", "prediction")
    for centred in (False, True)
}
"""Layer, row of hidden states and centring by name."""
_AT_ONCE = 10
"""Videos that are answered about in one batch; every row by itself."""


class RandomVerifier(LooseVerifier):
    """Loosens as many tokens as relevance would, but any."""

    generator: torch.Generator

    def _relevance(self, output: TargetOutput) -> Tensor:
        return torch.rand(output.logits.shape[:2], generator=self.generator)


class OtherVideoVerifier(LooseVerifier):
    """Relevance to the video of the next row."""

    def _unit_vectors(self) -> list[Tensor]:
        own = super()._unit_vectors()
        return [*own[1:], own[0]]


class WordVerifier(LooseVerifier):
    """Relevance by a list of the words about what is seen, which no real rule has."""

    visual: Tensor
    _drafted: Tensor

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        self._drafted = draft.tree.tokens
        return super().accept(draft, output, state)

    def _relevance(self, output: TargetOutput) -> Tensor:
        return torch.isin(self._drafted, self.visual).float()


RULES: dict[str, tuple[type[LooseVerifier], dict[str, Any]]] = {
    "relevance": (LooseVerifier, {}),
    "as printed": (LooseVerifier, AS_PRINTED),
    "another video": (OtherVideoVerifier, {}),
    "random": (RandomVerifier, {}),
    "entropy": (LooseVerifier, {"loosened_by": "entropy"}),
    "word list": (WordVerifier, {"relevance_from": "token"}),
    "one floor": (LooseVerifier, {"min_p": 0.5}),
    "two floors": (LooseVerifier, FLOORS),
    "another video, two floors": (OtherVideoVerifier, FLOORS),
    "random, two floors": (RandomVerifier, FLOORS),
}
"""The verifier and the settings of LVSpec that differ from its defaults, by name."""


@dataclass(frozen=True)
class Variant:
    """A rule to try.

    Args:
        rule: of `RULES`, or "fly".
        dial: lambda, or FLy's threshold.
        keep_ratio: share of the video that the draft model is shown.
        position_shift: as of `LVSpecConfig`.
        window: draft tokens.
        others: more settings of it by name, which come before those of the rule.
    """

    rule: str
    dial: float
    keep_ratio: float
    position_shift: bool = False
    window: int = WINDOW
    others: tuple[tuple[str, Any], ...] = ()

    @property
    def label(self) -> str:
        """What it is called."""
        others = "".join(f", {name} {value}" for name, value in self.others)
        window = "" if self.window == WINDOW else f", window {self.window}"
        return (
            f"{self.rule} {self.dial}, view {self.keep_ratio}{', shift' if self.position_shift else ''}{window}{others}"
        )

    @property
    def exact(self) -> Variant:
        """The exact walk of the same window and view."""
        return Variant("relevance", 0.0, self.keep_ratio, window=self.window)

    @property
    def config(self) -> LVSpecConfig:
        """Its settings of LVSpec."""
        return LVSpecConfig(
            draft_length=self.window,
            keep_ratio=self.keep_ratio,
            loose_ratio=0.0 if self.rule == "fly" else self.dial,
            position_shift=self.position_shift,
            **{**NO_FLOOR, **(RULES[self.rule][1] if self.rule in RULES else {}), **dict(self.others)},
        )


def variants() -> list[Variant]:
    """All that are compared; lambda 0 without shift is the exact walk of the same window and view."""
    dials: dict[float, dict[str, tuple[float, ...]]] = {
        0.02: {
            "relevance": (0.0, 0.3, 0.5, 0.7),
            "another video": (0.3, 0.5, 0.7),
            "random": (0.3, 0.5, 0.7),
            "two floors": (0.3, 0.6, 0.9),
        },
        0.1: {
            "relevance": (0.0, 0.2, 0.5, 0.7),
            "random": (0.2, 0.4, 0.7),
            "entropy": (0.1, 0.2, 0.3),
            "one floor": (1.0,),
            "two floors": (0.3, 0.6, 0.9),
            "random, two floors": (0.3, 0.6, 0.9),
            "fly": (0.03, 0.1),
        },
    }
    chosen = [
        Variant(rule, dial, view)
        for view, of_view in dials.items()
        for rule, of_rule in of_view.items()
        for dial in of_rule
    ]
    floors = ("two floors", "another video, two floors", "random, two floors")
    return [
        *chosen,
        Variant("as printed", 0.7, 0.1, position_shift=True),
        *(Variant(rule, 0.6, 0.1, position_shift=True) for rule in floors),
        Variant("relevance", 0.0, 0.1, window=LONG_WINDOW),
        *(Variant(rule, 0.6, 0.1, True, LONG_WINDOW, HIGHER) for rule in ("two floors", "random, two floors")),
    ]


def _printed(dial: float = 0.7, shift: bool = False, **others: Any) -> Variant:
    return Variant("as printed", dial, 0.1, shift, others=tuple(others.items()))


SETTINGS: dict[str, tuple[Variant, float | None, float | None]] = {
    "lambda 0": (_printed(0.0), 3.41, 1.0),
    "lambda 0.2": (_printed(0.2), 4.12, 0.993),
    "lambda 0.5": (_printed(0.5), 5.83, 0.978),
    "lambda 0.7": (_printed(), 7.27, 0.985),
    "lambda 0.9": (_printed(0.9), 8.97, 0.928),
    "N 1": (_printed(num_nearest=1), 7.15, 0.946),
    "N 100": (_printed(num_nearest=100), 7.47, 0.934),
    "position shift": (_printed(shift=True), 7.76, 0.996),
    "position shift, two branches": (_printed(shift=True, branches=2), 8.94, 0.955),
    "last layer but one": (_printed(relevance_layer=-2), None, None),
    "layer 8": (_printed(relevance_layer=8), None, None),
    "predicting row": (_printed(relevance_from="prediction"), None, None),
    "predicting row, last layer but one, centred": (
        _printed(relevance_from="prediction", relevance_layer=-2, relevance_centred=True),
        None,
        None,
    ),
    "chance, lambda 0.7": (Variant("random", 0.7, 0.1), None, None),
    "word list, lambda 0.7": (Variant("word list", 0.7, 0.1), None, None),
}
"""What differs from the rule as printed with lambda 0.7, N 10, no shift and one branch; and what the paper prints for
Qwen2.5-VL 32B and 7B (tables 2, 3 and 5): the accepted length and the share of the accuracy that is kept."""


class LastingTarget(VideoTarget):
    """Reads its prompts once, for any number of answers one after another."""

    _told: TargetOutput | None = None

    def prefill(self) -> TargetOutput:
        if self._told is None:
            self._told = super().prefill()
        else:
            self._cache.allocated().reset()
            self.finish_prompts()
        return replace(self._told)


class LastingComponents(VideoLLMComponents):
    """The same targets for every variant; the draft model's vision tower runs once, too."""

    def target(self, num_nodes: int, **options: Any) -> VideoTarget:
        key = ("target", num_nodes, *sorted(options.items()))
        if key not in self.lasting:
            self.lasting[key] = LastingTarget(self.model, self.requests, **options, **self.sizes(num_nodes))
        return self.lasting[key]

    def _draft_requests(self, model: Any) -> list[VideoRequest]:
        if "requests" not in self.lasting:
            self.lasting["requests"] = super()._draft_requests(model)
        return self.lasting["requests"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--videos", type=int, default=60)
    parser.add_argument("--scored_videos", type=int, default=30, help="that the study `scores` looks at")
    parser.add_argument("--settings_videos", type=int, default=60, help="that the study `settings` looks at")
    parser.add_argument("--kept", type=Path, default=KEPT, help="file of the videos that are through")
    add_pair_options(parser)
    options = parser.parse_args()
    folders = pair_folders(options)
    identity = {
        "models": [weights_fingerprint(folder) for folder in folders],
        **{name: getattr(options, name) for name in ("num_frames", "image_size")},
    }
    through = {
        (row["kind"], row["first"], row["count"]): row["found"]
        for row in read_jsonl(options.kept)
        if {name: row[name] for name in identity} == identity
    }
    answerer, chosen = VideoAnswerer.from_pretrained(options.model, options.draft_model), variants()
    settings = [variant for variant, *_ in SETTINGS.values()]

    def all_of(kind: str, total: int, start: int, look: Callable[[int, int], Any]) -> list[Any]:
        """What is found of so many videos, kept by tens."""
        found = []
        for first in range(start, start + total, _AT_ONCE):
            key = kind, first, min(_AT_ONCE, start + total - first)
            if key not in through:
                through[key] = look(first, key[2])
                options.kept.parent.mkdir(parents=True, exist_ok=True)
                own = {**identity, "kind": kind, "first": first, "count": key[2], "found": through[key]}
                append_jsonl(options.kept, own)
                shown.update(key[2])
            else:
                shown.skip(key[2])
            found.append(through[key])
        return found

    def cases(first: int, count: int) -> list[VideoCase]:
        return scene_video_cases(count, "heldout", options.num_frames, options.image_size, first)

    with progress(options.videos + options.scored_videos + options.settings_videos, "videos", options.quiet) as shown:
        scored = all_of("scores", options.scored_videos, SCORED_FROM, lambda *which: scores(answerer, cases(*which)))
        watched = all_of("curves", options.videos, 0, lambda *which: watch(answerer, chosen, cases(*which), which[0]))
        by_setting = all_of(
            *("settings", options.settings_videos, 0),
            lambda *which: watch(answerer, settings, cases(*which), which[0], views=()),
        )
    studies: dict[str, tuple[int, list[dict]]] = {}
    if scored:
        studies["scores"] = options.scored_videos, score_rows(scored)
    if watched:
        words = [word for batch in watched for word in batch["words"]]
        by_label, plain = together(watched)
        rows_of = {
            "mismatches": mismatch_rows(words),
            "curves": curve_rows(chosen, by_label, plain),
            "equal_length": equal_length_rows(chosen, by_label, plain),
            "theorem": theorem_rows(chosen, by_label),
        }
        studies |= {name: (options.videos, rows) for name, rows in rows_of.items()}
    if by_setting:
        studies["settings"] = options.settings_videos, setting_rows(*together(by_setting))
    for name, (_, rows) in studies.items():
        for row in rows:
            print(name, {key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()})
    if options.dry_run:
        return
    path = RESULTS / "loose_verification.json"
    earlier = json.loads(path.read_text()) if path.exists() else {}
    kept = earlier["studies"] if earlier.get("models") == identity["models"] else {}
    new = {
        name: {"videos": videos, "frames": options.num_frames, "provenance": provenance(), "rows": rows}
        for name, (videos, rows) in studies.items()
    }
    write_result(path, {"models": identity["models"], "studies": {**kept, **new}})


def together(batches: Sequence[Mapping[str, Any]]) -> tuple[dict[str, list[dict]], Tensor]:
    """What each variant's answers are like, by label, and the accuracy of plain decoding's, over all videos."""
    labels = batches[0]["variants"]
    by_label = {label: [one for batch in batches for one in batch["variants"][label]] for label in labels}
    return by_label, torch.tensor([one for batch in batches for one in batch["accuracy"]])


def scores(answerer: VideoAnswerer, cases: Sequence[VideoCase]) -> dict[str, list]:
    """Whether the words of plain decoding's answers are about what is seen, and their relevance by `_WAYS`."""
    visual, found = visual_words(), {"is_visual": [], **{name: [] for name in _WAYS}}
    for case in cases:
        plain = answerer.answer(case.frames, CAPTION_PROMPTS[0], "ar", max_new_tokens=MAX_CAPTION_TOKENS)
        found["is_visual"] += [word in visual for word in plain.tokens]
        tokens = torch.tensor([plain.token_ids])
        inputs = processor_inputs(answerer.processor, case.frames, CAPTION_PROMPTS[0])
        components = answerer.components([inputs], len(plain.token_ids) + 1)
        for layer in LAYERS:
            seen = LVSpecConfig(relevance_layer=layer).target_options(components.num_layers)
            target = components.target(tokens.shape[1], **seen)
            before = target.prefill().hidden_states
            places, mask = chain_layout(tokens)
            behind = target.forward(tokens, mask, places).hidden_states
            assert before is not None and behind is not None
            states = torch.cat((before[0, -1:], behind[0]))
            rows = {"prediction": states[:-1], "token": states[1:]}
            for name, (of_layer, row, centred) in _WAYS.items():
                if of_layer == layer:
                    (reference,) = components.visual_states(target)
                    found[name] += relevance_to(rows[row], reference, centred=centred).tolist()
    return found


def score_rows(batches: Sequence[Mapping[str, list]]) -> list[dict]:
    """The area under the curve by layer, row and centring."""
    is_visual = [label for batch in batches for label in batch["is_visual"]]
    rows = []
    for name, (layer, row, centred) in _WAYS.items():
        values = [value for batch in batches for value in batch[name]]
        area = area_under_curve(list(zip(is_visual, values, strict=True)))
        rows.append({"layer": layer, "relevance_from": row, "centred": centred, "area_under_curve": area})
    return rows


def watch(
    answerer: VideoAnswerer,
    chosen: Sequence[Variant],
    cases: Sequence[VideoCase],
    seed: int,
    views: Sequence[float] = VIEWS,
) -> dict[str, Any]:
    """The accuracy of plain decoding's answers to some videos. For each of their words, whether it is about what is
    seen and whether the draft model agrees, by its view. For each variant, what its answers are like."""
    room, visual = MAX_CAPTION_TOKENS, visual_words()
    inputs = [processor_inputs(answerer.processor, case.frames, CAPTION_PROMPTS[0]) for case in cases]
    own = answerer.components(inputs, room)
    components = LastingComponents(**{**vars(own), "lasting": {}})
    found: dict[str, Any] = {"accuracy": [], "words": [], "variants": {}}
    model = components.draft_weights("pair")
    for case, request in zip(cases, components._draft_requests(model), strict=True):
        plain = answerer.answer(case.frames, CAPTION_PROMPTS[0], "ar", max_new_tokens=room)
        found["accuracy"].append(written_accuracy(case.truth, plain.text))
        agreed = {}
        for view in views:
            kept = keep_uniform(request.num_visual, token_budget(request.num_visual, view))
            agreed[view] = agreements(drafter_of(model, request, kept, len(plain.token_ids) + 1), plain.token_ids)
        found["words"] += [[word in visual, *same] for word, *same in zip(plain.tokens, *agreed.values(), strict=True)]
    for each in chosen:
        found["variants"][each.label] = run(answerer, components, cases, each, seed)
    return found


def run(
    answerer: VideoAnswerer, components: VideoLLMComponents, cases: Sequence[VideoCase], variant: Variant, seed: int
) -> list[dict[str, float]]:
    """Greedy answers with one rule."""
    players = variant.config.build(components)
    assert isinstance(players, VideoMethod)
    if variant.rule == "fly":
        players = replace(players, verifier=WindowedVerifier(variant.dial, 4))
    else:
        players.verifier.__class__ = RULES[variant.rule][0]
        players.verifier.generator = torch.Generator().manual_seed(seed)  # type: ignore[union-attr]
        ids = answerer.processor.tokenizer.convert_tokens_to_ids(sorted(visual_words()))
        players.verifier.visual = torch.tensor(ids, device=answerer.model.device)  # type: ignore[union-attr]
    result = decode(
        players.target,
        drafter=players.drafter,
        verifier=players.verifier,
        max_new_tokens=components.max_new_tokens,
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
                "relaxed_share": result.trace.token_origins[row].count(TokenOrigin.RELAXED) / len(tokens),
            }
        )
    return found


def mismatch_rows(words: Sequence[Sequence[bool]]) -> list[dict]:
    """Where the draft model differs from the target, by its view."""
    told = torch.tensor(words)
    visual, rows = told[:, 0], []
    for number, view in enumerate(VIEWS, 1):
        wrong = ~told[:, number]
        at_anchors = float((visual & wrong).sum() / wrong.sum())
        rows.append(
            {
                "keep_ratio": view,
                "words_about_what_is_seen": float(visual.double().mean()),
                "mismatch_rate": float(wrong.double().mean()),
                "mismatches_at_them": at_anchors,
                "length_if_all_others_were_loosened": 1 / at_anchors if at_anchors else None,
                "length_by_theorem": 1 / float(visual.double().mean()),
            }
        )
    return rows


def curve_rows(chosen: Sequence[Variant], by_label: Mapping[str, list[dict]], plain: Tensor) -> list[dict]:
    """Each variant's means, and its accuracy less plain decoding's of the same videos."""
    rows = []
    for each in chosen:
        accuracy, accepted = (of(by_label[each.label], name) for name in ("accuracy", "accepted_length"))
        exact = of(by_label[each.exact.label], "accepted_length")
        rows.append(
            {
                **{name: getattr(each, name) for name in ("rule", "dial", "keep_ratio", "position_shift", "window")},
                **dict(each.others),
                "accepted_length": float(accepted.mean()),
                "over_exact": float(accepted.mean() / exact.mean()),
                "relaxed_share": float(of(by_label[each.label], "relaxed_share").mean()),
                "accuracy": float(accuracy.mean()),
                "kept": float(accuracy.mean() / plain.mean()),
                "against_plain": difference(accuracy - plain),
            }
        )
    return rows


def equal_length_rows(chosen: Sequence[Variant], by_label: Mapping[str, list[dict]], plain: Tensor) -> list[dict]:
    """Accuracy less that of loosening by chance, where both accept as much, by straight lines between lambdas.

    Left out are lengths that do not lie between two lambdas of both; a draw of the interval that ends before takes its
    end.
    """
    rows = []
    for view in VIEWS:
        exact = of(by_label[Variant("relevance", 0.0, view).label], "accepted_length")
        lines = {
            rule: [by_label[each.label] for each in chosen if each == Variant(rule, each.dial, view) and each.dial > 0]
            for rule in RULES
        }
        curves = {
            rule: torch.stack([torch.stack((of(found, "accepted_length"), of(found, "accuracy"))) for found in line])
            for rule, line in lines.items()
            if line
        }
        for times in TIMES:
            for rule in (each for each in curves if each != "random"):
                gain = _gain_at(curves[rule], curves["random"], times * exact)
                if gain is not None:
                    rows.append({"keep_ratio": view, "rule": rule, "times_exact": times, "against_chance": gain})
    return rows


def _gain_at(curve: Tensor, beside: Tensor, lengths: Tensor) -> dict[str, Any] | None:
    """Accuracy of a curve [points, 2, videos] less another's where both accept the mean of these lengths."""

    def gain(numbers: Tensor) -> float:
        wanted = lengths[numbers].mean()
        own, other = (at_length(each[..., numbers].mean(-1), wanted) for each in (curve, beside))
        return own - other

    if not all(each[0, 0].mean() <= lengths.mean() <= each[-1, 0].mean() for each in (curve, beside)):
        return None
    every = torch.arange(len(lengths))
    return {"value": gain(every), "interval": percentile_interval(len(lengths), gain)}


def at_length(curve: Tensor, wanted: Tensor) -> float:
    """Accuracy at an accepted length of a curve [points, 2] of rising lengths and accuracies; of its end beyond it."""
    lengths, accuracies = curve.unbind(1)
    wanted = wanted.clamp(lengths[0], lengths[-1])
    right = int((lengths < wanted).sum().clamp(min=1))
    share = (wanted - lengths[right - 1]) / (lengths[right] - lengths[right - 1]).clamp(min=1e-9)
    return float(accuracies[right - 1] + share * (accuracies[right] - accuracies[right - 1]))


def setting_rows(by_label: Mapping[str, list[dict]], plain: Tensor) -> list[dict]:
    """What each of `SETTINGS` accepts and keeps, beside the paper's figures."""
    rows = []
    for name, (variant, paper_length, paper_kept) in SETTINGS.items():
        found = by_label[variant.label]
        accuracy, accepted = of(found, "accuracy"), of(found, "accepted_length")
        rows.append(
            {
                "setting": name,
                "accepted_length": difference(accepted),
                "paper_accepted_length": paper_length,
                "kept": float(accuracy.mean() / plain.mean()),
                "paper_kept": paper_kept,
                "against_plain": difference(accuracy - plain),
            }
        )
    return rows


def theorem_rows(chosen: Sequence[Variant], by_label: Mapping[str, list[dict]]) -> list[dict]:
    """Appendix G's failure rate, one less the accepted share of a window, beside the exact walk's times 1 - lambda."""
    rows = []
    for each in chosen:
        if each.rule not in ("relevance", "as printed") or each.dial == 0 or each.window != WINDOW:
            continue
        exact, own = (
            1 - float(of(by_label[label], "accepted_length").mean()) / WINDOW
            for label in (Variant("relevance", 0.0, each.keep_ratio).label, each.label)
        )
        shown = {name: getattr(each, name) for name in ("rule", "dial", "keep_ratio", "position_shift")}
        rows.append({**shown, "failure_exact": exact, "by_theorem": exact * (1 - each.dial), "failure": own})
    return rows


def of(found: Sequence[Mapping[str, float]], name: str) -> Tensor:
    """[videos] float64 of one figure."""
    return torch.tensor([one[name] for one in found], dtype=torch.float64)


def difference(values: Tensor) -> dict[str, Any]:
    """A mean over videos and its interval."""
    return {"value": float(values.mean()), "interval": mean_interval(values)}


def area_under_curve(labelled: list[tuple[bool, float]]) -> float:
    """Chance that a visual word's value is above a filler's, ties by half."""
    values = torch.tensor([value for _, value in labelled], dtype=torch.float64)
    visual = torch.tensor([label for label, _ in labelled])
    difference = values[visual][:, None] - values[~visual][None, :]
    return float((difference > 0).double().mean() + 0.5 * (difference == 0).double().mean())


if __name__ == "__main__":
    main()
