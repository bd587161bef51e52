"""How different pictures are from each other, without a network trained on human judgement."""

from __future__ import annotations

import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.features import check_features

_CHUNK = 1024


def distances_to_others(features: Tensor) -> Tensor:
    """The mean Euclidean distance of each feature of `[N, D]` to the other N - 1, float64 `[N]`.

    The mean of these is the mean distance between two different pictures.

    Raises:
        DataError: fewer than two features, or numbers that are not finite.
    """
    check_features(features)
    if len(features) < 2:
        raise DataError(f"a distance between pictures needs 2 or more pictures, got {len(features)}")
    features = features.double()
    rows = [
        torch.cdist(chunk, features, compute_mode="donot_use_mm_for_euclid_dist").sum(dim=1)
        for chunk in features.split(_CHUNK)
    ]
    return torch.cat(rows) / (len(features) - 1)
