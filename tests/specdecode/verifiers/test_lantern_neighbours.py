"""Nearest neighbours against a sort of all distances, and the corners: duplicates, blocks, bad arguments."""

import pytest
import torch
from refusals import value_error
from torch import Tensor

import specdecode.verifiers.neighbours as neighbours
from specdecode.verifiers.neighbours import nearest_neighbours


def slow_neighbours(vectors: Tensor, num_neighbours: int) -> list[list[int]]:
    rows = vectors.double().tolist()
    table = []
    for own, vector in enumerate(rows):
        distances = [
            (sum((a - b) ** 2 for a, b in zip(vector, other, strict=True)), index)
            for index, other in enumerate(rows)
            if index != own
        ]
        table.append([index for _, index in sorted(distances)[:num_neighbours]])
    return table


@pytest.mark.parametrize("block_elements", [1, 100, 1 << 22])
def test_equals_a_sort_whatever_the_block(block_elements, monkeypatch):
    monkeypatch.setattr(neighbours, "_BLOCK_ELEMENTS", block_elements)
    vectors = torch.randn(37, 5, generator=torch.Generator().manual_seed(0))
    table = nearest_neighbours(vectors, 9)
    assert table.dtype == torch.int64 and table.shape == (37, 9)
    assert table.tolist() == slow_neighbours(vectors, 9)


def test_a_token_is_never_its_own_neighbour():
    vectors = torch.zeros(5, 3)  # all duplicates
    assert nearest_neighbours(vectors, 4).tolist() == [[j for j in range(5) if j != i] for i in range(5)]
    far = torch.tensor([[3e38], [-3e38], [3e38]])  # distances overflow to infinity
    assert all(own not in row for own, row in enumerate(nearest_neighbours(far, 2).tolist()))


def test_equally_distant_tokens_come_in_order_of_index():
    vectors = torch.tensor([[0.0], [1.0], [-1.0], [1.0]])
    assert nearest_neighbours(vectors, 3)[0].tolist() == [1, 2, 3]


def test_small_distances_are_not_lost_beside_large_norms():
    """|a|^2 + |b|^2 - 2ab in float32 would see all of these as equal."""
    vectors = 1e4 + torch.tensor([[0.0], [0.5], [0.125], [0.25]])
    assert nearest_neighbours(vectors, 3)[0].tolist() == [2, 3, 1]


def test_no_neighbours_and_half_precision():
    assert nearest_neighbours(torch.randn(4, 2), 0).shape == (4, 0)
    vectors = torch.randn(30, 4, generator=torch.Generator().manual_seed(1)).bfloat16()
    assert nearest_neighbours(vectors, 5).tolist() == slow_neighbours(vectors, 5)


@pytest.mark.parametrize(
    ("vectors", "num_neighbours", "message"),
    [
        (torch.zeros(4, 2), 4, r"num_neighbours must lie in \[0, 3\]"),
        (torch.zeros(4, 2), -1, "num_neighbours must lie in"),
        (torch.zeros(4, 2), 1.0, "num_neighbours must be an integer"),
        (torch.zeros(4), 1, "vectors must be float32 of shape"),
        (torch.zeros(4, 2, dtype=torch.int64), 1, "vectors must be float32"),
        (torch.zeros(0, 2), 0, "as there are 0 vectors"),
        (torch.tensor([[0.0], [float("nan")]]), 1, "vectors must be finite"),
    ],
)
def test_bad_arguments(vectors, num_neighbours, message):
    value_error(message, nearest_neighbours, vectors, num_neighbours)
