"""The Frechet distance against scipy's matrix square root and against Gaussians whose distance is known."""

import numpy as np
import pytest
import scipy.linalg
import torch
from refusals import raised

from metrics.errors import DataError
from metrics.frechet import GaussianStatistics, frechet_distance


def by_scipy(first: torch.Tensor, second: torch.Tensor) -> float:
    """The textbook formula on features, with the matrix square root of the product."""
    means = [each.double().numpy().mean(axis=0) for each in (first, second)]
    covariances = [np.cov(each.double().numpy(), rowvar=False) for each in (first, second)]
    root = scipy.linalg.sqrtm(covariances[0] @ covariances[1]).real
    return float(((means[0] - means[1]) ** 2).sum() + np.trace(covariances[0] + covariances[1] - 2 * root))


@pytest.mark.parametrize(("count", "dimensions"), [(500, 8), (200, 64), (40, 64)])
def test_agrees_with_scipy_also_where_the_covariance_is_singular(count, dimensions):
    generator = torch.Generator().manual_seed(count)
    first = torch.randn(count, dimensions, generator=generator)
    second = 0.5 + torch.randn(count, dimensions, generator=generator) * torch.linspace(0.5, 2, dimensions)
    ours = frechet_distance(GaussianStatistics.of(first), GaussianStatistics.of(second))
    assert ours == pytest.approx(by_scipy(first, second), rel=1e-3)


def test_of_gaussians_with_a_known_distance():
    # Diagonal covariances: |m - m'|^2 + sum (s - s')^2.
    deviation, other = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 2.0, 1.0])
    mean = torch.tensor([0.0, 1.0, -2.0])
    first = GaussianStatistics(torch.zeros(3).double(), deviation.square().diag().double(), None)
    second = GaussianStatistics(mean.double(), other.square().diag().double(), None)
    expected = float(mean.square().sum() + (deviation - other).square().sum())
    assert frechet_distance(first, second) == pytest.approx(expected, rel=1e-6)


def test_equal_sets_are_at_distance_zero_and_order_does_not_matter():
    features = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    same = frechet_distance(GaussianStatistics.of(features), GaussianStatistics.of(features.flip(0)))
    assert 0 <= same < 1e-5
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        far = GaussianStatistics.of((features + 1e4).to(dtype))
        assert 0 <= frechet_distance(far, far) < 1e-5


def test_statistics_survive_a_file(tmp_path):
    statistics = GaussianStatistics.of(torch.randn(50, 4, generator=torch.Generator().manual_seed(0)))
    statistics.save(tmp_path / "reference.npz")
    loaded = GaussianStatistics.load(tmp_path / "reference.npz")
    assert torch.equal(loaded.mean, statistics.mean)
    assert torch.equal(loaded.covariance, statistics.covariance)
    assert loaded.count == 50


def test_statistics_of_other_projects_have_no_count(tmp_path):
    np.savez(tmp_path / "foreign.npz", mu=np.zeros(3), sigma=np.eye(3))
    loaded = GaussianStatistics.load(tmp_path / "foreign.npz")
    assert loaded.count is None
    assert frechet_distance(loaded, loaded) == pytest.approx(0, abs=1e-9)


def test_features_that_have_no_statistics():
    for features, message in (
        (torch.zeros(1, 4), "2 or more"),
        (torch.full((3, 4), float("nan")), "not finite"),
        (torch.zeros(3, 4, 1), "shape"),
    ):
        raised(DataError, message, GaussianStatistics.of, features)


def test_features_of_two_networks_are_refused():
    first, second = (GaussianStatistics.of(torch.randn(9, width)) for width in (3, 4))
    raised(DataError, "different networks", frechet_distance, first, second)
