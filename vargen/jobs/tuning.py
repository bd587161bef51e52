"""Which settings of a method are fastest for a given loss of quality: search spaces, the front, and the choice.

Belongs here: what may be varied, and what is best among measured points. Does not belong here: options, files and
printing (`vargen.commands.tune`), and measuring (`vargen.jobs.benchmark`). The search itself is Optuna's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from vargen.errors import UserError
from vargen.methods.catalogue import AUTO, METHODS, PATH_CHOICES, SCHEDULES, MethodConfig, find_presets, resolve_method

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

    def size(self, name: str, low: int, high: int) -> Any:
        """A draft size: "auto", or a whole number from `low` to `high`. Two parameters, the first says which."""
        if name in self.fixed:
            return self.fixed[name]
        return AUTO if self.choice(_is_auto(name), [True, False]) else self.integer(name, low, high, log=True)

    def chain(self) -> int | None:
        """The length of a chain of drawn tokens; None for a dynamic tree, or where the shape is fixed."""
        if {"tree", "children"} & self.fixed.keys() or self.choice("draft", ["tree", "chain"]) == "tree":
            return None
        return self.integer("chain_length", 1, 8)


class _Retracing(Suggestions):
    """Walks a search space along given settings, and notes what Optuna would have had to suggest to arrive there.

    What the space cannot express is left out: Optuna draws it, and the given settings are measured all the same.

    Args:
        settings: all of a method.
        fixed: as for `Suggestions`.
    """

    def __init__(self, settings: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self.settings = {**settings, **fixed}
        self.fixed = fixed
        self.parameters: dict[str, Any] = {}

    def integer(self, name: str, low: int, high: int, log: bool = False) -> Any:
        return self.number(name, low, high)

    def number(self, name: str, low: float, high: float) -> Any:
        if name not in self.fixed and low <= self.settings[name] <= high:
            self.parameters[name] = self.settings[name]
        return self.settings[name]

    def choice(self, name: str, values: Sequence[Any]) -> Any:
        if name not in self.fixed and self.settings[name] in values:
            self.parameters[name] = self.settings[name]
        return self.settings[name]

    def size(self, name: str, low: int, high: int) -> Any:
        if name not in self.fixed:
            self.parameters[_is_auto(name)] = self.settings[name] == AUTO
        return AUTO if self.settings[name] == AUTO else self.integer(name, low, high)

    def chain(self) -> int | None:
        if {"tree", "children"} & self.fixed.keys():
            return None
        tree, length = self.settings["tree"], len(self.settings["tree"])
        if tree == "dynamic":
            self.parameters["draft"] = "tree"
        elif tree == _chain_paths(length) and self.settings["children"] == "sampled":
            self.parameters |= {"draft": "chain", "chain_length": length}
            return length
        return None


def _chain_paths(length: int) -> list[list[int]]:
    """A chain as a preset's `tree` holds it."""
    return [[0] * depth for depth in range(1, length + 1)]


def _is_auto(name: str) -> str:
    return f"{name}_is_auto"


def _tree(suggest: Suggestions) -> dict[str, Any]:
    # Where distributions are flat, a few drawn tokens are accepted more often than many likely ones.
    if (length := suggest.chain()) is not None:
        return {"tree": _chain_paths(length), "depth": length, "children": "sampled"}
    return {
        "total_tokens": suggest.size("total_tokens", 4, 64),
        "depth": suggest.size("depth", 1, 6),
        "tree_top_k": suggest.integer("tree_top_k", 2, 12),
    }


def _relaxed_tree(suggest: Suggestions) -> dict[str, Any]:
    return {
        **_tree(suggest),
        "delta": suggest.number("delta", 0.0, 0.5),
        # A few values, not a range: the pipeline keeps a table [vocabulary, neighbours] for each it has met.
        "num_neighbours": suggest.choice("num_neighbours", [AUTO, 8, 32, 128, 512]),
    }


def _vvs(suggest: Suggestions) -> dict[str, Any]:
    settings = {
        **_relaxed_tree(suggest),
        "schedule": suggest.choice("schedule", SCHEDULES),
        "choice": suggest.choice("choice", PATH_CHOICES),
        "truncate": suggest.choice("truncate", [True, False]),
        "refresh": suggest.choice("refresh", [True, False]),
        "depth_behind_skip": suggest.choice("depth_behind_skip", [None, 1, 2]),
    }
    if settings["schedule"] == "uniform":
        settings["interval"] = suggest.integer("interval", 2, 6)
    else:
        settings["threshold"] = suggest.number("threshold", 0.1, 0.95)
    return settings


def _window(suggest: Suggestions) -> dict[str, Any]:
    return {"window": suggest.size("window", 1, 32)}


def _groups(suggest: Suggestions) -> dict[str, Any]:
    return {
        **_window(suggest),
        "group_size": suggest.integer("group_size", 1, 63),
        "max_probability_difference": suggest.number("max_probability_difference", 0.01, 0.5),
        "max_distance": suggest.number("max_distance", 0.05, 2.0),
    }


def _chain(suggest: Suggestions) -> dict[str, Any]:
    return {"draft_length": suggest.size("draft_length", 1, 8)}


def _annealed_chain(suggest: Suggestions) -> dict[str, Any]:
    return {
        **_chain(suggest),
        "delta": suggest.number("delta", 1.0, 2.0),
        "decay": suggest.number("decay", 0.0, 2.0),
    }


SEARCH_SPACES: dict[str, Callable[[Suggestions], dict[str, Any]]] = {
    "eagle": _tree,
    "lantern": _relaxed_tree,
    "vvs": _vvs,
    "coolsd": _annealed_chain,
    "sjd": _window,
    "scd": _window,
    "gsd": _groups,
    "draft-model": _chain,
}
"""By method: one draw from what may be varied. Names are those of the method's settings."""


@dataclass(frozen=True)
class StartingPoint:
    """What to measure before the search begins.

    Args:
        settings: of the method, all that are not fixed, ready for JSON.
        parameters: the same in the terms of the search space, as far as it can express them.
    """

    settings: Mapping[str, Any]
    parameters: Mapping[str, Any]


def starting_points(method: str, fixed: Mapping[str, Any]) -> list[StartingPoint]:
    """The method's defaults, then the shipped presets of the method, each once; the fixed settings hold in all."""
    presets = [resolve_method(name) for name in find_presets()]
    starts: list[StartingPoint] = []
    for config in (resolve_method(method), *(preset for preset in presets if preset.name == method)):
        settings = {key: value for key, value in settings_of(config).items() if key not in ("method", *fixed)}
        if settings not in [start.settings for start in starts]:
            retracing = _Retracing(settings, fixed)
            SEARCH_SPACES[method](retracing)
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
    if method not in SEARCH_SPACES:
        what = "has nothing to tune" if method in by_name else "is not known"
        raise UserError(f"method {method!r} {what}; choose one of: {', '.join(SEARCH_SPACES)}")
    known = [field.name for field in fields(by_name[method])]
    for name in fixed:
        if name not in known:
            raise UserError(f"fixed: method {method!r} has no setting {name!r}; it has: {', '.join(known)}")
    try:
        resolve_method(method, fixed)
    except UserError as error:
        raise UserError(f"fixed: {error}") from error
