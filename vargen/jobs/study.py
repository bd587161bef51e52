"""A search of settings: where it begins, the file that keeps its trials, the front, and the best within a budget.

A trial is a line of JSON, written when the trial is over, so that a kill loses at most the one that was running. Optuna
has them in memory.

Belongs here: what is fixed, the first settings to try, keeping trials, and choosing among measured points. Does not
belong here: what a method lets vary (its own `search`), and measuring (`vargen.jobs.tuning`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.places import check_replaceable
from vargen.base.reading import reason_of
from vargen.methods.base import ImageMethodConfig, MethodConfig, Suggestions
from vargen.methods.catalogue import find_presets, methods_for, resolve_method
from vargen.runs.files import append_jsonl, read_jsonl

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial, Trial

_ROUNDING = 1e-9
"""A loss of exactly the budget is within it, however the difference of two shares is rounded."""


class _Retracing(Suggestions):
    """Walks a search space along a method's `search_terms`, and notes the suggestions of Optuna that would lead there.

    A setting that the space cannot express is left out. Optuna draws it, and the given settings are still measured.
    """

    def __init__(self, terms: Mapping[str, Any], fixed: Mapping[str, Any]) -> None:
        self.terms = {**terms, **fixed}
        self.fixed = fixed
        self.parameters: dict[str, Any] = {}

    def integer(self, name: str, low: int, high: int, log: bool = False) -> Any:
        return self.number(name, low, high)

    def number(self, name: str, low: float, high: float) -> Any:
        value = self.terms[name]
        if name not in self.fixed and isinstance(value, int | float) and low <= value <= high:  # not "auto", not a list
            self.parameters[name] = value
        return value

    def choice(self, name: str, values: Sequence[Any]) -> Any:
        value = self.terms.get(name)
        if name not in self.fixed and value in values:
            self.parameters[name] = value
        return value


@dataclass(frozen=True)
class StartingPoint:
    """Settings to measure before the search begins.

    Args:
        settings: of the method, all that are not fixed, ready for JSON.
        parameters: the same in terms of the search space, as far as it can express them.
    """

    settings: Mapping[str, Any]
    parameters: Mapping[str, Any]


def starting_points(
    method: str,
    fixed: Mapping[str, Any],
    resolve: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig],
) -> list[StartingPoint]:
    """The method's defaults, its shipped presets, and its own `search_starts`, each once and with the fixed settings.

    Args:
        method: its name.
        fixed: settings that are not varied.
        resolve: gives the method of a name with the model that is tuned.
    """
    presets = [resolve(name, None) for name in find_presets()]
    starts: list[StartingPoint] = []
    default = resolve(method, None)
    own = [
        resolve(method, settings)
        for settings in default.search_starts()
        if all(fixed.get(name, value) == value for name, value in settings.items())
    ]
    for config in (default, *(preset for preset in presets if preset.name == method), *own):
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
    """Raises UserError for a method that cannot be tuned, or a fixed setting that it does not have or cannot use."""
    by_name = methods_for("image")
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


@dataclass(frozen=True)
class Point:
    """One measured setting.

    Args:
        settings: of the method, its name among them, as a preset holds them.
        speed: more is better.
        quality: more is better.
        survival: see `metrics.speculation.survival_by_place`.
        told: further figures: "pass_reduction", "never_verified" (a share of all tokens), and "speedup" where seconds
            were measured.
    """

    settings: Mapping[str, Any]
    speed: float
    quality: float
    survival: Sequence[float] = ()
    told: Mapping[str, float] = field(default_factory=dict)


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other point beats in one respect without losing in the other, fastest first."""
    front: list[Point] = []
    best = float("-inf")
    for point in sorted(points, key=lambda point: (-point.speed, -point.quality)):
        if point.quality > best:
            front.append(point)
            best = point.quality
    return front


def fastest_within(points: Sequence[Point], least_quality: float) -> Point | None:
    """The fastest point of at least this quality, the better one of two that are equally fast; None without any."""
    good = [point for point in points if point.quality >= least_quality - _ROUNDING]
    return max(good, key=lambda point: (point.speed, point.quality), default=None)


class Trials:
    """The trials of a search so far, and what to try next.

    Args:
        path: JSON-lines file of the trials; it appears with the first.
        starts: points that are tried first, unless they are among the trials.
        seed: of the suggestions.

    Attributes:
        points: measured settings by `key_of`.
        count: how many trials are over.
        seconds: spent on all trials.

    Raises:
        UserError: a line of the file is no trial.
    """

    def __init__(self, path: Path, starts: Sequence[StartingPoint], seed: int) -> None:
        import numpy as np
        import optuna

        check_replaceable(path)
        lines = read_jsonl(path, once=("number",))
        self.path, self.count, self.seconds = path, 0, 0.0
        self.points: dict[str, Point] = {}
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        # Not the seed alone: a continued search would draw again what it drew at its beginning.
        own_seed = int(np.random.SeedSequence([seed, len(lines)]).generate_state(1)[0])
        sampler = optuna.samplers.TPESampler(seed=own_seed, n_startup_trials=8)
        self.study = optuna.create_study(directions=["maximize", "maximize"], sampler=sampler)
        try:
            for line in lines:
                self._count(line["seconds"], None if line["point"] is None else Point(**line["point"]))
                self.study.add_trial(_trial_of(line))
            tried = [line["start"] for line in lines]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            reason = f"{path} holds a line that is no trial ({reason_of(error)})"
            raise UserError(f"output: {reason}; delete it or choose another folder") from error
        for start in starts:
            if dict(start.settings) not in tried:
                self.study.enqueue_trial(dict(start.parameters), user_attrs={"start": dict(start.settings)})

    def add(self, trial: Trial, seconds: float, point: Point | None) -> None:
        """Keep a trial of `study.ask` that is over: its measured point, or None where the settings were refused."""
        from optuna.distributions import distribution_to_json
        from optuna.trial import TrialState

        line = {
            "number": self.count,
            "start": trial.user_attrs.get("start"),
            "parameters": trial.params,
            "distributions": {name: distribution_to_json(each) for name, each in trial.distributions.items()},
            "seconds": seconds,
            "point": None if point is None else asdict(point),
        }
        append_jsonl(self.path, line)
        self._count(seconds, point)
        if point is None:
            self.study.tell(trial, state=TrialState.PRUNED)
        else:
            self.study.tell(trial, [point.speed, point.quality])

    def _count(self, seconds: float, point: Point | None) -> None:
        self.count += 1
        self.seconds += seconds
        if point is not None:
            self.points[key_of(point.settings)] = point


def _trial_of(line: Mapping[str, Any]) -> FrozenTrial:
    """The trial of a line, for Optuna."""
    from optuna.distributions import json_to_distribution
    from optuna.trial import TrialState, create_trial

    point = line["point"]
    return create_trial(
        state=TrialState.PRUNED if point is None else TrialState.COMPLETE,
        values=None if point is None else [point["speed"], point["quality"]],
        params=line["parameters"],
        distributions={name: json_to_distribution(each) for name, each in line["distributions"].items()},
    )


def key_of(settings: Mapping[str, Any]) -> str:
    """A text that is the same for the same settings."""
    return json.dumps(settings, sort_keys=True)
