"""Precision and recall against a loop over all pairs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.errors import DataError
from metrics.manifold import compare_manifolds


def brute_force(reference: torch.Tensor, generated: torch.Tensor, neighbours: int) -> tuple[list[bool], list[bool]]:
    """The definition, one pair at a time."""

    def radius(features: torch.Tensor, number: int) -> float:
        others = [float((features[number] - each).norm()) for i, each in enumerate(features) if i != number]
        return sorted(others)[neighbours - 1]

    def among(feature: torch.Tensor, others: torch.Tensor) -> bool:
        return any(float((feature - each).norm()) <= radius(others, i) for i, each in enumerate(others))

    return [among(each, reference) for each in generated], [among(each, generated) for each in reference]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), neighbours=st.integers(1, 4), shift=st.floats(0, 3))
def test_agrees_with_brute_force(seed, neighbours, shift):
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(14, 3, generator=generator).double()
    generated = torch.randn(11, 3, generator=generator).double() + shift
    scores = compare_manifolds(reference, generated, neighbours)
    assert (scores.precise.tolist(), scores.recalled.tolist()) == brute_force(reference, generated, neighbours)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), neighbours=st.integers(1, 4), shift=st.floats(0, 3))
def test_density_and_coverage_count_neighbourhoods_of_the_reference(seed, neighbours, shift):
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(14, 3, generator=generator).double()
    generated = torch.randn(11, 3, generator=generator).double() + shift
    radii = [
        sorted(float((one - other).norm()) for j, other in enumerate(reference) if i != j)[neighbours - 1]
        for i, one in enumerate(reference)
    ]
    inside = [
        [float((each - one).norm()) <= radius for one, radius in zip(reference, radii, strict=True)]
        for each in generated
    ]
    _, _, dense, covered = compare_manifolds(reference, generated, neighbours)
    assert dense.tolist() == [sum(row) / neighbours for row in inside]
    assert covered.tolist() == [any(column) for column in zip(*inside, strict=True)]


def test_too_few_pictures_are_refused():
    with pytest.raises(DataError, match="with k 3 need more generated pictures than 3"):
        compare_manifolds(torch.randn(10, 2), torch.randn(3, 2), 3)
    with pytest.raises(DataError, match="precision, recall, density and coverage with k 5 need more reference"):
        compare_manifolds(torch.randn(5, 2), torch.randn(9, 2), 5)
    with pytest.raises(DataError, match="different networks"):
        compare_manifolds(torch.randn(10, 2), torch.randn(10, 3), 3)
