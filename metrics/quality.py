"""Quality of a set of pictures by a protocol: figures with 95 % intervals out of features.

Belongs here: which figure comes from which features. Does not belong here: making features (`extractors`), reading
pictures, and what a figure's formula is (`frechet`, `manifold`, `clip_score`, `diversity`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from metrics.bootstrap import bootstrap_interval, mean_interval
from metrics.clip_score import clip_scores
from metrics.diversity import distances_to_others
from metrics.errors import DataError
from metrics.frechet import GaussianStatistics, frechet_distance
from metrics.manifold import precision_and_recall
from metrics.protocol import Protocol

LARGEST_BOOTSTRAPPED_DIMENSION = 1024
"""A Frechet distance over more dimensions takes tens of seconds, and an interval some hundred of them."""


@dataclass(frozen=True)
class Reference:
    """What pictures are compared with.

    Args:
        statistics: of the features of `Protocol.extractor`.
        manifold_features: `[N, D]` of `Protocol.manifold_extractor`; None where only statistics are known.
    """

    statistics: GaussianStatistics
    manifold_features: Tensor | None


def score_pictures(
    protocol: Protocol,
    features: dict[str, Tensor],
    reference: Reference | None,
    text_features: Tensor | None = None,
    draws: int = 200,
) -> dict[str, Any]:
    """Every figure of the protocol.

    Args:
        protocol: says which.
        features: by extractor, `[N, D]` in the order of the pictures.
        reference: None leaves out what needs one.
        text_features: of the captions, `[N, D]`, for CLIP score.
        draws: of the bootstrap.

    Returns:
        `frechet_distance`, `precision`, `recall`, `clip_score`, `diversity`: each `{"value": float, "interval": [low,
        high] or None}`, or None where it could not be computed. The bootstrap of precision holds the reference's
        neighbourhoods fixed, that of recall the pictures'.

    Raises:
        DataError: too few pictures, or features that do not fit each other.
    """
    scores: dict[str, Any] = dict.fromkeys(("frechet_distance", "clip_score", "precision", "recall", "diversity"))
    own = features[protocol.extractor]
    if reference is not None:
        scores["frechet_distance"] = _frechet(own, reference.statistics, draws)
        if protocol.manifold_extractor is not None and reference.manifold_features is not None:
            precise, recalled = precision_and_recall(
                reference.manifold_features, features[protocol.manifold_extractor], protocol.manifold_neighbours
            )
            scores["precision"] = mean_figure(precise, draws)
            scores["recall"] = mean_figure(recalled, draws)
    if protocol.clip_score is not None:
        if text_features is None:
            raise DataError("clip_score needs captions; give them or set clip_score to null")
        clip = protocol.clip_score
        scores["clip_score"] = mean_figure(
            clip_scores(features["clip"], text_features, clip.scale, clip.clip_at_zero), draws
        )
    scores["diversity"] = mean_figure(distances_to_others(own), draws)
    return scores


def mean_figure(values: Tensor, draws: int) -> dict[str, Any]:
    """The mean of one number a picture, NaN for none, with its interval."""
    return figure(float(values.double().nanmean()), mean_interval(values, draws))


def figure(value: float, interval: tuple[float, float] | None) -> dict[str, Any]:
    """A number as results hold it."""
    return {"value": value, "interval": None if interval is None else list(interval)}


def _frechet(features: Tensor, reference: GaussianStatistics, draws: int) -> dict[str, Any]:
    value = frechet_distance(reference, GaussianStatistics.of(features))
    if features.shape[1] > LARGEST_BOOTSTRAPPED_DIMENSION:
        draws = 0

    def over(chosen: Tensor) -> float:
        return frechet_distance(reference, GaussianStatistics.of(features[chosen]))

    interval = bootstrap_interval(value, len(features), over, draws)
    return figure(value, None if interval is None else (max(interval[0], 0.0), interval[1]))
