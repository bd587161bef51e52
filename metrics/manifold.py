"""Improved precision and recall (Kynkaanniemi et al., arXiv 1904.06991), density and coverage (Naeem et al., arXiv
2002.09797): how much of one set of features lies among the other.

A feature lies among a set if it is within the distance of some member to that member's k-th nearest neighbour in its
own set. Precision is the share of generated features among the reference (do pictures look real?), recall the share of
reference features among the generated (is everything real still made?). A method that always makes its safest picture
has high precision and low recall.

One reference feature far from all others has a wide neighbourhood, in which poor pictures count as real. So density
counts in how many neighbourhoods a picture lies, and coverage looks at neighbourhoods of the reference alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.features import check_features

_CHUNK = 2048  # rows of the distance matrix at once


class ManifoldScores(NamedTuple):
    """How much of M generated features lies among N of a reference, and the other way round.

    Attributes:
        precise: bool `[M]`, whose mean is the precision.
        recalled: bool `[N]`, whose mean is the recall.
        dense: float64 `[M]`, in how many neighbourhoods of the reference each lies, over k. The mean is the density: 1
            is expected of the reference's own distribution, and more is possible (equation 3).
        covered: bool `[N]`, which neighbourhoods hold a generated feature; the mean is the coverage (equation 5).
    """

    precise: Tensor
    recalled: Tensor
    dense: Tensor
    covered: Tensor


def compare_manifolds(reference: Tensor, generated: Tensor, neighbours: int) -> ManifoldScores:
    """Both pairs of scores, from the same distances.

    Args:
        reference: `[N, D]`.
        generated: `[M, D]`.
        neighbours: k; the authors take 3 for precision and recall, 5 for density and coverage.

    Raises:
        DataError: k below 1, a set of k features or fewer, numbers that are not finite, or different numbers of
            dimensions.
    """
    if isinstance(neighbours, bool) or not isinstance(neighbours, int) or neighbours < 1:
        raise DataError(f"neighbours must be an integer of at least 1, got {neighbours!r}")
    for name, features in (("reference", reference), ("generated", generated)):
        check_features(features, name)
        if len(features) <= neighbours:
            raise DataError(
                f"precision, recall, density and coverage with k {neighbours} need more {name} pictures than "
                f"{len(features)}"
            )
    if reference.shape[1] != generated.shape[1]:
        raise DataError("reference and generated features come from different networks")
    reference, generated = reference.double(), generated.double()
    radii, precise, dense = neighbour_distances(reference, neighbours), [], []
    covered = torch.zeros(len(reference), dtype=torch.bool, device=reference.device)
    for chunk in generated.split(_CHUNK):
        inside = _distances(chunk, reference) <= radii
        precise.append(inside.any(1))
        dense.append(inside.sum(1).double() / neighbours)
        covered |= inside.any(0)
    recalled = lies_among(reference, generated, neighbour_distances(generated, neighbours))
    return ManifoldScores(torch.cat(precise), recalled, torch.cat(dense), covered)


def neighbour_distances(features: Tensor, neighbours: int) -> Tensor:
    """The distance `[N]` of each feature of `[N, D]` to its k-th nearest other one."""
    distances = []
    for chunk in features.split(_CHUNK):
        # The smallest distance of a row is to itself.
        distances.append(_distances(chunk, features).kthvalue(neighbours + 1, dim=1).values)
    return torch.cat(distances)


def lies_among(features: Tensor, others: Tensor, radii: Tensor) -> Tensor:
    """bool `[M]`: whether each of `[M, D]` is within `radii[i]` of some `others[i]` of `[N, D]`."""
    inside = [(_distances(chunk, others) <= radii).any(dim=1) for chunk in features.split(_CHUNK)]
    return torch.cat(inside)


def _distances(features: Tensor, others: Tensor) -> Tensor:
    # Differences, not products: a feature is at distance zero from itself, to the bit.
    return torch.cdist(features, others, compute_mode="donot_use_mm_for_euclid_dist")
