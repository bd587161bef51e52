"""Plain captions of short videos, and how much of a caption is true.

Captions are composed from the truth (`scenes.rendering.video`). `read_claims` reads captions back, also those that a
model wrote with mistakes: a sentence outside the grammar claims nothing.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from scenes.rendering.scene import COLOURS, GROUNDS, MATERIALS, SHAPES, SIZES, SKIES
from scenes.rendering.video import COLUMNS, DISTANCES, LIGHTS, VideoScene

Claim = tuple[str, ...]

CLAIM_KINDS = {
    "setting": ("count", "ground", "sky", "light"),
    "objects": ("object", "size", "material", "place", "distance"),
    "events": ("event", "end"),
}
"""Kinds of claims by their first words. Only events need frames in their order."""

_NUMBERS = {1: "one object", 2: "two objects", 3: "three objects"}
_PLACES = {"left": "on the left", "middle": "in the middle", "right": "on the right"}
_DISTANCES = {"near": "near the viewer", "far": "far away"}
_LIGHT_PHRASES = {"left": "from the left", "viewer": "from behind the viewer", "right": "from the right"}
TIMES = ("first", "then", "finally")
_MOVES = {
    "goes left": ("moves to the left", "slides to the left"),
    "goes right": ("moves to the right", "slides to the right"),
    "comes closer": ("comes closer", "moves towards the viewer"),
    "goes away": ("moves away", "moves away from the viewer"),
    "appears": ("appears", "shows up"),
    "leaves": ("disappears", "vanishes"),
}


@dataclass(frozen=True)
class VideoCaption:
    """A caption and everything it claims."""

    text: str
    claims: frozenset[Claim]


def compose_video_caption(video: VideoScene, seed: int) -> VideoCaption:
    """One of the many true captions of a video; the same video and seed give the same one."""
    rng = random.Random(f"video-caption-{video.seed}-{seed}")
    scene = video.frames[0]
    count = len(video.objects)
    sentences = [
        f"the video shows {_NUMBERS[count]} on {scene.ground} under a {scene.sky} sky, and the light comes "
        f"{_LIGHT_PHRASES[video.light]}."
    ]
    order = sorted(range(count), key=lambda number: COLUMNS.index(video.columns[number]))
    for number in order:
        item = video.objects[number]
        event = video.event_of(number)
        place = f"{_PLACES[video.columns[number]]}, {_DISTANCES[video.distances[number]]}"
        words = f"{item.size} {item.material} {item.colour} {item.shape}"
        if event is not None and event.kind == "appears":
            sentences.append(f"a {words} is missing at the start and has its place {place}.")
        else:
            sentences.append(f"a {words} {rng.choice(('stands', 'is'))} {place}.")
    for turn, event in enumerate(video.events):
        item = video.objects[event.subject]
        when = TIMES[2] if turn and turn == len(video.events) - 1 else TIMES[min(turn, 1)]
        if event.kind == "turns":
            what = f"{rng.choice(('turns', 'becomes'))} {event.colour}"
        elif event.kind == "bumps into":
            assert event.other is not None
            other = video.objects[event.other]
            what = f"bumps into the {other.colour} {other.shape} and comes back"
        else:
            what = rng.choice(_MOVES[event.kind])
        sentences.append(f"{when} the {item.colour} {item.shape} {what}.")
    for number in order:
        item, end = video.objects[number], video.end_of(number)
        if end is None:
            sentences.append(f"at the end the {item.colour} {item.shape} is gone.")
        else:
            colour, column, distance = end
            sentences.append(f"at the end the {colour} {item.shape} is {_PLACES[column]}, {_DISTANCES[distance]}.")
    text = " ".join([*sentences, "nothing else happens in the video."])
    return VideoCaption(text, read_claims(text))


def compose_questions(video: VideoScene) -> list[tuple[str, str]]:
    """Short questions about a video, and their answers."""
    questions = [("how many objects are there in the video?", _NUMBERS[len(video.objects)].split()[0])]
    for number, item in enumerate(video.objects):
        event, end = video.event_of(number), video.end_of(number)
        name = f"the {item.colour} {item.shape}"
        if event is not None and event.kind in _MOVES:
            questions.append((f"what does {name} do?", f"it {_MOVES[event.kind][0]}"))
        if event is not None and event.kind == "turns":
            questions.append((f"which colour does {name} become?", str(event.colour)))
        if end is not None:
            questions.append((f"where is the {end[0]} {item.shape} at the end?", _PLACES[end[1]]))
    first = video.objects[video.events[0].subject]
    questions.append(("to which object does something happen first?", f"the {first.colour} {first.shape}"))
    return questions


def _either(words: object) -> str:
    return "(" + "|".join(re.escape(word) for word in words) + ")"  # type: ignore[attr-defined]


_PLACE = _either(_PLACES.values())
_DISTANCE = _either(_DISTANCES.values())
_NAME = rf"{_either(COLOURS)} {_either(SHAPES)}"
_MOVE_WORDS = {phrase: kind for kind, phrases in _MOVES.items() for phrase in phrases}
_WORDS = re.compile(r"\s+([.,])")
_SENTENCES = (
    (
        re.compile(
            rf"the video shows {_either(_NUMBERS.values())} on {_either(GROUNDS)} under a {_either(SKIES)} sky, and "
            rf"the light comes {_either(_LIGHT_PHRASES.values())}"
        ),
        lambda found: [
            ("count", found[0].split()[0]),
            ("ground", found[1]),
            ("sky", found[2]),
            ("light", _key(_LIGHT_PHRASES, found[3])),
        ],
    ),
    (
        re.compile(
            rf"a {_either(SIZES)} {_either(MATERIALS)} {_NAME} "
            rf"(stands|is|is missing at the start and has its place) {_PLACE}, {_DISTANCE}"
        ),
        lambda found: [
            ("object", found[2], found[3]),
            ("size", found[2], found[3], found[0]),
            ("material", found[2], found[3], found[1]),
            ("place", found[2], found[3], _key(_PLACES, found[5])),
            ("distance", found[2], found[3], _key(_DISTANCES, found[6])),
        ],
    ),
    (
        re.compile(rf"{_either(TIMES)} the {_NAME} {_either(sorted(_MOVE_WORDS, key=len, reverse=True))}"),
        lambda found: [("event", found[0], found[1], found[2], _MOVE_WORDS[found[3]])],
    ),
    (
        re.compile(rf"{_either(TIMES)} the {_NAME} (?:turns|becomes) {_either(COLOURS)}"),
        lambda found: [("event", found[0], found[1], found[2], "turns", found[3])],
    ),
    (
        re.compile(rf"{_either(TIMES)} the {_NAME} bumps into the {_NAME} and comes back"),
        lambda found: [("event", found[0], found[1], found[2], "bumps into", found[3], found[4])],
    ),
    (
        re.compile(rf"at the end the {_NAME} is gone"),
        lambda found: [("end", found[0], found[1], "gone")],
    ),
    (
        re.compile(rf"at the end the {_NAME} is {_PLACE}, {_DISTANCE}"),
        lambda found: [
            ("end", found[0], found[1], "place", _key(_PLACES, found[2])),
            ("end", found[0], found[1], "distance", _key(_DISTANCES, found[3])),
        ],
    ),
)


def _key(table: dict[str, str], phrase: str) -> str:
    return next(key for key, value in table.items() if value == phrase)


def read_claims(text: str) -> frozenset[Claim]:
    """Everything that the sentences of a text claim."""
    claims: set[Claim] = set()
    for sentence in _WORDS.sub(r"\1", text.lower()).split("."):
        for pattern, claims_of in _SENTENCES:
            found = pattern.fullmatch(" ".join(sentence.split()))
            if found is not None:
                claims.update(claims_of(found.groups()))
                break
    return frozenset(claims)


def caption_accuracy(video: VideoScene, text: str, kind: str = "all") -> float:
    """F1 of a text's claims against everything that is true and could have been said, 0 to 1.

    Args:
        kind: one of `CLAIM_KINDS`, or "all".
    """
    return claims_f1(compose_video_caption(video, 0).claims, read_claims(text), CLAIM_KINDS.get(kind))


def claims_f1(truth: frozenset[Claim], said: frozenset[Claim], first_words: Sequence[str] | None) -> float:
    """F1 of claims against true ones, 0 to 1; only of those with one of these first words, or None for all."""
    if first_words is not None:
        truth, said = (frozenset(claim for claim in claims if claim[0] in first_words) for claims in (truth, said))
    return 2 * len(truth & said) / (len(truth) + len(said)) if said else 0.0


def video_vocabulary() -> list[str]:
    """Every word that captions, questions and answers can contain, sorted."""
    phrases = [
        "the video shows on under a sky and light comes",
        "a is missing at the start and has its place stands",
        "the turns becomes bumps into and comes back at the end is gone",
        "nothing else happens",
        "how many objects are there in what does do it which colour become where to object something happen first",
        *_NUMBERS.values(),
        *_PLACES.values(),
        *_DISTANCES.values(),
        *_LIGHT_PHRASES.values(),
        *TIMES,
        *_MOVE_WORDS,
        *COLOURS,
        *SHAPES,
        *SIZES,
        *MATERIALS,
        *GROUNDS,
        *SKIES,
    ]
    return sorted({word for phrase in phrases for word in phrase.split()})


def visual_words() -> frozenset[str]:
    """Words that describe what is seen, without function words."""
    moves = "left right middle near far one two three closer away appears disappears vanishes shows turns becomes bumps"
    return frozenset((*COLOURS, *SHAPES, *SIZES, *MATERIALS, *GROUNDS, *SKIES, *moves.split()))


assert set(LIGHTS) == set(_LIGHT_PHRASES) and set(DISTANCES) == set(_DISTANCES)
