"""`vargen evaluate`: quality by a named protocol, of pictures made now or given, in one resumable command."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vargen.base.reading import parse_json
from vargen.base.world import find_world
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.jobs.evaluation import EvaluateConfig, evaluate
from vargen.runs.files import write_atomic, write_json_atomic


def run(arguments: Sequence[str]) -> int:
    """Make the missing pictures, measure them, and write the scores."""
    parser = build_parser(
        "evaluate",
        "Make pictures by one or several methods, or take those of a folder, and score them by a named protocol. "
        "Under `accelerate launch` or `torchrun` all processes share the work.",
        EvaluateConfig,
        epilog="docs/evaluation.md says what each figure means. The same command continues a stopped run, with any "
        "number of processes.",
    )
    add_switches(parser, json="print the scores as JSON instead of the table")
    values = parse(parser, arguments)
    config = fill(EvaluateConfig, values)
    rows = evaluate(config, find_world(), values.quiet)
    if rows:  # none but on the main process
        _report(config, rows, values.json)
    return 0


def _report(config: EvaluateConfig, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Write scores.json, the tables and the plot; print what was asked for."""
    from metrics.plots import plot_quality
    from metrics.tables import latex_quality, markdown_groups, markdown_quality

    folder = Path(config.output)
    _warn_of_lost_rows(folder / "scores.json", rows)
    write_json_atomic(folder / "scores.json", rows)
    extractor = rows[0]["protocol"]["extractor"]
    table = markdown_quality(rows, extractor)
    if "groups" in rows[0]:
        table += f"\n\n{markdown_groups(rows)}"
    write_atomic(folder / "table.md", table + "\n")
    write_atomic(folder / "table.tex", latex_quality(rows, extractor) + "\n")
    try:
        write_atomic(folder / "plot.png", plot_quality(rows, extractor))
    except ModuleNotFoundError:
        print('vargen: warning: no plot, since matplotlib is missing; pip install "vargen[eval]"', file=sys.stderr)
    print(json.dumps(rows) if as_json else f"{table}\n\nwritten to {folder / 'scores.json'}")


def _warn_of_lost_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Name the methods of an earlier command that this one's scores leave out."""
    try:
        earlier = [row["method"] for row in parse_json(path.read_bytes())]
    except (OSError, ValueError, TypeError, KeyError):
        return
    if gone := [label for label in earlier if label not in {row["method"] for row in rows}]:
        names = ",".join(row["method"] for row in rows if row["method"] not in gone)
        print(
            f"vargen: warning: {path} had {', '.join(gone)} too; --methods {','.join(gone)},{names} gives one table of "
            "all, and what was made is not made again",
            file=sys.stderr,
        )
