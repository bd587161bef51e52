"""Reads a written caption, or a model's attempt at one, back to its claims.

Phrases are found anywhere, the longest first, and everything between them is skipped. Attributes belong to the object
that is named next or was named last, events to the last named one. The order of events is a claim too: sentences are in
the order of time unless "before" or "after" says otherwise.
Does not belong here: what is true (`story_captions.py`), phrases (`story_wordings.py`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from scenes.captions.story_wordings import EMPTY, WORDINGS

Claim = tuple[str, ...]
Name = tuple[str, str]

_PHRASES: dict[tuple[str, ...], tuple[str, str]] = {
    **{tuple(phrase.split()): ("", "") for phrase in EMPTY},
    **{
        tuple(phrase.split()): (slot, value)
        for slot, values in WORDINGS.items()
        for value, phrases in values.items()
        for phrase in phrases
    },
}
_LONGEST = max(map(len, _PHRASES))
_WORDS = re.compile(r"\w+")


@dataclass
class _Happening:
    """Something that is said to happen, while it is being read."""

    kind: str
    subject: Name
    extra: tuple[str, ...] = ()

    @property
    def claim(self) -> Claim | None:
        """None where half of it is missing."""
        wanted = {"turns": 1, "bumps into": 2}.get(self.kind, 0)
        return (*self.subject, self.kind, *self.extra) if len(self.extra) == wanted else None


@dataclass
class _Reader:
    """What has been understood so far."""

    claims: set[Claim] = field(default_factory=set)
    happenings: list[_Happening] = field(default_factory=list)
    told_last: _Happening | None = None
    it: Name | None = None

    def sentence(self, atoms: list[tuple[str, str]]) -> None:
        """One sentence, as slots and what fills them."""
        is_end = any(slot == "end" for slot, _ in atoms)
        colour: str | None = None
        named: Name | None = None
        waiting: list[tuple[str, str]] = []  # attributes of an object that is not named yet
        open_kind: _Happening | None = None
        is_earlier = None  # how the next event stands to the last one in the text
        told_here = 0
        for place, (slot, value) in enumerate(atoms):
            if slot in ("count", "ground", "sky", "light"):
                self.claims.add((slot, value))
            elif slot == "colour":
                if open_kind is not None and open_kind.kind == "turns" and not _names_next(atoms, place):
                    open_kind.extra = (value,)
                    self.it = (value, open_kind.subject[1])
                    open_kind = None
                else:
                    colour = value
            elif slot == "shape" or slot == "it":
                if slot == "it":
                    name = self.it
                else:
                    name, colour = (None if colour is None else (colour, value)), None
                if name is None:
                    continue
                if open_kind is not None and open_kind.kind == "bumps into":
                    open_kind.extra, open_kind = name, None
                    continue
                open_kind, named, self.it = None, name, name
                for attribute in waiting:
                    self._attribute(named, *attribute, is_end)
                waiting = []
            elif slot in ("size", "material", "place", "distance", "gone"):
                before_its_name = named is None or (slot in ("size", "material") and _names_next(atoms, place))
                if before_its_name:
                    waiting.append((slot, value))
                elif named is not None:
                    self._attribute(named, slot, value, is_end)
            elif slot == "earlier":
                # "before a, b" and "b after a" tell what comes later first; "a before b" and "after a, b" do not.
                turned = value == "than the last" or (value == "before") == (told_here == 0)
                is_earlier = value if turned else None
            elif slot == "kind" and named is not None:
                open_kind = _Happening(value, named)
                is_earlier = self._happens(open_kind, is_earlier, told_here)
                told_here += 1

    def _attribute(self, name: Name, slot: str, value: str, is_end: bool) -> None:
        if is_end:
            if slot == "gone":
                self.claims.add(("end", *name, "gone"))
            elif slot in ("place", "distance"):
                self.claims.add(("end", *name, slot, value))
        elif slot != "gone":
            self.claims |= {("object", *name), (slot, *name, value)}

    def _happens(self, happening: _Happening, is_earlier: str | None, told_here: int) -> str | None:
        """Puts it where it belongs in time; gives what holds for the next one."""
        waits = is_earlier == "before" and told_here == 0  # its partner is still to come
        if is_earlier is None or waits or self.told_last is None:
            self.happenings.append(happening)
        else:
            # Told last, not necessarily the latest.
            place = next(index for index, each in enumerate(self.happenings) if each is self.told_last)
            self.happenings.insert(place, happening)
        self.told_last = happening
        return is_earlier if waits else None


def _names_next(atoms: list[tuple[str, str]], place: int) -> bool:
    """Whether what stands at a place belongs to a shape behind it: nothing but attributes, of each one, in between."""
    passed = {atoms[place][0]}

    def is_another(atom: tuple[str, str]) -> bool:
        known = atom[0] in passed
        passed.add(atom[0])
        return atom[0] in ("size", "material", "colour") and not known

    rest = itertools.dropwhile(is_another, atoms[place + 1 :])
    following = next(rest, None)
    return following is not None and following[0] == "shape"


def _atoms(sentence: str) -> Iterator[tuple[str, str]]:
    words = _WORDS.findall(sentence)
    place = 0
    while place < len(words):
        for length in range(min(_LONGEST, len(words) - place), 0, -1):
            found = _PHRASES.get(tuple(words[place : place + length]))
            if found is not None:
                if found[0]:
                    yield found
                break
        place += length


def read_claims(text: str) -> frozenset[Claim]:
    """Everything that a text claims, the order of events included; unknown words claim nothing.

    Two events of the same wording are one.
    """
    reader = _Reader()
    for sentence in text.lower().split("."):
        reader.sentence(list(_atoms(sentence)))
    told = list(dict.fromkeys(claim for each in reader.happenings if (claim := each.claim) is not None))
    return frozenset(reader.claims) | timeline_claims(told)


def timeline_claims(happenings: list[Claim]) -> frozenset[Claim]:
    """Claims of things that happen one after the other: each, and of each two which comes first."""
    pairs = itertools.combinations(happenings, 2)
    return frozenset({("event", *each) for each in happenings} | {("order", *a, "then", *b) for a, b in pairs})
