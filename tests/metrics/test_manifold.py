"""Precision and recall against a loop over all pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from metrics.errors import DataError
from metrics.manifold import density_and_coverage, precision_and_recall


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
def test_agrees_with_brute_force(seed: int, neighbours: int, shift: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(14, 3, generator=generator).double()
    generated = torch.randn(11, 3, generator=generator).double() + shift
    precise, recalled = precision_and_recall(reference, generated, neighbours)
    assert (precise.tolist(), recalled.tolist()) == brute_force(reference, generated, neighbours)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), neighbours=st.integers(1, 4), shift=st.floats(0, 3))
def test_density_and_coverage_count_neighbourhoods_of_the_reference(seed: int, neighbours: int, shift: float) -> None:
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
    dense, covered = density_and_coverage(reference, generated, neighbours)
    assert dense.tolist() == [sum(row) / neighbours for row in inside]
    assert covered.tolist() == [any(column) for column in zip(*inside, strict=True)]


def test_an_outlier_of_the_reference_raises_precision_and_not_density() -> None:
    """The case for which density was made (figure 1 there)."""
    generator = torch.Generator().manual_seed(0)
    reference = torch.cat((torch.randn(99, 2, generator=generator), torch.full((1, 2), 30.0)))
    generated = 15 + torch.randn(50, 2, generator=generator)
    assert precision_and_recall(reference, generated, 3)[0].all()
    dense, covered = density_and_coverage(reference, generated, 3)
    assert dense.mean() < 0.4 and covered.double().mean() < 0.02


def test_a_set_lies_among_itself() -> None:
    features = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    precise, recalled = precision_and_recall(features, features)
    assert precise.all() and recalled.all()


def test_dropping_modes_costs_recall_and_not_precision() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.tensor([[0.0, 0.0], [20.0, 0.0]])
    reference = torch.cat([centre + torch.randn(60, 2, generator=generator) for centre in centres])
    one_mode = centres[0] + torch.randn(120, 2, generator=generator)
    precise, recalled = precision_and_recall(reference, one_mode)
    assert precise.double().mean() > 0.9
    assert recalled[:60].double().mean() > 0.9
    assert not recalled[60:].any()


def test_too_few_pictures_are_refused() -> None:
    with pytest.raises(DataError, match="more generated pictures than 3"):
        precision_and_recall(torch.randn(10, 2), torch.randn(3, 2), 3)
    with pytest.raises(DataError, match="density and coverage with k 5 need more reference pictures than 5"):
        density_and_coverage(torch.randn(5, 2), torch.randn(9, 2))
    with pytest.raises(DataError, match="different networks"):
        density_and_coverage(torch.randn(10, 2), torch.randn(10, 3))
    with pytest.raises(DataError, match="different networks"):
        precision_and_recall(torch.randn(10, 2), torch.randn(10, 3), 3)
