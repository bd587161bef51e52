"""Decoding methods side by side on pictures: the same prompts and seeds.

Belongs here: what is kept of each call, and rows out of what was kept. Does not belong here: who works when
(`vargen.jobs.comparison`), the definitions of the figures (`metrics.speculation`), judging (a `Judge`), options and
printing (`vargen.commands.bench`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metrics.provenance import provenance
from metrics.speculation import CallRecord, summarise
from vargen.base.errors import UserError
from vargen.drawing.sheet import to_pil
from vargen.jobs.cases import BenchmarkCase, Judge, told_cases
from vargen.jobs.comparison import compare, describe_run
from vargen.jobs.quality import clip_figures, count_claims, judge_figures
from vargen.jobs.ranking import ClipScorer
from vargen.methods.base import MethodConfig
from vargen.models.description import ModelDescription
from vargen.models.model_folder import weights_fingerprint
from vargen.models.options import ModelOptions
from vargen.pipelines.compilation import COMPILED
from vargen.pipelines.loading import load_pipeline
from vargen.pipelines.streaming import FinishedPicture, PictureStream, open_stream
from vargen.runs.files import save_image_atomic
from vargen.runs.progress import Progress, progress
from vargen.runs.records import Records

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from vargen.pipelines.base import AutoregressivePipelineOutput
    from vargen.pipelines.loading import ImagePipeline


def benchmark_model(
    model: ModelDescription,
    methods: Mapping[str, MethodConfig],
    cases: Sequence[BenchmarkCase],
    options: ModelOptions,
    *,
    judge: Judge | None = None,
    clip: Path | None = None,
    batch_size: int = 1,
    continuous_batches: bool = False,
    seed: int = 0,
    warm_up: int = 1,
    calls: Path | None = None,
    images: Path | None = None,
    quiet: bool = False,
    **generation: Any,
) -> list[dict[str, Any]]:
    """`run_benchmark` with a model from disk, going on where a run of the same calls was stopped.

    Args:
        model: of `vargen.models.description.open_model(options)`.
        methods, cases, judge, batch_size, continuous_batches, seed, warm_up, images, **generation: as for
            `run_benchmark`.
        options: how to load it.
        clip: folder of the CLIP model that scores; None: there are no CLIP scores.
        calls: file that keeps calls until somebody removes it; None: in memory.
        quiet: show no progress.

    Returns:
        One row a method, as `build_rows`, with what it was run with.
    """
    scorer = None if clip is None else ClipScorer(clip)
    pipeline, _, dtype = load_pipeline(model, options, quiet)
    shared = {"batch_size": batch_size, "continuous_batches": continuous_batches, "seed": seed, **generation}
    settings = describe_run(
        methods,
        weights_fingerprint(model.folder),
        cases=told_cases(cases),
        dtype=dtype,
        device=str(pipeline.device),
        judged=judge is not None,
        **({} if scorer is None else {"clip": scorer.identity}),
        **options.identity,
        **shared,
    )
    records = Records(calls, settings)
    with progress(len(_calls(len(cases), batch_size, continuous_batches)) * len(methods), "calls", quiet) as shown:
        rows = run_benchmark(
            pipeline,
            methods,
            cases,
            warm_up=warm_up,
            judge=judge,
            clip=scorer,
            records=records,
            images=images,
            shown=shown,
            **shared,
        )
    told = {"batch_size": batch_size, "dtype": dtype, "model": model.name, **options.identity}
    if continuous_batches:
        told["continuous_batches"] = True
    return [{**row, **told} for row in rows]


def run_benchmark(
    pipeline: ImagePipeline,
    methods: Mapping[str, MethodConfig],
    cases: Sequence[BenchmarkCase],
    *,
    batch_size: int = 1,
    continuous_batches: bool = False,
    seed: int = 0,
    warm_up: int = 1,
    judge: Judge | None = None,
    clip: ClipScorer | None = None,
    records: Records | None = None,
    images: Path | None = None,
    shown: Progress | None = None,
    **generation: Any,
) -> list[dict[str, Any]]:
    """Make every picture with every method, and say what that cost.

    Args:
        pipeline: the model.
        methods: by label; without plain decoding among them ratios are None.
        cases: what to make; the picture of case i is made with the seed `seed + i`.
        batch_size: pictures drawn at once.
        continuous_batches: a call draws four batches' pictures, each taking the place of one that is finished, where
            the family can; a picture's passes and seconds are then its own, and none waits for the slowest beside it.
            False: a call draws one batch.
        warm_up: calls of each method before the first that counts, over the first call's cases.
        judge: reads the pictures; None: nobody does. Its time is not counted.
        clip: scores them against their prompts, likewise.
        records: where calls are kept, and those that are there already; None: in memory.
        images: folder that gets the pictures, LABEL/000000.png; None: they are not kept. Calls among the records
            whose pictures are not there are made again.
        shown: counts calls.
        **generation: further arguments of the pipeline's call.

    Returns:
        One row a method, as `build_rows`.

    Raises:
        UserError: a method that does not fit the model, or pictures of another run in `images`.
    """
    records = Records(None, {}) if records is None else records
    batches = _calls(len(cases), batch_size, continuous_batches)
    if images is not None:
        _check_own_pictures(images, methods, len(cases))
        for label, (number, batch) in product(methods, enumerate(batches)):
            if not all(_picture_path(images / label, index).is_file() for index in batch):
                records.forget(label, number)  # kept by a run without pictures

    def call(method: MethodConfig, number: int) -> tuple[torch.Tensor, CallRecord]:
        batch = batches[number]
        chosen, first_seed = [cases[i] for i in batch], seed + batch[0]
        if continuous_batches:
            return _call_continuous(pipeline, method, chosen, first_seed, batch_size, generation)
        return _call(pipeline, method, chosen, first_seed, generation)

    def keep(label: str, number: int, made: tuple[torch.Tensor, CallRecord]) -> dict[str, Any]:
        pictures, record = made
        if images is not None:
            _save(pictures, images / label, batches[number][0])
        chosen = [cases[i] for i in batches[number]]
        kept: dict[str, Any] = {"call": record.to_dict()}
        kept["claims"] = {} if judge is None else count_claims(judge, pictures, chosen)
        if clip is not None:
            pixels = (pictures.clamp(0, 1) * 255).round().to(torch.uint8)
            kept["clip_scores"] = clip.score_pixels(pixels, [case.prompt or "" for case in chosen])
        return kept

    compare(methods, len(batches), call, keep, warm_up=warm_up, records=records, shown=shown)
    return build_rows(methods, records, len(batches))


_BATCHES_AT_ONCE = 4


def _calls(count: int, batch_size: int, continuous_batches: bool) -> list[range]:
    """The cases of every call, by number."""
    size = batch_size * (_BATCHES_AT_ONCE if continuous_batches else 1)
    return [range(first, min(first + size, count)) for first in range(0, count, size)]


def build_rows(methods: Mapping[str, MethodConfig], records: Records, num_batches: int) -> list[dict[str, Any]]:
    """One JSON-ready row a method: the figures of `metrics.speculation.summarise`, the judge's, and their origin."""
    calls = {label: records.call_records(label) for label in methods}
    plain = next((label for label, method in methods.items() if method.name == "ar"), None)
    origin = provenance()
    return [
        {
            "method": label,
            "exact": method.exact,
            **summarise(calls[label], None if plain is None else calls[plain]),
            **judge_figures([records.calls[label, number]["claims"] for number in range(num_batches)]),
            **clip_figures([records.calls[label, number].get("clip_scores", []) for number in range(num_batches)]),
            "settings": method.to_dict(),
            "provenance": origin,
        }
        for label, method in methods.items()
    ]


def call_pipeline(
    pipeline: ImagePipeline,
    method: MethodConfig,
    cases: Sequence[BenchmarkCase],
    seed: int,
    **arguments: Any,
) -> tuple[AutoregressivePipelineOutput, CallRecord]:
    """One call for cases of consecutive seeds, and what it cost; `arguments` go to the pipeline."""
    generators = [torch.Generator().manual_seed(seed + row) for row in range(len(cases))]
    device = pipeline.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    output = pipeline(**_condition(cases), generator=generators, method=method, **arguments)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began - output.trace.phase_seconds.get(COMPILED, 0.0)
    return output, CallRecord.from_trace(output.trace.to_dict(), seconds, _peak_memory(device))


def stream_pipeline(
    pipeline: ImagePipeline,
    method: MethodConfig,
    cases: Sequence[BenchmarkCase],
    seeds: Sequence[int],
    batch_size: int,
    **arguments: Any,
) -> PictureStream:
    """A stream of one picture a case, in continuous batches; `arguments` go to the pipeline."""
    return open_stream(
        pipeline,
        True,
        **_condition(cases),
        generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        batch_size=batch_size,
        method=method,
        **arguments,
    )


def record_of_picture(picture: FinishedPicture, device: torch.device) -> CallRecord:
    """What a picture of a stream cost; its seconds are its share of the batch."""
    return CallRecord.from_trace(picture.trace.to_dict(), picture.seconds, _peak_memory(device))


def _condition(cases: Sequence[BenchmarkCase]) -> dict[str, Any]:
    """The argument of a pipeline that says what these cases show."""
    if cases[0].class_label is None:
        return {"prompt": [case.prompt for case in cases]}
    return {"class_labels": [case.class_label for case in cases]}


def _peak_memory(device: torch.device) -> int | None:
    """Bytes: of the device since it was last reset, or of this process since it began; None where neither is known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None or device.type != "cpu":
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _call(
    pipeline: ImagePipeline,
    method: MethodConfig,
    cases: Sequence[BenchmarkCase],
    seed: int,
    generation: dict[str, Any],
) -> tuple[torch.Tensor, CallRecord]:
    """Pictures [B, 3, H, W] in [0, 1] of consecutive seeds, and what they cost."""
    output, record = call_pipeline(pipeline, method, cases, seed, output_type="pt", **generation)
    return torch.as_tensor(output.images).float(), record


def _call_continuous(
    pipeline: ImagePipeline,
    method: MethodConfig,
    cases: Sequence[BenchmarkCase],
    seed: int,
    batch_size: int,
    generation: dict[str, Any],
) -> tuple[torch.Tensor, CallRecord]:
    """As `_call`, of pictures that take each other's places."""
    seeds = range(seed, seed + len(cases))
    stream = stream_pipeline(pipeline, method, cases, seeds, batch_size, output_type="pt", **generation)
    finished = sorted(stream, key=lambda picture: picture.index)
    record = CallRecord.of_pictures([record_of_picture(picture, pipeline.device) for picture in finished])
    return torch.stack([torch.as_tensor(picture.image).float() for picture in finished]), record


def _save(pictures: torch.Tensor, folder: Path, first: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(to_pil(pictures)):
        save_image_atomic(picture, _picture_path(folder, first + number))


def _picture_path(folder: Path, index: int) -> Path:
    return folder / f"{index:06d}.png"


def _check_own_pictures(images: Path, labels: Iterable[str], count: int) -> None:
    """Refuse a folder in which pictures of a run over more prompts would stay beside this one's."""
    for folder in (images / label for label in labels):
        own = {_picture_path(folder, index) for index in range(count)}
        if others := sorted(set(folder.glob("*.png")) - own):
            raise UserError(f"images: {others[0]} is not of this run; name another folder or delete it")
