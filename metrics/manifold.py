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

import torch
from torch import Tensor

from metrics.errors import DataError

_CHUNK = 2048  # rows of the distance matrix at once


def precision_and_recall(reference: Tensor, generated: Tensor, neighbours: int = 3) -> tuple[Tensor, Tensor]:
    """Whether each feature lies among the others.

    Args:
        reference: `[N, D]`.
        generated: `[M, D]`.
        neighbours: k.

    Returns:
        bool `[M]`, whose mean is the precision, and bool `[N]`, whose mean is the recall.

    Raises:
        DataError: a set of k features or fewer, or different numbers of dimensions.
    """
    for name, features in (("reference", reference), ("generated", generated)):
        if len(features) <= neighbours:
            raise DataError(f"precision and recall with k {neighbours} need more {name} pictures than {len(features)}")
    if reference.shape[1] != generated.shape[1]:
        raise DataError("reference and generated features come from different networks")
    reference, generated = reference.double(), generated.double()
    return (
        lies_among(generated, reference, neighbour_distances(reference, neighbours)),
        lies_among(reference, generated, neighbour_distances(generated, neighbours)),
    )


def density_and_coverage(reference: Tensor, generated: Tensor, neighbours: int = 5) -> tuple[Tensor, Tensor]:
    """In how many neighbourhoods of the reference each picture lies, and which of them hold a picture.

    Args:
        reference, generated: as for `precision_and_recall`; so are the errors.
        neighbours: k; the authors take 5.

    Returns:
        float64 `[M]`, numbers over k, whose mean is the density (1 is expected of the reference's own distribution, and
        more is possible), and bool `[N]`, whose mean is the coverage (equations 3 and 5).
    """
    for name, features in (("reference", reference), ("generated", generated)):
        if len(features) <= neighbours:
            raise DataError(f"density and coverage with k {neighbours} need more {name} pictures than {len(features)}")
    if reference.shape[1] != generated.shape[1]:
        raise DataError("reference and generated features come from different networks")
    reference, generated = reference.double(), generated.double()
    radii = neighbour_distances(reference, neighbours)
    dense, covered = [], torch.zeros(len(reference), dtype=torch.bool, device=reference.device)
    for chunk in generated.split(_CHUNK):
        inside = _distances(chunk, reference) <= radii
        dense.append(inside.sum(1).double() / neighbours)
        covered |= inside.any(0)
    return torch.cat(dense), covered


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
