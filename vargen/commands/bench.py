"""`vargen bench`: decoding methods side by side on the same prompts or videos and seeds."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from metrics.tables import format_table, format_video_table
from vargen.base.errors import UserError
from vargen.base.world import find_world
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.jobs.benchmark import BenchConfig, benchmark
from vargen.jobs.video_benchmark import BenchVideoConfig, benchmark_videos

TASKS = ("image", "video")
_THIS_MACHINE = "Seconds are of this machine; keep other work off it meanwhile."


def run(arguments: Sequence[str]) -> int:
    """Measure, print a table, write the results. `--task video` compares answers about videos instead."""
    arguments, task = _take_task(arguments)
    return _videos(arguments) if task == "video" else _pictures(arguments)


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
    rows = benchmark(config, find_world(), values.quiet)
    print(json.dumps(rows, indent=1) if values.json else format_table(rows))
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
    print(json.dumps(rows, indent=1) if values.json else format_video_table(rows))
    return 0


def _take_task(arguments: Sequence[str]) -> tuple[list[str], str]:
    """The other arguments, and the task."""
    rest, task = list(arguments), "image"
    for place, argument in enumerate(rest):
        if argument == "--task" and place + 1 < len(rest):
            task = rest[place + 1]
            del rest[place : place + 2]
            break
        if argument.startswith("--task="):
            task = argument.removeprefix("--task=")
            del rest[place]
            break
    if task not in TASKS:
        raise UserError(f"task must be one of {', '.join(TASKS)}, got {task!r}")
    return rest, task
