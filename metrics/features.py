"""The check of features that every figure makes before it is computed from them.

Belongs here: that check. Does not belong here: figures, and networks that make features (`extractors.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from metrics.errors import DataError


def check_features(features: object, name: str = "") -> None:
    """Refuse what is no set of features of shape `[N, D]`, of real numbers that are finite when they are squared.

    Args:
        features: of any dtype.
        name: of the set, for the error.

    Raises:
        DataError: see above.
    """
    named = f"{name} features".strip()
    if not isinstance(features, Tensor) or features.ndim != 2 or features.is_complex() or not features.shape[1]:
        found = list(features.shape) if isinstance(features, Tensor) else f"a {type(features).__name__}"
        raise DataError(f"{named} must be a tensor of real numbers of the shape [N, D], got {found}")
    if not torch.isfinite(features.double().square().sum()):
        raise DataError(
            f"{named} hold numbers that are not finite, or too large; look for a damaged extractor or picture"
        )
