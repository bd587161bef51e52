"""`vargen convert llamagen | anole | vqgan | lantern-drafter`: published weights to folders of models for `vargen
generate`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from vargen.base.errors import UserError, did_you_mean
from vargen.commands.arguments import add_switches, build_parser, fill, parse
from vargen.jobs import conversion
from vargen.runs.files import own_folder


@dataclass(frozen=True)
class _Source:
    """Something that can be converted.

    Args:
        description: what the command does.
        options: settings of the job.
        convert: the job, which takes the settings.
        summary: the result in one line.
    """

    description: str
    options: type[Any]
    convert: Callable[..., dict[str, Any]]
    summary: Callable[[dict[str, Any]], str]


SOURCES = {
    "llamagen": _Source(
        "Read official LlamaGen files (.pt, nothing in them is executed), infer size and kind of condition from their "
        "shapes, and write a model folder for `vargen generate --model`.",
        conversion.ConvertConfig,
        conversion.convert_llamagen,
        lambda made: (
            f"LlamaGen {made['size'] or '(unpublished size)'}, {made['condition_type']}-conditional, "
            f"{made['num_parameters'] / 1e6:,.0f}M parameters, {made['grid_size']} x {made['grid_size']} tokens"
        ),
    ),
    "anole": _Source(
        "Read Anole in Meta's layout (consolidated.pth, nothing in it is executed), and write a model folder in the "
        "layout of transformers, with its picture tokenizer in vqvae/, for `vargen generate --model`.",
        conversion.ConvertAnoleConfig,
        conversion.convert_anole,
        lambda made: (
            f"Chameleon of {made['num_layers']} layers, {made['num_parameters'] / 1e6:,.0f}M parameters, "
            f"{made['num_codes']:,} codes"
        ),
    ),
    "vqgan": _Source(
        "Read a published picture tokenizer (.ckpt, nothing in it is executed, or .safetensors), and write a folder of "
        "diffusers.VQModel, for families that ship their picture tokenizer apart.",
        conversion.ConvertVqganConfig,
        conversion.convert_vqgan,
        lambda made: (
            f"VQGAN, {made['num_parameters'] / 1e6:,.1f}M parameters, {made['num_codes']:,} codes of "
            f"{made['pixels_a_code']} x {made['pixels_a_code']} pixels"
        ),
    ),
    "lantern-drafter": _Source(
        "Read a published LANTERN drafter for LlamaGen, Lumina-mGPT or Anole, and write a folder for `--method eagle` "
        "and its relatives (`--method_options.drafter FOLDER`).",
        conversion.ConvertDrafterConfig,
        conversion.convert_drafter,
        lambda made: (
            f"LANTERN drafter, {made['num_parameters'] / 1e6:,.1f}M parameters, "
            + (f"{made['grid_size']} x {made['grid_size']} tokens" if made["grid_size"] else "pictures of any size")
        ),
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
    config = fill(source.options, values)
    with own_folder(values.output):
        made = source.convert(config)
    print(json.dumps(made) if values.json else f"{source.summary(made)}: in {made['output']}")
    return 0
