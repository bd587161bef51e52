"""Decoding methods side by side: the same prompts and seeds, interleaved, in one process.

Belongs here: what is run in which order, what is kept of each call, and rows out of what was kept. Does not belong
here: the definitions of the figures (`metrics.speculation`), judging (`vargen.world.judge.verdict`), options and
printing (`vargen.commands.bench`).

For every batch of prompts all methods make their pictures before the next batch begins, in an order that rotates, so
that a machine that warms up or slows down does so for all of them. What is kept of a call is one line of JSON, written
when the call is over; a run that was killed goes on behind the last line.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from metrics.bootstrap import share_interval
from metrics.provenance import provenance
from metrics.speculation import CallRecord, summarise
from vargen.drawing.sheet import to_pil
from vargen.errors import UserError
from vargen.methods.catalogue import AutoregressiveConfig, MethodConfig
from vargen.prompts import gather_prompts
from vargen.runs.files import save_image_atomic
from vargen.runs.identity import machine
from vargen.runs.progress import Progress
from vargen.runs.records import Records
from vargen.world.captions.caption_parser import CaptionError, parse_caption
from vargen.world.captions.captions import Claims
from vargen.world.judge.judge import SceneJudge, read_images
from vargen.world.judge.report import sample_prompts
from vargen.world.judge.verdict import Check, Tally, Verdict, judge_claims

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from vargen.pipelines.llamagen import LlamaGenPipeline
    from vargen.pipelines.output import LlamaGenPipelineOutput


@dataclass(frozen=True)
class Contender:
    """A method under the name that its row gets."""

    label: str
    method: MethodConfig


@dataclass(frozen=True)
class BenchmarkCase:
    """One picture to make.

    Args:
        prompt: for a text-conditional model.
        class_label: for a class-conditional one.
        claims: what the prompt says of the scene, for the judge; None where nobody can say.
        object_count: as `vargen.world.judge.verdict.judge_claims` takes it.
    """

    prompt: str | None = None
    class_label: int | None = None
    claims: Claims | None = None
    object_count: int | None = None


def scene_cases(count: int, seed: int = 0, split: str = "heldout") -> list[BenchmarkCase]:
    """Captions of scenes that training never showed, as `report.sample_prompts`, with what they claim."""
    return [
        BenchmarkCase(case.caption.text, claims=case.caption.claims, object_count=case.object_count)
        for case in sample_prompts(count, seed, split)
    ]


def file_cases(path: str) -> list[BenchmarkCase]:
    """The prompts of a file as `vargen.prompts` reads it, with what they claim where they speak of scenes.

    Raises:
        UserError: the file cannot be read.
    """
    cases = []
    for prompt in gather_prompts([], path):
        try:
            cases.append(BenchmarkCase(prompt, claims=parse_caption(prompt)))
        except CaptionError:
            cases.append(BenchmarkCase(prompt))  # made and timed, but nobody can judge it
    return cases


def run_benchmark(
    pipeline: LlamaGenPipeline,
    contenders: Sequence[Contender],
    cases: Sequence[BenchmarkCase],
    *,
    batch_size: int = 1,
    seed: int = 0,
    warm_up: int = 1,
    judge: SceneJudge | None = None,
    records: Records | None = None,
    images: Path | None = None,
    progress: Progress | None = None,
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
        progress: counts calls.
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
                verdicts = [] if judge is None else _judge(judge, pictures, chosen)
                records.add({"method": contender.label, "batch": number, "call": call.to_dict(), "verdicts": verdicts})
            if progress is not None:
                progress.update()
    return build_rows(contenders, records, len(batches))


def build_rows(contenders: Sequence[Contender], records: Records, num_batches: int) -> list[dict[str, Any]]:
    """One JSON-ready row a method: the figures of `metrics.speculation.summarise`, the judge's, and their origin."""
    calls = {contender.label: records.call_records(contender.label) for contender in contenders}
    plain = next((each.label for each in contenders if isinstance(each.method, AutoregressiveConfig)), None)
    origin = provenance()
    rows = []
    for contender in contenders:
        verdicts = [
            Verdict(tuple(Check(kind, right) for kind, right in verdict["checks"]), tuple(verdict["match"]))
            for number in range(num_batches)
            for verdict in records.calls[contender.label, number]["verdicts"]
        ]
        rows.append(
            {
                "method": contender.label,
                "exact": contender.method.exact,
                **summarise(calls[contender.label], None if plain is None else calls[plain]),
                **judge_figures(verdicts),
                "settings": contender.method.to_dict(),
                "provenance": origin,
            }
        )
    return rows


def judge_figures(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """The share of right claims over all prompts with its 95 % interval, and the shares by kind; None where nobody
    judged."""
    if not verdicts:
        return {"judge_accuracy": None, "judge_accuracy_interval": None, "judge": None}
    claims = [check.right for verdict in verdicts for check in verdict.checks if check.kind != "object_count"]
    return {
        "judge_accuracy": sum(claims) / max(len(claims), 1),
        "judge_accuracy_interval": list(share_interval(sum(claims), len(claims))),
        "judge": Tally.of(verdicts).to_dict()["all"],
    }


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
) -> tuple[LlamaGenPipelineOutput, CallRecord]:
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


def _judge(judge: SceneJudge, pictures: torch.Tensor, cases: Sequence[BenchmarkCase]) -> list[dict[str, Any]]:
    verdicts = []
    for reading, case in zip(read_images(judge, pictures), cases, strict=True):
        if case.claims is not None:
            verdict = judge_claims(reading, case.claims, case.object_count)
            checks = [[check.kind, check.right] for check in verdict.checks]
            verdicts.append({"checks": checks, "match": list(verdict.match)})
    return verdicts


def _save(pictures: torch.Tensor, folder: Path, first: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for number, picture in enumerate(to_pil(pictures)):
        save_image_atomic(picture, folder / f"{first + number:06d}.png")
