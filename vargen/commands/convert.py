"""`vargen convert llamagen | lantern-drafter`: published weights to folders that `vargen generate` takes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from vargen.base.bounds import MAX_PIXELS, check_numbers
from vargen.base.errors import UserError
from vargen.commands.arguments import build_parser, fill, parse
from vargen.runs.files import own_folder

DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ConvertConfig:
    """What to convert.

    Args:
        transformer: official transformer file, such as t2i_XL_stage1_256.pt.
        vqvae: official tokenizer file released with it, such as vq_ds16_t2i.pt.
        output: folder to write.
        image_size: side of a picture in pixels, which no file holds: 256 for *_256.pt, 384 for *_384.pt, 512 for
            *_512.pt.
        text_encoder: folder with google/flan-t5-xl and its tokenizer; for text-conditional files only.
        num_attention_heads: needed only for a geometry that was never published.
        dtype: precision in which the transformer is stored, float32, bfloat16 or float16; null keeps the file's.
        overwrite: replace the folder if it exists.
    """

    transformer: str
    vqvae: str
    output: str
    image_size: int
    text_encoder: str | None = None
    num_attention_heads: int | None = None
    dtype: str | None = None
    overwrite: bool = False

    def __post_init__(self) -> None:
        check_numbers(self, {"image_size": (16, MAX_PIXELS), "num_attention_heads": (1, 1_024)})


@dataclass(frozen=True)
class ConvertDrafterConfig:
    """What to convert.

    Args:
        drafter: folder of a published LANTERN drafter, such as jadohu/llamagen_drafter.
        output: folder to write.
        dtype: precision in which it is stored, float32, bfloat16 or float16; null keeps the file's.
        overwrite: replace the folder if it exists.
    """

    drafter: str
    output: str
    dtype: str | None = None
    overwrite: bool = False


AnyConfig = TypeVar("AnyConfig", ConvertConfig, ConvertDrafterConfig)


def run(arguments: Sequence[str]) -> int:
    """Convert and say what the files held."""
    source = arguments[0] if arguments else "--help"
    if source in ("-h", "--help"):
        lines = [f"vargen convert {name} --help explains its options." for name in SOURCES]
        print("\n".join(("usage: vargen convert SOURCE [options]", "", *lines)))
        return 0
    if source not in SOURCES:
        raise UserError(f"{source!r} cannot be converted; choose one of: {', '.join(SOURCES)}")
    return SOURCES[source](arguments[1:])


def _convert_llamagen(arguments: Sequence[str]) -> int:
    config, as_json = _read(
        arguments,
        "llamagen",
        "Read official LlamaGen files (.pt, nothing in them is executed), infer size and kind of condition from their "
        "shapes, and write a model folder for `vargen generate --model`.",
        ConvertConfig,
    )

    import torch

    from vargen.jobs.conversion import convert_llamagen

    with own_folder(config.output):
        result = convert_llamagen(
            config.transformer,
            config.vqvae,
            config.text_encoder,
            config.output,
            image_size=config.image_size,
            num_attention_heads=config.num_attention_heads,
            dtype=None if config.dtype is None else getattr(torch, config.dtype),
            overwrite=config.overwrite,
        )
    summary = {
        "output": str(result.output),
        "size": result.size,
        "condition_type": result.condition_type,
        "grid_size": result.grid_size,
        "num_parameters": result.num_parameters,
    }
    if as_json:
        print(json.dumps(summary))
    else:
        print(
            f"LlamaGen {result.size or '(unpublished size)'}, {result.condition_type}-conditional, "
            f"{result.num_parameters / 1e6:,.0f}M parameters, {result.grid_size} x {result.grid_size} tokens: "
            f"in {result.output}"
        )
    return 0


def _convert_lantern_drafter(arguments: Sequence[str]) -> int:
    config, as_json = _read(
        arguments,
        "lantern-drafter",
        "Read a published LANTERN drafter for LlamaGen and write a folder for `--method eagle` and its relatives "
        "(`--method_options.drafter FOLDER`).",
        ConvertDrafterConfig,
    )

    import torch

    from vargen.drafters.convert_draft_head import convert_lantern_drafter

    with own_folder(config.output):
        drafter = convert_lantern_drafter(
            config.drafter,
            config.output,
            dtype=None if config.dtype is None else getattr(torch, config.dtype),
            overwrite=config.overwrite,
        )
    summary = {
        "output": config.output,
        "grid_size": drafter.config.grid_size,
        "num_parameters": sum(parameter.numel() for parameter in drafter.parameters()),
    }
    if as_json:
        print(json.dumps(summary))
    else:
        print(
            f"LANTERN drafter, {summary['num_parameters'] / 1e6:,.1f}M parameters, {summary['grid_size']} x "
            f"{summary['grid_size']} tokens: in {config.output}"
        )
    return 0


def _read(arguments: Sequence[str], source: str, description: str, options: type[AnyConfig]) -> tuple[AnyConfig, bool]:
    """The options of a conversion, and whether its summary is wanted as JSON. Raises UserError."""
    parser = build_parser(f"convert {source}", description, options)
    parser.add_argument("--json", action="store_true", help="print a JSON summary and nothing else")
    values = parse(parser, arguments)
    config = fill(options, values)
    if config.dtype is not None and config.dtype not in DTYPES:
        raise UserError(f"dtype must be one of {', '.join(DTYPES)}, got {config.dtype!r}")
    return config, bool(values.json)


SOURCES = {"llamagen": _convert_llamagen, "lantern-drafter": _convert_lantern_drafter}
"""What can be converted."""
