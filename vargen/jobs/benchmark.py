"""Decoding methods side by side: the same prompts and seeds, interleaved, in one process.

Belongs here: what is run in which order, what is kept of each call, and rows out of what was kept. Does not belong
here: the definitions of the figures (`metrics.speculation`), judging (a `Judge`), options and printing
(`vargen.commands.bench`).

For every batch of prompts all methods make their pictures before the next batch begins, in an order that rotates, so
that a machine that warms up or slows down does so for all of them. What is kept of a call is one line of JSON, written
when the call is over; a run that was killed goes on behind the last line.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metrics.provenance import provenance
from metrics.speculation import CallRecord, summarise
from vargen.drawing.sheet import to_pil
from vargen.errors import UserError
from vargen.jobs.cases import BenchmarkCase, Contender, Judge
from vargen.jobs.quality import count_claims, judge_figures
from vargen.methods.base import MethodConfig
from vargen.models.model_folder import weights_fingerprint
from vargen.pipelines.loading import load_pipeline
from vargen.runs.files import save_image_atomic
from vargen.runs.identity import machine
from vargen.runs.progress import Progress, progress
from vargen.runs.records import Records

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from vargen.pipelines.common import AutoregressivePipelineOutput
    from vargen.pipelines.llamagen import LlamaGenPipeline


def benchmark_model(
    model_folder: Path,
    methods: Mapping[str, MethodConfig],
    cases: Sequence[BenchmarkCase],
    *,
    judge: Callable[[], Judge] | None = None,
    device: str = "auto",
    dtype: str = "auto",
    batch_size: int = 1,
    seed: int = 0,
    warm_up: int = 1,
    calls: Path | None = None,
    images: Path | None = None,
    quiet: bool = False,
    **generation: Any,
) -> list[dict[str, Any]]:
    """`run_benchmark` with a model from disk, going on where a run of the same calls was stopped.

    Args:
        model_folder: of a pipeline.
        methods: by label; without plain decoding among them ratios are None.
        cases: what to make.
        judge: gives what reads the pictures, which counts where it was made for their size; None: nobody does.
        device, dtype: as `vargen.pipelines.loading.place_and_precision` takes them.
        batch_size, seed, warm_up, images, **generation: as for `run_benchmark`.
        calls: file that keeps calls until somebody removes it; None: in memory.
        quiet: show no progress.

    Returns:
        One row a method, as `build_rows`, with what it was run with.
    """
    pipeline, _, dtype = load_pipeline(model_folder, device, dtype)
    reader = None if judge is None or all(case.claims is None for case in cases) else judge()
    if reader is not None and reader.image_size != pipeline.image_size:
        reader = None
    contenders = [Contender(label, method) for label, method in methods.items()]
    shared = {"batch_size": batch_size, "seed": seed, **generation}
    settings = describe_run(
        contenders,
        cases,
        weights_fingerprint(model_folder),
        dtype=dtype,
        device=str(pipeline.device),
        judged=reader is not None,
        **shared,
    )
    records = Records(calls, settings)
    with progress(math.ceil(len(cases) / batch_size) * len(contenders), "calls", quiet) as shown:
        rows = run_benchmark(
            pipeline,
            contenders,
            cases,
            warm_up=warm_up,
            judge=reader,
            records=records,
            images=images,
            shown=shown,
            **shared,
        )
    return [{**row, "batch_size": batch_size, "dtype": dtype, "model": model_folder.name} for row in rows]


def run_benchmark(
    pipeline: LlamaGenPipeline,
    contenders: Sequence[Contender],
    cases: Sequence[BenchmarkCase],
    *,
    batch_size: int = 1,
    seed: int = 0,
    warm_up: int = 1,
    judge: Judge | None = None,
    records: Records | None = None,
    images: Path | None = None,
    shown: Progress | None = None,
    **generation: Any,
) -> list[dict[str, Any]]:
    """Make every picture with every method, and say what that cost.

    Args:
        pipeline: the model.
        contenders: labels must differ. Without plain decoding among them ratios are None.
        cases: what to make; the picture of case i is made with the seed `seed + i`.
        batch_size: pictures per call.
        warm_up: calls of each method before the first that counts, over the first batch.
        judge: reads the pictures; None: nobody does. Its time is not counted.
        records: where calls are kept, and those that are there already; None: in memory.
        images: folder that gets the pictures, LABEL/000000.png; None: they are not kept.
        shown: counts calls.
        **generation: further arguments of the pipeline's call.

    Returns:
        One row a method, as `build_rows`.

    Raises:
        UserError: two contenders with one label, or a method that does not fit the model.
    """
    labels = [contender.label for contender in contenders]
    if len(set(labels)) < len(labels):
        raise UserError(f"methods: two of {', '.join(labels)} have the same name")
    records = Records(None, {}) if records is None else records
    batches = [list(range(first, min(first + batch_size, len(cases)))) for first in range(0, len(cases), batch_size)]
    missing = {label: any((label, number) not in records for number in range(len(batches))) for label in labels}
    for contender in contenders:
        for _ in range(warm_up if missing[contender.label] else 0):
            _call(pipeline, contender.method, [cases[i] for i in batches[0]], seed, generation)
    for number, batch in enumerate(batches):
        turn = number % len(contenders)
        for contender in [*contenders[turn:], *contenders[:turn]]:
            if (contender.label, number) not in records:
                chosen = [cases[i] for i in batch]
                pictures, call = _call(pipeline, contender.method, chosen, seed + batch[0], generation)
                if images is not None:
                    _save(pictures, images / contender.label, batch[0])
                claims = {} if judge is None else count_claims(judge, pictures, chosen)
                records.add({"method": contender.label, "batch": number, "call": call.to_dict(), "claims": claims})
            if shown is not None:
                shown.update()
    return build_rows(contenders, records, len(batches))


def build_rows(contenders: Sequence[Contender], records: Records, num_batches: int) -> list[dict[str, Any]]:
    """One JSON-ready row a method: the figures of `metrics.speculation.summarise`, the judge's, and their origin."""
    calls = {contender.label: records.call_records(contender.label) for contender in contenders}
    plain = next((each.label for each in contenders if each.method.name == "ar"), None)
    origin = provenance()
    rows = []
    for contender in contenders:
        claims = [records.calls[contender.label, number]["claims"] for number in range(num_batches)]
        rows.append(
            {
                "method": contender.label,
                "exact": contender.method.exact,
                **summarise(calls[contender.label], None if plain is None else calls[plain]),
                **judge_figures(claims),
                "settings": contender.method.to_dict(),
                "provenance": origin,
            }
        )
    return rows


def describe_run(
    contenders: Sequence[Contender], cases: Sequence[BenchmarkCase], weights: str, **options: Any
) -> dict[str, Any]:
    """Everything that decides the calls of a run, this machine included, for `Records`."""
    return {
        "methods": {contender.label: contender.method.to_dict() for contender in contenders},
        "cases": [case.prompt if case.class_label is None else case.class_label for case in cases],
        "weights": weights,
        **machine(),
        **options,
    }


def call_pipeline(
    pipeline: LlamaGenPipeline,
    method: MethodConfig,
    cases: Sequence[BenchmarkCase],
    seed: int,
    **arguments: Any,
) -> tuple[AutoregressivePipelineOutput, CallRecord]:
    """One call for cases of consecutive seeds, and what it cost; `arguments` go to the pipeline."""
    condition: dict[str, Any] = (
        {"prompt": [case.prompt for case in cases]}
        if cases[0].class_label is None
        else {"class_labels": [case.class_label for case in cases]}
    )
    generators = [torch.Generator().manual_seed(seed + row) for row in range(len(cases))]
    device = pipeline.transformer.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    output = pipeline(**condition, generator=generators, method=method, **arguments)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    return output, CallRecord.from_trace(output.trace.to_dict(), seconds, _peak_memory(device))


def _peak_memory(device: torch.device) -> int | None:
    """Bytes: of the device since it was last reset, or of this process since it began; None where neither is known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None or device.type != "cpu":
        return None
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _call(
    pipeline: LlamaGenPipeline,
    method: MethodConfig,
    cases: Sequence[BenchmarkCase],
    seed: int,
    generation: dict[str, Any],
) -> tuple[torch.Tensor, CallRecord]:
    """Pictures [B, 3, H, W] in [0, 1] of consecutive seeds, and what they cost."""
    output, record = call_pipeline(pipeline, method, cases, seed, output_type="pt", **generation)
    return torch.as_tensor(output.images).float(), record


def _save(pictures: torch.Tensor, folder: Path, first: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(to_pil(pictures)):
        save_image_atomic(picture, folder / f"{first + number:06d}.png")
