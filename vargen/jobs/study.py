"""A search of settings: where it begins, its trials in Optuna's journal, the front, and the best within a budget.

Does not belong here: the space of a method (its own `search`), and measuring (`vargen.jobs.tuning`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.path_roles import check_replaceable
from vargen.base.reading import reason_of
from vargen.methods.base import AUTO, ImageMethodConfig, MethodConfig
from vargen.methods.catalogue import find_presets, methods_for, resolve_method
from vargen.runs.files import cut_unfinished_line

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

_ROUNDING = 1e-9
"""A loss of exactly the budget is within it, however the difference of two shares is rounded."""


def starting_points(
    method: str,
    fixed: Mapping[str, Any],
    resolve: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig],
) -> list[dict[str, Any]]:
    """Settings to measure before the search begins: the method's defaults, its shipped presets, and its own
    `search_starts`, each once and without the fixed settings, ready for JSON.

    Args:
        method: its name.
        fixed: settings that are not varied.
        resolve: gives the method of a name with the model that is tuned.
    """
    presets = [resolve(name, None) for name in find_presets()]
    default = resolve(method, None)
    if default.name != method:  # another method stands for the bare name
        default = methods_for("image")[method]()
    own = [
        resolve(method, settings)
        for settings in default.search_starts()
        if all(fixed.get(name, value) == value for name, value in settings.items())
    ]
    starts: list[dict[str, Any]] = []
    for config in (default, *(preset for preset in presets if preset.name == method), *own):
        start = {key: value for key, value in settings_of(config).items() if key not in ("method", *fixed)}
        if start not in starts:
            starts.append(start)
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
            raise UserError(f"method_options: method {method!r} has no setting {name!r}; it has: {', '.join(known)}")
    try:
        resolve_method(method, fixed)
    except UserError as error:
        raise UserError(f"method_options: {error}") from error


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


class _Held:
    """The lock of a journal whose folder no other run writes to (`vargen.runs.files.own_folder`)."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def open_search(path: Path, starts: Sequence[Mapping[str, Any]], seed: int) -> Study:
    """A search for more speed and more quality, with the trials of earlier processes.

    A kill loses at most the trial that was running; if it was one of `starts`, it is asked for again.

    Args:
        path: journal of the search; a missing one is made.
        starts: settings that are tried first, unless they were.
        seed: of the suggestions.

    Raises:
        UserError: the file is no such journal.
    """
    import numpy as np
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalStorage

    check_replaceable(path)
    cut_unfinished_line(path)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        storage = JournalStorage(JournalFileBackend(str(path), lock_obj=_Held()))  # type: ignore[arg-type]
        search = optuna.create_study(
            storage=storage, study_name="tune", directions=["maximize", "maximize"], load_if_exists=True
        )
        for trial in search.get_trials(states=[optuna.trial.TrialState.RUNNING]):
            search.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        known = [trial for trial in search.trials if trial.state != optuna.trial.TrialState.FAIL]
        points_of(search)
    except (LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
        reason = f"{path} holds no search ({reason_of(error)})"
        raise UserError(f"output: {reason}; delete it or choose another folder") from error
    # Not the seed alone: a continued search would draw again what it drew at its beginning.
    own_seed = int(np.random.SeedSequence([seed, len(ended(search))]).generate_state(1)[0])
    search.sampler = optuna.samplers.TPESampler(seed=own_seed, n_startup_trials=8)
    tried = [trial.user_attrs.get("start") for trial in known]
    for start in starts:
        if dict(start) not in tried:
            sizes = {f"{name}_is_auto": value == AUTO for name, value in start.items()}
            search.enqueue_trial({**start, **sizes}, user_attrs={"start": dict(start)})
    return search


def tell(search: Study, trial: Trial, point: Point | None) -> None:
    """Keep a trial that is over: its measured point, or None where the settings were refused."""
    from optuna.trial import TrialState

    if point is None:
        search.tell(trial, state=TrialState.PRUNED)
    else:
        trial.set_user_attr("point", asdict(point))
        search.tell(trial, [point.speed, point.quality])


def ended(search: Study) -> list[FrozenTrial]:
    """The trials that are over, but for killed ones."""
    from optuna.trial import TrialState

    return search.get_trials(deepcopy=False, states=[TrialState.COMPLETE, TrialState.PRUNED])


def points_of(search: Study) -> dict[str, Point]:
    """The measured settings by `key_of`."""
    points = [Point(**trial.user_attrs["point"]) for trial in ended(search) if "point" in trial.user_attrs]
    return {key_of(point.settings): point for point in points}


def seconds_of(search: Study) -> float:
    """Seconds that were spent on all trials."""
    return sum(trial.duration.total_seconds() for trial in ended(search) if trial.duration is not None)


def key_of(settings: Mapping[str, Any]) -> str:
    """A text that is the same for the same settings."""
    return json.dumps(settings, sort_keys=True)
