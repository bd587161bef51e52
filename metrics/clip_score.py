"""CLIP score (Hessel et al., arXiv 2104.08718): how well a picture's features and its text's agree.

Conventions differ by a factor of 100 or 2.5, by clipping at zero, by a prefix before the text and by the model; all of
these are the protocol's (`protocol.ClipProtocol`). Here features become one number a picture.
"""

from __future__ import annotations

import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.features import check_features


def clip_scores(
    image_features: Tensor, text_features: Tensor, scale: float = 100.0, clip_at_zero: bool = True
) -> Tensor:
    """float64 `[N]`: `scale * cos(image, text)` of each pair.

    Args:
        image_features: unit vectors `[N, D]`, such as `extractors.CLIPFeatures` gives. One that bfloat16 normalised may
            be 0.8 % too long or too short, and its score is off by as much: better normalise in float32.
        text_features: unit vectors `[N, D]`, of the same pictures' texts.
        scale: 100 in torchmetrics, 1 in GigaGAN's script.
        clip_at_zero: whether negative cosines count as zero. torchmetrics clips the mean only; with scores that all
            are positive, as a trained CLIP's are, it is the same.

    Raises:
        DataError: not one text a picture, features of different width, or vectors that are not of length one.
    """
    if image_features.ndim != 2 or image_features.shape[1:] != text_features.shape[1:]:
        raise DataError(
            f"image_features and text_features must be [N, D] of one width D, got {list(image_features.shape)} and "
            f"{list(text_features.shape)}; make both with the same CLIP"
        )
    if len(image_features) != len(text_features):
        raise DataError(f"{len(image_features)} pictures have {len(text_features)} captions; give each picture its own")
    _check_lengths("image_features", image_features)
    _check_lengths("text_features", text_features)
    cosines = (image_features.double() * text_features.double()).sum(dim=-1)
    return scale * (cosines.clamp_min(0) if clip_at_zero else cosines)


def _check_lengths(name: str, features: Tensor) -> None:
    """Raises DataError for a row whose length is not one."""
    # Where a type normalises its own vectors, it rounds the length, and then each number, by half an epsilon at most.
    # Together that is 0.00098 in float16 and 0.0078 in bfloat16.
    tolerance = 8e-3 if features.dtype == torch.bfloat16 else 1e-3
    lengths = features.double().norm(dim=-1)
    wrong = ((lengths - 1).abs() <= tolerance).logical_not().nonzero()  # NaN, too
    if len(wrong):
        row = int(wrong[0])
        raise DataError(
            f"{name} must be unit vectors, got one of length {float(lengths[row]):.4g} in row {row}; make them so with "
            "torch.nn.functional.normalize(features.float(), dim=-1)"
        )


def retrieval_accuracy(image_features: Tensor, text_features: Tensor, candidates: int = 32) -> float:
    """In how many of groups of `candidates` consecutive pairs the picture's own text scores highest: 1/candidates by
    chance. A fast check that a CLIP has learnt anything. Raises DataError for features that are not finite."""
    check_features(image_features, "image")
    check_features(text_features, "text")
    if len(image_features) != len(text_features):
        raise DataError(f"{len(image_features)} pictures have {len(text_features)} captions; give each picture its own")
    hits, total = 0, 0
    for start in range(0, len(image_features) - candidates + 1, candidates):
        group = slice(start, start + candidates)
        best = (image_features[group] @ text_features[group].T).argmax(dim=1)
        hits += int((best == torch.arange(candidates)).sum())
        total += candidates
    return hits / max(total, 1)
