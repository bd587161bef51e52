"""Scenes as a caption describes them that misnames an object: to learn that what is there is what was meant.

A cube that came out round is still the cube that was asked for. Whoever takes it for something else draws the cube
again, and pictures that show what their captions say never tell. Belongs here: what is misnamed, and how. Does not
belong here: sentences, losses.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vargen.world.scenes.scene import MATERIALS, MAX_OBJECTS, SHAPES, SIZES, Scene, is_heldout_combination

MISNAMED = {"shape": SHAPES, "material": MATERIALS, "size": SIZES}
"""What an object may be said to be that it is not. Never its colour: that is hardly ever drawn wrong, and tells which
of two objects was meant."""


def misname(scenes: Sequence[Scene], seeds: Sequence[int], share: float) -> tuple[list[Scene], Tensor]:
    """Scenes as captions are to describe them, some objects misnamed.

    Args:
        scenes: B of them, the truth, none with a held-out combination.
        seeds: of their captions; the same scene and seed are misnamed alike.
        share: of the objects, a little less of them in the end: no scene gets a held-out combination.

    Returns:
        The scenes, with one of `MISNAMED` changed in each misnamed object; and which these are, bool
        [B, 1 + MAX_OBJECTS], an object in the column of one more than its place in `Scene.objects`.
    """
    described, misnamed = list(scenes), torch.zeros(len(scenes), 1 + MAX_OBJECTS, dtype=torch.bool)
    for row, (scene, seed) in enumerate(zip(scenes, seeds, strict=True)):
        rng = random.Random(f"misnamed-{scene.seed}-{seed}")
        for place, item in enumerate(scene.objects):
            if rng.random() >= share:
                continue
            name = rng.choice(list(MISNAMED))
            other: Any = rng.choice([value for value in MISNAMED[name] if value != getattr(item, name)])
            objects = list(described[row].objects)
            objects[place] = replace(item, **{name: other})
            changed = replace(described[row], objects=tuple(objects))
            if not is_heldout_combination(changed):
                described[row] = changed
                misnamed[row, 1 + place] = True
    return described, misnamed
