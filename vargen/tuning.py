"""Which settings of a method are fastest for a given loss of quality: search spaces, the front, and the choice.

Belongs here: what may be varied, and what is best among measured points. Does not belong here: options, files and
printing (`vargen.commands.tune`), and measuring (`vargen.benchmark`). The search itself is Optuna's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from vargen.files import UserError
from vargen.methods import METHODS, find_presets, resolve_method

if TYPE_CHECKING:
    from optuna.trial import Trial

SPEEDS = ("speedup", "pass_reduction")
"""What can be maximised: wall clock on this machine, or target passes, which no machine changes."""
QUALITIES = {"judge_accuracy": 1}
"""What can be held: fields of a benchmark row; 1 where more is better, -1 where less is."""


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
    good = [point for point in points if point.quality >= least_quality]
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


def _tree(suggest: Suggestions) -> dict[str, Any]:
    return {
        "total_tokens": suggest.integer("total_tokens", 4, 64, log=True),
        "depth": suggest.integer("depth", 1, 6),
        "tree_top_k": suggest.integer("tree_top_k", 2, 12),
    }


def _relaxed_tree(suggest: Suggestions) -> dict[str, Any]:
    return {**_tree(suggest), "delta": suggest.number("delta", 0.0, 0.5)}


def _vvs(suggest: Suggestions) -> dict[str, Any]:
    settings = {
        **_relaxed_tree(suggest),
        "schedule": suggest.choice("schedule", ["uniform", "dynamic", "likeness"]),
        "choice": suggest.choice("choice", ["sample", "confidence", "central", "drafter"]),
        "truncate": suggest.choice("truncate", [True, False]),
        "refresh": suggest.choice("refresh", [True, False]),
    }
    if settings["schedule"] == "uniform":
        settings["interval"] = suggest.integer("interval", 2, 6)
    else:
        settings["threshold"] = suggest.number("threshold", 0.1, 0.95)
    return settings


def _window(suggest: Suggestions) -> dict[str, Any]:
    return {"window": suggest.integer("window", 1, 32, log=True)}


def _groups(suggest: Suggestions) -> dict[str, Any]:
    return {
        **_window(suggest),
        "group_size": suggest.integer("group_size", 1, 63),
        "max_probability_difference": suggest.number("max_probability_difference", 0.01, 0.5),
        "max_distance": suggest.number("max_distance", 0.05, 2.0),
    }


def _chain(suggest: Suggestions) -> dict[str, Any]:
    return {"draft_length": suggest.integer("draft_length", 1, 8)}


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


def starting_points(method: str, fixed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Settings to try first, in the terms of the search space: those of the shipped presets of this method."""
    starts = []
    for name in find_presets():
        preset = resolve_method(name).to_dict()
        if preset.pop("name") == method:
            starts.append({key: value for key, value in preset.items() if value != "auto" and key not in fixed})
    return starts


def check_fixed(method: str, fixed: Mapping[str, Any]) -> None:
    """Refuse a method that cannot be tuned, or a fixed setting that it does not have.

    Raises:
        UserError: see above; the message lists what there is.
    """
    if method not in SEARCH_SPACES:
        raise UserError(f"method {method!r} cannot be tuned; choose one of: {', '.join(SEARCH_SPACES)}")
    config = next(each for each in METHODS if each.name == method)
    known = [field.name for field in fields(config)]
    for name in fixed:
        if name not in known:
            raise UserError(f"fixed: method {method!r} has no setting {name!r}; it has: {', '.join(known)}")
