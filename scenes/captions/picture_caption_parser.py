"""Reads a sentence about a scene back to what it claims, so that a picture made from a user's prompt can be judged.

A small grammar, read from left to right, over the words of `picture_captions.py`. Does not belong here: scenes,
pictures, and whether a claim is true.

    caption    := sentence ((";" | "." | "," | "and")+ sentence)*
    sentence   := "the ground is sand" | "the sky is clear" | ...
                | setting* [introduction] (count [items] | relation noun-phrase ("is" | "there is") noun-phrase | items)
    items      := ["from left to right"] item (("," | "and") item)* ["from left to right"]
    item       := noun-phrase [relations | place | "with" noun-phrase "on its left"] setting*
    relations  := relation ("and" relation)* noun-phrase ("and" relations | "which is" relations)*

"and" before an object only names that object: "a ball left of a cube and a cone" does not say where the cone is.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

from scenes.captions.picture_captions import (
    COLOUR_WORDS,
    GROUND_PHRASES,
    GROUND_SENTENCES,
    MATERIAL_WORDS,
    NOUNS,
    NUMBER_WORDS,
    OBJECT_WORDS,
    PICTURE_INTRODUCTIONS,
    PLACE_SERIES,
    PUNCTUATION,
    RELATION_PHRASES,
    RELATIVE_PLACES,
    SIZE_WORDS,
    SKY_PHRASES,
    SKY_SENTENCES,
    Claims,
    ObjectClaim,
    RelationClaim,
    vocabulary,
)


class CaptionError(ValueError):
    """A sentence outside the grammar; the message names the part that cannot be read."""


def parse_caption(text: str) -> Claims:
    """What a sentence says about a picture.

    Args:
        text: any sentence of the kind `compose_caption` writes; case does not matter.

    Raises:
        CaptionError: for an empty sentence, a word the grammar does not know, or words in an order it cannot read.
    """
    return _Reader(text).read()


_Phrases = Sequence[tuple[tuple[str, ...], str]]


def _phrase_table(table: Mapping[str, Iterable[str]]) -> _Phrases:
    """(words, value) of every phrase, longest first, so that "on the left of" wins over "on the left"."""
    pairs = [(tuple(phrase.split()), value) for value, phrases in table.items() for phrase in phrases]
    return sorted(pairs, key=lambda pair: -len(pair[0]))


_RELATIONS = _phrase_table(RELATION_PHRASES)
_RELATIVE_PLACES = _phrase_table(RELATIVE_PLACES)
_PLACES = _phrase_table({place: (place,) for series in PLACE_SERIES.values() for place in series})
_GROUNDS = _phrase_table(GROUND_PHRASES)
_SKIES = _phrase_table(SKY_PHRASES)
_GROUND_SENTENCES = _phrase_table(GROUND_SENTENCES)
_SKY_SENTENCES = _phrase_table(SKY_SENTENCES)
_PICTURES = _phrase_table({"": PICTURE_INTRODUCTIONS})
_LEFT_TO_RIGHT = "from left to right"

_ADJECTIVES = {
    word: (attribute, value)
    for attribute, table in (("colour", COLOUR_WORDS), ("material", MATERIAL_WORDS), ("size", SIZE_WORDS))
    for value, words in table.items()
    for word in words
}
_NOUNS = {
    word: (shape, word == plural)
    for shape, forms in NOUNS.items()
    for single, plural in forms
    for word in (single, plural)
}
_NUMBERS = {word: number for number, word in NUMBER_WORDS.items()} | {"a": 1, "an": 1}
_OBJECT_WORDS = {word for forms in OBJECT_WORDS for word in forms}
_WORDS = {*vocabulary(), *PUNCTUATION}
_SETTING_NOUNS = {"ground", "floor", "sky", "sun"}


class _Reader:
    def __init__(self, text: str) -> None:
        self.words = re.findall(r"\w+|[^\w\s]", text.lower())
        self.at = 0
        self.objects: list[ObjectClaim] = []
        self.relations: list[RelationClaim] = []
        self.places: list[tuple[str, int]] = []
        self.count: int | None = None
        self.ground: str | None = None
        self.sky: str | None = None

    def read(self) -> Claims:
        if not any(word not in PUNCTUATION for word in self.words):
            raise CaptionError("caption: it is empty; say what the picture shows")
        for word in self.words:
            if word not in _WORDS:
                raise CaptionError(f"caption: cannot read {word!r}; it is not a word of the scene world")
        while self.at < len(self.words):
            self._sentence()
            start = self.at
            while self._take(*PUNCTUATION) or self._take("and"):
                pass
            if self.at == start and self.at < len(self.words):
                self._fail()
        self._relate_places()
        return Claims(tuple(self.objects), tuple(self.relations), self.count, self.ground, self.sky)

    # Words and phrases.

    def _word(self, ahead: int = 0) -> str:
        return self.words[self.at + ahead] if self.at + ahead < len(self.words) else ""

    def _take(self, *choices: str) -> str:
        """Consume the first of the phrases that comes next, and return it; "" and nothing consumed if none does."""
        for phrase in choices:
            words = phrase.split()
            if self.words[self.at : self.at + len(words)] == words:
                self.at += len(words)
                return phrase
        return ""

    def _take_value(self, phrases: _Phrases) -> str | None:
        for words, value in phrases:
            if tuple(self.words[self.at : self.at + len(words)]) == words:
                self.at += len(words)
                return value
        return None

    def _fail(self, expected: str = "") -> None:
        rest = " ".join(self.words[self.at : self.at + 6])
        place = f"cannot read {rest!r}" if rest else "it ends too soon"
        remedy = expected or "objects joined by 'left of', 'right of', 'in front of', 'behind' or 'and'"
        raise CaptionError(f"caption: {place}; expected {remedy}")

    # Sentences.

    def _sentence(self) -> None:
        if self._statement():
            return
        while self._setting():
            pass
        self._take(",", ":")
        self._take_value(_PICTURES)
        self._take("there is", "there are")
        self._take("also")
        relation = self._take_value(_RELATIONS)
        if relation is not None:
            other = self._noun_phrase()
            if not self._take("there is", "there are", "is", "are", "stands", "stand"):
                self._fail("'is' and an object")
            self._relate(self._noun_phrase(), relation, other)
            self._trailing_settings()
        elif self._word() in _NUMBERS and self._word(1) in _OBJECT_WORDS:
            self._count_header()
        else:
            self._items()

    def _statement(self) -> bool:
        """ "the ground is sand", "the sky is clear"."""
        ground, sky = self._take_value(_GROUND_SENTENCES), self._take_value(_SKY_SENTENCES)
        self._set_setting(ground, sky)
        return bool(ground or sky)

    def _setting(self) -> bool:
        """ "on grass", "standing on sand", "at sunset"."""
        start = self.at
        self._take("standing", "resting", "placed")
        ground = self._take_value(_GROUNDS)
        sky = None if ground else self._take_value(_SKIES)
        if not ground and not sky:
            self.at = start
            return False
        self._set_setting(ground, sky)
        return True

    def _set_setting(self, ground: str | None, sky: str | None) -> None:
        if (ground and self.ground not in (None, ground)) or (sky and self.sky not in (None, sky)):
            raise CaptionError("caption: it names two different grounds or skies; name one of each")
        self.ground, self.sky = ground or self.ground, sky or self.sky

    def _trailing_settings(self) -> None:
        while True:
            start = self.at
            self._take(",")
            if not self._setting():
                self.at = start
                return

    def _count_header(self) -> None:
        """ "three objects", and then perhaps the objects."""
        self.count = _NUMBERS[self._word()]
        self.at += 2
        self._trailing_settings()
        start = self.at
        self._take(":", ",")
        self._take("including")
        if self._starts_noun_phrase():
            self._items()
        else:
            self.at = start

    # Objects and where they stand.

    def _items(self) -> None:
        in_order = bool(self._take(_LEFT_TO_RIGHT))
        if in_order:
            self._take(":", ",")
        groups = []
        while True:
            groups.append(self._item())
            self._trailing_settings()
            start = self.at
            separated = [self._take(","), self._take("and")]
            if not any(separated) or not self._starts_noun_phrase():
                self.at = start
                break
        if in_order or self._take(_LEFT_TO_RIGHT):
            for left, right in itertools.pairwise(groups):
                self._relate(left, "left of", right)
        self._trailing_settings()

    def _item(self) -> list[int]:
        group = self._noun_phrase()
        if self._take("with"):
            other = self._noun_phrase()
            relation = self._take_value(_RELATIVE_PLACES)
            if relation is None:
                self._fail("a place such as 'on its left' or 'behind it'")
            else:
                self._relate(other, relation, group)
            return group
        self._trailing_settings()
        start = self.at
        self._take("is", "are", "stands", "stand", "standing", "resting", "placed")
        if not self._relations_of(group):
            place = self._take_value(_PLACES)
            if place:
                self.places += [(place, index) for index in group]
            else:
                self.at = start
        return group

    def _relations_of(self, subject: list[int]) -> bool:
        """ "left of a cube and behind a cone", "left of and behind a cube", "left of a cube, which is ..."."""
        relation = self._take_value(_RELATIONS)
        if relation is None:
            return False
        relations = [relation]
        while True:
            start = self.at
            relation = self._take_value(_RELATIONS) if self._take("and") else None
            if relation is None:
                self.at = start
                break
            relations.append(relation)
        other = self._noun_phrase()
        for relation in relations:
            self._relate(subject, relation, other)
        start = self.at
        self._take(",")
        if self._take("which is", "which stands"):
            if not self._relations_of(other):
                self._fail("a relation such as 'left of'")
        elif not (self._take("and") and self._relations_of(subject)):
            self.at = start
        return True

    def _relate(self, subjects: list[int], relation: str, others: list[int]) -> None:
        self.relations += [RelationClaim(i, relation, j) for i in subjects for j in others]

    def _relate_places(self) -> None:
        """Turn "on the left" and "on the right" into relations between the objects there."""
        for relation, series in PLACE_SERIES.items():
            occupied = [[index for place, index in self.places if place == wanted] for wanted in series]
            occupied = [group for group in occupied if group]
            if len(occupied) == 1:
                raise CaptionError(
                    "caption: a place in the picture is named for one object only; place another as well"
                )
            for nearer, farther in itertools.pairwise(occupied):
                self._relate(nearer, relation, farther)

    # Noun phrases.

    def _starts_noun_phrase(self) -> bool:
        word = self._word()
        if word == "the":
            return self._word(1) not in _SETTING_NOUNS
        return word in _NUMBERS or word in _ADJECTIVES or word in _NOUNS

    def _noun_phrase(self) -> list[int]:
        """Read a phrase for one or several objects; returns their indices, new ones unless it refers back."""
        definite = bool(self._take("the"))
        number = _NUMBERS.get(self._word())
        self.at += number is not None
        said = self._adjectives()
        if self._word() not in _NOUNS:
            self._fail("an object such as 'a small red sphere'")
        shape, plural = _NOUNS[self._word()]
        self.at += 1
        if self._take("with stripes"):
            said["material"] = "striped"
        claim = ObjectClaim(shape, **said)
        if definite:
            known = [index for index, earlier in enumerate(self.objects) if claim.matches(earlier)]
            if len(known) == (number or 1) or (plural and known and number is None):
                return known
            if known:
                raise CaptionError(f"caption: 'the {shape}' could be any of {len(known)} objects; describe it further")
        if plural and number is None:
            raise CaptionError(f"caption: {self._word(-1)!r} without a number; say 'two' or 'three'")
        new = self._members(claim, number) if number and number > 1 else []
        new = new or [claim] * (number or 1)
        self.objects += new
        return list(range(len(self.objects) - len(new), len(self.objects)))

    def _adjectives(self) -> dict[str, str]:
        said: dict[str, str] = {}
        while self._word() in _ADJECTIVES:
            attribute, value = _ADJECTIVES[self._word()]
            if said.setdefault(attribute, value) != value:
                raise CaptionError(f"caption: an object is both {said[attribute]} and {value}; choose one")
            self.at += 1
            if self._word() in (",", "and") and self._word(1) in _ADJECTIVES:
                self.at += 1
        return said

    def _members(self, group: ObjectClaim, number: int) -> list[ObjectClaim]:
        """ ": a red one and a blue one" or ", one red and one blue" after "two cubes"; empty if neither follows."""
        start = self.at
        members: list[ObjectClaim] = []
        if not self._take(":", ","):
            return []
        while len(members) < number and self._take("a", "an", "one"):
            article = self._word(-1)
            said = self._adjectives()
            ends = bool(self._take("one")) or article == "one"
            if not said or not ends or self._word() in _NOUNS:
                break
            members.append(_merge(group, said))
            if len(members) < number:
                self._take(",")
                self._take("and")
        if len(members) < number:
            self.at = start
            return []
        return members


def _merge(group: ObjectClaim, said: dict[str, str]) -> ObjectClaim:
    shared = {"colour": group.colour, "material": group.material, "size": group.size}
    for attribute, value in said.items():
        if shared[attribute] not in (None, value):
            raise CaptionError(f"caption: an object is both {shared[attribute]} and {value}; choose one")
    return ObjectClaim(group.shape, **{**shared, **said})
