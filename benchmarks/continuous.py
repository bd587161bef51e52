"""Pictures an hour in continuous batches, over fixed ones, whose every batch waits for its slowest row.

Both ways draw the same prompts and seeds, in turns of a few batches, in one process: fixed, continuous, fixed, and so
on, as many as fit into the seconds given. Tokens are compared: as rows are rounded in other company, a near tie may
fall otherwise, and how many pictures differ is recorded. Latency is told apart from throughput: a picture's own time
from its prefill to its last token, and pictures an hour of the whole.

    python benchmarks/continuous.py --method scd --seconds 80

Adds the method's row to benchmarks/results/continuous.json. Keep the machine to itself meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from metrics.provenance import provenance
from scenes.cases import sample_prompts
from vargen.base.resources import find_model
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.runs.files import write_json_atomic

RECORD = Path(__file__).resolve().parent / "results" / "continuous.json"


def draw(
    pipeline: LlamaGenPipeline, prompts: list[str], first: int, method: str, batch_size: int, continuous: bool
) -> dict[str, Any]:
    """Draw a stretch of pictures. Returns tokens by index, seconds, passes and every picture's own."""
    generators = [torch.Generator().manual_seed(first + row) for row in range(len(prompts))]
    began = time.perf_counter()
    stream = pipeline.stream(
        prompts, generator=generators, batch_size=batch_size, continuous=continuous, method=method, output_type="latent"
    )
    pictures = list(stream)
    return {
        "seconds": time.perf_counter() - began,
        "tokens": {first + picture.index: picture.tokens for picture in pictures},
        "passes": stream.trace.target_passes,
        "own_passes": [picture.trace.target_passes for picture in pictures],
        "latency": [picture.seconds * picture.batch_size for picture in pictures],
    }


def measure(pipeline: LlamaGenPipeline, method: str, batch_size: int, stretch: int, seconds: float) -> dict[str, Any]:
    """One row: the medians over stretches, and what both ways have in common."""
    draw(pipeline, _prompts(batch_size, 900_000), 900_000, method, batch_size, True)  # warms up
    found: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    began, first = time.perf_counter(), 0
    while not found[True] or time.perf_counter() - began < seconds * (1 - 1 / (len(found[True]) + 1)):
        prompts = _prompts(stretch, first)
        for continuous in (False, True) if len(found[True]) % 2 == 0 else (True, False):
            found[continuous].append(draw(pipeline, prompts, first, method, batch_size, continuous))
        first += stretch
    row: dict[str, Any] = {"method": method, "batch_size": batch_size, "pictures": first, "stretch": stretch}
    for continuous, runs in found.items():
        latency = sorted(each for run in runs for each in run["latency"])
        own = [each for run in runs for each in run["own_passes"]]
        row["continuous" if continuous else "fixed"] = {
            "pictures_an_hour": round(3600 * first / sum(run["seconds"] for run in runs)),
            "passes_per_batch_of_pictures": round(sum(run["passes"] for run in runs) * batch_size / first, 1),
            "latency_seconds_p50": round(statistics.median(latency), 3),
            "own_passes_mean": round(statistics.mean(own), 1),
        }
    pairs = zip(found[False], found[True], strict=True)
    row["speedup"] = round(
        statistics.median(
            fixed["seconds"] / other["seconds"] for fixed, other in zip(found[False], found[True], strict=True)
        ),
        3,
    )
    row["pictures_that_differ"] = sum(
        not torch.equal(tokens, other["tokens"][index])
        for fixed, other in pairs
        for index, tokens in _tokens(fixed).items()
    )
    return row


def _prompts(count: int, seed: int) -> list[str]:
    return [case.caption.text for case in sample_prompts(count, seed)]


def _tokens(run: dict[str, Any]) -> dict[int, Tensor]:
    return run["tokens"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="scd", help="a method or preset")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--stretch", type=int, default=64, help="pictures of each way in a turn")
    parser.add_argument("--seconds", type=float, default=80, help="for all turns together, about")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    pipeline = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    row = measure(pipeline, given.method, given.batch_size, given.stretch, given.seconds)
    rows = json.loads(RECORD.read_text()) if RECORD.exists() else []
    rows = [each for each in rows if (each["method"], each["batch_size"]) != (row["method"], row["batch_size"])]
    write_json_atomic(RECORD, [*rows, {**row, "provenance": provenance()}])
    print(json.dumps(row, indent=1))


if __name__ == "__main__":
    main()
