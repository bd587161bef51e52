"""`vargen evaluate`: quality by a named protocol, of pictures made now or given, in one resumable command.

What is done in which order, and how a stopped run goes on, is in `vargen.jobs.evaluation`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vargen.base.world import find_world
from vargen.commands.arguments import build_parser, fill, parse
from vargen.jobs.options import EvaluateConfig, load_protocol
from vargen.models.description import open_model
from vargen.runs.files import write_atomic, write_json_atomic


def run(arguments: Sequence[str]) -> int:
    """Make what is missing, measure it, write the scores."""
    parser = build_parser(
        "evaluate",
        "Make pictures by one or several methods, or take those of a folder, and score them by a named protocol. "
        "Under `accelerate launch` or `torchrun` all processes share the work.",
        EvaluateConfig,
        epilog="What each figure means is in docs/evaluation.md. A stopped run is continued by the same command, with "
        "any number of processes.",
    )
    parser.add_argument("--json", action="store_true", help="print the scores to standard output, nothing else")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    values = parse(parser, arguments)
    config = fill(EvaluateConfig, values)
    model = None if config.images is not None else open_model(config)
    usual = "scenes" if model is None or model.draws_scenes else "prompts"
    protocol = load_protocol(config.preset or usual)
    methods = {} if model is None else config.methods(model.resolve_method)

    from vargen.jobs.evaluation import evaluate_quality

    rows = evaluate_quality(config, protocol, model, methods, find_world(), values.quiet)
    if rows:  # none but on the main process
        _report(config, rows, values.json)
    return 0


def _report(config: EvaluateConfig, rows: list[dict[str, Any]], as_json: bool) -> None:
    """Write scores.json, the tables and the plot; print what was asked for."""
    from metrics.plots import plot_quality
    from metrics.tables import latex_quality, markdown_quality

    folder = Path(config.output)
    _say_what_is_replaced(folder / "scores.json", rows)
    write_json_atomic(folder / "scores.json", rows)
    extractor = rows[0]["protocol"]["extractor"]
    table = markdown_quality(rows, extractor)
    write_atomic(folder / "table.md", table + "\n")
    write_atomic(folder / "table.tex", latex_quality(rows, extractor) + "\n")
    try:
        write_atomic(folder / "plot.png", plot_quality(rows, extractor))
    except ModuleNotFoundError:
        print('vargen: warning: no plot, since matplotlib is missing; pip install "vargen[eval]"', file=sys.stderr)
    print(json.dumps(rows) if as_json else f"{table}\n\nwritten to {folder / 'scores.json'}")


def _say_what_is_replaced(path: Path, rows: list[dict[str, Any]]) -> None:
    """Name the methods that an earlier command's scores have and this one's do not."""
    try:
        earlier = [row["method"] for row in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError, KeyError):
        return
    if gone := [label for label in earlier if label not in {row["method"] for row in rows}]:
        names = ",".join(row["method"] for row in rows if row["method"] not in gone)
        print(
            f"vargen: warning: {path} had {', '.join(gone)} too; --method {','.join(gone)},{names} gives one table of "
            "all, and what was made is not made again",
            file=sys.stderr,
        )
