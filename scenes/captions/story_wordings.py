"""Phrases of written captions: for each thing that can be said, its wordings.

A phrase stands for one thing only, in any context; of overlapping phrases the longest counts. Does not belong here:
sentences (`story_captions.py`), and reading claims (`story_caption_parser.py`).
"""

from __future__ import annotations

from scenes.captions.words import read_words
from scenes.rendering.scene import COLOURS, GROUNDS, MATERIALS, SHAPES, SIZES, SKIES
from scenes.rendering.video import COLUMNS, DISTANCES, KINDS, LIGHTS

NUMBERS = ("one", "two", "three", "four")

_WORDS = read_words("story_words")
WORDINGS: dict[str, dict[str, tuple[str, ...]]] = _WORDS["wordings"]
"""The phrases by slot and what fills it; the first is the plainest."""

_EMPTY: list[tuple[str, ...]] = [
    _WORDS[name] for name in ("next", "first", "last", "hedges", "returns", "remarks", "start")
]
NEXT, FIRST, LAST, HEDGES, RETURNS, REMARKS, START = _EMPTY
EMPTY = tuple(phrase for phrases in _EMPTY for phrase in phrases)
"""Phrases that claim nothing."""

assert set(WORDINGS["kind"]) == set(KINDS) and set(WORDINGS["light"]) == set(LIGHTS)
assert set(WORDINGS["place"]) == set(COLUMNS) and set(WORDINGS["distance"]) == set(DISTANCES)
assert set(WORDINGS["material"]) == set(MATERIALS) and set(WORDINGS["size"]) == set(SIZES)
for _slot, _values in (("colour", COLOURS), ("shape", SHAPES), ("ground", GROUNDS), ("sky", SKIES), ("count", NUMBERS)):
    assert set(WORDINGS[_slot]) == set(_values)
