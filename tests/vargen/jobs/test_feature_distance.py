"""A Frechet distance in comparisons, by a stand-in of the network: over calls, by the formula, and cached."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refused
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from metrics.extractors import EXTRACTORS, ExtractorKind
from metrics.frechet import GaussianStatistics, frechet_distance
from metrics.tables import quality_heading
from vargen.base.world import find_world
from vargen.jobs.benchmark import BenchConfig, _distance
from vargen.jobs.feature_distance import PACKAGED, FeatureDistance


class Means:
    num_features = 12
    identity = "means"

    def __init__(self, weights: Path | None, device: Any) -> None: ...

    def __call__(self, pictures: Tensor) -> Tensor:
        return adaptive_avg_pool2d(pictures.float(), 2).flatten(1)


def pictures(count: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, 8, 8), generator=generator).to(torch.uint8)


class Reference:
    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 70

    def read(self, indices: Sequence[int]) -> list[Tensor]:
        self.asked += len(indices)
        return [pictures(70, 1)[index] for index in indices]

    def digest(self) -> str:
        return "these"


def test_the_distance_of_calls_is_that_of_their_pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    monkeypatch.setitem(EXTRACTORS, "efficientnet-lite0", ExtractorKind(Means))
    drawn, reference = pictures(20, 2), Reference()
    wanted = [GaussianStatistics.of(Means(None, "cpu")(each)) for each in (pictures(70, 1), drawn)]
    for again in (False, True):
        distance = FeatureDistance("efficientnet-lite0", reference, quiet=True)
        row = distance.figures([distance.encode(part) for part in drawn.split(6)])
        assert row["frechet_distance"] == pytest.approx(frechet_distance(*wanted)), again
        assert distance.figures([distance.encode(drawn[:1])])["frechet_distance"] is None
    assert reference.asked == 70, "the second comparison reads the cache"
    assert quality_heading("frechet_distance", "FID", row["extractor"]).startswith("Frechet distance (efficientnet")


def test_what_cannot_be_compared_is_refused(monkeypatch):
    assert PACKAGED == ("efficientnet-lite0",) and BenchConfig().extractor is None
    refused("extractor must be one of efficientnet-lite0, or null, got 'clip'", FeatureDistance, "clip", Reference())
    monkeypatch.setattr("metrics.efficientnet._PACKAGE", "no_such_package")
    refused("extractor: efficientnet-lite0 needs its weights", FeatureDistance, "efficientnet-lite0", Reference())

    class Other:
        draws_scenes = False

    for world in (find_world(), None):
        told = "extractor compares with renders of the project's own scenes"
        refused(told, _distance, "efficientnet-lite0", Other(), world, True)
