"""Scores of a set of pictures: each from the features, the settings and the side of the comparison that it says."""

from __future__ import annotations

import pytest
import torch

from metrics.clip_score import clip_scores
from metrics.frechet import GaussianStatistics
from metrics.manifold import density_and_coverage, precision_and_recall
from metrics.protocol import ClipProtocol, Protocol
from metrics.quality import Reference, mean_figure, score_pictures

PROTOCOL = Protocol(
    "own", extractor="clip", manifold_extractor="clip", manifold_neighbours=2, clip_score=ClipProtocol(scale=2.5)
)


def features(count: int, spread: float, seed: int) -> torch.Tensor:
    return torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)) * spread


def test_scores_are_those_of_their_formulas() -> None:
    ours, theirs, texts = features(24, 0.4, 0), features(24, 2.0, 1), features(24, 1.0, 2)
    reference = Reference(GaussianStatistics.of(theirs), theirs)
    scores = score_pictures(PROTOCOL, {"clip": ours}, reference, texts, draws=0)
    precision, recall = (float(each.double().mean()) for each in precision_and_recall(theirs, ours, 2))
    assert precision > recall + 0.2, "pictures of little variety"
    assert scores["precision"]["value"] == pytest.approx(precision)
    assert scores["recall"]["value"] == pytest.approx(recall)
    density, coverage = (float(each.double().mean()) for each in density_and_coverage(theirs, ours, 2))
    assert density != coverage == pytest.approx(scores["coverage"]["value"])
    assert scores["density"]["value"] == pytest.approx(density)
    assert scores["clip_score"]["value"] == pytest.approx(float(clip_scores(ours, texts, 2.5).mean()))


def test_no_frechet_distance_lies_below_nothing() -> None:
    same = features(24, 1.0, 3)
    scores = score_pictures(PROTOCOL, {"clip": same}, Reference(GaussianStatistics.of(same), same), same, draws=20)
    low, high = scores["frechet_distance"]["interval"]
    assert low == 0 < high


def test_a_picture_without_a_number_is_left_out_of_a_mean() -> None:
    values = torch.tensor([1.0, float("nan"), 3.0])
    assert mean_figure(values, 0) == {"value": 2.0, "interval": None}
    low, high = mean_figure(values, 50)["interval"]
    assert 1 <= low <= high <= 3
