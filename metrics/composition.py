"""Whether a picture shows the objects that it should, by what a detector found: GenEval's rule (Ghosh et al., arXiv
2310.11513, and its published evaluator).

Belongs here: what is wanted, what was found, and the rule, as plain data. Does not belong here: detectors
(`picture_readers.py`), and files of prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
POSITIONS = ("left of", "right of", "above", "below")
Box = tuple[float, float, float, float]
"""Left, top, right, bottom, in pixels."""


@dataclass(frozen=True)
class Wanted:
    """Objects of one class.

    Args:
        name: of the class.
        count: how many, at least; where they are not wanted, one fewer at most.
        colour: of `COLOURS`; None for any.
        position: of `POSITIONS`, to the objects of the entry with this number; None for any.
    """

    name: str
    count: int = 1
    colour: str | None = None
    position: tuple[str, int] | None = None


@dataclass(frozen=True)
class Composition:
    """The objects that a picture shows and does not show.

    Args:
        include: all of these.
        exclude: none of these.
        task: of the benchmark; "counting" asks for surer objects.
    """

    include: tuple[Wanted, ...]
    exclude: tuple[Wanted, ...] = ()
    task: str = ""


@dataclass(frozen=True)
class Found:
    """One object that a detector found.

    Args:
        name: of its class.
        score: in [0, 1].
        box: around it.
        mask: bool `[H, W]`, where it is; None where the detector does not say.
        colour: likewise.
    """

    name: str
    score: float
    box: Box
    mask: Any = None
    colour: str | None = None


@dataclass(frozen=True)
class CompositionRule:
    """The published evaluator's settings. Detectors of another kind, such as OWL, score on another scale.

    Args:
        threshold: score above which an object counts.
        counting_threshold: the same for the task "counting".
        most_objects: of a class; those of the highest scores stay.
        position_margin: share of both objects' sizes by which their centres must differ, before direction counts.
    """

    threshold: float = 0.3
    counting_threshold: float = 0.9
    most_objects: int = 16
    position_margin: float = 0.1

    def chosen(self, found: Sequence[Found], task: str) -> dict[str, list[Found]]:
        """The objects that count, by class, the surest first."""
        least = self.counting_threshold if task == "counting" else self.threshold
        by_class: dict[str, list[Found]] = {}
        for each in sorted(found, key=lambda each: -each.score):
            same = by_class.setdefault(each.name, [])
            if each.score > least and len(same) < self.most_objects:
                same.append(each)
        return by_class

    def holds(self, wanted: Composition, found: Sequence[Found], colour_of: Callable[[Found], str | None]) -> bool:
        """Whether a picture shows what is wanted.

        Args:
            wanted: see there. The surest objects of each class are looked at, as many as are wanted.
            found: in the picture.
            colour_of: the colour of one of them; asked only where a colour is wanted.
        """
        there = self.chosen(found, wanted.task)
        if any(len(there.get(each.name, ())) >= each.count for each in wanted.exclude):
            return False
        matched: list[list[Found]] = []
        for each in wanted.include:
            objects = there.get(each.name, [])[: each.count]
            if len(objects) < each.count:
                return False
            if each.colour is not None and any(colour_of(item) != each.colour for item in objects):
                return False
            if each.position is not None:
                where, other = each.position
                if not all(where in self.directions(one.box, two.box) for one in objects for two in matched[other]):
                    return False
            matched.append(objects)
        return True

    def directions(self, box: Box, other: Box) -> set[str]:
        """Which of `POSITIONS` a box is to another. One whose centre is too near is none."""
        offsets = []
        for axis in (0, 1):
            sizes = box[axis + 2] - box[axis] + other[axis + 2] - other[axis]
            offsets.append(((box[axis] + box[axis + 2] - other[axis] - other[axis + 2]) / 2, sizes))
        length = math.hypot(*(offset for offset, _ in offsets))
        if length == 0:
            return set()
        beyond = [
            math.copysign(max(abs(offset) - self.position_margin * sizes, 0.0), offset) for offset, sizes in offsets
        ]
        if max(map(abs, beyond)) < 1e-3:
            return set()
        across, down = (value / length for value in beyond)
        told = {"left of": across < -0.5, "right of": across > 0.5, "above": down < -0.5, "below": down > 0.5}
        return {name for name, holds in told.items() if holds}
