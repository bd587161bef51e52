"""What can happen to an object of the scene world in a video: kinds of events, places, and ways between them.

Does not belong here: what happens in a video, one event after the other (`story.py`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scenes.rendering import camera
from scenes.rendering.scene import (
    GROUNDS,
    MATERIALS,
    SIZES,
    SKIES,
    Scene,
    SceneObject,
    two_stand_apart,
)

COLUMNS = ("left", "middle", "right")
DISTANCES = ("near", "far")
KINDS = ("goes left", "goes right", "comes closer", "goes away", "appears", "leaves", "turns", "bumps into")
"""What can happen to an object. "turns" another colour; "bumps into" another object, and comes back."""

_COLUMN_CENTRES = {"left": -0.62, "middle": 0.0, "right": 0.62}
_DEPTHS = {"near": 0.1, "far": 2.3}
LIGHT_SIDES = {"left": -1.0, "viewer": 0.0, "right": 1.0}
LIGHTS = tuple(LIGHT_SIDES)


@dataclass(frozen=True)
class Event:
    """One thing that happens.

    Attributes:
        kind: one of `KINDS`.
        subject: number of the object it happens to.
        first, last: frames between which it happens; what appears is there from `last` on, what leaves is gone then.
        colour: the new one, of "turns".
        other: number of the object that is bumped into.
    """

    kind: str
    subject: int
    first: int
    last: int
    colour: str | None = None
    other: int | None = None


def place_object(rng: random.Random, column: str, distance: str, colour: str, shape: str) -> SceneObject:
    """An object of any size and material, somewhere around the middle of a column and a distance."""
    depth = _DEPTHS[distance] + rng.uniform(-0.15, 0.15)
    x = _COLUMN_CENTRES[column] / camera.screen_position(1.0, depth) + rng.uniform(-0.08, 0.08)
    size, material = rng.choice(SIZES), rng.choice(MATERIALS)
    return SceneObject(shape, colour, material, size, x, depth, rng.uniform(0.0, math.pi / 2))


def propose_surroundings(rng: random.Random, seed: int) -> tuple[Scene, str]:
    """A scene without objects, and which of `LIGHTS` lights it."""
    light = rng.choice(LIGHTS)
    return Scene(seed, (), rng.choice(GROUNDS), rng.choice(SKIES), LIGHT_SIDES[light], rng.uniform(0.7, 1.1)), light


def destination(kind: str, column: str, distance: str) -> tuple[str, str]:
    """Where an object stands after it has gone somewhere; where it was, for everything else and at the border."""
    if kind in ("goes left", "goes right"):
        step = -1 if kind == "goes left" else 1
        return COLUMNS[min(max(COLUMNS.index(column) + step, 0), 2)], distance
    if kind in ("comes closer", "goes away"):
        return column, "near" if kind == "comes closer" else "far"
    return column, distance


def on_the_way(item: SceneObject, kind: str, share: float) -> SceneObject:
    """The object after a share of its way. It goes by one column, or from one distance to the other."""
    across = item.x * camera.screen_position(1.0, item.depth)
    depth = item.depth
    if kind in ("goes left", "goes right"):
        across += share * 0.62 * (-1 if kind == "goes left" else 1)
    else:
        depth += share * (_DEPTHS["far"] - _DEPTHS["near"]) * (-1 if kind == "comes closer" else 1)
    return replace(item, x=across / camera.screen_position(1.0, depth), depth=depth)


def towards(item: SceneObject, other: SceneObject, share: float) -> SceneObject:
    """The object after a share of its way to touching another one."""
    gap = math.hypot(other.x - item.x, other.depth - item.depth)
    way = share * max(gap - (item.footprint + other.footprint) * 1.02, 0.0) / gap
    return replace(item, x=item.x + way * (other.x - item.x), depth=item.depth + way * (other.depth - item.depth))


def stand_apart(standing: Sequence[tuple[int, SceneObject]], events: Sequence[Event]) -> bool:
    """Whether no object stands in, touches or hides another, except the two of a collision."""
    pairs = {frozenset((event.subject, event.other)) for event in events if event.other is not None}
    for place, (number, item) in enumerate(standing):
        for other_number, other in standing[place + 1 :]:
            touching = frozenset((number, other_number)) in pairs
            if not two_stand_apart(item, other, *((1.0, 0.0) if touching else (1.1, 0.6))):
                return False
    return True
