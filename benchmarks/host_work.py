"""What the host does in a decoding step: calls of torch and of the project's kernels, by method.

    python benchmarks/host_work.py                             # every method, into results/host_work.json
    python benchmarks/host_work.py --methods vvs --operators   # and which calls they are; writes nothing

A call is an event at the top level of torch's profiler inside `DecodeRun.step`: what the host asks torch for, and on a
GPU what it launches. A call of a kernel is one, too. Forward passes count by the calls that lead to them, and skipped
steps are part of the step behind them. The shipped model, float32, one picture, drawn once before.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from metrics.provenance import write_result
from specdecode.kernels.build import library, why_not
from specdecode.loop import DecodeRun
from vargen import LlamaGenPipeline
from vargen.base.resources import find_model

RECORD = Path(__file__).resolve().parent / "results" / "host_work.json"
METHODS = (
    "ar,jacobi,sjd,scd,gsd,coolsd,draft-model,eagle-chain,eagle,lantern,likeness-quality,likeness-balanced,"
    "likeness-fast,vvs-jacobi,vvs,vvs-paper-uniform,zipar,benchmarks/methods/eagle-sampled-25.yaml"
)
PROMPT = "a large shiny red sphere"
STEP = "a step"


def marked(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, seen by the profiler."""

    def call(*given: Any) -> Any:
        with record_function(name):
            return function(*given)

    call.argtypes = getattr(function, "argtypes", None)  # type: ignore[attr-defined]
    return call


def calls(pipeline: LlamaGenPipeline, method: str) -> dict[str, Any]:
    """Calls a step that gains tokens, by operator the most frequent first."""

    def draw() -> None:
        pipeline(PROMPT, method=method, generator=torch.Generator().manual_seed(0), output_type="latent")

    draw()
    kernels: Any = library()
    step, gained = DecodeRun.step, list[int]()

    def counted(run: DecodeRun) -> int:
        gained.append(step(run))
        return gained[-1]

    functions = {name: each for name, each in vars(kernels).items() if isinstance(each, kernels._FuncPtr)}
    marks = {name: marked(f"kernel {name}", each) for name, each in functions.items()}
    seen = profile(activities=[ProfilerActivity.CPU])
    with patch.dict(vars(kernels), marks), patch.object(DecodeRun, "step", marked(STEP, counted)), seen as profiler:
        draw()
    inside = [event.name for event in profiler.events() if event.cpu_parent and event.cpu_parent.name == STEP]
    steps = sum(each > 0 for each in gained)
    by_operator = {name: count / steps for name, count in Counter(inside).most_common()}
    return {"method": Path(method).stem, "calls": len(inside) / steps, "steps": steps, "by_operator": by_operator}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default=METHODS, help="separated by commas")
    parser.add_argument("--operators", action="store_true", help="print the calls by operator, and write nothing")
    options = parser.parse_args()
    if reason := why_not():
        parser.error(f"the record is of the project's kernels, which this machine has not: {reason}")
    torch.set_num_threads(1)
    pipeline = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    rows = []
    for method in options.methods.split(","):
        rows.append(calls(pipeline, method))
        by_operator = rows[-1].pop("by_operator")
        print(f"{rows[-1]['method']}: {rows[-1]['calls']:.1f} calls a step, {rows[-1]['steps']} steps", flush=True)
        if options.operators:
            print("  ".join(f"{name} {count:.1f}" for name, count in by_operator.items()), flush=True)
    if not options.operators:
        write_result(RECORD, {"model": Path(find_model()).name, "rows": rows})


if __name__ == "__main__":
    main()
