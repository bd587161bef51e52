"""One call of a picture pipeline, and its cost.

Belongs here: measured calls, for a batch and for continuous batches. Does not belong here: which calls are made
(`vargen.jobs.benchmark`, `vargen.jobs.evaluation`), and the definitions of costs (`metrics.speculation`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from metrics.speculation import CallRecord
from vargen.jobs.cases import BenchmarkCase
from vargen.methods.base import ImageMethodConfig
from vargen.pipelines.compilation import COMPILED
from vargen.pipelines.streaming import FinishedPicture, PictureStream, open_stream

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from vargen.pipelines.base import AutoregressivePipelineOutput
    from vargen.pipelines.loading import ImagePipeline


def call_pipeline(
    pipeline: ImagePipeline,
    method: ImageMethodConfig,
    cases: Sequence[BenchmarkCase],
    seed: int,
    **arguments: Any,
) -> tuple[AutoregressivePipelineOutput, CallRecord]:
    """One call for cases of consecutive seeds, and its cost; `arguments` go to the pipeline."""
    generators = [torch.Generator().manual_seed(seed + row) for row in range(len(cases))]
    device = pipeline.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)  # whatever a caller left to do is not this call's
    began = time.perf_counter()
    output = pipeline(**condition_of(cases), generator=generators, method=method, **arguments)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began - output.trace.phase_seconds.get(COMPILED, 0.0)
    return output, CallRecord.from_trace(output.trace.to_dict(), seconds, _peak_memory(device))


def stream_pipeline(
    pipeline: ImagePipeline,
    method: ImageMethodConfig,
    cases: Sequence[BenchmarkCase],
    seeds: Sequence[int],
    batch_size: int,
    continuous: bool = True,
    **arguments: Any,
) -> PictureStream:
    """A stream of one picture for each case; `arguments` go to the pipeline."""
    return open_stream(
        pipeline,
        continuous,
        **condition_of(cases),
        generator=[torch.Generator().manual_seed(seed) for seed in seeds],
        batch_size=batch_size,
        method=method,
        **arguments,
    )


def record_of_picture(picture: FinishedPicture, device: torch.device) -> CallRecord:
    """The cost of a picture of a stream. Its seconds are its share of the batch's."""
    return CallRecord.from_trace(picture.trace.to_dict(), picture.seconds, _peak_memory(device))


def condition_of(cases: Sequence[BenchmarkCase]) -> dict[str, Any]:
    """The prompts or class labels of the cases, as an argument of a pipeline."""
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
