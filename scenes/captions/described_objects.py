"""Which words of a caption describe which object, and in which order the objects stand by its relations.

Belongs here: what a text encoder can be asked about single words. Does not belong here: composing sentences
(`picture_captions.py`) and reading them as a whole (`picture_caption_parser.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scenes.captions.picture_captions import COLOUR_WORDS, MATERIAL_WORDS, NOUNS, SIZE_WORDS, Caption, Claims

_WORD = re.compile(r"\w+|[^\w\s]")
_NOUN_WORDS = frozenset(word for forms in NOUNS.values() for pair in forms for word in pair)
_ADJECTIVES = frozenset(
    word for table in (COLOUR_WORDS, MATERIAL_WORDS, SIZE_WORDS) for ways in table.values() for word in ways
)
_OPPOSITES = {"left of": "right of", "in front of": "behind"}


def split_words(text: str) -> list[str]:
    """Words and punctuation marks of a caption in order: what the tokenizer of scenes makes tokens of."""
    return _WORD.findall(text)


def described_words(caption: Caption) -> list[list[int]] | None:
    """The positions of the noun of each claimed object, and of the adjectives before it ("with stripes" included).

    Returns:
        One list of positions in `split_words` per object in the order of `caption.claims.objects`; None where nouns and
        objects do not pair off: one noun for several objects ("two cubes"), or an object named again ("the cube").
    """
    words = split_words(caption.text)
    nouns = [position for position, word in enumerate(words) if word in _NOUN_WORDS]
    if len(nouns) != len(caption.claims.objects):
        return None
    described, start = [], 0
    for noun in nouns:
        positions = [position for position in range(start, noun) if words[position] in _ADJECTIVES]
        positions.append(noun)
        if words[noun + 1 : noun + 3] == ["with", "stripes"]:
            positions.append(noun + 2)
        described.append(positions)
        start = noun + 1
    return described


def told_places(claims: Claims, relation: str) -> list[int | None]:
    """How many of the others stand before each claimed object, where the caption says so.

    Args:
        claims: what a caption claims.
        relation: "left of", to count from the left, or "in front of", from the front.

    Returns:
        One number per object; None where the relations, followed through ("a left of b, b left of c"), leave open how
        it stands to any of the others.
    """
    count = len(claims.objects)
    before = [[False] * count for _ in range(count)]
    for item in claims.relations:
        if item.relation == relation:
            before[item.subject][item.object] = True
        elif item.relation == _OPPOSITES[relation]:
            before[item.object][item.subject] = True
    for middle in range(count):
        for first in range(count):
            for last in range(count):
                before[first][last] |= before[first][middle] and before[middle][last]
    return [_place(before, index) for index in range(count)]


def _place(before: Sequence[Sequence[bool]], index: int) -> int | None:
    others = [other for other in range(len(before)) if other != index]
    if all(before[index][other] or before[other][index] for other in others):
        return sum(before[other][index] for other in others)
    return None
