"""`vargen convert llamagen | lantern-drafter`: published weights to folders that `vargen generate` takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vargen.base.errors import UserError, did_you_mean
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.jobs.conversion import ConvertConfig, ConvertDrafterConfig, convert_drafter, convert_llamagen


@dataclass(frozen=True)
class _Source:
    """Something that can be converted: what the command does, its settings, the job, and its result in one line."""

    description: str
    options: type[Any]
    convert: Callable[[Any], dict[str, Any]]
    summary: Callable[[dict[str, Any]], str]


SOURCES = {
    "llamagen": _Source(
        "Read official LlamaGen files (.pt, nothing in them is executed), infer size and kind of condition from their "
        "shapes, and write a model folder for `vargen generate --model`.",
        ConvertConfig,
        convert_llamagen,
        lambda made: (
            f"LlamaGen {made['size'] or '(unpublished size)'}, {made['condition_type']}-conditional, "
            f"{made['num_parameters'] / 1e6:,.0f}M parameters"
        ),
    ),
    "lantern-drafter": _Source(
        "Read a published LANTERN drafter for LlamaGen, and write a folder for `--method eagle` and its relatives "
        "(`--method_options.drafter FOLDER`).",
        ConvertDrafterConfig,
        convert_drafter,
        lambda made: f"LANTERN drafter, {made['num_parameters'] / 1e6:,.1f}M parameters",
    ),
}
"""What can be converted, by name."""


def run(arguments: Sequence[str]) -> int:
    """Convert, and say what the files held."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        lines = [f"vargen convert {each} --help explains its options." for each in SOURCES]
        print("\n".join(("usage: vargen convert SOURCE [options]", "", *lines)))
        return 0
    if name not in SOURCES:
        known = f"choose one of: {', '.join(SOURCES)}{did_you_mean(name, SOURCES)}"
        raise UserError(f"{name!r} cannot be converted; {known}")
    source = SOURCES[name]
    parser = build_parser(f"convert {name}", source.description, source.options)
    add_switches(parser, quiet=False, json="print a JSON summary and nothing else")
    values = parse(parser, arguments[1:])
    made = source.convert(fill(source.options, values))
    grid = made["grid_size"]
    print(json.dumps(made) if values.json else f"{source.summary(made)}, {grid} x {grid} tokens: in {made['output']}")
    return 0
