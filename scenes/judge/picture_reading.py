"""The judge's reading of a picture, as data.

Does not belong here: the network that reads (`network.py`), and whether a reading fits a sentence (`claim_checks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class JudgedObject:
    """One object as it was read.

    Attributes:
        shape, colour, material, size: one of `SHAPES`, `COLOURS`, `MATERIALS`, `SIZES`.
        screen_x: horizontal place of its foot in the picture, -1 the left edge and 1 the right one.
        depth: distance of its foot along the ground, world units; larger is farther.
        confidence: in [0, 1], how sure the reader is that there is an object at all.
        certainty: in [0, 1], how sure it is of shape, colour, material and size together, if there is one.
    """

    shape: str
    colour: str
    material: str
    size: str
    screen_x: float
    depth: float
    confidence: float = 1.0
    certainty: float = 1.0


@dataclass(frozen=True)
class Reading:
    """A whole picture as it was read; `objects` from left to right, `ground` and `sky` of `GROUNDS` and `SKIES`."""

    objects: tuple[JudgedObject, ...]
    ground: str
    sky: str


def describe_reading(reading: Reading) -> str:
    """A reading in words, an object a line and the setting last; for people, not for parsing."""
    objects = [f"{item.size} {item.material} {item.colour} {item.shape}" for item in reading.objects]
    return "\n".join([*objects, f"{reading.ground}, {reading.sky} sky"])
