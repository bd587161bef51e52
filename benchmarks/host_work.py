"""What the host does in a decoding step: calls of torch, and the share of the step outside forward passes.

A call is an event at the top level of torch's profiler inside `DecodeRun.step`: what the host asks torch for, and on a
GPU what it launches. A call of the project's kernels is one, too; calls of numpy are none. Forward passes count by the
calls that lead to them, and skipped steps are part of the step behind them.

The last column is the most that a step costs the host where steps are graphs: the replay of a captured one, and what
the host launches beside it. Graphs are captured on tapes, see `taped_graphs.py`.

The share is processor time of the thread that decodes, with one thread, so that waiting and other work on the machine
count little. Outside means neither in a pass of the target nor in one of the draft head or the draft model.

    python benchmarks/host_work.py                                     # every method, and prints a table
    python benchmarks/host_work.py --methods jacobi,scd --operators    # and which calls they are

Writes benchmarks/results/host_work.json.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from taped_graphs import TapingCompiler
from torch.profiler import ProfilerActivity, profile, record_function

import vargen.pipelines.arguments
from metrics.provenance import write_result
from scenes.cases import sample_prompts
from specdecode.kernels.build import library
from specdecode.loop import DecodeRun
from vargen.base.resources import find_model
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results"
METHODS = (
    "ar,jacobi,sjd,scd,gsd,coolsd,draft-model,eagle-chain,eagle,lantern,likeness-quality,likeness-balanced,"
    "likeness-fast,vvs-jacobi,vvs,zipar,benchmarks/methods/eagle-sampled-25.yaml"
)
STEP = "host_work: a step"
PASS = "host_work: a pass"


class Watched:
    """Seconds of passes, seconds of steps, and steps of one run at a time.

    Args:
        marked: Whether steps are marked for the profiler.
        apart: Whether passes are, too, so that each counts as one call.
    """

    def __init__(self, marked: bool, apart: bool = False) -> None:
        self.marked, self.apart = marked, apart
        self.steps, self.step_seconds, self.pass_seconds = 0, 0.0, 0.0

    def run(self, run: DecodeRun) -> DecodeRun:
        """The run, watched."""
        drafter: Any = run.drafter
        drafter = getattr(drafter, "drafter", drafter)
        networks = (run.target, getattr(drafter, "head", None), getattr(drafter, "model", None))
        for network in networks:
            for name in ("forward", "forward_places"):
                if hasattr(network, name):
                    timed = self._timed(getattr(network, name), "pass_seconds")
                    setattr(network, name, record_function(PASS)(timed) if self.apart else timed)
        step = self._timed(run.step, "step_seconds")

        def counted() -> int:
            gained = self._in_mark(step)
            self.steps += gained > 0
            return gained

        run.step = counted  # type: ignore[method-assign]
        return run

    def _in_mark(self, step: Callable[[], int]) -> int:
        if not self.marked:
            return step()
        with record_function(STEP):
            return step()

    def _timed(self, function: Callable[..., Any], total: str) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*arguments, **keywords)
            finally:
                setattr(self, total, getattr(self, total) + time.thread_time() - began)

        return timed


@contextmanager
def watched(marked: bool, apart: bool = False) -> Iterator[Watched]:
    """Watch the runs of pipelines; arguments as of `Watched`."""
    plain, watch = vargen.pipelines.arguments.new_run, Watched(marked, apart)
    vargen.pipelines.arguments.new_run = lambda *given, **named: watch.run(plain(*given, **named))
    try:
        yield watch
    finally:
        vargen.pipelines.arguments.new_run = plain


@contextmanager
def marked_kernels() -> Iterator[None]:
    """Mark calls of the project's kernels for the profiler, which does not see them otherwise."""
    kernels = library()
    functions = {name: kernel for name, kernel in vars(kernels).items() if isinstance(kernel, kernels._FuncPtr)}

    def marked(name: str, kernel: Callable[..., int]) -> Callable[..., int]:
        def call(*given: Any) -> int:
            with record_function(f"kernel {name}"):
                return kernel(*given)

        call.argtypes = kernel.argtypes  # type: ignore[attr-defined]
        return call

    for name, kernel in functions.items():
        setattr(kernels, name, marked(name, kernel))
    try:
        yield
    finally:
        vars(kernels).update(functions)


def calls(draw_once: Callable[[int], object], apart: bool = False) -> dict[str, Any]:
    """Calls a step over one picture, by operator the most frequent first. It has been drawn before.

    Args:
        draw_once: Draws a picture with a seed.
        apart: Whether a forward pass counts as one call.
    """
    with watched(True, apart) as watch, marked_kernels(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        draw_once(1)
    counted: Counter[str] = Counter()
    for event in profiler.events():
        if event.cpu_parent is not None and event.cpu_parent.name == STEP:
            counted[event.name] += 1
    return {
        "calls": sum(counted.values()) / watch.steps,
        "by_operator": {operator: number / watch.steps for operator, number in counted.most_common()},
    }


def share(draw_once: Callable[[int], object], count: int) -> dict[str, Any]:
    """Milliseconds of processor time a step, and its share outside passes, over so many pictures."""
    draw_once(0)
    with watched(marked=False) as watch:
        for number in range(1, count + 1):
            draw_once(number)
    outside = watch.step_seconds - watch.pass_seconds
    return {
        "steps": watch.steps,
        "outside_share": outside / watch.step_seconds,
        "milliseconds_outside": 1000 * outside / watch.steps,
    }


def launches(pipeline: LlamaGenPipeline, draw_once: Callable[[int], object]) -> int:
    """The most that a compiled step costs the host. Our kernels are off, since steps with them stay eager."""
    torch._dynamo.reset()
    kernels, compiler = os.environ.get("VARGEN_KERNELS", ""), TapingCompiler(bucket=512)
    os.environ["VARGEN_KERNELS"], pipeline.reuse.compiler = "plain", compiler
    try:
        draw_once(1)
        with compiler.launches:
            draw_once(2)
    finally:
        os.environ["VARGEN_KERNELS"] = kernels
        pipeline.compile(None)
    return max(compiler.by_step)


def draw(pipeline: LlamaGenPipeline, name: str, prompts: list[str], seed: int) -> None:
    """One picture's tokens, by what a method's name means on this model: seeds 0 and 1 draw the first prompt, 2 the
    second, and so on."""
    prompt, generator = prompts[max(seed - 1, 0)], torch.Generator().manual_seed(seed)
    pipeline(prompt, method=name, generator=generator, output_type="latent")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="model folder or name of a shipped one")
    parser.add_argument("--methods", default=METHODS)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--operators", action="store_true", help="print which calls they are")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    torch.set_num_threads(1)
    pipeline = LlamaGenPipeline.from_pretrained(find_model(options.model))
    pipeline.set_progress_bar_config(disable=True)
    prompts = [case.caption.text for case in sample_prompts(options.prompts)]
    rows = []
    print("| method | calls a step | outside passes | ms outside a step | launches, compiled |\n|---|---|---|---|---|")
    for name in options.methods.split(","):
        draw_once = partial(draw, pipeline, name, prompts)
        of_time = share(draw_once, len(prompts))
        of_calls = calls(draw_once)
        by_operator = of_calls.pop("by_operator")
        of_graphs = {"launches_compiled": launches(pipeline, draw_once)}
        rows.append({"method": Path(name).stem, **of_calls, **of_time, **of_graphs})
        row = rows[-1]
        cells = f"{row['calls']:.1f} | {row['outside_share']:.1%} | {row['milliseconds_outside']:.2f}"
        cells += f" | {row['launches_compiled']}"
        print(f"| {row['method']} | {cells} |", flush=True)
        if options.operators:
            print("  ".join(f"{operator} {number:.1f}" for operator, number in by_operator.items()), flush=True)
    if not options.dry_run:
        write_result(RESULTS / "host_work.json", {"model": Path(find_model(options.model)).name, "rows": rows})


if __name__ == "__main__":
    main()
