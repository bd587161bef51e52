"""Videos of the scene world, as data: several things happen to an object, one after the other; objects come and go.

A story is a list of scenes, one a frame, with the same ground, sky, light and stochastic detail. An object may have any
number of events, and what is true at the end follows from all of them in their order.
Does not belong here: what one event looks like (`video.py`), and what is said about a story
(`scenes.captions.story_captions`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from scenes.rendering.scene import COLOURS, MAX_OBJECTS, SHAPES, SPLITS, Scene, SceneObject, is_heldout_object
from scenes.rendering.video import (
    COLUMNS,
    DISTANCES,
    KINDS,
    Event,
    destination,
    on_the_way,
    place_object,
    propose_surroundings,
    stand_apart,
    towards,
)
from vargen.base.errors import UserError

MIN_STORY_FRAMES = 8
MAX_EVENTS = 7
"""In a video of more than about 50 frames, events are slower but not more, so captions do not grow."""
_CAST = (2, 3, 3, 4)
_MAX_TRIES = 2000
_LOOKS = 4  # places of an event at which it is looked whether anything touches


@dataclass(frozen=True)
class State:
    """How an object is at some moment.

    Attributes:
        item: shape, colour and place.
        column, distance: `COLUMNS`, `DISTANCES`.
        is_there: whether it can be seen.
    """

    item: SceneObject
    column: str
    distance: str
    is_there: bool

    @property
    def name(self) -> tuple[str, str]:
        """Colour and shape, which no two objects of a story ever share."""
        return self.item.colour, self.item.shape

    def after(self, event: Event) -> State:
        """How it is when something has happened to it."""
        if event.kind in ("appears", "leaves"):
            return replace(self, is_there=event.kind == "appears")
        if event.kind == "turns":
            assert event.colour is not None
            return replace(self, item=replace(self.item, colour=event.colour))
        if event.kind == "bumps into":
            return self
        column, distance = destination(event.kind, self.column, self.distance)
        return replace(self, item=on_the_way(self.item, event.kind, 1.0), column=column, distance=distance)


@dataclass(frozen=True)
class Story:
    """The whole truth about one video.

    Attributes:
        seed: identity.
        frames: one scene a frame.
        objects: every object as it first stands, also those that appear later.
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

    def states(self, before: int) -> list[State]:
        """How every object is when the first `before` events have happened."""
        states = _first_states(self)
        for event in self.events[:before]:
            states[event.subject] = states[event.subject].after(event)
        return states

    def name_in(self, turn: int) -> tuple[str, str]:
        """Colour and shape of the subject of event number `turn`, as it is when that begins."""
        return self.states(turn)[self.events[turn].subject].name

    def end_of(self, number: int) -> tuple[str, str, str] | None:
        """Colour, column and distance of an object in the last frame; None if it has left."""
        state = self.states(len(self.events))[number]
        return (state.item.colour, state.column, state.distance) if state.is_there else None

    def is_late(self, number: int) -> bool:
        """Whether an object is not there from the start."""
        return not _first_states(self)[number].is_there


def sample_story(seed: int, num_frames: int = 32, split: str = "train") -> Story:
    """Draw the story of a seed: two to four objects, at most three at a time, and two to seven events.

    Args:
        seed: any non-negative integer; the same seed, number of frames and split give the same story.
        num_frames: 8 or more.
        split: "train" (no held-out object, whatever colour it turns), "heldout" (at least one), or "all".

    Raises:
        UserError: for an unknown split or too few frames.
    """
    if split not in SPLITS:
        raise UserError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
    check_story_length(num_frames)
    rng = random.Random(f"story-{split}-{num_frames}-{seed}")
    count = rng.choice(_CAST)
    most = min(max(2, num_frames // 5), MAX_EVENTS)
    # Every object that is not there at first needs an event to come in.
    num_events = rng.randint(max(2, min(num_frames // 8, most - 1)), most)
    for _ in range(_MAX_TRIES):
        story = _propose(rng, seed, num_frames, min(count, num_events + 1), num_events)
        if story is None:
            continue
        heldout = any(is_heldout_object(item.shape, colour, item.material) for item, colour in _looks(story))
        if split == "all" or heldout == (split == "heldout"):
            return story
    raise RuntimeError(f"seed: no {split} story found for {seed} in {_MAX_TRIES} tries")


def check_story_length(num_frames: int) -> None:
    """Raise a `UserError` for too few frames."""
    if num_frames < MIN_STORY_FRAMES:
        raise UserError(
            f"num_frames: {num_frames} frames are too few for something to happen; give {MIN_STORY_FRAMES} or more"
        )


def _looks(story: Story) -> Iterator[tuple[SceneObject, str]]:
    """Every object with each colour that it ever has."""
    for number, item in enumerate(story.objects):
        yield item, item.colour
        for event in story.events:
            if event.subject == number and event.colour is not None:
                yield item, event.colour


def _first_states(story: Story) -> list[State]:
    late = set()
    for number in range(len(story.objects)):
        coming = [event.kind for event in story.events if event.subject == number]
        if "appears" in coming and ("leaves" not in coming or coming.index("appears") < coming.index("leaves")):
            late.add(number)
    places = zip(story.objects, story.columns, story.distances, strict=True)
    return [State(*place, number not in late) for number, place in enumerate(places)]


def _propose(rng: random.Random, seed: int, num_frames: int, count: int, num_events: int) -> Story | None:
    """A story of `count` objects, or None if the draw got stuck."""
    names = rng.sample([(colour, shape) for colour in COLOURS for shape in SHAPES], count)
    taken = set(names)
    num_there = min(count, rng.randint(max(1, count - num_events), MAX_OBJECTS))
    columns = rng.sample(COLUMNS, num_there)
    firsts: list[State] = []
    for number, name in enumerate(names):
        # Where somebody comes in is decided when it does.
        column, distance = columns[number] if number < num_there else "middle", rng.choice(DISTANCES)
        firsts.append(State(place_object(rng, column, distance, *name), column, distance, number < num_there))
    states = list(firsts)
    if not _apart_during(states, None):
        return None
    waiting = list(range(num_there, count))
    borders = [round(1 + (num_frames - 2) * step / num_events) for step in range(num_events + 1)]
    events: list[Event] = []
    done: set[tuple[object, ...]] = set()
    for turn in range(num_events):
        first, room = borders[turn], max(borders[turn + 1] - borders[turn], 1)
        last = first + rng.randint(max(1, room // 2), room)
        must_come = len(waiting) >= num_events - turn
        chosen = _next_event(rng, states, waiting, taken, done, must_come)
        if chosen is None:
            return None
        event, entering = replace(chosen[0], first=first, last=last), chosen[1]
        if entering is not None:
            firsts[event.subject] = states[event.subject] = entering
            waiting.remove(event.subject)
        done.add((*states[event.subject].name, event.kind))
        if event.colour is not None:
            taken.add((event.colour, states[event.subject].item.shape))
        states[event.subject] = states[event.subject].after(event)
        events.append(event)
    base, light = propose_surroundings(rng, seed)
    objects = tuple(state.item for state in firsts)
    columns_of, distances_of = tuple(state.column for state in firsts), tuple(state.distance for state in firsts)
    frames = []
    for frame in range(num_frames):
        standing = [state.item for state in _states_at(firsts, events, frame) if state.is_there]
        frames.append(replace(base, objects=tuple(standing)))
    return Story(seed, tuple(frames), objects, columns_of, distances_of, tuple(events), light)


def _next_event(
    rng: random.Random,
    states: Sequence[State],
    waiting: Sequence[int],
    taken: set[tuple[str, str]],
    done: set[tuple[object, ...]],
    must_come: bool,
) -> tuple[Event, State | None] | None:
    """An event that is possible now, and the first state of an object that appears; None if none was found."""
    there = [number for number, state in enumerate(states) if state.is_there]
    free = [column for column in COLUMNS if column not in {states[number].column for number in there}]
    possible: list[tuple[str, int]] = []
    if waiting and free:
        possible += [("appears", waiting[0])] * (2 * len(there))  # not rarer than each other thing
    if not must_come:
        for number in there:
            new = [kind for kind in KINDS if (*states[number].name, kind) not in done]
            possible += [(kind, number) for kind in new if _possible(kind, states[number], len(there), free)]
    rng.shuffle(possible)
    for kind, number in possible:
        state, entering = states[number], None
        event = Event(kind, number, 0, 1)
        if kind == "appears":
            column, distance = rng.choice(free), rng.choice(DISTANCES)
            entering = State(place_object(rng, column, distance, *state.name), column, distance, False)
            state = entering
        elif kind == "turns":
            colours = [each for each in COLOURS if (each, state.item.shape) not in taken]
            if not colours:
                continue
            event = replace(event, colour=rng.choice(colours))
        elif kind == "bumps into":
            event = replace(event, other=rng.choice([each for each in there if each != number]))
        now = [state if each == number else other for each, other in enumerate(states)]
        if _apart_during(now, event):
            return event, entering
    return None


def _possible(kind: str, state: State, num_there: int, free: Sequence[str]) -> bool:
    if kind == "appears":
        return False
    if kind in ("leaves", "bumps into"):
        return num_there > 1
    if kind == "turns":
        return True
    column, distance = destination(kind, state.column, state.distance)
    return (column, distance) != (state.column, state.distance) and (column == state.column or column in free)


def _during(states: Sequence[State], event: Event, share: float) -> list[State]:
    """How everything is after a share of an event."""
    state = states[event.subject]
    if share >= 1:
        state = state.after(event)
    elif event.kind == "bumps into":
        assert event.other is not None
        nearness = 1 - abs(2 * share - 1)
        state = replace(state, item=towards(state.item, states[event.other].item, nearness))
    elif event.kind not in ("appears", "leaves", "turns"):
        state = replace(state, item=on_the_way(state.item, event.kind, share))
    return [state if number == event.subject else each for number, each in enumerate(states)]


def _states_at(firsts: Sequence[State], events: Sequence[Event], frame: int) -> list[State]:
    """How everything is in a frame."""
    states = list(firsts)
    for event in events:
        if frame <= event.first:
            break
        states = _during(states, event, (frame - event.first) / (event.last - event.first))
    return states


def _apart_during(states: Sequence[State], event: Event | None) -> bool:
    """Whether nothing touches or hides anything while an event happens; see `video.stand_apart`."""
    shares = [0.0] if event is None else [step / _LOOKS for step in range(_LOOKS + 1)]
    for share in shares:
        now = states if event is None else _during(states, event, share)
        standing = [(number, state.item) for number, state in enumerate(now) if state.is_there]
        if not standing or not stand_apart(standing, [] if event is None else [event]):
            return False
    return True
