"""`vargen tune`: the fastest settings of a method within a budget of quality."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from metrics.tables import markdown_table
from vargen.commands.options import build_parser, fill, parse
from vargen.errors import UserError
from vargen.jobs.options import DTYPES
from vargen.jobs.tuning import (
    QUALITIES,
    SPEEDS,
    Point,
    Suggestions,
    check_fixed,
    fastest_within,
    pareto_front,
    settings_of,
    starting_points,
)
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import resolve_method
from vargen.models.model_folder import read_json, weights_fingerprint
from vargen.resources import find_model
from vargen.runs.files import write_atomic, write_json_atomic
from vargen.runs.identity import check_identity_file
from vargen.runs.progress import Progress, progress

if TYPE_CHECKING:
    from optuna.study import Study

    from metrics.speculation import CallRecord
    from vargen.jobs.cases import BenchmarkCase, Judge

PLAIN, CANDIDATE = "ar", "candidate"
_PATIENCE = 64
"""So many suggestions in a row that are refused or were measured before end a search: its space is used up."""


@dataclass(frozen=True)
class TuneConfig:
    """What to tune, and how much it may cost.

    Args:
        output: folder for settings.json, plain.jsonl, study.log, pareto.json and best.yaml; the same command goes on
            with the search.
        method: which method's settings are searched.
        fixed: settings that are not varied, such as `--fixed.schedule likeness`.
        max_quality_loss: how much less quality than plain decoding's is allowed, absolute: 0.02 is two points.
        max_seconds: time for measuring, plain decoding and earlier runs of the same search included. What is being
            measured when it ends is finished.
        speed: what is maximised, "speedup" (wall clock on this machine) or "pass_reduction".
        quality: what is held: "judge_accuracy".
        prompts: held-out prompts that every trial draws. The fewer, the more chance decides: of 64 prompts' claims
            about 3 points are chance.
        batch_size: pictures per call, as many as `vargen generate` makes at once. Wall clock at another size asks for
            other settings.
        seed: of the search and of the pictures.
        model: model folder, or the name of a shipped one; null for the shipped default.
        device: "cpu", "cuda"; "auto" takes a GPU if there is one.
        dtype: float32, bfloat16, float16 or auto.
    """

    output: str = "tuning"
    method: str = "vvs"
    fixed: dict[str, Any] = field(default_factory=dict)
    max_quality_loss: float = 0.02
    max_seconds: float = 1800.0
    speed: str = "speedup"
    quality: str = "judge_accuracy"
    prompts: int = 64
    batch_size: int = 8
    seed: int = 0
    model: str | None = None
    device: str = "auto"
    dtype: str = "auto"

    def __post_init__(self) -> None:
        if self.speed not in SPEEDS:
            raise UserError(f"speed must be one of {', '.join(SPEEDS)}, got {self.speed!r}")
        if self.quality not in QUALITIES:
            raise UserError(f"quality must be one of {', '.join(QUALITIES)}, got {self.quality!r}")
        for name in ("prompts", "batch_size"):
            if getattr(self, name) < 1:
                raise UserError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.seed < 0:
            raise UserError(f"seed must not be negative, got {self.seed}")
        most = QUALITIES[self.quality].largest_loss
        if not (math.isfinite(self.max_quality_loss) and 0 <= self.max_quality_loss <= most):
            span = "be 0 or more" if math.isinf(most) else f"lie between 0 and {most:g}"
            raise UserError(f"max_quality_loss must {span}, got {self.max_quality_loss}")
        if not self.max_seconds > 0:
            raise UserError(f"max_seconds must be positive, got {self.max_seconds}")
        if self.dtype not in DTYPES:
            raise UserError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        check_fixed(self.method, self.fixed)


class Evaluation:
    """Measures settings on the same prompts as plain decoding, which is measured once.

    Args:
        pipeline: the model. judge: reads its pictures. cases: what every trial draws.
        config: sizes, seed, and what speed and quality are.
        plain_file: where plain decoding's calls are kept.
        settings: what decides those calls.
    """

    def __init__(
        self,
        pipeline: Any,
        judge: Judge,
        cases: Sequence[BenchmarkCase],
        config: TuneConfig,
        plain_file: Path,
        settings: dict[str, Any],
    ) -> None:
        from vargen.jobs.benchmark import run_benchmark
        from vargen.jobs.cases import Contender
        from vargen.runs.records import Records

        self.pipeline, self.judge, self.cases, self.config = pipeline, judge, cases, config
        self.warm_up = int(config.speed == "speedup")  # the number of passes is the same from the first call on
        records = Records(plain_file, settings)
        (row,) = run_benchmark(
            pipeline,
            [Contender(PLAIN, resolve_method(PLAIN))],
            cases,
            batch_size=config.batch_size,
            seed=config.seed,
            warm_up=self.warm_up,
            judge=judge,
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
        from metrics.speculation import summarise
        from vargen.jobs.benchmark import run_benchmark
        from vargen.jobs.cases import Contender
        from vargen.runs.records import Records

        records = Records(None, {})
        (row,) = run_benchmark(
            self.pipeline,
            [Contender(CANDIDATE, method)],
            self.cases,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            warm_up=self.warm_up,
            judge=self.judge,
            records=records,
        )
        speed = summarise(records.call_records(CANDIDATE), self.plain_calls)[self.config.speed]
        return Point(settings_of(method), speed, self._quality(row))

    def _quality(self, row: Mapping[str, Any]) -> float:
        return QUALITIES[self.config.quality].direction * row[self.config.quality]


def run(arguments: Sequence[str]) -> int:
    """Search until the time is spent, print the front, write the best settings."""
    parser = build_parser(
        "tune",
        "Search a method's settings for the most speed within a budget of quality, on held-out prompts. The same "
        "command goes on with an interrupted search.",
        TuneConfig,
        epilog="`vargen generate --method DIR/best.yaml` uses what was found.",
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    values = parse(parser, arguments)
    config = fill(TuneConfig, values)
    if importlib.util.find_spec("optuna") is None:
        raise UserError('tune needs Optuna, which is not installed; run pip install "vargen[tune]"')
    folder = Path(config.output)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"output: {folder} is a file; name a folder")
    model_folder = find_model(config.model)
    if read_json(model_folder / "transformer" / "config.json").get("condition_type") == "class":
        raise UserError("model: a class-conditional one has no prompts to judge; name a text-conditional model")

    from vargen.jobs.benchmark import describe_run
    from vargen.jobs.cases import Contender
    from vargen.pipelines.loading import load_pipeline
    from vargen.world.cases import scene_cases
    from vargen.world.judge.judging import ClaimJudge

    pipeline, _, dtype = load_pipeline(model_folder, config.device, config.dtype)
    judge = ClaimJudge()
    if judge.image_size != pipeline.image_size:
        raise UserError(
            f"quality: the judge reads pictures of {judge.image_size} pixels, this model makes "
            f"{pipeline.image_size}; name another model"
        )
    cases = scene_cases(config.prompts, config.seed)
    plain = Contender(PLAIN, resolve_method(PLAIN))
    described = describe_run(
        [plain],
        cases,
        weights_fingerprint(model_folder),
        dtype=dtype,
        device=str(pipeline.device),
        batch_size=config.batch_size,
        seed=config.seed,
    )
    # The first three may change from one run of a search to the next; the others are described by what they stand for.
    left_out = ("output", "max_seconds", "max_quality_loss", "model", "device", "dtype")
    identity = {name: value for name, value in asdict(config).items() if name not in left_out}
    drafters = {
        name: weights_fingerprint(str(path))
        for name, path in config.fixed.items()
        if name in resolve_method(config.method).weights and path
    }
    identity |= {**described, "drafters": drafters}
    folder.mkdir(parents=True, exist_ok=True)
    check_identity_file(folder / "settings.json", identity, holds="a search")
    write_json_atomic(folder / "settings.json", identity)
    study = _open_study(folder / "study.log", config, pipeline.resolve_method)
    if not _points(study):
        _check_method(pipeline, cases[:1], config)
    evaluation = None
    try:
        with progress(round(config.max_seconds), "seconds", values.quiet) as shown:
            evaluation = Evaluation(pipeline, judge, cases, config, folder / "plain.jsonl", described)
            used_up = _search(study, evaluation, config, shown)
    except KeyboardInterrupt:
        if evaluation is None:
            raise KeyboardInterrupt("plain decoding's calls so far are kept; the same command goes on") from None
        _report(folder, study, evaluation, config)
        raise KeyboardInterrupt("what was found so far is written; the same command goes on") from None
    if used_up:
        print("every new suggestion was refused or measured before; the search ended before its time", file=sys.stderr)
    return _report(folder, study, evaluation, config)


def _check_method(pipeline: Any, cases: Sequence[BenchmarkCase], config: TuneConfig) -> None:
    """Make one picture before much is measured: a model without a drafter would refuse every trial.

    Raises:
        UserError: the method's defaults and the fixed settings do not fit this model.
    """
    from vargen.jobs.benchmark import run_benchmark
    from vargen.jobs.cases import Contender

    try:
        method = pipeline.resolve_method(config.method, config.fixed)
        run_benchmark(pipeline, [Contender(CANDIDATE, method)], cases, seed=config.seed, warm_up=0)
    except UserError as error:
        raise UserError(f"method {config.method!r} cannot be tuned with this model: {error}") from error


def _open_study(
    path: Path, config: TuneConfig, resolve: Callable[[str, Mapping[str, Any] | None], ImageMethodConfig]
) -> Study:
    """The study in a file, with the starting points that were not measured yet first in its queue."""
    import numpy as np
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend, JournalFileSymlinkLock
    from optuna.trial import TrialState

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    _cut_torn_line(path)
    # Absolute: the lock is a link to this very path, and Optuna waits forever for a killed process's lock that leads
    # nowhere. It is held for milliseconds, so that one of five seconds has lost its owner.
    file = str(path.absolute())
    study = optuna.create_study(
        study_name="tune",
        storage=JournalStorage(JournalFileBackend(file, JournalFileSymlinkLock(file, grace_period=5))),
        directions=["maximize", "maximize"],
        load_if_exists=True,
    )
    # Not the seed alone: a search that goes on would draw again what it drew when it began.
    seed = int(np.random.SeedSequence([config.seed, len(study.trials)]).generate_state(1)[0])
    study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=8)
    settled = study.get_trials(states=(TrialState.COMPLETE, TrialState.PRUNED, TrialState.WAITING))
    for start in starting_points(config.method, config.fixed, resolve):
        if dict(start.settings) not in [trial.user_attrs.get("start") for trial in settled]:
            study.enqueue_trial(dict(start.parameters), user_attrs={"start": dict(start.settings)})
    return study


def _cut_torn_line(path: Path) -> None:
    """Drop a last line without its end, which a killed or refused write left: Optuna would append to it."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_atomic(path, whole)


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
    points = [Point(trial.user_attrs["settings"], *trial.values) for trial in complete]
    return list({_key(point.settings): point for point in points}.values())


def _key(settings: Mapping[str, Any]) -> str:
    return json.dumps(settings, sort_keys=True)


def _report(folder: Path, study: Study, evaluation: Evaluation, config: TuneConfig) -> int:
    """Write and print the front and the best settings. Returns the exit code: 1 if nothing keeps within the budget."""
    from metrics.provenance import provenance

    points = _points(study)
    front = pareto_front(points)
    best = fastest_within(points, evaluation.plain_quality - config.max_quality_loss)
    sign = QUALITIES[config.quality].direction
    write_json_atomic(
        folder / "pareto.json",
        {
            "provenance": provenance(),
            "speed": config.speed,
            "quality": config.quality,
            "prompts": config.prompts,
            "batch_size": config.batch_size,
            "seed": config.seed,
            "max_quality_loss": config.max_quality_loss,
            "plain_quality": sign * evaluation.plain_quality,
            "trials": len(points),
            "best": None if best is None else dict(best.settings),
            "front": [
                {"speed": point.speed, "quality": sign * point.quality, "settings": dict(point.settings)}
                for point in front
            ],
        },
    )
    header = [config.speed, config.quality, "settings"]
    rows = [[f"{point.speed:.2f}x", f"{sign * point.quality:.3f}", _describe(point.settings)] for point in front]
    plain_quality = sign * evaluation.plain_quality
    print(f"{len(points)} settings measured; plain decoding has {config.quality} {plain_quality:.3f}\n")
    print(markdown_table(header, rows) if rows else "nothing was measured; give more --max-seconds")
    if best is None:
        (folder / "best.yaml").unlink(missing_ok=True)  # one of a larger budget would pass for this one's
        print(f"\nnothing is within {config.max_quality_loss:g} of plain decoding; allow more loss or more time")
        return 1
    comment = (
        f"# {config.speed} {best.speed:.2f}, {config.quality} {sign * best.quality:.3f} (plain "
        f"{plain_quality:.3f}) on {config.prompts} held-out prompts, batch {config.batch_size}\n"
    )
    write_atomic(folder / "best.yaml", comment + yaml.safe_dump(dict(best.settings), sort_keys=False))
    print(f"\nbest within {config.max_quality_loss:g}: {folder / 'best.yaml'} ({best.speed:.2f}x)")
    return 0


def _describe(settings: Mapping[str, Any]) -> str:
    """What differs from the method's defaults, numbers rounded for the eye."""
    defaults = resolve_method(settings["method"]).to_dict()
    told = {name: value for name, value in settings.items() if name != "method" and value != defaults.get(name)}
    words = [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in told.items()]
    return ", ".join(words) or "defaults"
