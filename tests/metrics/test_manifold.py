"""Precision, recall, density and coverage against a loop over all pairs."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import raised

from metrics.errors import DataError
from metrics.manifold import compare_manifolds


def brute_force(reference: torch.Tensor, generated: torch.Tensor, neighbours: int) -> tuple[list[float], ...]:
    """The definition, one pair at a time."""

    def radius(features: torch.Tensor, number: int) -> float:
        others = [float((features[number] - each).norm()) for i, each in enumerate(features) if i != number]
        return sorted(others)[neighbours - 1]

    def around(feature: torch.Tensor, others: torch.Tensor) -> list[bool]:
        """Which of the others' neighbourhoods hold a feature."""
        return [float((feature - each).norm()) <= radius(others, number) for number, each in enumerate(others)]

    inside = [around(each, reference) for each in generated]
    return (
        [any(row) for row in inside],
        [any(around(each, generated)) for each in reference],
        [sum(row) / neighbours for row in inside],
        [any(column) for column in zip(*inside, strict=True)],
    )


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), neighbours=st.integers(1, 4), shift=st.floats(0, 3))
def test_agrees_with_brute_force(seed, neighbours, shift):
    generator = torch.Generator().manual_seed(seed)
    reference = torch.randn(14, 3, generator=generator).double()
    generated = torch.randn(11, 3, generator=generator).double() + shift
    scores = compare_manifolds(reference, generated, neighbours)
    assert tuple(each.tolist() for each in scores) == brute_force(reference, generated, neighbours)


def test_too_few_pictures_are_refused():
    for real, made, neighbours, said in (
        ((10, 2), (3, 2), 3, "with k 3 need more generated pictures than 3"),
        ((5, 2), (9, 2), 5, "precision, recall, density and coverage with k 5 need more reference"),
        ((10, 2), (10, 3), 3, "different networks"),
    ):
        raised(DataError, said, compare_manifolds, torch.randn(real), torch.randn(made), neighbours)
