"""Captions of stories as people would write them, and how much of a caption is true.

A story has many captions: each thing has several wordings, sentences come in several orders, connectives give the order
of events in several ways ("then", "before that"), objects become "it", and hedges and remarks claim nothing.
`story_caption_parser.read_claims` reads all of them back to the same claims.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scenes.captions.story_caption_parser import Claim, read_claims, timeline_claims
from scenes.captions.story_wordings import (
    EMPTY,
    FIRST,
    HEDGES,
    LAST,
    NEXT,
    NUMBERS,
    REMARKS,
    RETURNS,
    START,
    WORDINGS,
)
from scenes.rendering.story import Story

CLAIM_KINDS = {
    "setting": ("count", "ground", "sky", "light"),
    "objects": ("object", "size", "material", "place", "distance"),
    "events": ("event", "end"),
    "sequence": ("order",),
}
"""Kinds of claims by their first words. Only events and their sequence depend on the order of frames."""

MAX_CAPTION_TOKENS = 340
"""No caption is longer."""

_UNSEEN = ("end", "earlier", "it")  # slots
_FUNCTION_WORDS = frozenset(("the", "on", "at", "in", "to", "from", "of", "is", "be", "no", "it", "side", "hand", "us"))
_HEDGE_SHARE, _IT_SHARE, _EARLIER_SHARE, _REMARK_SHARE = 0.15, 0.5, 0.25, 0.35


@dataclass(frozen=True)
class VideoCaption:
    """A caption and everything it claims."""

    text: str
    claims: frozenset[Claim]


def true_claims(story: Story) -> frozenset[Claim]:
    """Everything that is true of a story and that its captions say."""
    scene = story.frames[0]
    claims: set[Claim] = {
        ("count", NUMBERS[len(story.objects) - 1]),
        ("ground", scene.ground),
        ("sky", scene.sky),
        ("light", story.light),
    }
    for number, (item, column, distance) in enumerate(zip(story.objects, story.columns, story.distances, strict=True)):
        name = (item.colour, item.shape)
        claims |= {("object", *name), ("size", *name, item.size), ("material", *name, item.material)}
        claims |= {("place", *name, column), ("distance", *name, distance)}
        end = story.end_of(number)
        if end is None:
            claims.add(("end", *_last_name(story, number), "gone"))
        else:
            claims |= {("end", end[0], item.shape, "place", end[1]), ("end", end[0], item.shape, "distance", end[2])}
    return frozenset(claims) | timeline_claims([happening(story, turn) for turn in range(len(story.events))])


def compose_written_caption(story: Story, seed: int) -> VideoCaption:
    """One of the many true captions of a story; the same arguments give the same one."""
    rng = random.Random(f"written-caption-{story.seed}-{seed}")
    sentences = _Writer(story, rng).sentences()
    return VideoCaption(" ".join(f"{sentence}." for sentence in sentences), true_claims(story))


class _Writer:
    """Composes one caption."""

    def __init__(self, story: Story, rng: random.Random) -> None:
        self.story, self.rng = story, rng
        # As people do, a caption mostly uses the same wording for a thing.
        self.habits: dict[tuple[str, str], str] = {}

    def sentences(self) -> list[str]:
        story, rng = self.story, self.rng
        there = [number for number in range(len(story.objects)) if not story.is_late(number)]
        there.sort(key=lambda number: story.columns[number])
        objects = [self._object(number) for number in there]
        blocks = [self._setting(), objects if rng.random() < 0.6 else rng.sample(objects, len(objects))]
        if rng.random() < 0.25:
            blocks.reverse()
        ends = [self._end(number) for number in rng.sample(range(len(story.objects)), len(story.objects))]
        sentences = [*blocks[0], *blocks[1], *self._events(), *ends]
        for _ in range(2):
            if rng.random() < _REMARK_SHARE:
                sentences.insert(rng.choice((len(blocks[0]), len(sentences))), rng.choice(REMARKS))
        return sentences

    def _say(self, slot: str, value: str) -> str:
        if (slot, value) not in self.habits or self.rng.random() < 0.2:
            self.habits[slot, value] = self.rng.choice(WORDINGS[slot][value])
        return self.habits[slot, value]

    def _hedged(self, sentence: str) -> str:
        if self.rng.random() < _HEDGE_SHARE:
            hedge = self.rng.choice(HEDGES)
            return f"{hedge}{'' if hedge.endswith(('that', 'if')) else ','} {sentence}"
        return sentence

    def _setting(self) -> list[str]:
        scene, rng = self.story.frames[0], self.rng
        count = NUMBERS[len(self.story.objects) - 1]
        light = self._say("light", self.story.light)
        objects = "object" if count == "one" else "objects"
        ground, sky, several = scene.ground, scene.sky, f"{count} {objects}"
        ways = (
            [f"the video shows {several} on {ground} under a {sky} sky, and the light comes {light}"],
            [f"this is a scene on {ground}, lit {light}, with {several} in all", f"the sky is {sky}"],
            [
                f"there are {several} in this video",
                f"the ground is {ground}, the sky {sky}, and light falls in {light}",
            ],
            [f"under a {sky} sky, {several} can be seen on {ground}", f"light comes {light}"],
        )
        return rng.choice(ways)

    def _described(self, number: int) -> str:
        """ "a small matte red cube", in one order or another."""
        item = self.story.objects[number]
        size, material = self._say("size", item.size), self._say("material", item.material)
        first, second = (size, material) if self.rng.random() < 0.7 else (material, size)
        return f"a {first} {second} {item.colour} {self._say('shape', item.shape)}"

    def _where(self, column: str, distance: str) -> str:
        place, far = self._say("place", column), self._say("distance", distance)
        return f"{place}, {far}" if self.rng.random() < 0.7 else f"{far}, {place}"

    def _object(self, number: int) -> str:
        rng, item = self.rng, self.story.objects[number]
        where = self._where(self.story.columns[number], self.story.distances[number])
        described = self._described(number)
        size, material = self._say("size", item.size), self._say("material", item.material)
        sentence = rng.choice(
            (
                f"{described} stands {where}",
                f"{described} is {where}",
                f"{where}, there is {described}",
                f"{where} we see {described}",
                f"a {item.colour} {self._say('shape', item.shape)}, {size} and {material}, stands {where}",
            )
        )
        return self._hedged(f"{rng.choice(START)} {sentence}" if rng.random() < 0.15 else sentence)

    def _subject(self, turn: int, it: int | None) -> str:
        event = self.story.events[turn]
        if it == event.subject and self.rng.random() < _IT_SHARE:
            return "it"
        if event.kind == "appears":
            return self._described(event.subject)
        colour, shape = self.story.name_in(turn)
        return f"the {colour} {self._say('shape', shape)}"

    def _clause(self, turn: int, it: int | None = None) -> str:
        """What happens, subject first. `it` is the object that "it" would stand for."""
        story, event = self.story, self.story.events[turn]
        subject, verb = self._subject(turn, it), self._say("kind", event.kind)
        if event.kind == "appears":
            return f"{subject} {verb} {self._where(story.columns[event.subject], story.distances[event.subject])}"
        if event.kind == "turns":
            return f"{subject} {verb} {event.colour}"
        if event.kind == "bumps into":
            assert event.other is not None
            colour, shape = story.states(turn)[event.other].name
            returns = f" {self.rng.choice(RETURNS)}" if self.rng.random() < 0.7 else ""
            return f"{subject} {verb} the {colour} {self._say('shape', shape)}{returns}"
        return f"{subject} {verb}"

    def _events(self) -> list[str]:
        """Every event, in the order of time or with words that give the order."""
        rng, sentences, turn, last = self.rng, [], 0, len(self.story.events) - 1
        it: int | None = None
        while turn <= last:
            two = turn < last and rng.random() < _EARLIER_SHARE
            if two:
                sentences += self._pair(turn)
                it, turn = None, turn + 2
                continue
            clause = self._clause(turn, it)
            if turn == 0:
                opener = rng.choice(FIRST) if rng.random() < 0.7 else ""
            elif turn == last and rng.random() < 0.6:
                opener = rng.choice(LAST)
            else:
                opener = rng.choice(NEXT)
            sentences.append(self._hedged(f"{opener} {clause}".strip()))
            event = self.story.events[turn]
            it, turn = None if event.kind in ("bumps into", "leaves") else event.subject, turn + 1
        return sentences

    def _pair(self, turn: int) -> list[str]:
        """Two events, with words that say which comes first."""
        first, second = self._clause(turn), self._clause(turn + 1)
        opener = f"{self.rng.choice(NEXT)} " if turn and self.rng.random() < 0.5 else ""
        return self.rng.choice(
            (
                [f"before {second}, {first}"],
                [f"{opener}{first} before {second}"],
                [f"after {first}, {second}"],
                [f"{opener}{second}, {self.rng.choice(WORDINGS['earlier']['after'][:2])} {first}"],
                [f"{opener}{second}", f"{self.rng.choice(WORDINGS['earlier']['than the last'])} {first}"],
            )
        )

    def _end(self, number: int) -> str:
        story, rng = self.story, self.rng
        end, when = story.end_of(number), self._say("end", "end")
        colour, shape = _last_name(story, number)
        name = f"the {colour} {self._say('shape', shape)}"
        if end is None:
            state = self._say("gone", "gone")
        else:
            state = f"{rng.choice(('is', 'stands', 'can be seen'))} {self._where(end[1], end[2])}"
        return self._hedged(f"{when}, {name} {state}" if rng.random() < 0.7 else f"{name} {state} {when}")


def _last_name(story: Story, number: int) -> tuple[str, str]:
    return story.states(len(story.events))[number].name


def happening(story: Story, turn: int) -> Claim:
    """What a claim says of event number `turn`."""
    event = story.events[turn]
    said = (*story.name_in(turn), event.kind)
    if event.kind == "turns":
        return (*said, str(event.colour))
    if event.kind == "bumps into":
        assert event.other is not None
        return (*said, *story.states(turn)[event.other].name)
    return said


def compose_written_questions(story: Story) -> list[tuple[str, str]]:
    """Short questions about a story, and their answers."""
    questions = [
        ("how many objects are there in the video?", NUMBERS[len(story.objects) - 1]),
        ("what is the ground?", story.frames[0].ground),
        ("what is the sky?", story.frames[0].sky),
        ("how is it lit?", _plain("light", story.light)),
    ]
    for turn, event in enumerate(story.events):
        colour, shape = story.name_in(turn)
        said = _plain_words(story, turn)
        alone = sum(each.subject == event.subject for each in story.events) == 1
        if alone and event.kind not in ("appears", "turns"):
            questions.append((f"what does the {colour} {shape} do?", f"it {said}"))
        if event.kind == "turns":
            questions.append((f"which colour does the {colour} {shape} become?", str(event.colour)))
        if turn + 1 < len(story.events):
            then = f"the {' '.join(story.name_in(turn + 1))} {_plain_words(story, turn + 1)}"
            questions.append((f"what happens right after the {colour} {shape} {said}?", then))
    for number, item in enumerate(story.objects):
        end, name = story.end_of(number), " ".join(_last_name(story, number))
        answer = "it is gone" if end is None else f"{_plain('place', end[1])}, {_plain('distance', end[2])}"
        questions.append((f"where is the {name} at the end?", answer))
        if not story.is_late(number):
            answer = f"{_plain('place', story.columns[number])}, {_plain('distance', story.distances[number])}"
            questions.append((f"where is the {item.colour} {item.shape} at the start?", answer))
    for slot in ("size", "material"):
        values = [getattr(item, slot) for item in story.objects]
        numbers = {value: NUMBERS[values.count(value) - 1] for value in values}
        questions += [(f"how many objects are {value}?", number) for value, number in numbers.items()]
    return questions


def _plain(slot: str, value: str) -> str:
    return WORDINGS[slot][value][0]


def _plain_words(story: Story, turn: int) -> str:
    _, _, kind, *extra = happening(story, turn)
    verb = _plain("kind", kind)
    if kind == "bumps into":
        return f"{verb} the {' '.join(extra)}"
    return f"{verb} {extra[0]}" if extra else verb


def written_accuracy(story: Story, text: str, kind: str = "all") -> float:
    """F1 of a text's claims against everything that is true and could have been said, 0 to 1.

    Args:
        kind: one of `CLAIM_KINDS`, or "all".
    """
    truth, said = true_claims(story), read_claims(text)
    if kind in CLAIM_KINDS:
        words = CLAIM_KINDS[kind]
        truth, said = (frozenset(claim for claim in claims if claim[0] in words) for claims in (truth, said))
    return 2 * len(truth & said) / (len(truth) + len(said)) if said else 0.0


def written_vocabulary() -> list[str]:
    """Every word that captions, questions and answers can contain, sorted."""
    phrases: Sequence[str] = [
        "the video shows objects object on under a sky and light comes falls in this is scene lit with all there are",
        "ground can be seen we see stands at end",
        "how many objects are there in the video what does do it which colour become where happens right after gone",
        *EMPTY,
        *(phrase for values in WORDINGS.values() for each in values.values() for phrase in each),
    ]
    return sorted({word for phrase in phrases for word in phrase.split()})


def visual_words() -> frozenset[str]:
    """Words that describe what is seen, without function words."""
    seen = (values for slot, values in WORDINGS.items() if slot not in _UNSEEN)
    return frozenset().union(*(content_words(phrases) for values in seen for phrases in values.values()))


def content_words(phrases: Iterable[str]) -> frozenset[str]:
    """The words of some phrases, without function words."""
    return frozenset(word for phrase in phrases for word in phrase.split()) - _FUNCTION_WORDS
