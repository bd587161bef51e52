"""The measured points of a search: the file that keeps them, the front, and the best within a budget of quality.

Belongs here: Optuna's study on disk, safe against damage, and choosing among measured points. Does not belong here:
which settings are tried (`vargen.jobs.search_space`), and measuring (`vargen.jobs.tuning`).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.jobs.search_space import StartingPoint
from vargen.runs.files import check_replaceable

if TYPE_CHECKING:
    from optuna.study import Study

_ROUNDING = 1e-9
"""A loss of exactly the budget is within it, however the difference of two shares is rounded."""


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
    survival: tuple[float, ...] = ()
    told: Mapping[str, float] = field(default_factory=dict)

    @property
    def kept(self) -> dict[str, Any]:
        """What a trial keeps beside speed and quality."""
        return {"settings": dict(self.settings), "survival": list(self.survival), "told": dict(self.told)}


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


def open_study(path: Path, starts: Sequence[StartingPoint], seed: int) -> Study:
    """The study in a file, with the starting points that were not measured yet first in its queue."""
    import numpy as np
    import optuna
    import sqlalchemy
    from optuna.storages import RDBStorage
    from optuna.trial import TrialState

    def check_tables() -> None:
        """Optuna makes missing tables. That is right where a kill left an empty file. Later, measured points would be
        lost without a word, or the search would wait for them until its time is up."""
        with closing(connect()) as connection:
            found = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
            counts = (f"select count(*) from {name}" for name in found & {"studies", "trials"})
            kept = any(connection.execute(count).fetchone()[0] for count in counts)
        needed = set(sqlalchemy.inspect(RDBStorage("sqlite://").engine).get_table_names()) if kept else set()
        if missing := sorted(needed - found):
            raise ValueError(f"it lacks {', '.join(missing)}")

    def connect() -> sqlite3.Connection:  # by its path, since not every path survives a URL
        connection = sqlite3.connect(path)
        connection.execute("pragma synchronous = off")  # waiting for the disk helps against power failures alone
        return connection

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    check_replaceable(path)
    with study_at(path, opening=True):
        check_tables()
        storage = RDBStorage("sqlite://", engine_kwargs={"creator": connect})
        study = optuna.create_study(
            study_name="tune", storage=storage, directions=["maximize", "maximize"], load_if_exists=True
        )
        if len(study.directions) != 2:
            raise ValueError("it has no directions")
        measured_points(study)
    # Not the seed alone: a continued search would draw again what it drew at its beginning.
    own_seed = int(np.random.SeedSequence([seed, len(study.trials)]).generate_state(1)[0])
    study.sampler = optuna.samplers.TPESampler(seed=own_seed, n_startup_trials=8)
    settled = study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.WAITING))
    for start in starts:
        if dict(start.settings) not in [trial.user_attrs.get("start") for trial in settled]:
            study.enqueue_trial(dict(start.parameters), user_attrs={"start": dict(start.settings)})
    return study


@contextmanager
def study_at(path: Path, opening: bool = False) -> Iterator[None]:
    """A block that reads and writes the file of a study.

    Raises:
        UserError: it is damaged, or there is no room for it.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    expected: tuple[type[Exception], ...] = (SQLAlchemyError, StorageInternalError, sqlite3.Error)
    if opening:  # a file with missing parts raises any of these
        expected += (LookupError, TypeError, ValueError, RuntimeError)
    try:
        yield
    except expected as error:
        reason = next((str(cause).split("\n")[0] for cause in (error.__cause__, error) if cause), "")
        if "full" in reason:
            raise UserError(f"output: {path} cannot be written ({reason}); free some space, then go on") from error
        raise UserError(f"output: {path} cannot be read ({reason}); delete it or choose another folder") from error


def measured_points(study: Study) -> list[Point]:
    """The measured points, each setting once."""
    from optuna.trial import TrialState

    complete = study.get_trials(states=(TrialState.COMPLETE,))
    points = [
        Point(kept["settings"], trial.values[0], trial.values[1], tuple(kept["survival"]), kept["told"])
        for trial in complete
        for kept in [trial.user_attrs]
    ]
    return list({key_of(point.settings): point for point in points}.values())


def key_of(settings: Mapping[str, Any]) -> str:
    """A text that is the same for the same settings."""
    return json.dumps(settings, sort_keys=True)
