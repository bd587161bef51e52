"""What a speculative step costs outside the forwards of target and drafter: masks, verification, bookkeeping.

Profiled runs wait at every boundary, so their sum is no measure of speed; the shares are. Three parts: the target's
forwards, the drafter's forwards, and the rest, which is split into building the tree, verifying, committing. With
`--operators` the most expensive operators outside the forwards are printed as well.

    python benchmarks/speculation_overhead.py
    python benchmarks/speculation_overhead.py --methods eagle,vvs --operators

Writes benchmarks/results/speculation_overhead.json.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import vargen.pipelines.base
from metrics.provenance import write_result
from scenes.cases import sample_prompts
from specdecode.roles import Drafter
from vargen.base.resources import find_model
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import resolve_method
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results"


@contextmanager
def profiled_decoding() -> Iterator[None]:
    """Let the pipeline's decode loop time its phases."""
    plain = vargen.pipelines.base.new_run

    def profiled(*arguments: Any, **keywords: Any) -> Any:
        return plain(*arguments, profile=True, **keywords)

    vargen.pipelines.base.new_run = profiled
    try:
        yield
    finally:
        vargen.pipelines.base.new_run = plain


class Stopwatch:
    """Adds up the seconds a function takes."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **keywords: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments, **keywords)
            finally:
                self.seconds += time.perf_counter() - began

        return timed


def measure(pipeline: LlamaGenPipeline, name: str, options: dict[str, Any], prompts: list[str]) -> dict[str, Any]:
    """Seconds of each part over all prompts, one picture at a time."""
    method = resolve_method(name, options)
    build = ImageMethodConfig.build
    forwards = Stopwatch()

    def build_timed(*arguments: Any, **keywords: Any) -> Any:
        players = build(*arguments, **keywords)
        drafter: Drafter | None = players.drafter
        head = getattr(drafter, "head", None)
        smaller = getattr(drafter, "model", None)
        if head is not None:
            head.forward = forwards.around(head.forward)
        elif smaller is not None:
            smaller.forward = forwards.around(smaller.forward)
        return players

    phases: dict[str, float] = {}
    steps = 0
    ImageMethodConfig.build = build_timed  # type: ignore[method-assign]
    try:
        with profiled_decoding():
            for number, prompt in enumerate([prompts[0], *prompts]):
                if number == 1:  # the first was to warm up
                    phases, forwards.seconds, steps = {}, 0.0, 0
                output = pipeline(
                    prompt, method=method, generator=torch.Generator().manual_seed(number), output_type="latent"
                )
                steps += output.trace.target_passes - 1
                for phase, seconds in output.trace.phase_seconds.items():
                    phases[phase] = phases.get(phase, 0.0) + seconds
    finally:
        ImageMethodConfig.build = build  # type: ignore[method-assign]
    parts = {
        "target_forward": phases["target"],
        "drafter_forward": forwards.seconds,
        "drafting_besides": phases.get("draft", 0.0) - forwards.seconds,
        "verify": phases["verify"],
        "commit": phases["commit"],
        "loop": phases["decode"] - sum(phases.get(name, 0.0) for name in ("draft", "target", "verify", "commit")),
    }
    outside = sum(seconds for part, seconds in parts.items() if not part.endswith("forward"))
    return {
        "method": Path(name).stem,
        "options": options,
        "steps": steps,
        "milliseconds_per_step": {part: 1000 * seconds / steps for part, seconds in parts.items()},
        "outside_share": outside / phases["decode"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="model folder or name of a shipped one")
    parser.add_argument(
        "--methods",
        default="ar,jacobi,vvs-jacobi,eagle-chain,benchmarks/methods/eagle-sampled-25.yaml,lantern-tree,likeness-balanced,"
        "draft-model",
    )
    parser.add_argument("--drafter", default=None, help="drafter folder, for a model without one")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--operators", action="store_true", help="profile operators too, and print the costliest")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args()

    pipeline = LlamaGenPipeline.from_pretrained(find_model(options.model))
    pipeline.set_progress_bar_config(disable=True)
    prompts = [case.caption.text for case in sample_prompts(options.prompts)]
    rows = []
    for name in options.methods.split(","):
        uses_drafter = options.drafter is not None and name in ("eagle", "lantern", "vvs", "coolsd")
        settings = {"drafter": options.drafter} if uses_drafter else {}
        rows.append(measure(pipeline, name, settings, prompts))
        parts = "  ".join(f"{part} {value:.2f}" for part, value in rows[-1]["milliseconds_per_step"].items())
        print(f"{name:12} outside forwards {100 * rows[-1]['outside_share']:.1f} %   ms per step: {parts}", flush=True)
        if options.operators:
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
                pipeline(prompts[0], method=resolve_method(name, settings), output_type="latent")
            print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=25))
    if not options.dry_run:
        write_result(
            RESULTS / "speculation_overhead.json", {"model": Path(find_model(options.model)).name, "rows": rows}
        )


if __name__ == "__main__":
    main()
