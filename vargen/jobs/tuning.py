"""The run behind `vargen tune`: which settings of a method are fastest for a given loss of quality.

Belongs here: where a search begins, how it goes on, and what is best among measured points. Does not belong here: what
may be varied (a method's own `search`), flags and printing (`vargen.commands.tune`), and how one setting's pictures are
made and judged (`vargen.jobs.benchmark`). Suggestions are Optuna's.
"""

from __future__ import annotations

import importlib.util
import json
import math
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PICTURES, MAX_SEED, check_numbers
from vargen.base.errors import UserError
from vargen.base.resources import find_model
from vargen.jobs.cases import BenchmarkCase, Judge, World, fitting_judge, prompt_cases, told_cases
from vargen.jobs.comparison import describe_run
from vargen.jobs.ranking import ClipScorer
from vargen.methods.base import AUTO, ImageMethodConfig, MethodConfig
from vargen.methods.catalogue import METHODS, find_presets, resolve_method
from vargen.models.description import ModelDescription, open_model
from vargen.models.model_folder import weights_fingerprint, write_own_settings
from vargen.models.options import ModelOptions
from vargen.models.source import is_hub_name
from vargen.runs.files import check_replaceable, own_folder, write_atomic, write_json_atomic
from vargen.runs.identity import check_identity_file
from vargen.runs.progress import Progress, progress
from vargen.runs.records import Records

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import Trial

    from metrics.speculation import CallRecord

PLAIN, CANDIDATE = "ar", "candidate"
_PATIENCE = 64
"""So many suggestions in a row that are refused or were measured before end a search: its space is used up."""

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
        usual_loss: what may be lost where nobody says.
    """

    direction: int
    largest_loss: float
    usual_loss: float


QUALITIES = {"judge_accuracy": Quality(1, 1.0, 0.02), "clip_score": Quality(1, 100.0, 0.3)}
"""What can be held: fields of a benchmark row."""


@dataclass(frozen=True)
class Point:
    """One measured setting.

    Args:
        settings: of the method, its name among them, as a preset holds them.
        speed: more is better.
        quality: more is better, whatever its field says: fields where less is better come negated.
        survival: see `metrics.speculation.survival_by_place`.
        told: what else is said of it: "pass_reduction", "never_verified" (of all tokens, a share), and "speedup" where
            seconds were measured.
    """

    settings: Mapping[str, Any]
    speed: float
    quality: float
    survival: tuple[float, ...] = ()
    told: Mapping[str, float] = field(default_factory=dict)


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
    """The method as it comes, the shipped presets of it, and its own `search_starts`, each once; the fixed settings
    hold in all.

    Args:
        method: its name.
        fixed: settings that are not varied.
        resolve: what a method's name stands for with the model that is tuned.
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


@dataclass(frozen=True)
class TuneConfig(ModelOptions):
    """What to tune, and how much it may cost.

    Args:
        output: folder for settings.json, plain.jsonl, study.db, pareto.json and best.yaml; the same command goes on
            with the search.
        method: which method's settings are searched.
        fixed: settings that are not varied, such as `--fixed.schedule likeness`.
        max_quality_loss: how much less quality than plain decoding's is allowed, absolute; null for 0.02 of judge
            accuracy (two points), 0.3 of CLIP score.
        max_seconds: time for measuring, plain decoding and earlier runs of the same search included. What is being
            measured when it ends is finished.
        speed: what is maximised, "speedup" (wall clock on this machine) or "pass_reduction".
        quality: what is held: "judge_accuracy", for models that draw the project's own scenes, or "clip_score"; null
            for the former where it can be had.
        clip: folder of the CLIP model that scores.
        prompts: held-out prompts that every trial draws. The fewer, the more chance decides: of 64 prompts' claims
            about 3 points are chance.
        prompts_file: at most so many of the prompts of this file instead; needed for models that do not draw the
            project's own scenes.
        batch_size: pictures per call, as many as `vargen generate` makes at once. Wall clock at another size asks for
            other settings.
        seed: of the search and of the pictures.
        save_to_model: write the best settings into the model's folder, so that with this model the method's name stands
            for them.
    """

    output: str = "tuning"
    method: str = "vvs"
    fixed: dict[str, Any] = field(default_factory=dict)
    max_quality_loss: float | None = None
    max_seconds: float = 1800.0
    speed: str = "speedup"
    quality: str | None = None
    clip: str | None = None
    prompts: int = 64
    prompts_file: str | None = None
    batch_size: int = 8
    seed: int = 0
    save_to_model: bool = False

    def __post_init__(self) -> None:
        if self.speed not in SPEEDS:
            raise UserError(f"speed must be one of {', '.join(SPEEDS)}, got {self.speed!r}")
        super().__post_init__()
        if self.quality not in (None, *QUALITIES):
            raise UserError(f"quality must be one of {', '.join(QUALITIES)}, got {self.quality!r}")
        check_numbers(self, {"prompts": (1, MAX_PICTURES), "batch_size": (1, MAX_BATCH_SIZE), "seed": (0, MAX_SEED)})
        if self.quality == "clip_score" and self.clip is None:
            raise UserError("clip must name the folder of a CLIP model: quality is clip_score")
        loss = self.max_quality_loss
        most = max(each.largest_loss for name, each in QUALITIES.items() if self.quality in (None, name))
        if loss is not None and not (math.isfinite(loss) and 0 <= loss <= most):
            raise UserError(f"max_quality_loss must lie between 0 and {most:g}, got {loss}")
        if not 0 < self.max_seconds < math.inf:
            raise UserError(f"max_seconds must be positive and finite, got {self.max_seconds}")
        check_fixed(self.method, self.fixed)
        if importlib.util.find_spec("optuna") is None:
            raise UserError('tune needs Optuna, which is not installed; run pip install "vargen[tune]"')


def tune(
    config: TuneConfig, world: World | None, quiet: bool, report: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Search until the time is spent, and write the front and the best settings.

    Args:
        config: what to tune, and where.
        world: gives prompts, and judges the pictures; None where none is installed.
        quiet: show no progress.
        report: told what is written to pareto.json, also where the search is interrupted.

    Returns:
        What pareto.json holds.

    Raises:
        UserError: a model or method that cannot be tuned, or a folder of another search.
        KeyboardInterrupt: with a message that says what is kept.
    """
    with own_folder(config.output):
        record = _tune(config, world, quiet, report)
    report(record)
    return record


def _tune(
    config: TuneConfig, world: World | None, quiet: bool, report: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    from vargen.pipelines.loading import load_pipeline

    model = open_model(config)
    if model.num_classes is not None:
        raise UserError("model: a class-conditional one has no prompts to judge; name a text-conditional model")
    if config.save_to_model and (not model.keeps_methods or is_hub_name(config.model)):
        raise UserError("save_to_model cannot be used: only the folder of a LlamaGen keeps settings of methods")
    cases = prompt_cases(model, world, config.prompts_file, config.prompts, config.seed)[: config.prompts]
    config, judge = _with_quality(config, model, world)
    clip = None if config.clip is None else ClipScorer(Path(config.clip))
    pipeline, _, dtype = load_pipeline(model, config, quiet)
    described = describe_run(
        {PLAIN: resolve_method(PLAIN)},
        weights_fingerprint(model.folder),
        cases=told_cases(cases),
        dtype=dtype,
        device=str(pipeline.device),
        batch_size=config.batch_size,
        seed=config.seed,
        **({} if clip is None else {"clip": clip.identity}),
        **config.identity,
    )
    # The first four may change from one run of a search to the next; the others are described by what they stand for.
    left_out = {"output", "max_seconds", "max_quality_loss", "save_to_model", "prompts_file", "clip"}
    left_out |= {option.name for option in fields(ModelOptions)}
    identity = {name: value for name, value in asdict(config).items() if name not in left_out}
    drafters = {
        name: weights_fingerprint(str(path))
        for name, path in config.fixed.items()
        if name in resolve_method(config.method).weights and path
    }
    identity |= {**described, "drafters": drafters}
    folder = Path(config.output)
    check_identity_file(folder / "settings.json", identity, holds="a search")
    if not (folder / "study.db").exists():  # before anything is written, so that what does not fit leaves nothing
        _check_method(pipeline, cases[:1], config)
    write_json_atomic(folder / "settings.json", identity)
    study = _open_study(folder / "study.db", config, pipeline.resolve_method)
    evaluation = None
    try:
        with progress(round(config.max_seconds), "seconds", quiet) as shown:
            evaluation = Evaluation(pipeline, judge, clip, cases, config, folder / "plain.jsonl", described)
            with _study_at(folder / "study.db"):
                used_up = _search(study, evaluation, config, shown)
    except KeyboardInterrupt:
        if evaluation is None:
            raise KeyboardInterrupt("plain decoding's calls so far are kept; the same command goes on") from None
        report(_write_front(folder, study, evaluation, config))
        raise KeyboardInterrupt("what was found so far is written; the same command goes on") from None
    if used_up:
        print("every new suggestion was refused or measured before; the search ended before its time", file=sys.stderr)
    return _write_front(folder, study, evaluation, config)


def _with_quality(config: TuneConfig, model: ModelDescription, world: World | None) -> tuple[TuneConfig, Judge | None]:
    """The same with quality and its allowed loss settled, and the judge where quality is the judge's.

    Raises:
        UserError: nothing can say how good this model's pictures are.
    """
    judge = None if config.quality == "clip_score" or world is None else fitting_judge(model, world.judge)
    quality = config.quality or ("clip_score" if judge is None else "judge_accuracy")
    if judge is None and quality == "judge_accuracy":
        raise UserError("quality: the judge reads pictures of vargen's own scenes alone; use clip_score for this model")
    if quality == "clip_score" and config.clip is None:
        raise UserError(
            "clip must name the folder of a CLIP model: the judge knows vargen's own scenes alone, so of this model's "
            "pictures CLIP score is held"
        )
    loss = QUALITIES[quality].usual_loss if config.max_quality_loss is None else config.max_quality_loss
    return replace(config, quality=quality, max_quality_loss=loss), judge


class Evaluation:
    """Measures settings on the same prompts as plain decoding, which is measured once.

    Args:
        pipeline: the model. judge, clip: read its pictures, where quality is theirs. cases: what every trial draws.
        config: sizes, seed, and what speed and quality are.
        plain_file: where plain decoding's calls are kept.
        settings: what decides those calls.
    """

    def __init__(
        self,
        pipeline: Any,
        judge: Judge | None,
        clip: ClipScorer | None,
        cases: Sequence[BenchmarkCase],
        config: TuneConfig,
        plain_file: Path,
        settings: dict[str, Any],
    ) -> None:
        from vargen.jobs.benchmark import run_benchmark

        self.pipeline, self.judge, self.clip, self.cases, self.config = pipeline, judge, clip, cases, config
        self.warm_up = int(config.speed == "speedup")  # the number of passes is the same from the first call on
        records = Records(plain_file, settings)
        (row,) = run_benchmark(
            pipeline,
            {PLAIN: resolve_method(PLAIN)},
            cases,
            batch_size=config.batch_size,
            seed=config.seed,
            warm_up=self.warm_up,
            judge=judge,
            clip=clip,
            records=records,
        )
        self.plain_quality = self._quality(row)
        self.plain_calls: list[CallRecord] = records.call_records(PLAIN)
        self.plain_seconds = sum(call.seconds for call in self.plain_calls)

    def measure(self, method: ImageMethodConfig) -> Point:
        """One setting's speed against plain decoding, and quality.

        Raises:
            UserError: the settings do not fit the model or each other.
        """
        from metrics.speculation import summarise, survival_by_place
        from vargen.jobs.benchmark import run_benchmark

        records = Records(None, {})
        (row,) = run_benchmark(
            self.pipeline,
            {CANDIDATE: method},
            self.cases,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            warm_up=self.warm_up,
            judge=self.judge,
            clip=self.clip,
            records=records,
        )
        summary = summarise(records.call_records(CANDIDATE), self.plain_calls)
        survival = tuple(round(share, 4) for share in survival_by_place(summary["accepted_histogram"]))
        told = {
            "pass_reduction": summary["pass_reduction"],
            "never_verified": summary["skipped_tokens"] / summary["tokens"],
        }
        if self.config.speed == "speedup":
            told["speedup"] = summary["speedup"]
        return Point(settings_of(method), summary[self.config.speed], self._quality(row), survival, told)

    def _quality(self, row: Mapping[str, Any]) -> float:
        assert self.config.quality is not None
        return QUALITIES[self.config.quality].direction * row[self.config.quality]


def _check_method(pipeline: Any, cases: Sequence[BenchmarkCase], config: TuneConfig) -> None:
    """Make one picture before much is measured: a model without a drafter would refuse every trial.

    Raises:
        UserError: the method's defaults and the fixed settings do not fit this model.
    """
    from vargen.jobs.benchmark import run_benchmark

    try:
        method = pipeline.resolve_method(config.method, config.fixed)
        run_benchmark(pipeline, {CANDIDATE: method}, cases, seed=config.seed, warm_up=0)
    except UserError as error:
        raise UserError(f"method {config.method!r} cannot be tuned with this model: {error}") from error


def _open_study(
    path: Path, config: TuneConfig, resolve: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig]
) -> Study:
    """The study in a file, with the starting points that were not measured yet first in its queue."""
    import numpy as np
    import optuna
    import sqlalchemy
    from optuna.storages import RDBStorage
    from optuna.trial import TrialState

    def check_tables() -> None:
        """Optuna makes tables that are not there, which is right where a kill left a file unfinished, before anything
        was kept in it; later what was measured would be gone without a word, or be waited for until the time is up."""
        with closing(connect()) as connection:
            found = {name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")}
            kept = any(
                connection.execute(f"select count(*) from {name}").fetchone()[0]
                for name in found & {"studies", "trials"}
            )
        needed = set(sqlalchemy.inspect(RDBStorage("sqlite://").engine).get_table_names()) if kept else set()
        if missing := sorted(needed - found):
            raise ValueError(f"it lacks {', '.join(missing)}")

    def connect() -> sqlite3.Connection:  # by its path, since not every path survives a URL
        connection = sqlite3.connect(path)
        connection.execute("pragma synchronous = off")  # waiting for the disk helps against power failures alone
        return connection

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    check_replaceable(path)
    with _study_at(path, opening=True):
        check_tables()
        storage = RDBStorage("sqlite://", engine_kwargs={"creator": connect})
        study = optuna.create_study(
            study_name="tune",
            storage=storage,
            directions=["maximize", "maximize"],
            load_if_exists=True,
        )
        if len(study.directions) != 2:
            raise ValueError("it does not say what is searched for")
        _points(study)
    # Not the seed alone: a search that goes on would draw again what it drew when it began.
    seed = int(np.random.SeedSequence([config.seed, len(study.trials)]).generate_state(1)[0])
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8)
    settled = study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.WAITING))
    for start in starting_points(config.method, config.fixed, resolve):
        if dict(start.settings) not in [trial.user_attrs.get("start") for trial in settled]:
            study.enqueue_trial(dict(start.parameters), user_attrs={"start": dict(start.settings)})
    return study


@contextmanager
def _study_at(path: Path, opening: bool = False) -> Iterator[None]:
    """Within, a study's file is read and written.

    Raises:
        UserError: it is damaged, or there is no room for it.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    expected: tuple[type[Exception], ...] = (SQLAlchemyError, StorageInternalError, sqlite3.Error)
    if opening:  # what is not there where it should be shows itself as any of these
        expected += (LookupError, TypeError, ValueError, RuntimeError)
    try:
        yield
    except expected as error:
        reason = next((str(cause).split("\n")[0] for cause in (error.__cause__, error) if cause), "")
        if "full" in reason:
            raise UserError(f"output: {path} cannot be written ({reason}); free some space, then go on") from error
        raise UserError(f"output: {path} cannot be read ({reason}); delete it or choose another folder") from error


def _search(study: Study, evaluation: Evaluation, config: TuneConfig, shown: Progress) -> bool:
    """Trials until the time is spent or nothing new is suggested any more; True where it is the latter.

    Raises:
        UserError: everything was refused.
    """
    from optuna.trial import TrialState

    began = time.perf_counter()
    before = evaluation.plain_seconds + sum(trial.duration.total_seconds() for trial in study.trials if trial.duration)
    known = {_key(point.settings): point for point in _points(study)}
    barren, refusal = 0, ""
    while barren < _PATIENCE and (spent := before + time.perf_counter() - began) < config.max_seconds:
        shown.update(min(round(spent), round(config.max_seconds)) - shown.n)
        trial = study.ask()
        try:
            drawn = resolve_method(config.method).search(Suggestions(trial, config.fixed))
            start = trial.user_attrs.get("start", {})
            settings = resolve_method(config.method, {**drawn, **start, **config.fixed})
            method = evaluation.pipeline.resolve_method(settings)
            key = _key(settings_of(method))
            repeated = key in known
            point = known[key] if repeated else evaluation.measure(method)
        except UserError as error:  # settings that exclude each other
            refusal = str(error)
            trial.set_user_attr("refused", refusal)
            study.tell(trial, state=TrialState.PRUNED)
            barren += 1
            continue
        except BaseException:
            study.tell(trial, state=TrialState.FAIL)
            raise
        trial.set_user_attr("settings", dict(point.settings))
        trial.set_user_attr("survival", list(point.survival))
        trial.set_user_attr("told", dict(point.told))
        study.tell(trial, [point.speed, point.quality])
        known[key] = point
        barren = barren + 1 if repeated else 0
    if barren >= _PATIENCE and not known:
        raise UserError(f"fixed: every setting that was tried was refused, the last because: {refusal}")
    return barren >= _PATIENCE


def _points(study: Study) -> list[Point]:
    """What was measured, each setting once."""
    from optuna.trial import TrialState

    complete = study.get_trials(states=(TrialState.COMPLETE,))
    points = [
        Point(kept["settings"], trial.values[0], trial.values[1], tuple(kept["survival"]), kept["told"])
        for trial in complete
        for kept in [trial.user_attrs]
    ]
    return list({_key(point.settings): point for point in points}.values())


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _told(point: Point, sign: int) -> dict[str, Any]:
    """A row of pareto.json."""
    return {"speed": point.speed, "quality": sign * point.quality, **point.told, "settings": dict(point.settings)}


def _write_front(folder: Path, study: Study, evaluation: Evaluation, config: TuneConfig) -> dict[str, Any]:
    """Write pareto.json and, where anything keeps within the budget, best.yaml; the former's content."""
    from metrics.provenance import provenance

    points = _points(study)
    assert config.quality is not None and config.max_quality_loss is not None
    # The quality of an exact method is plain decoding's; where it differs, chance has drawn other pictures.
    exact = next(method for method in METHODS if method.name == config.method).exact
    best = fastest_within(points, -math.inf if exact else evaluation.plain_quality - config.max_quality_loss)
    sign = QUALITIES[config.quality].direction
    plain_quality = sign * evaluation.plain_quality
    record = {
        "provenance": provenance(),
        "speed": config.speed,
        "quality": config.quality,
        "prompts": len(evaluation.cases),
        "batch_size": config.batch_size,
        "seed": config.seed,
        "max_quality_loss": config.max_quality_loss,
        "plain_quality": plain_quality,
        "trials": len(points),
        "best": None if best is None else dict(best.settings),
        "front": [_told(point, sign) for point in pareto_front(points)],
        "measured": [{**_told(point, sign), "survival_by_place": list(point.survival)} for point in points],
    }
    write_json_atomic(folder / "pareto.json", record)
    if best is None:
        (folder / "best.yaml").unlink(missing_ok=True)  # one of a larger budget would pass for this one's
        return record
    comment = (
        f"# {config.speed} {best.speed:.2f}, {config.quality} {sign * best.quality:.3f} (plain "
        f"{plain_quality:.3f}) on {len(evaluation.cases)} prompts, batch {config.batch_size}\n"
    )
    write_atomic(folder / "best.yaml", comment + yaml.safe_dump(dict(best.settings), sort_keys=False))
    if config.save_to_model:
        kept = resolve_method(str(folder / "best.yaml"))
        kept = kept.kept_with_model([(point.settings, point.survival) for point in points])
        write_own_settings(find_model(config.model), kept)
    return record
