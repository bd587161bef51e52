"""How different pictures are from each other, without a network trained on human judgement."""

from __future__ import annotations

import torch
from torch import Tensor

from metrics.errors import DataError

_CHUNK = 1024


def mean_pairwise_distance(features: Tensor) -> float:
    """The mean Euclidean distance between two different ones of the features `[N, D]`.

    Raises:
        DataError: fewer than two features.
    """
    count = len(features)
    if count < 2:
        raise DataError(f"a pairwise distance needs 2 or more pictures, got {count}")
    features = features.double()
    total = torch.zeros((), dtype=torch.float64)
    for chunk in features.split(_CHUNK):
        total += torch.cdist(chunk, features, compute_mode="donot_use_mm_for_euclid_dist").sum()
    return float(total / (count * (count - 1)))


def distances_to_others(features: Tensor) -> Tensor:
    """Of each feature of `[N, D]` its mean distance to the others, `[N]`: their mean is `mean_pairwise_distance`."""
    features = features.double()
    rows = [
        torch.cdist(chunk, features, compute_mode="donot_use_mm_for_euclid_dist").sum(dim=1)
        for chunk in features.split(_CHUNK)
    ]
    return torch.cat(rows) / (len(features) - 1)
