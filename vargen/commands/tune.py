"""`vargen tune`: the fastest settings of a method within a budget of quality."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from metrics.tables import markdown_table
from vargen.base.world import find_world
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.jobs.tuning import PLAIN, TuneConfig, tune
from vargen.methods.catalogue import resolve_method


def run(arguments: Sequence[str]) -> int:
    """Search until the time is spent, print the front, write the best settings."""
    parser = build_parser(
        "tune",
        "Search a method's settings for the most speed within a budget of quality, on held-out prompts. The same "
        "command goes on with an interrupted search.",
        TuneConfig,
        epilog="`vargen generate --method DIR/best.yaml` uses what was found.",
    )
    add_switches(parser, json="print the content of pareto.json instead of the table")
    values = parse(parser, arguments)
    config = fill(TuneConfig, values)

    def report(record: Mapping[str, Any]) -> None:
        print(json.dumps(record)) if values.json else _report(Path(config.output), record)

    record = tune(config, find_world(), values.quiet, report)
    return 1 if record["best"]["method"] == PLAIN else 0


def _report(folder: Path, record: Mapping[str, Any]) -> None:
    """Print the front and the best settings."""
    front = record["front"]
    columns: dict[str, Callable[[Any], str]] = {
        "speedup": lambda point: f"{point['speedup']:.2f}x",
        "pass_reduction": lambda point: f"{point['pass_reduction']:.2f}x",
        "never_verified": lambda point: f"{100 * point['never_verified']:.0f} %",
        record["quality"]: lambda point: f"{point['quality']:.3f}",
        "settings": lambda point: _describe(point["settings"]),
    }
    header = [name for name in columns if name != "speedup" or record["speed"] == name]
    rows = [[columns[name](point) for name in header] for point in front]
    plain = f"plain decoding has {record['quality']} {record['plain_quality']:.3f}"
    print(f"{record['trials']} settings measured; {plain}\n")
    print(markdown_table(header, rows))
    best = next(point for point in front if point["settings"] == record["best"])
    budget, place = f"{record['max_quality_loss']:g}", folder / "best.yaml"
    if best["settings"]["method"] == PLAIN:
        print(f"\nnothing within {budget} is faster than plain decoding, which {place} names; allow more loss or time")
    else:
        gain = "as fast as" if record["speed"] == "speedup" else "fewer passes than"
        print(f"\nbest within {budget}: {place}, {best['speed']:.2f} times {gain} plain decoding")


def _describe(settings: Mapping[str, Any]) -> str:
    """What differs from the method's defaults, numbers rounded for the eye."""
    defaults = resolve_method(settings["method"]).to_dict()
    told = {name: value for name, value in settings.items() if name != "method" and value != defaults.get(name)}
    words = [f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in told.items()]
    return ", ".join(words) or "defaults"
