"""Decoding methods side by side on pictures: the same prompts and seeds.

Belongs here: the settings of such a comparison, the record of each call, and the rows of results. Does not belong here:
the order in which methods work (`vargen.jobs.comparison`), a call (`vargen.jobs.calls`), the definitions of the figures
(`metrics.speculation`), judging (a `Judge`), printing. Importing this imports no torch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from glob import escape
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metrics.speculation import CallRecord, achieved, summarise
from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PICTURES, MAX_WARM_UP
from vargen.base.errors import UserError
from vargen.base.options import DECODING, LOADING, OUTPUT, option
from vargen.base.path_roles import READ_FILE, READ_FOLDER, READ_NAMES, writes_in
from vargen.checkpoints.model_folder import weights_fingerprint
from vargen.checkpoints.options import SamplingOptions
from vargen.jobs.cases import (
    SPLITS,
    BenchmarkCase,
    Judge,
    World,
    class_labels_of,
    fitting_judge,
    prompt_cases,
    told_cases,
)
from vargen.jobs.comparison import Kept, calls_of, compare, describe_run, rows_of
from vargen.jobs.ranking import ClipScorer
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import UNTRAINED, read_method_list, resolve_method
from vargen.models.description import ModelDescription, open_model
from vargen.runs.files import save_image_atomic, write_atomic
from vargen.runs.progress import Progress, progress
from vargen.runs.records import Records, own_calls

if TYPE_CHECKING:
    import torch

    from vargen.jobs.feature_distance import FeatureDistance
    from vargen.pipelines.loading import ImagePipeline

Resolve = Callable[[str, Mapping[str, Any] | None], ImageMethodConfig]
MAX_PROCESSES = 100
_REFERENCE_COUNT = 2000
"""Renders: more than the features have dimensions, or their covariance would be singular."""
_BATCHES_AT_ONCE = 4
"""Batches whose pictures one call draws in continuous batches."""


@dataclass(frozen=True)
class BenchConfig(SamplingOptions):
    """What to compare."""

    methods: str | None = option(None, path=READ_NAMES, group=DECODING)
    """Names of methods or presets, or YAML files of settings, separated by commas. Plain decoding, "ar", is added where
    it is missing, since every ratio divides by it. null for ar,jacobi,scd,vvs-jacobi, and with a trained drafter
    eagle-chain,likeness-quality, too."""
    method_options: dict[str, Any] = option(dict, group=DECODING)
    """Settings that differ from the defaults, by method, such as `--method_options.eagle.depth 3`."""
    num_prompts: int = option(64, least=1, most=MAX_PICTURES)
    """Number of prompts. They describe scenes that training never showed."""
    prompts_file: str | None = option(None, path=READ_FILE)
    """Prompts to use instead, in any form that `vargen generate` reads. A model that does not draw the project's own
    scenes needs one."""
    split: str = option("heldout", choices=SPLITS)
    """Which prompts are composed, "heldout" for combinations that training never showed, "all" for any."""
    class_labels: list[int] = option(list, least=0)
    """Classes to draw instead of prompts, for a class-conditional model."""
    batch_size: int = option(1, least=1, most=MAX_BATCH_SIZE, group=DECODING)
    """Number of pictures that are drawn at once; 1, since papers tell seconds of one picture."""
    continuous_batches: bool = option(False, group=DECODING)
    """Give a finished picture's place in the batch to the next one at once, where the family of models can. A picture's
    passes and seconds are then its own. false lets a batch wait for its slowest."""
    warm_up: int = option(1, least=0, most=MAX_WARM_UP)
    """Number of calls of each method that do not count, before the first that does, for every batch size."""
    eager: bool = option(False, group=LOADING)
    """Run steps operation by operation on a GPU, too. By default they are captured there, as with `compile`, since
    waiting for launches would hide what methods gain."""
    judge: bool = True
    """Read the pictures and compare them with their prompts, where the model draws the project's own scenes."""
    clip: str | None = option(None, path=READ_FOLDER)
    """Folder of a CLIP model of transformers that scores pictures against their prompts; null for no scores."""
    extractor: str | None = None
    """Name of a network that a package brings, "efficientnet-lite0", whose Frechet distance between the pictures and
    renders of held-out scenes is told; null for none. It is not FID."""
    output: str | None = option(
        None, path=writes_in("results.json", "plot.png", "calls.jsonl", "images", "processes"), group=OUTPUT
    )
    """Folder for results.json, plot.png (judge accuracy against speed-up) and images/. Measured calls are kept in it
    until the end, and the same command continues a stopped run. null writes nothing."""
    processes: int = option(1, least=1, most=MAX_PROCESSES)
    """How often the whole comparison runs, each time in a fresh process, one after the other. Ratios are then shown as
    worst, median and best, since one process may be lucky."""
    save_images: bool = option(False, group=OUTPUT)
    """Write the pictures to images/METHOD/000000.png in the output folder."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.save_images and self.processes > 1:
            raise UserError("save_images needs processes 1: every process draws the same pictures")
        if self.save_images and self.output is None:
            raise UserError("save_images needs output, the folder for the pictures; name one")

    def contenders(self, resolve: Resolve = resolve_method, usual: str = UNTRAINED) -> dict[str, ImageMethodConfig]:
        """The methods by label, plain decoding first.

        Args:
            resolve: knows the names, such as a model's `resolve_method`.
            usual: methods that are compared where none are named.

        Raises:
            UserError: an unknown method, or options for one that is not compared.
        """
        names = usual if self.methods is None else self.methods
        return {"ar": resolve_method("ar"), **read_method_list(names, self.method_options, "methods", resolve)}


def benchmark(config: BenchConfig, world: World | None, quiet: bool = False) -> list[dict[str, Any]]:
    """Compare methods with a model from disk, continue a stopped run of the same calls, and write the results.

    Args:
        config: the comparison.
        world: composes prompts, and judges the pictures; None where none is installed.
        quiet: show no progress.

    Returns:
        One row for each method, as `build_rows`, with the settings that it was run with.

    Raises:
        UserError: methods or prompts that do not fit the model, or a folder of another run.
    """
    model = open_model(config)
    methods = config.contenders(model.resolve_method, model.usual_methods)
    cases = _cases(config, model, world)
    judge = None
    if config.judge and world is not None and any(case.claims is not None for case in cases):
        judge = fitting_judge(model, world.judge)

    from vargen.pipelines.compilation import can_capture
    from vargen.pipelines.loading import load_pipeline, place_and_precision

    if not config.eager and config.device_map is None:
        config = replace(config, compile=config.compile or can_capture(place_and_precision(config.device, "auto")[0]))
    with own_calls(config.output, ["images", *(f"images/{escape(label)}" for label in methods)]) as calls:
        scorer = None if config.clip is None else ClipScorer(Path(config.clip))
        distance = None if config.extractor is None else _distance(config.extractor, model, world, quiet)
        pipeline, _, dtype = load_pipeline(model, config, quiet)
        shared = {name: getattr(config, name) for name in ("batch_size", "continuous_batches", "seed")}
        shared |= model.sampling(**config.sampling)
        readers = {"clip": scorer, "extractor": distance}
        identities = {name: each.identity for name, each in readers.items() if each is not None}
        told = {"cases": told_cases(cases), "dtype": dtype, "device": str(pipeline.device), "judged": judge is not None}
        told |= {**identities, **config.identity, **shared}
        settings = describe_run(methods, weights_fingerprint(model.folder), **told)
        num_calls = len(_calls(len(cases), config.batch_size, config.continuous_batches))
        with progress(num_calls * len(methods), "calls", quiet) as shown:
            rows = run_benchmark(
                pipeline,
                methods,
                cases,
                warm_up=config.warm_up,
                judge=judge,
                clip=scorer,
                distance=distance,
                records=Records(calls, settings),
                images=calls.parent / "images" if calls is not None and config.save_images else None,
                shown=shown,
                **shared,
            )
        more = {"batch_size": config.batch_size, "dtype": dtype, "model": model.name, **config.identity}
        if config.continuous_batches:
            more["continuous_batches"] = True
        rows = [{**row, **more} for row in rows]
        if calls is not None:
            write_atomic(calls.parent / "results.json", json.dumps(rows, indent=1) + "\n")
            if any(row["judge_accuracy"] is not None for row in rows):
                _plot(calls.parent / "plot.png", rows)
    return rows


def _cases(config: BenchConfig, model: ModelDescription, world: World | None) -> list[BenchmarkCase]:
    if labels := class_labels_of(model, config.class_labels):
        return [BenchmarkCase(class_label=label) for label in labels]
    return prompt_cases(model, world, config.prompts_file, config.num_prompts, config.seed, config.split)


def _distance(name: str, model: ModelDescription, world: World | None, quiet: bool) -> FeatureDistance:
    from vargen.jobs.feature_distance import FeatureDistance

    if world is None or not model.draws_scenes:
        told = "extractor compares with renders of the project's own scenes, which this model does not draw"
        raise UserError(f"{told}; use vargen evaluate with a --reference")
    return FeatureDistance(name, world.reference(_REFERENCE_COUNT, model.image_size), quiet)


def _plot(path: Path, rows: list[dict[str, Any]]) -> None:
    """Draw judge accuracy against speed-up, where matplotlib is installed."""
    from metrics.plots import plot_tradeoff

    title = f"{rows[0]['model']}, batch {rows[0]['batch_size']}, {rows[0]['images']} prompts"
    try:
        write_atomic(path, plot_tradeoff(rows, title=title))
    except ModuleNotFoundError:
        print('vargen: warning: no plot, since matplotlib is missing; pip install "vargen[eval]"', file=sys.stderr)


def run_benchmark(
    pipeline: ImagePipeline,
    methods: Mapping[str, ImageMethodConfig],
    cases: Sequence[BenchmarkCase],
    *,
    batch_size: int = 1,
    continuous_batches: bool = False,
    seed: int = 0,
    warm_up: int = 1,
    judge: Judge | None = None,
    clip: ClipScorer | None = None,
    distance: FeatureDistance | None = None,
    records: Records | None = None,
    images: Path | None = None,
    shown: Progress | None = None,
    **generation: Any,
) -> list[dict[str, Any]]:
    """Make every picture with every method, and measure the cost.

    Args:
        pipeline: the model.
        methods: by label; without plain decoding among them ratios are None.
        cases: what to draw; the picture of case i has the seed `seed + i`.
        batch_size: number of pictures that are drawn at once.
        continuous_batches: a call draws four batches' pictures, each taking the place of a finished one, where the
            family can; a picture's passes and seconds are then its own. False: a call draws one batch.
        warm_up: number of calls of each method before the first that counts, for every batch size that comes up.
        judge: reads the pictures; None for no judging. Its time is not counted.
        clip: scores them against their prompts, likewise.
        distance: compares them with reference pictures, likewise.
        records: keeps the calls, and holds those of a stopped run; None keeps them in memory.
        images: folder for the pictures, LABEL/000000.png; None keeps none. A recorded call whose pictures are missing
            is made again.
        shown: counts calls.
        **generation: further arguments of the pipeline's call.

    Returns:
        One row for each method, as `build_rows`.

    Raises:
        UserError: a method that does not fit the model, or pictures of another run in `images`.
    """
    import torch

    from specdecode.kernels.build import kind
    from vargen.drawing.sheet import to_pil
    from vargen.jobs.calls import call_pipeline, record_of_picture, stream_pipeline
    from vargen.jobs.figures import count_claims

    records = Records(None, {}) if records is None else records
    batches = _calls(len(cases), batch_size, continuous_batches)
    if images is not None:
        for folder in (images / label for label in methods):  # others would stay beside this run's pictures
            own = {_picture_path(folder, index) for index in range(len(cases))}
            if others := sorted(set(folder.glob("*.png")) - own):
                raise UserError(f"output: {others[0]} is not of this run; name another folder or delete it")
        for label, (number, batch) in product(methods, enumerate(batches)):
            if not all(_picture_path(images / label, index).is_file() for index in batch):
                records.forget(label, number)  # kept by a run without pictures

    def call(method: ImageMethodConfig, number: int) -> tuple[torch.Tensor, CallRecord]:
        """Pictures [B, 3, H, W] in [0, 1] of consecutive seeds, and their cost."""
        batch = batches[number]
        chosen = [cases[i] for i in batch]
        if not continuous_batches:
            output, record = call_pipeline(pipeline, method, chosen, seed + batch[0], output_type="pt", **generation)
            return torch.as_tensor(output.images).float(), record
        seeds = [seed + i for i in batch]
        stream = stream_pipeline(pipeline, method, chosen, seeds, batch_size, output_type="pt", **generation)
        finished = sorted(stream, key=lambda picture: picture.index)
        record = CallRecord.of_pictures([record_of_picture(picture, pipeline.device) for picture in finished])
        return torch.stack([torch.as_tensor(picture.image).float() for picture in finished]), record

    def keep(label: str, number: int, made: tuple[torch.Tensor, CallRecord]) -> dict[str, Any]:
        pictures, record = made
        if images is not None:
            for index, picture in zip(batches[number], to_pil(pictures), strict=True):
                save_image_atomic(picture, _picture_path(images / label, index))
        chosen = [cases[i] for i in batches[number]]
        kept: dict[str, Any] = {"call": record.to_dict()}
        kept["claims"] = {} if judge is None else count_claims(judge, pictures, chosen)
        if distance is not None:
            kept["features"] = distance.encode(_to_bytes(pictures))
        if clip is not None:
            kept["clip_scores"] = clip.score_pixels(_to_bytes(pictures), [case.prompt or "" for case in chosen])
        return kept

    shapes = [len(batch) for batch in batches]
    compare(methods, len(batches), call, keep, warm_up=warm_up, records=records, shown=shown, shapes=shapes)
    rows = build_rows(methods, records, len(batches), distance)
    sequences = 2 if pipeline.do_classifier_free_guidance else 1
    weight_bytes, weights = pipeline.weights_a_pass
    by = {"kernels": kind()} if pipeline.device.type == "cpu" else {}
    reached = [achieved(row, weight_bytes, weights, sequences) for row in rows]
    return [{**row, **by, "achieved": each and {**each, **by}} for row, each in zip(rows, reached, strict=True)]


def _to_bytes(pictures: torch.Tensor) -> torch.Tensor:
    return (pictures.clamp(0, 1) * 255).round().byte()


def _calls(count: int, batch_size: int, continuous_batches: bool) -> list[range]:
    """The cases of every call, by number."""
    size = batch_size * (_BATCHES_AT_ONCE if continuous_batches else 1)
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def build_rows(
    methods: Mapping[str, ImageMethodConfig], records: Records, num_calls: int, distance: FeatureDistance | None = None
) -> list[dict[str, Any]]:
    """One JSON-ready row for each method: its cost (`metrics.speculation.summarise`), quality, settings and origin."""
    from vargen.jobs.figures import clip_figures, judge_figures

    def figures(kept: Kept, plain: Kept | None) -> dict[str, Any]:
        return {
            **summarise(calls_of(kept), None if plain is None else calls_of(plain)),
            **judge_figures([call["claims"] for call in kept]),
            **clip_figures([call.get("clip_scores", []) for call in kept]),
            **({} if distance is None else distance.figures([call["features"] for call in kept])),
        }

    return rows_of(methods, records, num_calls, figures)


def _picture_path(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.png"
