"""Training runs by name: the recipes, and the data that the trainers of drafters take from outside.

Belongs here: which recipe is meant, and giving it prompts, pictures or videos. Does not belong here: any trainer
(`vargen.training`, or the package that brings a recipe).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vargen.base.world import RECIPES, Recipe, find_world, listed, missing_world, require_world
from vargen.runs.files import own_folder

OWN_RECIPES = {
    "drafter": Recipe(
        60,
        "an EAGLE drafter for a transformer, on its own pictures",
        "vargen.training.drafter",
        "DrafterTrainingConfig",
        "train_drafter",
    ),
    "vertical": Recipe(
        65,
        "a vertical branch, with which a LlamaGen draws in diagonals",
        "vargen.training.vertical",
        "VerticalTrainingConfig",
        "train_vertical",
    ),
    "video-drafter": Recipe(
        90,
        "a one-layer drafter for a Video-LLM: EAGLE, MSD, ViSpec, Sparrow or FLASH",
        "vargen.video.training.video_drafter",
        "VideoDrafterTrainingConfig",
        "train_video_drafter",
    ),
    "video-draft-model": Recipe(
        92,
        "a smaller Video-LLM that drafts, on the target's own answers",
        "vargen.video.training.video_draft_model",
        "VideoDraftModelTrainingConfig",
        "train_video_draft_model",
    ),
    "drafter-text": Recipe(
        95,
        "an EAGLE drafter for a causal language model, on its own answers; also `drafter --task text`",
        "vargen.training.text_drafter",
        "TextDrafterTrainingConfig",
        "train_text_drafter",
    ),
}
"""What vargen itself trains, for any model and on any data; a world adds its own recipes (`vargen.base.world`)."""

_INSIDE = ("samples", "export", "generated", "answers")
"""Folders of a run."""


def train(name: str, config: Any) -> Any:
    """Train by the recipe `name`, or continue a stopped run of it.

    Args:
        name: of `recipes()`.
        config: the recipe's settings.

    Returns:
        What the recipe's trainer returns.
    """
    _, trainer = load_trainer(recipes()[name])
    with own_folder(config.output, _INSIDE):
        return _DATA[name](trainer, config) if name in _DATA else trainer(config)


def recipes() -> dict[str, Recipe]:
    """Everything that can be trained, by name, in the order of `vargen train --help`."""
    return listed(OWN_RECIPES, RECIPES)


def load_trainer(recipe: Recipe) -> tuple[type[Any], Callable[..., object]]:
    """The dataclass of a recipe's settings, and the function that trains by one."""
    module = importlib.import_module(recipe.module)
    return getattr(module, recipe.config), getattr(module, recipe.train)


def _learn_from_pictures(train: Callable[..., object], config: Any) -> object:
    """Give the trainer prompts and pictures of the world, for a config that names no files."""
    world = find_world()
    if world is None and not config.prompts_file:
        raise missing_world("prompts_file", "name a file of prompts")
    return train(config, None, None) if world is None else train(config, world.training_prompts, world.stored_pictures)


def _learn_from_answers(train: Callable[..., object], config: Any) -> object:
    """Give the trainer questions about the user's videos, or about videos that the world renders."""
    if config.videos is not None:
        return train(config, _about_own_videos(config))
    from vargen.training.run import prepare
    from vargen.video.training.video_answers import rendered_questions

    world = require_world("videos", "name a folder of videos")
    config = replace(
        config,
        num_frames=config.num_frames or world.video_frames,
        image_size=config.image_size or world.video_side,
    )
    source, seeds = world.training_videos(config.num_frames, config.image_size, prepare(config))
    return train(config, rendered_questions(config, source, seeds))


_DATA = {
    "drafter": _learn_from_pictures,
    "vertical": _learn_from_pictures,
    "video-drafter": _learn_from_answers,
    "video-draft-model": _learn_from_answers,
}
"""How data reaches the recipes that take it from outside."""


def _about_own_videos(config: Any) -> Callable[[Any], Any]:
    """Questions about the videos of a folder, as trainers take them."""
    from vargen.runs.identity import digest
    from vargen.video.jobs.clips import ask_about, describe_clips, set_apart
    from vargen.video.models.frames import CAPTION_PROMPTS, frame_sampler
    from vargen.video.training.video_questions import Questions

    def ask(answerer: Any) -> Any:
        asked = []
        choose = frame_sampler(answerer.processor, config.num_frames, config.fps)
        usual = CAPTION_PROMPTS if config.questions is None else CAPTION_PROMPTS[:1]
        clips = [
            clip for each in usual for clip in ask_about(config.videos, config.questions, each, choose, config.fps)
        ]
        train, heldout = set_apart(clips)
        for split, chosen in (("train", train), ("heldout", heldout[: config.evaluation_size])):
            shown = {"frames": [config.num_frames, config.fps], "max_pixels": config.max_pixels}
            described = {"clips": digest(describe_clips(chosen)), **shown}
            size = config.generation_batch_size
            processor, architecture = answerer.processor, answerer.architecture
            asked.append(Questions(processor, architecture, chosen, described, split, size, config.max_pixels))
        return asked

    return ask
