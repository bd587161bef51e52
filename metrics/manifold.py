"""Improved precision and recall (Kynkaanniemi et al., arXiv 1904.06991): how much of one set of features lies among
the other.

A feature lies among a set if it is within the distance of some member to that member's k-th nearest neighbour in its
own set. Precision is the share of generated features among the reference (do pictures look real?), recall the share of
reference features among the generated (is everything real still made?). A method that always makes its safest picture
has high precision and low recall.
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


def neighbour_distances(features: Tensor, neighbours: int) -> Tensor:
    """Of each feature of `[N, D]` the distance to its k-th nearest other one, `[N]`."""
    distances = []
    for chunk in features.split(_CHUNK):
        # Of a row, the smallest distance is to itself.
        distances.append(_distances(chunk, features).kthvalue(neighbours + 1, dim=1).values)
    return torch.cat(distances)


def lies_among(features: Tensor, others: Tensor, radii: Tensor) -> Tensor:
    """bool `[M]`: whether each of `[M, D]` is within `radii[i]` of some `others[i]` of `[N, D]`."""
    inside = [(_distances(chunk, others) <= radii).any(dim=1) for chunk in features.split(_CHUNK)]
    return torch.cat(inside)


def _distances(features: Tensor, others: Tensor) -> Tensor:
    # Differences, not products: a feature is at distance zero from itself, to the bit.
    return torch.cdist(features, others, compute_mode="donot_use_mm_for_euclid_dist")
