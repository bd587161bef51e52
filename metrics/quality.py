"""Quality of a set of pictures by a protocol: figures with 95 % intervals out of features.

Belongs here: which figure comes from which features. Does not belong here: making features (`extractors`), reading
pictures, and what a figure's formula is (`frechet`, `manifold`, `clip_score`, `diversity`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from metrics.bootstrap import mean_interval, spread_interval
from metrics.class_score import inception_score
from metrics.clip_score import clip_scores
from metrics.diversity import distances_to_others
from metrics.errors import DataError
from metrics.frechet import GaussianStatistics, frechet_distance
from metrics.manifold import ManifoldScores, compare_manifolds
from metrics.protocol import Protocol

LARGEST_BOOTSTRAPPED_DIMENSION = 1024
"""A Frechet distance over more dimensions takes tens of seconds, and an interval some hundred of them."""


@dataclass(frozen=True)
class Reference:
    """The statistics and features that pictures are compared with.

    Args:
        statistics: of the features of `Protocol.extractor`.
        manifold_features: `[N, D]` of `Protocol.manifold_extractor`; None where only statistics are known.
        spatial: statistics of the features of sFID; None where they are not known or not asked.
    """

    statistics: GaussianStatistics
    manifold_features: Tensor | None
    spatial: GaussianStatistics | None = None


@dataclass(frozen=True)
class Measured:
    """The features and settings that a score may be made of.

    Args:
        protocol: says which features and settings.
        features: by extractor, `[N, D]` in the order of the pictures; beside them what `EXTRAS` names, where the
            protocol asks for it.
        reference: None: there is nothing to compare with.
        text_features: of the captions, `[N, D]`; None without captions.
        draws: of the bootstrap.
    """

    protocol: Protocol
    features: Mapping[str, Tensor]
    reference: Reference | None
    text_features: Tensor | None
    draws: int

    @property
    def own(self) -> Tensor:
        """Features `[N, D]` of the protocol's extractor."""
        return self.features[self.protocol.extractor]

    @cached_property
    def manifold(self) -> ManifoldScores | None:
        """Precision, recall, density and coverage by feature; None without a reference that has features."""
        protocol, reference = self.protocol, self.reference
        if protocol.manifold_extractor is None or reference is None or reference.manifold_features is None:
            return None
        features = self.features[protocol.manifold_extractor]
        return compare_manifolds(reference.manifold_features, features, protocol.manifold_neighbours)


EXTRAS = {"spatial_distance": "spatial", "inception_score": "logits", "hps": "hps_text"}
"""Measurements beside features, by the field of the protocol that asks for it: see `extractors.InceptionReading`,
and the captions' features by the network of `hps`."""

Figure = dict[str, Any]


def _frechet_distance(measured: Measured) -> Figure | None:
    return None if measured.reference is None else _frechet(measured.own, measured.reference.statistics, measured.draws)


def _spatial_distance(measured: Measured) -> Figure | None:
    if measured.reference is None or measured.reference.spatial is None:
        return None
    return _frechet(measured.features["spatial"], measured.reference.spatial, measured.draws)


def _inception_score(measured: Measured) -> Figure | None:
    value, deviation = inception_score(measured.features["logits"])
    return {**figure(value, None), "deviation": deviation}


def _hps(measured: Measured) -> Figure | None:
    return mean_figure(preference_scores(measured.features), measured.draws)


def preference_scores(features: Mapping[str, Tensor]) -> Tensor:
    """float64 `[N]`: 100 times the cosine of picture and caption by the network of `hps`, as HPS v2's tables say it."""
    return clip_scores(features["hps"], features["hps_text"], clip_at_zero=False)


def _clip_score(measured: Measured) -> Figure | None:
    clip = measured.protocol.clip_score
    if clip is None:
        return None
    if measured.text_features is None:
        raise DataError("clip_score needs captions; give them or set clip_score to null")
    scores = clip_scores(measured.features["clip"], measured.text_features, clip.scale, clip.clip_at_zero)
    return mean_figure(scores, measured.draws)


def _manifold_score(name: str) -> Callable[[Measured], Figure | None]:
    """The mean of one of `ManifoldScores`."""

    def score(measured: Measured) -> Figure | None:
        return None if measured.manifold is None else mean_figure(getattr(measured.manifold, name), measured.draws)

    return score


def _diversity(measured: Measured) -> Figure | None:
    return mean_figure(distances_to_others(measured.own), measured.draws)


SCORES: dict[str, Callable[[Measured], Figure | None]] = {
    "frechet_distance": _frechet_distance,
    "spatial_distance": _spatial_distance,
    "inception_score": _inception_score,
    "clip_score": _clip_score,
    "hps": _hps,
    "precision": _manifold_score("precise"),
    "recall": _manifold_score("recalled"),
    "density": _manifold_score("dense"),
    "coverage": _manifold_score("covered"),
    "diversity": _diversity,
}
"""Every score of a set of pictures, as results name it. A new one is a function and a line here."""


def score_pictures(
    protocol: Protocol,
    features: Mapping[str, Tensor],
    reference: Reference | None,
    text_features: Tensor | None = None,
    draws: int = 200,
) -> dict[str, Figure | None]:
    """Every score of `SCORES` but those of `EXTRAS` that the protocol leaves out; arguments as for `Measured`.

    Returns:
        A score by its name, as `{"value": float, "interval": [low, high] or None}`, or None where it cannot be
        computed. The bootstrap of precision holds the reference's neighbourhoods fixed, that of recall the pictures'.

    Raises:
        DataError: too few pictures, or features that do not fit each other.
    """
    measured = Measured(protocol, features, reference, text_features, draws)
    asked = {name: score for name, score in SCORES.items() if name not in EXTRAS or getattr(protocol, name)}
    return {name: score(measured) for name, score in asked.items()}


def mean_figure(values: Tensor, draws: int) -> dict[str, Any]:
    """The mean of one number a picture, NaN for none, or of one truth a picture, with its interval."""
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

    interval = spread_interval(value, len(features), over, draws)
    return figure(value, None if interval is None else (max(interval[0], 0.0), interval[1]))
