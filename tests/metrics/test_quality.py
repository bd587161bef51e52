"""Scores of a set of pictures: each from the features, the settings and the side of the comparison that it says."""

import pytest
import torch
from torch.nn.functional import normalize

from metrics import manifold
from metrics.clip_score import clip_scores
from metrics.frechet import GaussianStatistics
from metrics.manifold import compare_manifolds
from metrics.protocol import ClipProtocol, Protocol
from metrics.quality import Reference, mean_figure, score_pictures

PROTOCOL = Protocol(
    "own", extractor="clip", manifold_extractor="clip", manifold_neighbours=2, clip_score=ClipProtocol(scale=2.5)
)


_MANIFOLD = ("precision", "recall", "density", "coverage")


def features(count: int, spread: float, seed: int) -> torch.Tensor:
    """Unit vectors, as a CLIP gives them, spread around one direction."""
    around = torch.tensor([1.0, 0.0, 0.0])
    return normalize(around + torch.randn(count, 3, generator=torch.Generator().manual_seed(seed)) * spread, dim=-1)


def test_scores_are_those_of_their_formulas():
    ours, theirs, texts = features(24, 0.4, 0), features(24, 2.0, 1), features(24, 1.0, 2)
    reference = Reference(GaussianStatistics.of(theirs), theirs)
    scores = score_pictures(PROTOCOL, {"clip": ours}, reference, texts, draws=0)
    wanted = {name: float(each.double().mean()) for name, each in compare_manifolds(theirs, ours, 2)._asdict().items()}
    precision, recall = wanted["precise"], wanted["recalled"]
    assert precision > recall + 0.2, "pictures of little variety"
    assert scores["precision"]["value"] == pytest.approx(precision)
    assert scores["recall"]["value"] == pytest.approx(recall)
    assert wanted["dense"] != wanted["covered"] == pytest.approx(scores["coverage"]["value"])
    assert scores["density"]["value"] == pytest.approx(wanted["dense"])
    assert scores["clip_score"]["value"] == pytest.approx(float(clip_scores(ours, texts, 2.5).mean()))
    drawn = score_pictures(PROTOCOL, {"clip": ours}, reference, texts, draws=20)
    assert drawn.keys() == scores.keys() == {"frechet_distance", "clip_score", "diversity", *_MANIFOLD}
    assert all(low <= figure["value"] <= high for figure in drawn.values() for low, high in [figure["interval"]])


def test_distances_to_neighbours_are_computed_once_for_all_scores(monkeypatch):
    sizes, compute = [], manifold.neighbour_distances

    def counted(given: torch.Tensor, neighbours: int) -> torch.Tensor:
        sizes.append(len(given))
        return compute(given, neighbours)

    monkeypatch.setattr(manifold, "neighbour_distances", counted)
    ours, theirs = features(24, 0.4, 0), features(20, 2.0, 1)
    score_pictures(PROTOCOL, {"clip": ours}, Reference(GaussianStatistics.of(theirs), theirs), ours, 0)
    assert sizes == [20, 24], "of the reference and of the pictures, once each"


def test_no_frechet_distance_lies_below_nothing():
    same = features(24, 1.0, 3)
    scores = score_pictures(PROTOCOL, {"clip": same}, Reference(GaussianStatistics.of(same), same), same, draws=20)
    low, high = scores["frechet_distance"]["interval"]
    assert low == 0 < high


def test_a_picture_without_a_number_is_left_out_of_a_mean():
    values = torch.tensor([1.0, float("nan"), 3.0])
    assert mean_figure(values, 0) == {"value": 2.0, "interval": None}
    low, high = mean_figure(values, 50)["interval"]
    assert 1 <= low <= high <= 3
