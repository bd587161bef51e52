"""`vargen train NAME`: one training run, from a shipped or given configuration."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from jsonargparse import DefaultHelpFormatter

from vargen.commands.options import parse
from vargen.errors import UserError
from vargen.resources import find_config
from vargen.runs.files import own_folder

TRAINERS = {
    "tokenizer": ("TokenizerTrainingConfig", "train_tokenizer", "the VQ model that turns pictures into tokens"),
    "text-encoder": (
        "TextEncoderTrainingConfig",
        "train_text_encoder",
        "the T5 encoder of captions, before the transformer",
    ),
    "data": ("CodeStoreConfig", "write_codes", "nothing, but write a store of codes on which transformers train"),
    "transformer": (
        "TransformerTrainingConfig",
        "train_transformer",
        "the text-to-image transformer over those tokens",
    ),
    "decoder": (
        "DecoderTrainingConfig",
        "train_decoder",
        "the tokenizer's decoder, on codes as the transformer draws them",
    ),
    "drafter": ("DrafterTrainingConfig", "train_drafter", "an EAGLE drafter for a transformer, on its own pictures"),
    "judge": ("JudgeTrainingConfig", "train_judge", "the recogniser that scores pictures"),
    "video-llm": ("VideoLLMTrainingConfig", "train_video_llm", "a small Video-LLM, or a smaller one to draft for it"),
    "video-drafter": (
        "VideoDrafterTrainingConfig",
        "train_video_drafter",
        "a one-layer drafter for a Video-LLM: EAGLE, MSD, ViSpec, Sparrow or FLASH",
    ),
    "clip": ("ClipTrainingConfig", "train_clip", "the CLIP that scores how well pictures and captions agree"),
}
"""What can be trained: names of the configuration and the function in the module of that
name (see `load_trainer`), dashes as underscores."""

_INSIDE = ("samples", "export", "generated", "answers")
"""Folders of a run."""


def run(arguments: Sequence[str]) -> int:
    """Train until the configured end; the same command resumes a run that was stopped."""
    name = arguments[0] if arguments else "--help"
    if name in ("-h", "--help"):
        print(_usage())
        return 0
    if name not in TRAINERS:
        raise UserError(f"{name!r} cannot be trained; choose one of: {', '.join(TRAINERS)}")
    rest = list(arguments[1:])
    if not any(argument == "--config" or argument.startswith("--config=") for argument in rest):
        rest = ["--config", str(find_config(f"train/{name}")), *rest]

    from vargen.training.config import build_parser

    config_type, train = load_trainer(name)
    parser = build_parser(
        config_type,
        f"Train {TRAINERS[name][-1]}. Without --config, configs/train/{name}.yaml. A run that was stopped goes on from "
        "its last checkpoint when the same command is given again.",
    )
    parser.prog, parser.exit_on_error, parser.formatter_class = f"vargen train {name}", False, DefaultHelpFormatter
    values = parser.instantiate_classes(parse(parser, rest))
    config = config_type(**{field.name: getattr(values, field.name) for field in fields(config_type)})
    with own_folder(config.output_dir, _INSIDE, "output_dir"):
        result: Any = train(config, *_data(name, config))
    if signal_number := getattr(result, "stopped_by", None):  # not of a store of codes
        print(f"vargen: interrupted at step {result.step}; the same command goes on", file=sys.stderr)
        return 128 + signal_number
    print(f"training of the {name} is over: {result}")
    return 0


def load_trainer(name: str) -> tuple[type[Any], Callable[..., object]]:
    """The configuration of what `TRAINERS` calls `name`, and the function that trains by one."""
    # Drafters train on any model and any data; everything else on the project's own world.
    package = "vargen.training" if name.endswith("drafter") else "vargen.world.training"
    module_name = "code_store" if name == "data" else name.replace("-", "_")
    module = importlib.import_module(f"{package}.{module_name}")
    config_name, function_name, _ = TRAINERS[name]
    return getattr(module, config_name), getattr(module, function_name)


def _data(name: str, config: Any) -> tuple[Any, ...]:
    """What of this world a trainer is given that knows none."""
    from vargen.training.run import prepare
    from vargen.world.cases import scene_prompts
    from vargen.world.seeds import DRAFTER_SEED, HELDOUT_SEED
    from vargen.world.training.code_store import stored_pictures
    from vargen.world.training.video_data import RenderedVideoSource

    if name == "drafter":
        return (lambda seed, count: scene_prompts(DRAFTER_SEED + seed, count)), stored_pictures
    if name == "video-drafter":
        source = RenderedVideoSource(config.image_size, config.num_frames, prepare(config))
        return source, {"train": DRAFTER_SEED, "heldout": HELDOUT_SEED}
    return ()


def _usage() -> str:
    lines = [f"  {name:<13}  {summary}" for name, (_, _, summary) in TRAINERS.items()]
    return "\n".join(("usage: vargen train NAME [--config FILE.yaml] [--FIELD VALUE ...]", "", *lines))
