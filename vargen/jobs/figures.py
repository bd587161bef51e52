"""Figures of a set of pictures with their intervals, from features and from the judge's verdicts.

Belongs here: the judge's figures, and which figures a protocol or a comparison asks for. Does not belong here: reading
pictures (`vargen.jobs.measuring`), and the formulas of FID, CLIP score and intervals (`metrics`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from metrics.bootstrap import student_interval
from metrics.clip_score import clip_scores
from metrics.errors import DataError
from metrics.picture_checks import FigureOf, benchmark_scores, group_mean
from metrics.prompt_formats import BenchmarkPrompt
from metrics.proportion import Proportion, clustered_interval
from metrics.protocol import Protocol
from metrics.quality import EXTRAS, Reference, figure, mean_figure, preference_scores, score_pictures
from vargen.base.errors import UserError
from vargen.jobs.cases import BenchmarkCase, Judge


def score(
    protocol: Protocol, measured: dict[str, Tensor], reference: Reference | None, kinds: Sequence[str], draws: int
) -> dict[str, Any]:
    """Figures of one set of pictures from its features; `kinds` are those of the judge. Raises UserError for too few
    pictures."""
    features = {name: measured[f"features_{name}"] for name in protocol.extractors}
    extras = (name for field, name in EXTRAS.items() if getattr(protocol, field))
    features |= {name: measured[name] for name in extras if name in measured}
    try:
        scores = score_pictures(protocol, features, reference, measured.get("text"), draws)
    except DataError as error:
        raise UserError(str(error)) from error
    if "verdicts" in measured:
        scores |= judge_scores(measured["verdicts"], kinds, draws)
    return scores


def benchmark_figures(
    prompts: Sequence[BenchmarkPrompt],
    measured: Mapping[str, Tensor],
    protocol: Protocol,
    kinds: Sequence[str],
    draws: int,
) -> dict[str, Any]:
    """Figures of a public benchmark's groups, as `metrics.picture_checks.benchmark_scores` gives them."""
    figures: dict[str, FigureOf] = {}
    if (clip := protocol.clip_score) is not None:
        scores = clip_scores(measured["features_clip"], measured["text"], clip.scale, clip.clip_at_zero)
        figures["clip_score"] = lambda chosen: group_mean(scores[chosen], draws)
    if protocol.hps:
        preferences = preference_scores({"hps": measured["features_hps"], "hps_text": measured["hps_text"]})
        figures["hps"] = lambda chosen: group_mean(preferences[chosen], draws)
    if "verdicts" in measured:
        judged = measured["verdicts"]
        figures["judge_prompts"] = lambda chosen: judge_scores(judged[chosen], kinds, draws)["judge_prompts"]
    return benchmark_scores(prompts, figures, measured.get("answers"), draws)


def judge_scores(verdicts: Tensor, kinds: Sequence[str], draws: int) -> dict[str, Any]:
    """`judge_accuracy` (share of claims), `judge_prompts` (share of prompts) and `judge` (share by kind).

    The intervals take pictures, not claims, as independent, since claims about one picture depend on each other; see
    `metrics.proportion.clustered_interval`. There are none for less than two `draws`.
    """

    def share_of(chosen: Sequence[str]) -> dict[str, Any] | None:
        shares = _Shares(verdicts, kinds, chosen)
        if not shares.made.sum():
            return None
        value = shares(torch.arange(len(verdicts)))
        enough = draws >= 2 and len(verdicts) >= 2
        interval = clustered_interval(shares.right.tolist(), shares.made.tolist()) if enough else None
        return figure(value, interval)

    by_kind = {kind: share_of([kind]) for kind in kinds}
    return {
        "judge_accuracy": share_of(_claimed(kinds)),
        "judge_prompts": by_kind["prompt"],
        "judge": {kind: value for kind, value in by_kind.items() if value is not None},
    }


def against_plain(
    measured: dict[str, Tensor], plain: dict[str, Tensor], protocol: Protocol, kinds: Sequence[str], draws: int
) -> dict[str, Any]:
    """Differences of `judge_accuracy` (share of claims) and `clip_score` to plain decoding's pictures of the same
    captions. Captions are drawn in pairs, so their difficulty cancels out of the interval."""
    differences: dict[str, Any] = {}
    if "verdicts" in measured:
        ours, theirs = (_Shares(each["verdicts"], kinds, _claimed(kinds)) for each in (measured, plain))
        count = len(measured["verdicts"])

        def over(chosen: Tensor) -> float:
            return ours(chosen) - theirs(chosen)

        interval = student_interval(count, over, draws)
        differences["judge_accuracy"] = figure(over(torch.arange(count)), interval)
    if protocol.clip_score is not None:
        clip = protocol.clip_score
        how, sets = (clip.scale, clip.clip_at_zero), (measured, plain)
        scores = [clip_scores(each["features_clip"], each["text"], *how) for each in sets]
        differences["clip_score"] = mean_figure(scores[0] - scores[1], draws)
    return differences


def count_claims(judge: Judge, pictures: Tensor, cases: Sequence[BenchmarkCase]) -> dict[str, list[int]]:
    """The number of right claims in all pictures and the number of all claims, by kind."""
    return dict(zip(judge.kinds, judge(pictures, cases).sum(0).tolist(), strict=True))


def judge_figures(claims: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, Any]:
    """The share of right claims with its 95 % interval, and the shares by kind, from results of `count_claims`.

    All are None where nothing was judged.
    """
    shares = {
        kind: Proportion(sum(each[kind][0] for each in claims), sum(each[kind][1] for each in claims))
        for kind in next(iter(claims), ())
    }
    said = [shares[kind] for kind in _claimed(shares)]
    share = Proportion(sum(each.right for each in said), sum(each.total for each in said))
    calls = [[sum(each[kind][place] for kind in _claimed(each)) for place in (0, 1)] for each in claims]
    if not share.total:
        return {"judge_accuracy": None, "judge_accuracy_interval": None, "judge": None}
    return {
        "judge_accuracy": share.accuracy,
        "judge_accuracy_interval": list(clustered_interval(*zip(*calls, strict=True))),
        "judge": {kind: each.to_dict() for kind, each in shares.items() if each.total},
    }


def clip_figures(scores: Sequence[Sequence[float]]) -> dict[str, Any]:
    """The mean CLIP score of all calls' pictures with its 95 % interval; both are None where nothing was scored."""
    values = [score for each in scores for score in each]
    if not values:
        return {"clip_score": None, "clip_score_interval": None}
    measured = mean_figure(torch.tensor(values), 200)
    return {"clip_score": measured["value"], "clip_score_interval": measured["interval"]}


def _claimed(kinds: Iterable[str]) -> list[str]:
    """The kinds that prompts claim."""
    return [kind for kind in kinds if kind not in ("object_count", "prompt")]


class _Shares:
    """The share of right claims of some kinds in chosen pictures.

    Args:
        verdicts: `[N, 2 * kinds]`, as `measure` gives them.
        kinds: of the judge.
        chosen: the kinds that count.
    """

    def __init__(self, verdicts: Tensor, kinds: Sequence[str], chosen: Sequence[str]) -> None:
        places = [kinds.index(kind) for kind in chosen]
        self.right, self.made = verdicts.double().reshape(len(verdicts), len(kinds), 2)[:, places].sum(1).T

    def __call__(self, chosen: Tensor) -> float:
        return float(self.right[chosen].sum() / self.made[chosen].sum().clamp_min(1))
