"""CLIP score (Hessel et al., arXiv 2104.08718): how well a picture's features and its text's agree.

Conventions differ by a factor of 100 or 2.5, by clipping at zero, by a prefix before the text and by the model; all of
these are the protocol's (`protocol.ClipProtocol`). Here features become one number a picture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metrics.errors import DataError


def clip_scores(
    image_features: Tensor, text_features: Tensor, scale: float = 100.0, clip_at_zero: bool = True
) -> Tensor:
    """float64 `[N]`: `scale * cos(image, text)` of each pair.

    Args:
        image_features: unit vectors `[N, D]`.
        text_features: unit vectors `[N, D]`, of the same pictures' texts.
        scale: 100 in torchmetrics, 1 in GigaGAN's script.
        clip_at_zero: whether negative cosines count as zero. torchmetrics clips the mean only; with scores that all
            are positive, as a trained CLIP's are, it is the same.

    Raises:
        DataError: not one text a picture.
    """
    if image_features.shape != text_features.shape:
        raise DataError(f"{len(image_features)} pictures have {len(text_features)} captions; give each picture its own")
    cosines = (image_features.double() * text_features.double()).sum(dim=-1)
    return scale * (cosines.clamp_min(0) if clip_at_zero else cosines)


def retrieval_accuracy(image_features: Tensor, text_features: Tensor, candidates: int = 32) -> float:
    """In how many of groups of `candidates` consecutive pairs the picture's own text scores highest: 1/candidates by
    chance. A fast check that a CLIP has learnt anything."""
    hits, total = 0, 0
    for start in range(0, len(image_features) - candidates + 1, candidates):
        group = slice(start, start + candidates)
        best = (image_features[group] @ text_features[group].T).argmax(dim=1)
        hits += int((best == torch.arange(candidates)).sum())
        total += candidates
    return hits / max(total, 1)
