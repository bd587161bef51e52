"""`vargen check`: whether a model draws on this machine, and the default draws what plain decoding draws."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from metrics.tables import markdown_table
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.jobs.checking import CheckConfig, check


def run(arguments: Sequence[str]) -> int:
    """Draw, print the costs, write the report. Returns 1 where tokens or weights differ, see the epilog, else 0."""
    parser = build_parser(
        "check",
        "Draw two pictures with a model, plainly and by the default method, and compare their tokens. Run it first "
        "with published weights, and attach its report to an issue.",
        CheckConfig,
        epilog="The exit code is 1 where tokens differ in float32, or files of weights from those of --against. In "
        "another precision tokens may differ where two are about as likely.",
    )
    parser.usage = "vargen check [options] [MODEL]"
    parser.add_argument("place", nargs="?", type=str, metavar="MODEL", help="the same as --model")
    add_switches(parser, json="print the report instead of a table")
    values = parse(parser, arguments)
    values.model = values.place or values.model
    config = fill(CheckConfig, values)
    report = check(config, values.quiet)
    differs = [each for each in report["differs"] if each]
    others = report["against"] or {"files": [], "calls": 0}
    if values.json:
        print(json.dumps(report, indent=1))
    else:
        rows = [
            [str(call["picture"] + 1), call["method"], f"{call['passes']:,}", f"{call['seconds']:.2f}", memory, digest]
            for call in report["calls"]
            for memory, digest in [(f"{call['peak_memory_gib'] or 0:.1f} GiB", call["tokens"])]
        ]
        hardware, libraries = report["provenance"]["hardware"], report["provenance"]["libraries"]
        place = hardware["processor"] if hardware["device"] == "cpu" else hardware["device"]
        told = ", ".join(f"{name} {version}" for name, version in libraries.items())
        print(f"{report['model']} ({report['family']}) in {report['dtype']} on {place}; kernels: {report['kernels']}")
        print(f"{told}\n\n{markdown_table(['picture', 'method', 'passes', 'seconds', 'memory', 'tokens'], rows)}\n")
        count = len(report["differs"])
        print(f"tokens of {len(differs)} of {count} pictures differ" if differs else "tokens are equal")
        if report["against"] is not None:
            print(f"against {config.against}: {others['calls']} of {len(report['calls'])} calls drew other tokens")
            print("\n".join(f"other weights: {name}" for name in others["files"]) or "weights are equal")
        if config.output is not None:
            print(f"report: {config.output}")
    other_tokens = bool(differs or others["calls"])
    if other_tokens and report["dtype"] != "float32":
        print("vargen: rounding may decide between tokens about as likely; try --dtype float32", file=sys.stderr)
    return int(bool(others["files"]) or (other_tokens and report["dtype"] == "float32"))
