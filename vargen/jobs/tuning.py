"""Which settings of a method are fastest for a given loss of quality: where to begin, the front, and the choice.

Belongs here: where a search begins, and what is best among measured points. Does not belong here: what may be varied
(a method's own `search`), options, files and printing (`vargen.commands.tune`), and measuring
(`vargen.jobs.benchmark`). The search itself is Optuna's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from vargen.errors import UserError
from vargen.methods.base import AUTO, ImageMethodConfig, MethodConfig
from vargen.methods.catalogue import METHODS, find_presets, resolve_method

if TYPE_CHECKING:
    from optuna.trial import Trial

SPEEDS = ("speedup", "pass_reduction")
"""What can be maximised: wall clock on this machine, or target passes, which no machine changes."""

_ROUNDING = 1e-9
"""A loss of exactly the budget is within it, however the difference of two shares is rounded."""


@dataclass(frozen=True)
class Quality:
    """How a measure of quality is to be read.

    Args:
        direction: 1 where more is better, -1 where less is.
        largest_loss: the most that can be lost of it; infinity where nothing bounds it.
    """

    direction: int
    largest_loss: float


QUALITIES = {"judge_accuracy": Quality(1, 1.0)}
"""What can be held: fields of a benchmark row."""


@dataclass(frozen=True)
class Point:
    """One measured setting.

    Args:
        settings: of the method, its name among them, as a preset holds them.
        speed: more is better.
        quality: more is better, whatever its field says: fields where less is better come negated.
    """

    settings: Mapping[str, Any]
    speed: float
    quality: float


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in one respect without losing in the other, fastest first."""
    front: list[Point] = []
    best = float("-inf")
    for point in sorted(points, key=lambda point: (-point.speed, -point.quality)):
        if point.quality > best:
            front.append(point)
            best = point.quality
    return front


def fastest_within(points: Sequence[Point], least_quality: float) -> Point | None:
    """The fastest point of at least this quality, the better of two equally fast ones; None if there is none."""
    good = [point for point in points if point.quality >= least_quality - _ROUNDING]
    return max(good, key=lambda point: (point.speed, point.quality), default=None)


class Suggestions:
    """Optuna's suggestions, but for the settings that are fixed.

    Args:
        trial: asked for what is not fixed.
        fixed: values by name.
    """

    def __init__(self, trial: Trial, fixed: Mapping[str, Any]) -> None:
        self.trial = trial
        self.fixed = fixed

    def integer(self, name: str, low: int, high: int, log: bool = False) -> Any:
        """A whole number from `low` to `high`."""
        return self.fixed[name] if name in self.fixed else self.trial.suggest_int(name, low, high, log=log)

    def number(self, name: str, low: float, high: float) -> Any:
        """A number from `low` to `high`."""
        return self.fixed[name] if name in self.fixed else self.trial.suggest_float(name, low, high)

    def choice(self, name: str, values: Sequence[Any]) -> Any:
        """One of the values."""
        return self.fixed[name] if name in self.fixed else self.trial.suggest_categorical(name, values)


class _Retracing(Suggestions):
    """Walks a search space along given settings, and notes what Optuna would have had to suggest to arrive there.

    What the space cannot express is left out: Optuna draws it, and the given settings are measured all the same.

    Args:
        terms: a method's `search_terms`.
        fixed: as for `Suggestions`.
    """

    def __init__(self, terms: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self.terms = {**terms, **fixed}
        self.fixed = fixed
        self.parameters: dict[str, Any] = {}

    def integer(self, name: str, low: int, high: int, log: bool = False) -> Any:
        return self.number(name, low, high)

    def number(self, name: str, low: float, high: float) -> Any:
        value = self.terms[name]
        if name not in self.fixed and value != AUTO and low <= value <= high:
            self.parameters[name] = value
        return value

    def choice(self, name: str, values: Sequence[Any]) -> Any:
        value = self.terms.get(name)
        if name not in self.fixed and value in values:
            self.parameters[name] = value
        return value


@dataclass(frozen=True)
class StartingPoint:
    """What to measure before the search begins.

    Args:
        settings: of the method, all that are not fixed, ready for JSON.
        parameters: the same in the terms of the search space, as far as it can express them.
    """

    settings: Mapping[str, Any]
    parameters: Mapping[str, Any]


def starting_points(
    method: str,
    fixed: Mapping[str, Any],
    resolve: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig],
) -> list[StartingPoint]:
    """The method as it comes, then the shipped presets of it, each once; the fixed settings hold in all.

    Args:
        method: its name.
        fixed: settings that are not varied.
        resolve: what a method's name stands for with the model that is tuned.
    """
    presets = [resolve(name, None) for name in find_presets()]
    starts: list[StartingPoint] = []
    for config in (resolve(method, None), *(preset for preset in presets if preset.name == method)):
        settings = {key: value for key, value in settings_of(config).items() if key not in ("method", *fixed)}
        if settings not in [start.settings for start in starts]:
            retracing = _Retracing(config.search_terms(), fixed)
            config.search(retracing)
            starts.append(StartingPoint(settings, retracing.parameters))
    return starts


def settings_of(config: MethodConfig) -> dict[str, Any]:
    """`method: NAME` and every setting, as a preset holds them and as JSON gives them back (tuples become lists)."""
    settings = config.to_dict()
    return json.loads(json.dumps({"method": settings.pop("name"), **settings}))


def check_fixed(method: str, fixed: Mapping[str, Any]) -> None:
    """Refuse a method that cannot be tuned, or a fixed setting that it does not have or cannot use.

    Raises:
        UserError: see above; the message lists what there is.
    """
    by_name = {config.name: config for config in METHODS}
    tunable = [name for name, config in by_name.items() if fields(config)]
    if method not in tunable:
        what = "has nothing to tune" if method in by_name else "is not known"
        raise UserError(f"method {method!r} {what}; choose one of: {', '.join(tunable)}")
    known = [field.name for field in fields(by_name[method])]
    for name in fixed:
        if name not in known:
            raise UserError(f"fixed: method {method!r} has no setting {name!r}; it has: {', '.join(known)}")
    try:
        resolve_method(method, fixed)
    except UserError as error:
        raise UserError(f"fixed: {error}") from error
