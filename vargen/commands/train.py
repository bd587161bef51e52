"""`vargen train NAME`: one training run, from a shipped or given configuration."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from jsonargparse import DefaultHelpFormatter

from vargen.base.errors import UserError
from vargen.base.resources import find_config
from vargen.commands.arguments import parse
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
    package = "vargen.training" if name.endswith("drafter") else "scenes.training"
    module_name = "code_store" if name == "data" else name.replace("-", "_")
    module = importlib.import_module(f"{package}.{module_name}")
    config_name, function_name, _ = TRAINERS[name]
    return getattr(module, config_name), getattr(module, function_name)


def _data(name: str, config: Any) -> tuple[Any, ...]:
    """What of this world a trainer is given that knows none."""
    from scenes.cases import scene_prompts
    from scenes.seeds import DRAFTER_SEED, HELDOUT_SEED
    from scenes.training.code_store import stored_pictures
    from scenes.training.video_data import RenderedVideoSource
    from vargen.training.run import prepare

    if name == "drafter":
        return (lambda seed, count: scene_prompts(DRAFTER_SEED + seed, count)), stored_pictures
    if name == "video-drafter":
        if isinstance(config.videos, str):
            return (_about_own_videos(config),)
        from vargen.training.video_drafter import rendered_questions

        source = RenderedVideoSource(config.image_size, config.rendered_frames, prepare(config), config.captions)
        return (rendered_questions(config, source, {"train": DRAFTER_SEED, "heldout": HELDOUT_SEED}),)
    return ()


def _about_own_videos(config: Any) -> Callable[[Any], Any]:
    """What `train_video_drafter` asks about the videos of a folder."""
    from vargen.jobs.clips import ask_about, describe_clips, set_apart
    from vargen.models.video_llms.frames import CAPTION_PROMPTS, frame_sampler
    from vargen.runs.identity import digest
    from vargen.training.video_questions import ClipQuestions

    def ask(answerer: Any) -> Any:
        asked = []
        for split, most, frames in (
            ("train", None, config.training_frames or config.num_frames),
            ("heldout", config.evaluation_size, config.num_frames),
        ):
            choose = frame_sampler(answerer.processor, frames, None if frames else config.fps)
            usual = CAPTION_PROMPTS if config.questions is None else CAPTION_PROMPTS[:1]
            clips = [
                clip for each in usual for clip in ask_about(config.videos, config.questions, each, choose, config.fps)
            ]
            chosen = set_apart(clips)[split == "heldout"][:most]
            shown = {"frames": [frames, config.fps], "max_pixels": config.max_pixels}
            described = {"clips": digest(describe_clips(chosen)), **shown}
            size = config.generation_batch_size
            processor, architecture = answerer.processor, answerer.architecture
            questions = ClipQuestions(processor, architecture, chosen, described, split, size, config.max_pixels)
            asked.append((questions, len(chosen)))
        return asked

    return ask


def _usage() -> str:
    lines = [f"  {name:<13}  {summary}" for name, (_, _, summary) in TRAINERS.items()]
    return "\n".join(("usage: vargen train NAME [--config FILE.yaml] [--FIELD VALUE ...]", "", *lines))
