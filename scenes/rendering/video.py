"""Short videos of the scene world: the same objects, and things that happen to them, as data.

A video is a list of scenes, one a frame, with the same ground, sky, light and stochastic detail. Each object has one
event at most, and events follow each other, so the order in time is part of the truth. Does not belong here: what is
said about a video (`scenes.captions.video_captions`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scenes.rendering import camera
from scenes.rendering.scene import (
    COLOURS,
    GROUNDS,
    MATERIALS,
    SHAPES,
    SIZES,
    SKIES,
    SPLITS,
    Scene,
    SceneObject,
    is_heldout_object,
)

COLUMNS = ("left", "middle", "right")
DISTANCES = ("near", "far")
KINDS = ("goes left", "goes right", "comes closer", "goes away", "appears", "leaves", "turns", "bumps into")
"""What can happen to an object. "turns" another colour; "bumps into" another object, and comes back."""

_COLUMN_CENTRES = {"left": -0.62, "middle": 0.0, "right": 0.62}
_DEPTHS = {"near": 0.1, "far": 2.3}
LIGHT_SIDES = {"left": -1.0, "viewer": 0.0, "right": 1.0}
LIGHTS = tuple(LIGHT_SIDES)
_COUNTS = (1, 2, 2, 3)
_MAX_TRIES = 5000


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


@dataclass(frozen=True)
class VideoScene:
    """The whole truth about one video.

    Attributes:
        seed: identity.
        frames: one scene a frame.
        objects: every object as it first stands, whether or not it is there from the start.
        columns, distances: of each object, where it first stands: `COLUMNS`, `DISTANCES`.
        events: in the order of time.
        light: where the light comes from, one of `LIGHTS`.
    """

    seed: int
    frames: tuple[Scene, ...]
    objects: tuple[SceneObject, ...]
    columns: tuple[str, ...]
    distances: tuple[str, ...]
    events: tuple[Event, ...]
    light: str

    def event_of(self, number: int) -> Event | None:
        """What happens to an object; None if nothing does."""
        return next((event for event in self.events if event.subject == number), None)

    def end_of(self, number: int) -> tuple[str, str, str] | None:
        """Colour, column and distance of an object in the last frame; None if it has left."""
        event = self.event_of(number)
        colour, column, distance = self.objects[number].colour, self.columns[number], self.distances[number]
        if event is None:
            return colour, column, distance
        if event.kind == "leaves":
            return None
        if event.kind == "turns":
            assert event.colour is not None
            return event.colour, column, distance
        return colour, *destination(event.kind, column, distance)


def sample_video(seed: int, num_frames: int = 8, split: str = "train") -> VideoScene:
    """Draw the video of a seed.

    Args:
        seed: any non-negative integer; the same seed, number of frames and split give the same video.
        num_frames: 4 or more.
        split: "train" (no held-out object), "heldout" (at least one), or "all".

    Raises:
        ValueError: for an unknown split or too few frames.
    """
    if split not in SPLITS:
        raise ValueError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
    if num_frames < 4:
        raise ValueError(f"num_frames: {num_frames} frames are too few for something to happen; give 4 or more")
    rng = random.Random(f"video-{split}-{num_frames}-{seed}")
    count = rng.choice(_COUNTS)  # before the tries, or those that succeed easily would be drawn more often
    for _ in range(_MAX_TRIES):
        video = _propose(rng, seed, num_frames, count)
        if video is None:
            continue
        heldout = any(is_heldout_object(item.shape, item.colour, item.material) for item in video.objects)
        if split == "all" or heldout == (split == "heldout"):
            return video
    raise RuntimeError(f"seed: no {split} video found for {seed} in {_MAX_TRIES} tries")


def _propose(rng: random.Random, seed: int, num_frames: int, count: int) -> VideoScene | None:
    """A video of `count` objects, or None if the draw put things into one another."""
    places = rng.sample([(column, distance) for column in COLUMNS for distance in DISTANCES], count)
    if len({column for column, _ in places}) < count:  # one behind the other would hide it
        return None
    names = rng.sample([(colour, shape) for colour in COLOURS for shape in SHAPES], count)
    objects = [place_object(rng, *place, *name) for place, name in zip(places, names, strict=True)]
    columns, distances = (tuple(place[each] for place in places) for each in (0, 1))
    events = _propose_events(rng, objects, columns, distances, num_frames)
    if events is None:
        return None
    base, light = propose_surroundings(rng, seed)
    frames = []
    for number in range(num_frames):
        standing = _standing_at(objects, events, number)
        if not standing or not stand_apart(standing, events):
            return None
        frames.append(replace(base, objects=tuple(item for _, item in standing)))
    return VideoScene(seed, tuple(frames), tuple(objects), columns, distances, tuple(events), light)


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


def _propose_events(
    rng: random.Random,
    objects: Sequence[SceneObject],
    columns: Sequence[str],
    distances: Sequence[str],
    num_frames: int,
) -> list[Event] | None:
    """One event for each object, in some order, each with its own stretch of time."""
    order = list(range(len(objects)))
    rng.shuffle(order)
    # The first and the last frame show how things were and how they ended.
    borders = [round(1 + (num_frames - 2) * step / len(order)) for step in range(len(order) + 1)]
    events = []
    taken = {(objects[number].colour, objects[number].shape) for number in order}
    for place, number in enumerate(order):
        first, last = borders[place], max(borders[place + 1], borders[place] + 1)
        kinds = [kind for kind in KINDS if _possible(kind, columns[number], distances[number], len(objects))]
        kind = rng.choice(kinds)
        colour, other = None, None
        if kind == "turns":
            # Names stay unique, before and after.
            free = [each for each in COLOURS if (each, objects[number].shape) not in taken]
            colour = rng.choice(free)
            taken.add((colour, objects[number].shape))
        elif kind == "bumps into":
            other = rng.choice([each for each in order if each != number])
        events.append(Event(kind, number, first, last, colour, other))
    if sum(event.kind in ("appears", "leaves") for event in events) == len(objects):
        return None  # one object has to stay
    moving = {event.subject for event in events if event.kind not in ("turns",)}
    if any(event.kind == "bumps into" and event.other in moving for event in events):
        return None  # what is bumped into stands still, and is there
    return events


def _possible(kind: str, column: str, distance: str, count: int) -> bool:
    if kind in ("appears", "leaves", "bumps into"):
        return count > 1
    if kind == "turns":
        return True
    return (column, distance) != destination(kind, column, distance)


def destination(kind: str, column: str, distance: str) -> tuple[str, str]:
    """Where an object stands after it has gone somewhere; where it was, for everything else and at the border."""
    if kind in ("goes left", "goes right"):
        step = -1 if kind == "goes left" else 1
        return COLUMNS[min(max(COLUMNS.index(column) + step, 0), 2)], distance
    if kind in ("comes closer", "goes away"):
        return column, "near" if kind == "comes closer" else "far"
    return column, distance


def _standing_at(objects: Sequence[SceneObject], events: Sequence[Event], frame: int) -> list[tuple[int, SceneObject]]:
    """The objects there in a frame, by number, where and as they are then."""
    standing = []
    by_subject = {event.subject: event for event in events}
    for number, item in enumerate(objects):
        event = by_subject.get(number)
        if event is None:
            standing.append((number, item))
            continue
        over = frame >= event.last
        if (event.kind == "appears" and not over) or (event.kind == "leaves" and over):
            continue
        share = min(max((frame - event.first) / (event.last - event.first), 0.0), 1.0)
        if event.kind == "turns" and over:
            assert event.colour is not None
            item = replace(item, colour=event.colour)
        elif event.kind == "bumps into":
            assert event.other is not None
            item = towards(item, objects[event.other], 1 - abs(2 * share - 1))
        elif event.kind in ("goes left", "goes right", "comes closer", "goes away"):
            item = on_the_way(item, event.kind, share)
        standing.append((number, item))
    return standing


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
            distance = math.hypot(item.x - other.x, item.depth - other.depth)
            touching = frozenset((number, other_number)) in pairs
            if distance < (1.0 if touching else 1.1) * (item.footprint + other.footprint):
                return False
            gap = abs(camera.screen_position(item.x, item.depth) - camera.screen_position(other.x, other.depth))
            widths = sum(each.half_width * camera.screen_position(1.0, each.depth) for each in (item, other))
            if not touching and gap < 0.6 * widths:
                return False
    return True
