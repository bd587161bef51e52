"""The Inception Score (Salimans et al., arXiv 1606.03498): how sure a classifier is of each picture, and how many
different classes it sees in all.

It knows no reference, and a method that draws one perfect picture of each class has the best score there is.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.features import check_features

PARTS = 10
"""Parts of the pictures that are scored by themselves; published scores are means over so many."""
_ORDER_SEED = 2020  # torch-fidelity's own, so that both mix the pictures alike


def inception_score(logits: Tensor, parts: int = PARTS) -> tuple[float, float]:
    """`exp(E KL(p(y|x) | p(y)))`: the mean over parts of the pictures, and the standard deviation.

    Args:
        logits: `[N, classes]`.
        parts: of equal size, of pictures that are mixed in one fixed order first. The score grows with their size.

    Raises:
        DataError: fewer pictures than parts, no part, or numbers that are not finite.
    """
    if isinstance(parts, bool) or parts < 1:
        raise DataError(f"parts must be an integer of at least 1, got {parts!r}")
    check_features(logits)
    if (count := len(logits)) < parts:
        raise DataError(f"the Inception Score of {parts} parts needs {parts} or more pictures, got {count}")
    order = np.random.RandomState(_ORDER_SEED).permutation(count)
    certain = logits.double()[torch.from_numpy(order)].log_softmax(dim=1)
    scores = []
    for part in range(parts):
        own = certain[part * count // parts : (part + 1) * count // parts]
        overall = own.exp().mean(dim=0).log()
        scores.append(float((own.exp() * (own - overall)).sum(dim=1).mean().exp()))
    return float(np.mean(scores)), float(np.std(scores))
