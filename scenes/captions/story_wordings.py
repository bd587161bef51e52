"""Phrases of written captions: for each thing that can be said, its wordings.

A phrase stands for one thing only, in any context; of overlapping phrases the longest counts. Does not belong here:
sentences (`story_captions.py`), and reading claims (`story_caption_parser.py`).
"""

from __future__ import annotations

from scenes.rendering.scene import COLOURS, GROUNDS, MATERIALS, SHAPES, SIZES, SKIES
from scenes.rendering.video import COLUMNS, DISTANCES, KINDS, LIGHTS

NUMBERS = ("one", "two", "three", "four")

WORDINGS: dict[str, dict[str, tuple[str, ...]]] = {
    "count": {word: (word,) for word in NUMBERS},
    "ground": {word: (word,) for word in GROUNDS},
    "sky": {word: (word,) for word in SKIES},
    "light": {
        "left": ("from the left", "from the left side", "from the left hand side"),
        "viewer": ("from behind the viewer", "from behind the camera", "from behind us"),
        "right": ("from the right", "from the right side", "from the right hand side"),
    },
    "colour": {word: (word,) for word in COLOURS},
    "shape": {word: (word, "ball") if word == "sphere" else (word,) for word in SHAPES},
    "size": {"small": ("small", "little"), "large": ("large", "big")},
    "material": {
        "matte": ("matte", "dull"),
        "shiny": ("shiny", "glossy"),
        "striped": ("striped",),
        "checkered": ("checkered",),
    },
    "place": {
        **{side: (f"on the {side}", f"on the {side} side", f"at the {side}") for side in ("left", "right")},
        "middle": ("in the middle", "in the centre", "at the centre"),
    },
    "distance": {
        "near": ("near the viewer", "close to the camera", "in the foreground", "in front"),
        "far": ("far away", "far from the camera", "in the background", "at the back"),
    },
    "kind": {
        **{
            f"goes {side}": (f"moves to the {side}", f"slides to the {side}", f"goes to the {side}", f"drifts {side}")
            for side in ("left", "right")
        },
        "comes closer": ("comes closer", "moves towards the viewer", "approaches the camera", "moves forward"),
        "goes away": ("moves away", "moves away from the viewer", "goes further back", "retreats"),
        "appears": ("appears", "shows up", "comes into view", "turns up"),
        "leaves": ("disappears", "vanishes", "leaves the scene", "goes out of sight"),
        "turns": ("turns", "becomes", "changes to", "turns to"),
        "bumps into": ("bumps into", "runs into", "knocks against"),
    },
    "gone": {"gone": ("is gone", "is no longer there", "is missing", "cannot be seen any more")},
    "end": {"end": ("at the end", "in the end", "when the video stops", "in the last frame")},
    "earlier": {
        "than the last": ("before that", "but before that", "beforehand"),
        "before": ("before",),
        "after": ("after", "but only after", "as soon as"),
    },
    "it": {"it": ("it",)},
}
"""The phrases by slot and what fills it; the first is the plainest."""

NEXT = ("then", "after that", "next", "later", "afterwards", "a moment later")
FIRST = ("first", "to begin with", "at first", "it starts when")
LAST = ("finally", "last of all", "lastly")
HEDGES = (
    "it seems that",
    "apparently",
    "as far as can be seen",
    "we can see that",
    "it looks as if",
    "as you can see",
    "interestingly",
)
RETURNS = ("and comes back", "and returns", "and goes back to its place", "then goes back to where it was")
REMARKS = (
    "nothing else happens in the video",
    "the camera does not move",
    "that is all there is to see",
    "everything else stays as it is",
    "nobody else is around",
    "the whole scene is calm otherwise",
)
START = ("at the start", "in the beginning", "when the video begins")
FREE = (
    ("as you see", "as we see it", "in this video", "as it happens", "all in all", "as it seems"),
    ("what we see is that", "what you see is that", "all we see is that", "we see that", "it is as if", "you see how"),
    ("as you see it", "and that is all", "and nothing else", "and that is that", "which is all we see", "it seems"),
)
"""What may stand before a sentence, before its first word, and behind it. Its words are those of other phrases, so that
models that know these go on with it."""
EMPTY = (*NEXT, *FIRST, *LAST, *HEDGES, *RETURNS, *REMARKS, *START, *(phrase for phrases in FREE for phrase in phrases))
"""Phrases that claim nothing."""

assert set(WORDINGS["kind"]) == set(KINDS) and set(WORDINGS["light"]) == set(LIGHTS)
assert set(WORDINGS["place"]) == set(COLUMNS) and set(WORDINGS["distance"]) == set(DISTANCES)
assert set(WORDINGS["material"]) == set(MATERIALS) and set(WORDINGS["size"]) == set(SIZES)
