"""Training runs by name: the recipes, and the data that the trainers of drafters take from outside.

Belongs here: which recipe is meant, and giving it prompts or pictures. Does not belong here: any trainer
(`vargen.training`, or the package that brings a recipe).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from vargen.base.path_roles import IN_A_TRAINING
from vargen.base.world import RECIPES, Recipe, find_world, listed, missing_world
from vargen.runs.files import own_folder
from vargen.runs.processes import is_first_process

OWN_RECIPES = {
    "drafter": Recipe(
        60,
        "an EAGLE drafter for a transformer, on its own pictures",
        "vargen.training.drafter",
        "DrafterTrainingConfig",
        "train_drafter",
    ),
    "lora": Recipe(
        65,
        "an adapter for the transformer that draws, on your own pictures with captions",
        "vargen.training.lora",
        "LoraTrainingConfig",
        "train_lora",
    ),
    "drafter-text": Recipe(
        95,
        "an EAGLE drafter for a causal language model, on its own answers",
        "vargen.training.text_drafter",
        "TextDrafterTrainingConfig",
        "train_text_drafter",
    ),
}
"""What vargen itself trains, for any model and on any data; a world adds its own recipes (`vargen.base.world`)."""


def train(name: str, config: Any) -> Any:
    """Train by the recipe `name`, or continue a stopped run of it.

    Args:
        name: of `recipes()`.
        config: the recipe's settings.

    Returns:
        What the recipe's trainer returns.
    """
    _, trainer = load_trainer(recipes()[name])
    # An adapter several processes train together, of which the first one keeps others out for all.
    is_shared = name == "lora" and not is_first_process()
    with nullcontext() if is_shared else own_folder(config.output, (*IN_A_TRAINING, "export")):
        return _learn_from_pictures(trainer, config) if name == "drafter" else trainer(config)


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
