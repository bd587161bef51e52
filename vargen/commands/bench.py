"""`vargen bench`: decoding methods side by side on the same prompts or videos and seeds."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from metrics.tables import format_table, format_video_table, nothing_gains
from vargen.base.world import find_world
from vargen.commands.arguments import add_switches, build_parser, fill, parse, take_task
from vargen.jobs.benchmark import BenchConfig, benchmark
from vargen.jobs.stopwatch import in_processes
from vargen.methods.base import TASKS
from vargen.methods.catalogue import WIDE
from vargen.video.jobs.video_benchmark import BenchVideoConfig, benchmark_videos

_THIS_MACHINE = "Seconds are of this machine; keep other work off it meanwhile."


def run(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the results. `--task video` compares answers about videos instead."""
    task, rest = take_task(arguments, TASKS)
    return _videos(rest) if task == "video" else _pictures(rest)


def _pictures(arguments: Sequence[str]) -> int:
    parser = build_parser(
        "bench",
        f"Run several decoding methods on the same prompts and seeds, in turns, after a warm-up. {_THIS_MACHINE}",
        BenchConfig,
        epilog="`vargen bench --task video --help` explains the comparison of answers about videos. Target passes "
        "count the prefill. Seconds are of whole calls, prompt encoder and image decoder included. docs/methods.md "
        "says what each figure means.",
    )
    add_switches(parser, json="print the results as JSON instead of the table")
    values = parse(parser, arguments)
    config = fill(BenchConfig, values)
    if config.processes > 1:
        rows = in_processes(("-m", "vargen", "bench"), arguments, config.processes, config.output)
    else:
        rows = benchmark(config, find_world(), values.quiet)
    print(json.dumps(rows, indent=1) if values.json else f"{_place(rows)}\n\n{format_table(rows)}")
    if (line := nothing_gains(rows)) is not None:
        print(f"vargen: {line}", file=sys.stderr)
    if config.judge and all(row["judge_accuracy"] is None for row in rows):
        clip = "CLIP score stands for quality" if config.clip else "name a CLIP model with --clip for a score"
        print(f"vargen: the judge reads vargen's own scenes alone, so nothing was judged; {clip}", file=sys.stderr)
    return 0


def _videos(arguments: Sequence[str]) -> int:
    parser = build_parser(
        "bench --task video",
        f"Ask several methods about the same videos, in turns, after a warm-up. {_THIS_MACHINE}",
        BenchVideoConfig,
        epilog="Accepted lengths leave out the bonus token. Speed-ups are per token. docs/methods.md says what each "
        "figure means.",
    )
    add_switches(parser, json="print the results as JSON instead of the table")
    values = parse(parser, arguments)
    rows = benchmark_videos(fill(BenchVideoConfig, values), find_world(), values.quiet)
    print(json.dumps(rows, indent=1) if values.json else f"{_place(rows)}\n\n{format_video_table(rows)}")
    return 0


def _place(rows: Sequence[Mapping[str, Any]]) -> str:
    hardware = rows[0]["provenance"]["hardware"]
    kernels = f" ({rows[0]['kernels']})" if "kernels" in rows[0] else ""
    place = hardware["processor" if hardware["device"] == "cpu" else "device"]
    told = f"Measured on {place}{kernels}, {rows[0]['dtype']}."
    by_tiles = "bfloat16" in rows[0]["dtype"] or rows[0].get("quantization") == "int8-dynamic"
    if hardware["device"] != "cpu" or (by_tiles and "+amx" in kernels):
        return f"{told} Rows are cheap here: presets that end with {WIDE} are for such machines."
    return f"{told} Rows are dear here: small drafts gain most."
