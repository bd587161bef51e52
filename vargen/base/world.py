"""Additions of other packages, found through entry points: a world, subcommands, training recipes, methods.

A world knows what pictures and videos of its own show: it ships models, composes prompts and judges answers. Does not
belong here: any world, and the protocol of one (`vargen.jobs.cases.World`). No object that is found may import torch.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from vargen.base.errors import UserError

WORLDS, COMMANDS, RECIPES, METHODS = "vargen.worlds", "vargen.commands", "vargen.recipes", "vargen.methods"
"""Groups of entry points: a `ShippedModels` that is also a `vargen.jobs.cases.World`; a `Command`; a `Recipe`; a
sequence of methods (`vargen.methods.base.MethodConfig`)."""

Listed = TypeVar("Listed", "Command", "Recipe")


class ShippedModels(Protocol):
    """Files that a world ships, and the videos that its Video-LLM was trained on.

    Attributes:
        weights: folder with one folder a model.
        model: name of the picture model that is loaded where none is named.
        video_model: name of the Video-LLM that is loaded where none is named. The draft model that belongs to it has
            this name and "-draft".
        clip: folder of a CLIP model for pictures of this world.
        video_frames: frames of a video.
        video_side: side of a frame, pixels.
    """

    weights: Path
    model: str
    video_model: str
    clip: Path
    video_frames: int
    video_side: int


@dataclass(frozen=True)
class Command:
    """A subcommand of `vargen`, named by its entry point.

    Args:
        order: commands are listed by ascending numbers; vargen's own have 10, 20 and so on.
        summary: what it does, for `vargen --help`.
        module: has `run(arguments) -> exit code`; it is imported when the command is called.
    """

    order: int
    summary: str
    module: str


@dataclass(frozen=True)
class Recipe:
    """Something that `vargen train` trains, named by its entry point.

    Args:
        order: recipes are listed by ascending numbers.
        summary: what is trained, for `vargen train --help`.
        module: has the two that follow; it is imported when the recipe is called.
        config: name of the dataclass of its settings.
        train: name of the function that trains by an instance of it.
    """

    order: int
    summary: str
    module: str
    config: str
    train: str


def listed(own: Mapping[str, Listed], group: str) -> dict[str, Listed]:
    """What vargen has itself and what other packages add, by name, in the order of `vargen --help`.

    A name of vargen's own cannot be taken by another package. A package that cannot be imported adds nothing.

    Args:
        own: vargen's own.
        group: `COMMANDS` or `RECIPES`.
    """
    everything = {**_load(group)[0], **own}
    return dict(sorted(everything.items(), key=lambda item: item[1].order))


def find_methods() -> list[Any]:
    """The methods that packages bring, vargen's own video half first. A package that cannot be imported adds none."""
    found, _ = _load(METHODS)
    return [method for name in sorted(found, key=lambda name: (name != "video", name)) for method in found[name]]


def find_world() -> Any:
    """The installed world, a `ShippedModels` and `vargen.jobs.cases.World`; None where there is none.

    The first by name stands for several worlds.
    """
    found, _ = _load(WORLDS)
    return found[min(found)] if found else None


def require_world(argument: str, remedy: str) -> Any:
    """The installed world.

    Args:
        argument: what needs it.
        remedy: what a user without a world can do.

    Raises:
        UserError: none is installed.
    """
    world = find_world()
    if world is None:
        raise missing_world(argument, remedy)
    return world


def missing_world(argument: str, remedy: str) -> UserError:
    """The error for an argument that needs a world where none is installed."""
    failures = _load(WORLDS)[1]
    reason = f" ({failures[0]})" if failures else ""
    return UserError(f"{argument}: no world is installed{reason}; {remedy}, or reinstall vargen, which brings one")


_KINDS: dict[str, Any] = {COMMANDS: Command, RECIPES: Recipe, METHODS: Sequence}


@functools.cache
def _load(group: str) -> tuple[dict[str, Any], list[str]]:
    """Objects of a group by name, and why others could not be imported."""
    from importlib.metadata import entry_points  # slow to import, and most modules that use this one never load

    found, failures = {}, []
    for point in entry_points(group=group):
        try:
            made = point.load()
            if not isinstance(made, _KINDS.get(group, object)):
                raise TypeError(f"{group} needs a {_KINDS[group].__name__}, got a {type(made).__name__}")
            found[point.name] = made
        except (Exception, SystemExit) as error:  # whatever another package raises: vargen's own commands go on
            failures.append(f"{point.value}: {error}")
    return found, failures
