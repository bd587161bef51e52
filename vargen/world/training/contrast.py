"""Captions that are nearly true of a picture, and the loss of telling them from the true one.

Of what a picture's tokens say, a caption decides a small part, so its words learn from a faint signal in a loud noise:
the texture of grass costs the same whatever the caption says. The difference between a picture's likelihood under its
caption and under one that is wrong in a single thing has that noise cancelled, and is all about the thing. Its optimum
is the likelihood's own: the difference becomes the log-odds of the two captions given the picture (noise-contrastive
estimation, Gutmann and Hyvarinen 2010, with the caption as what is contrasted).
Belongs here: what a nearly true caption is, and the loss. Does not belong here: any model.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from vargen.world.captions.captions import Caption
from vargen.world.judge.reading import reading_from_scene
from vargen.world.judge.verdict import judge_claims
from vargen.world.scenes import camera
from vargen.world.scenes.scene import (
    GROUNDS,
    MAX_OBJECTS,
    SKIES,
    Scene,
    SceneObject,
    is_heldout_combination,
    sample_scene,
)
from vargen.world.training.grounding import GROUNDING

_OFTEN = {"colour": 3, "shape": 2, "material": 2, "size": 1}
_TRIES = 12


def nearly_true_caption(scene: Scene, seed: int, compose: Callable[[Scene, int], Caption]) -> Caption | None:
    """A caption that is wrong about a scene in one thing: an attribute, whose it is, a place, a number, the setting.

    It is what `compose` says of an altered scene, in the phrasing of `seed` as far as what is to be said allows. No
    combination that training holds out is named.

    Args:
        scene: the truth.
        seed: as given to `compose` for the true caption.
        compose: writes the captions.

    Returns:
        None if no such caption was found, as where the true one says next to nothing.
    """
    rng = random.Random(f"nearly-true-{scene.seed}-{seed}")
    truth, said = reading_from_scene(scene), compose(scene, seed).claims
    for _ in range(_TRIES):
        altered = rng.choices([change for change, _ in _CHANGES], [weight for _, weight in _CHANGES])[0](scene, rng)
        if altered is None or is_heldout_combination(altered):
            continue
        caption = compose(altered, seed)
        # To leave an object out is false too: captions hardly ever do.
        fewer = len(altered.objects) < len(scene.objects) and len(caption.claims.objects) < len(said.objects)
        if fewer or not judge_claims(truth, caption.claims).right:
            return caption
    return None


def contrast_loss(true: Tensor, nearly_true: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """How badly a picture's likelihood tells its caption from one that is nearly true.

    Args:
        true: [B] log-likelihood of each picture under its caption, nats.
        nearly_true: [B], under the other caption.
        counts: bool [B], rows that have one.

    Returns:
        Cross-entropy of the choice between the two in nats, and the share of rows where the true one is likelier; both
        scalars.
    """
    losses = F.softplus(nearly_true - true)
    right = (true > nearly_true).float()
    count = counts.sum().clamp_min(1)
    return (losses * counts).sum() / count, (right * counts).sum() / count


def _another_attribute(scene: Scene, rng: random.Random) -> Scene:
    name = rng.choices(list(_OFTEN), list(_OFTEN.values()))[0]
    number = rng.randrange(len(scene.objects))
    item = scene.objects[number]
    other = rng.choice([value for value in GROUNDING[name] if value != getattr(item, name)])
    objects = [*scene.objects[:number], _with_value(item, name, other), *scene.objects[number + 1 :]]
    return _with_objects(scene, objects)


def _exchanged_attribute(scene: Scene, rng: random.Random) -> Scene | None:
    """One object has what another one has, and the other way round."""
    if len(scene.objects) < 2:
        return None
    name = rng.choices(list(_OFTEN), list(_OFTEN.values()))[0]
    objects = list(scene.objects)
    first, second = rng.sample(range(len(objects)), 2)
    one, other = getattr(objects[first], name), getattr(objects[second], name)
    objects[first] = _with_value(objects[first], name, other)
    objects[second] = _with_value(objects[second], name, one)
    return _with_objects(scene, objects) if one != other else None


def _exchanged_places(scene: Scene, rng: random.Random) -> Scene | None:
    if len(scene.objects) < 2:
        return None
    objects = list(scene.objects)
    first, second = rng.sample(range(len(objects)), 2)
    one, other = objects[first], objects[second]
    objects[first] = replace(one, x=other.x, depth=other.depth)
    objects[second] = replace(other, x=one.x, depth=one.depth)
    return _with_objects(scene, objects)


def _one_less(scene: Scene, rng: random.Random) -> Scene | None:
    if len(scene.objects) < 2:
        return None
    gone = rng.randrange(len(scene.objects))
    return _with_objects(scene, [item for number, item in enumerate(scene.objects) if number != gone])


def _one_more(scene: Scene, rng: random.Random) -> Scene | None:
    if len(scene.objects) == MAX_OBJECTS:
        return None
    company = rng.choice(sample_scene(rng.getrandbits(32)).objects)
    return _with_objects(scene, [*scene.objects, company])


def _another_setting(scene: Scene, rng: random.Random) -> Scene:
    if rng.random() < 0.5:
        return replace(scene, ground=rng.choice([ground for ground in GROUNDS if ground != scene.ground]))
    return replace(scene, sky=rng.choice([sky for sky in SKIES if sky != scene.sky]))


_CHANGES: tuple[tuple[Callable[[Scene, random.Random], Scene | None], float], ...] = (
    (_another_attribute, 0.4),
    (_exchanged_attribute, 0.3),
    (_exchanged_places, 0.15),
    (_one_less, 0.1),
    (_one_more, 0.15),
    (_another_setting, 0.05),
)


def _with_value(item: SceneObject, name: str, value: Any) -> SceneObject:
    return replace(item, **{name: value})


def _with_objects(scene: Scene, objects: list[SceneObject]) -> Scene:
    objects.sort(key=lambda item: camera.screen_position(item.x, item.depth))
    return replace(scene, objects=tuple(objects))
