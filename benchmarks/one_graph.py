"""Whether every decoding step is one graph that could be captured, over whole pictures of the shipped model.

Every image method and preset draws two batches by eager steps and by graphs that are captured on tapes and replayed
(`taped_graphs.py`), so no machine code is made: one picture and four, sampled, filtered and greedily. A row says
whether all tokens are the same, how many graphs there were, how often they were captured, how many of the steps they
made, and what a captured graph could not do: questions for a number, sizes among the inputs, tensors that moved. A
method that takes no part says why.

    python benchmarks/one_graph.py                               # everything; over an hour of processor time
    python benchmarks/one_graph.py --methods jacobi,scd --batch_sizes 1 --samplings sampled

Graphs read whole buckets of keys, so sums in float32 may differ in their last bit, and a near tie with them. Where
tokens differ, both are drawn again in float64.

Writes benchmarks/results/one_graph.json. Every row has the commit that it is of, and is measured again at another one.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from taped_graphs import TapingCompiler

from metrics.provenance import describe_commit, write_result
from scenes.cases import sample_prompts
from vargen.base.errors import UserError
from vargen.base.resources import find_model
from vargen.methods.catalogue import find_presets, methods_for, resolve_method
from vargen.pipelines.llamagen import LlamaGenPipeline

RESULTS = Path(__file__).resolve().parent / "results" / "one_graph.json"
SAMPLINGS: dict[str, dict[str, Any]] = {
    "sampled": {"top_k": 0},
    "filtered": {"top_k": 100, "top_p": 0.95},
    "greedy": {"temperature": 0.0},
}
BATCHES = 2
"""The second one goes on with the graphs of the first."""
BUCKET = 512
"""More slots than a picture of the shipped model needs, so that each kind of step is one graph."""


def row(pipeline: LlamaGenPipeline, name: str, batch_size: int, sampling: str) -> dict[str, Any]:
    """What is said of one method; see the module's description."""
    told: dict[str, Any] = {"method": name, "batch_size": batch_size, "sampling": sampling}
    prompts = [case.caption.text for case in sample_prompts(BATCHES * batch_size)]

    def drawn(compiler: TapingCompiler | None) -> list[Any]:
        pipeline.reuse.compiler = compiler
        batches = []
        for first in range(0, len(prompts), batch_size):
            generators = [torch.Generator().manual_seed(seed) for seed in range(first, first + batch_size)]
            settings = {"method": method, "generator": generators, "output_type": "latent", **SAMPLINGS[sampling]}
            batches.append(pipeline(prompts[first : first + batch_size], **settings))
        return batches

    def passes(batches: list[Any]) -> int:
        return sum(each.trace.target_passes for each in batches)

    torch._dynamo.reset()
    compiler, began = TapingCompiler(BUCKET), time.perf_counter()
    try:
        method = resolve_method(name, {})
        by_graphs, eager = drawn(compiler), drawn(None)
    except (UserError, ValueError) as error:
        return told | {"refused": str(error)}
    finally:
        pipeline.compile(None)
    return told | {
        "same_tokens": all(torch.equal(one.tokens, other.tokens) for one, other in zip(by_graphs, eager, strict=True)),
        "same_passes": passes(by_graphs) == passes(eager),
        "steps": passes(by_graphs) - BATCHES,
        "steps_by_graphs": compiler.replays,
        "graphs": compiler.counted.graphs,
        "captures": len(compiler.tapes),
        "faults": sorted(set(compiler.counted.faults)),
        "seconds": time.perf_counter() - began,
    }


def _loaded(model: str | None, dtype: torch.dtype) -> LlamaGenPipeline:
    pipeline = LlamaGenPipeline.from_pretrained(find_model(model), torch_dtype=dtype)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def recorded(record: Path) -> dict[tuple[Any, ...], dict[str, Any]]:
    """Rows of a record by method, batch size and sampling."""
    rows = json.loads(record.read_text())["rows"] if record.exists() else []
    return {(each["method"], each["batch_size"], each["sampling"]): each for each in rows}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None, help="model folder or name of a shipped one")
    parser.add_argument("--methods", default=",".join([*methods_for("image"), *find_presets("image")]))
    parser.add_argument("--batch_sizes", default="1,4")
    parser.add_argument("--samplings", default=",".join(SAMPLINGS))
    parser.add_argument("--record", type=Path, default=RESULTS, help="where rows lie, if not in this checkout")
    parser.add_argument("--dry_run", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)

    os.environ["VARGEN_KERNELS"] = "plain"  # what the project's kernels serve takes eager steps
    torch.set_num_threads(1)
    pipeline = _loaded(options.model, torch.float32)
    rows, commit = recorded(options.record), describe_commit()
    for batch_size in map(int, options.batch_sizes.split(",")):
        for name, sampling in product(options.methods.split(","), options.samplings.split(",")):
            key = name, batch_size, sampling
            if not options.dry_run and rows.get(key, {}).get("commit") == commit:
                continue
            rows[key] = {"commit": commit, **row(pipeline, *key)}
            if rows[key].get("same_tokens") is False:
                again = row(_loaded(options.model, torch.float64), *key)
                rows[key]["same_tokens_in_float64"] = again["same_tokens"]
            print(json.dumps(rows[key]), flush=True)
            if not options.dry_run:
                told = {"model": Path(find_model(options.model)).name, "rows": list(rows.values())}
                write_result(options.record, told)


if __name__ == "__main__":
    main()
