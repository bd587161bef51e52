"""The fastest settings of a method within a budget of quality: the space, measuring, and the loop of trials.

Does not belong here: the start and the files of a search (`vargen.jobs.study`), printing. Imports no torch.
"""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PICTURES, MAX_SEED, check_number
from vargen.base.errors import UserError
from vargen.base.options import DECODING, OUTPUT, SAMPLING, option
from vargen.base.path_roles import READ_FILE, READ_FOLDER, READ_NAMES, writes_in
from vargen.base.resources import find_model
from vargen.checkpoints.model_folder import weights_fingerprint, write_own_settings
from vargen.checkpoints.options import ModelOptions
from vargen.checkpoints.source import is_hub_name
from vargen.jobs import study
from vargen.jobs.benchmark import run_benchmark
from vargen.jobs.cases import BenchmarkCase, Judge, World, fitting_judge, prompt_cases, told_cases
from vargen.jobs.comparison import describe_run
from vargen.jobs.ranking import ClipScorer
from vargen.methods.base import ImageMethodConfig, SearchSpace
from vargen.methods.catalogue import methods_for, resolve_method
from vargen.models.description import ModelDescription, open_model
from vargen.runs.files import own_folder, write_atomic, write_json_atomic
from vargen.runs.identity import check_identity_file
from vargen.runs.progress import Progress, progress
from vargen.runs.records import Records

if TYPE_CHECKING:
    from optuna import Study

PLAIN, CANDIDATE = "ar", "candidate"
_PATIENCE = 64
"""A search ends after this number of suggestions in a row that were refused or measured before."""

SPEEDS = ("speedup", "pass_reduction")
"""Measures of speed: wall clock on this machine, or target passes, which are the same on every machine."""


QUALITIES = {"judge_accuracy": 1.0, "clip_score": 100.0}
"""Measures of quality, fields of a benchmark row; more is better. Each comes with the largest possible loss."""
_USUAL_LOSS = {"judge_accuracy": 0.02, "clip_score": 0.3}

_FILES = ("settings.json", "plain.jsonl", "trials.log", "pareto.json", "best.yaml")


@dataclass(frozen=True)
class TuneConfig(ModelOptions):
    """What to tune."""

    method: str = option("jacobi", path=READ_NAMES, group=DECODING)
    """Method whose settings are searched."""
    method_options: dict[str, Any] = option(dict, group=DECODING)
    """Settings that are not varied, such as `--method_options.schedule likeness`."""
    max_quality_loss: float | None = option(None, least=0.0, most=max(QUALITIES.values()))
    """Allowed loss of quality against plain decoding, absolute; null for 0.02 of judge accuracy (two points), or 0.3 of
    CLIP score."""
    max_seconds: float = option(1800.0, above=0.0)
    """Time for measuring, plain decoding and earlier runs of the same search included. The measurement that runs when
    it ends is finished."""
    speed: str = option("speedup", choices=SPEEDS)
    """Measure of speed, "speedup" (wall clock on this machine) or "pass_reduction"."""
    quality: str | None = option(None, choices=QUALITIES)
    """Measure of quality, "judge_accuracy" for models that draw the project's own scenes, or "clip_score"; null for the
    judge's where it can be had."""
    clip: str | None = option(None, path=READ_FOLDER)
    """Folder of the CLIP model that scores."""
    num_prompts: int = option(64, least=1, most=MAX_PICTURES)
    """Number of held-out prompts that every trial draws. With 64, chance moves judge accuracy by about three points."""
    prompts_file: str | None = option(None, path=READ_FILE)
    """File of prompts to use instead, `num_prompts` of them at most. A model that does not draw the project's own
    scenes needs one."""
    batch_size: int = option(8, least=1, most=MAX_BATCH_SIZE, group=DECODING)
    """Number of pictures per call, as many as `vargen generate` makes at once. Other batch sizes have other best
    settings."""
    seed: int = option(0, least=0, most=MAX_SEED, group=SAMPLING)
    """Seed of the search and of the pictures."""
    output: str = option("tuning", path=writes_in(*_FILES), group=OUTPUT)
    """Folder for settings.json, plain.jsonl, trials.log, pareto.json and best.yaml. The same command goes on with the
    search."""
    save_to_model: bool = option(False, group=OUTPUT)
    """Write the best settings into the model's folder. The method's name then stands for them with this model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.quality == "clip_score" and self.clip is None:
            raise UserError("clip must name the folder of a CLIP model: quality is clip_score")
        if self.quality is not None:
            check_number("max_quality_loss", self.max_quality_loss or 0.0, 0.0, QUALITIES[self.quality])
        study.check_fixed(self.method, self.method_options)
        if importlib.util.find_spec("optuna") is None:
            raise UserError('tune needs Optuna, which is not installed; run pip install "vargen[tune]"')


def tune(
    config: TuneConfig, world: World | None, quiet: bool, report: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Search until the time is spent, and write the front and the best settings.

    Args:
        config: the search.
        world: gives prompts, and judges the pictures; None where none is installed.
        quiet: show no progress.
        report: receives the content of pareto.json, also where the search is interrupted.

    Returns:
        The content of pareto.json.

    Raises:
        UserError: a model or method that cannot be tuned, or a folder of another search.
        KeyboardInterrupt: with a message about the records that stay.
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
    cases = prompt_cases(model, world, config.prompts_file, config.num_prompts, config.seed)[: config.num_prompts]
    config, judge = _with_quality(config, model, world)
    clip = None if config.clip is None else ClipScorer(Path(config.clip))
    pipeline, _, dtype = load_pipeline(model, config, quiet)
    told: dict[str, Any] = {"cases": told_cases(cases), "dtype": dtype, "device": str(pipeline.device)}
    told |= {"batch_size": config.batch_size, "seed": config.seed, **({} if clip is None else {"clip": clip.identity})}
    plain = {PLAIN: resolve_method(PLAIN)}
    described = describe_run(plain, weights_fingerprint(model.folder), **told, **config.identity)
    # The first four may change from one run of a search to the next. The others are described by their content.
    left_out = {"output", "max_seconds", "max_quality_loss", "save_to_model", "prompts_file", "clip"}
    left_out |= {option.name for option in fields(ModelOptions)}
    identity = {name: value for name, value in asdict(config).items() if name not in left_out} | described
    folders = {name: config.method_options.get(name) for name in resolve_method(config.method).weights}
    identity["drafters"] = {name: weights_fingerprint(str(path)) for name, path in folders.items() if path}
    folder = Path(config.output)
    check_identity_file(folder / "settings.json", identity, holds="a search")
    if not (folder / "trials.log").exists():
        # One picture before anything is written, since a model without a drafter would refuse every trial.
        try:
            method = pipeline.resolve_method(resolve_method(config.method, config.method_options))
            run_benchmark(pipeline, {CANDIDATE: method}, cases[:1], seed=config.seed, warm_up=0)
        except UserError as error:
            raise UserError(f"method {config.method!r} cannot be tuned with this model: {error}") from error
    write_json_atomic(folder / "settings.json", identity)
    starts = study.starting_points(config.method, config.method_options, pipeline.resolve_method)
    search = study.open_search(folder / "trials.log", starts, config.seed)
    measurement = None
    try:
        with progress(round(config.max_seconds), "seconds", quiet) as shown:
            measurement = Measurement(pipeline, judge, clip, cases, config, Records(folder / "plain.jsonl", described))
            used_up = _search(search, measurement, config, shown)
    except KeyboardInterrupt:
        if measurement is None:
            raise KeyboardInterrupt("plain decoding's calls so far are kept; the same command goes on") from None
        report(_write_front(folder, search, measurement, config))
        raise KeyboardInterrupt("the results so far are written; the same command goes on") from None
    if used_up:
        print("every suggestion was refused or measured before, so the search ended before its time", file=sys.stderr)
    return _write_front(folder, search, measurement, config)


def _with_quality(config: TuneConfig, model: ModelDescription, world: World | None) -> tuple[TuneConfig, Judge | None]:
    """The config with the measure of quality and its allowed loss, and the judge where it measures. Raises UserError
    where nothing can measure the quality of this model's pictures."""
    judge = None if config.quality == "clip_score" or world is None else fitting_judge(model, world.judge)
    quality = config.quality or ("clip_score" if judge is None else "judge_accuracy")
    if judge is None and quality == "judge_accuracy":
        raise UserError("quality: the judge reads pictures of vargen's own scenes alone; use clip_score for this model")
    if quality == "clip_score" and config.clip is None:
        told = "the judge reads vargen's own scenes alone, so CLIP score measures this model's pictures"
        raise UserError(f"clip must name the folder of a CLIP model: {told}")
    loss = _USUAL_LOSS[quality] if config.max_quality_loss is None else config.max_quality_loss
    return replace(config, quality=quality, max_quality_loss=loss), judge


@dataclass
class Measurement:
    """Measures settings on the same prompts as plain decoding, which is measured once.

    Args:
        pipeline: the model.
        judge, clip: read its pictures; None for the one that does not measure quality.
        cases: the pictures of every trial.
        config: sizes, seed, and the measures of speed and quality.
        plain: keeps plain decoding's calls.
    """

    pipeline: Any
    judge: Judge | None
    clip: ClipScorer | None
    cases: Sequence[BenchmarkCase]
    config: TuneConfig
    plain: Records

    def __post_init__(self) -> None:
        self.plain_quality = self._quality(PLAIN, resolve_method(PLAIN), self.plain)
        self.plain_calls = self.plain.call_records(PLAIN)
        self.plain_seconds = sum(call.seconds for call in self.plain_calls)
        told = dict.fromkeys(("pass_reduction", self.config.speed), 1.0) | {"never_verified": 0.0}
        self.plain_point = study.Point({"method": PLAIN}, 1.0, self.plain_quality, told=told)

    def measure(self, method: ImageMethodConfig) -> study.Point:
        """Speed against plain decoding and quality of one setting. Raises UserError where the settings do not fit the
        model or each other."""
        from metrics.speculation import summarise, survival_by_place

        records = Records(None, {})
        quality = self._quality(CANDIDATE, method, records)
        summary = summarise(records.call_records(CANDIDATE), self.plain_calls)
        survival = tuple(round(share, 4) for share in survival_by_place(summary["accepted_histogram"]))
        told = {name: summary[name] for name in ("pass_reduction", self.config.speed)}
        told["never_verified"] = summary["skipped_tokens"] / summary["tokens"]
        return study.Point(study.settings_of(method), summary[self.config.speed], quality, survival, told)

    def _quality(self, label: str, method: ImageMethodConfig, records: Records) -> float:
        """Draw every case with a method, and read the quality."""
        assert self.config.quality is not None
        (row,) = run_benchmark(
            self.pipeline,
            {label: method},
            self.cases,
            batch_size=self.config.batch_size,
            seed=self.config.seed,
            warm_up=int(self.config.speed == "speedup"),  # passes are the same from the first call on
            judge=self.judge,
            clip=self.clip,
            records=records,
        )
        return row[self.config.quality]


def _search(search: Study, measurement: Measurement, config: TuneConfig, shown: Progress) -> bool:
    """Run trials until the time is spent, or until nothing new is suggested. True in the second case. Raises UserError
    where every setting was refused."""
    barren, refusal, points = 0, "", study.points_of(search)
    while barren < _PATIENCE:
        spent = measurement.plain_seconds + study.seconds_of(search)
        if spent >= config.max_seconds:
            return False
        shown.update(min(round(spent), round(config.max_seconds)) - shown.n)
        trial, point, repeated = search.ask(), None, False
        try:
            drawn = resolve_method(config.method).search(SearchSpace(trial, config.method_options))
            start = trial.user_attrs.get("start", {})
            settings = resolve_method(config.method, {**drawn, **start, **config.method_options})
            method = measurement.pipeline.resolve_method(settings)
            key = study.key_of(study.settings_of(method))
            repeated = key in points
            point = points[key] = points.get(key) or measurement.measure(method)
        except UserError as error:  # settings that exclude each other
            refusal = str(error)
        study.tell(search, trial, point)
        barren = barren + 1 if repeated or point is None else 0
    if not points:
        raise UserError(f"method_options: every setting that was tried was refused, the last because: {refusal}")
    return True


def _write_front(folder: Path, search: Study, measurement: Measurement, config: TuneConfig) -> dict[str, Any]:
    """Write pareto.json and best.yaml, which names plain decoding where no setting within the budget is faster. Returns
    the content of pareto.json."""
    from metrics.provenance import provenance

    points = list(study.points_of(search).values())
    plain = measurement.plain_point
    assert config.quality is not None and config.max_quality_loss is not None
    # An exact method has plain decoding's quality. Where the figures differ, chance has drawn other pictures.
    exact = methods_for("image")[config.method].exact
    best = study.fastest_within([plain, *points], -math.inf if exact else plain.quality - config.max_quality_loss)
    assert best is not None  # plain decoding is within every budget

    def told(point: study.Point) -> dict[str, Any]:
        return {"speed": point.speed, "quality": point.quality, **point.told, "settings": dict(point.settings)}

    record = {
        "provenance": provenance(),
        **{name: getattr(config, name) for name in ("speed", "quality", "batch_size", "seed", "max_quality_loss")},
        "prompts": len(measurement.cases),
        "plain_quality": plain.quality,
        "trials": len(points),
        "best": dict(best.settings),
        "front": [told(point) for point in study.pareto_front([plain, *points])],
        "measured": [{**told(point), "survival_by_place": list(point.survival)} for point in points],
    }
    write_json_atomic(folder / "pareto.json", record)
    comment = (
        f"# {config.speed} {best.speed:.2f}, {config.quality} {best.quality:.3f} (plain "
        f"{plain.quality:.3f}) on {len(measurement.cases)} prompts, batch {config.batch_size}\n"
    )
    write_atomic(folder / "best.yaml", comment + yaml.safe_dump(dict(best.settings), sort_keys=False))
    if config.save_to_model and best is not plain:
        kept = resolve_method(str(folder / "best.yaml")).kept_with_model()
        write_own_settings(find_model(config.model), kept)
    return record
