"""The loss of the text encoder: what a caption says, read off the encoder's states.

LlamaGen's own text encoder is a pretrained FLAN-T5. This one has no pretraining, and picture tokens teach it little,
because few of them depend on the caption. So the encoder learns directly, in three ways, to represent what is said. The
reader is not exported.

**Whole caption**: the objects from left to right and from front to back, read by one linear map from the mean of the
states. Image tokens of official weights give every condition token the same attention logit, so they see this mean too
(`vargen.models.llamagen.transformer`).

**Each shape**: how many objects have it, and what is said of the only one. This also applies where a caption leaves
the order open.

**Each word**: attributes and position of the object that it describes. Without this part, the encoder learns which
words occur but not which colour belongs to which object (benchmarks/lab/training.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scenes.captions.described_objects import described_words, told_places
from scenes.captions.picture_captions import Caption, ObjectClaim
from scenes.rendering import camera
from scenes.rendering.scene import (
    ATTRIBUTE_VALUES,
    COLOURS,
    GROUNDS,
    MATERIALS,
    MAX_OBJECTS,
    SHAPES,
    SIZES,
    SKIES,
    Scene,
    SceneObject,
)

NUM_PLACES = 6
"""Classes of an object's position across the picture, and of its depth."""
UNTOLD = -100
"""The class of what a caption leaves open; it does not count (`ignore_index` of torch's cross-entropy)."""

_ABSENT = 0
_OBJECT_CLASSES = (*map(len, ATTRIBUTE_VALUES.values()), NUM_PLACES, NUM_PLACES)
_SCENE_GROUPS = (len(GROUNDS), len(SKIES), *(tuple(1 + count for count in _OBJECT_CLASSES) * (2 * MAX_OBJECTS)))
_SHAPE_GROUPS = (1 + MAX_OBJECTS, len(COLOURS), len(MATERIALS), len(SIZES))
_RANKS = MAX_OBJECTS * (MAX_OBJECTS + 1) // 2  # which place of how many
_WORD_GROUPS = (*map(len, ATTRIBUTE_VALUES.values()), _RANKS, _RANKS)
_WORD_WEIGHTS = (1.0, 1.0, 1.0, 1.0, 3.0, 3.0)
"""Places are the hardest to learn: they need the whole sentence."""
_NEAREST, _FARTHEST = 0.0, 2.6
_NEVER = -1e4  # the logit of a class that a group does not have


@dataclass(frozen=True)
class CaptionTruth:
    """What there is to be read in a batch of captions, as classes; `UNTOLD` where nothing is.

    Attributes:
        scene: int64 `[B, 38]`, see `scene_classes`.
        shapes: int64 `[B, 4, 4]`: of each of `SHAPES` how many, and colour, material and size of the only one.
        words: int64 `[B, T, 6]`: of the object that a word speaks of shape, colour, material, size, and its place
            across the picture and into its depth, among how many.
    """

    scene: Tensor
    shapes: Tensor
    words: Tensor


class Readings(NamedTuple):
    """Logits for each group of `CaptionTruth`, 9 classes in each; those that a group lacks are out of the question."""

    scene: Tensor
    shapes: Tensor
    words: Tensor


def scene_classes(scene: Scene) -> list[int]:
    """The truth of a scene as class indices: ground, sky, then the objects.

    The objects are listed twice, from left to right and from front to back, so that both kinds of relation matter; each
    with shape, colour, material, size and place across and away. Index 0 of these means that there is no such object.
    """
    by_depth = sorted(scene.objects, key=lambda item: item.depth)
    classes = [GROUNDS.index(scene.ground), SKIES.index(scene.sky)]
    for objects in (scene.objects, by_depth):
        classes += [1 + index for item in objects for index in _object_classes(item)]
        classes += [_ABSENT] * (len(_OBJECT_CLASSES) * (MAX_OBJECTS - len(objects)))
    return classes


def shape_classes(scene: Scene, claims: Sequence[ObjectClaim]) -> list[list[int]]:
    """How many objects have each of `SHAPES`, and what is claimed of the only one."""
    classes = []
    for shape in SHAPES:
        claimed = [claim for claim in claims if claim.shape == shape]
        only = _claim_classes(claimed[0])[1:] if len(claimed) == 1 else [UNTOLD] * (len(_SHAPE_GROUPS) - 1)
        classes.append([sum(item.shape == shape for item in scene.objects), *only])
    return classes


def word_classes(caption: Caption, width: int) -> list[list[int]]:
    """The attributes and places of the object that each of `width` tokens speaks of, if of one alone."""
    classes = [[UNTOLD] * len(_WORD_GROUPS)] * width
    described = described_words(caption)
    if described is None:
        return classes
    claims = caption.claims
    places = zip(told_places(claims, "left of"), told_places(claims, "in front of"), strict=True)
    first_rank = len(described) * (len(described) - 1) // 2
    for positions, claim, told in zip(described, claims.objects, places, strict=True):
        ranks = [UNTOLD if place is None else first_rank + place for place in told]
        for position in positions:
            classes[position] = _claim_classes(claim) + ranks
    return classes


def caption_truth(scenes: Sequence[Scene], captions: Sequence[Caption], width: int) -> CaptionTruth:
    """What there is to be read in captions that are laid out on `width` tokens each."""
    pairs = list(zip(scenes, captions, strict=True))
    return CaptionTruth(
        torch.tensor([scene_classes(scene) for scene in scenes]),
        torch.tensor([shape_classes(scene, caption.claims.objects) for scene, caption in pairs]),
        torch.tensor([word_classes(caption, width) for caption in captions]),
    )


class CaptionReader(nn.Module):
    """Reads a caption's truth off a text encoder's states, by linear maps of their mean and of each.

    Args:
        dim: width of the states.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        groups = {
            "scene": torch.tensor(_SCENE_GROUPS),
            "shapes": torch.tensor(_SHAPE_GROUPS * len(SHAPES)),
            "words": torch.tensor(_WORD_GROUPS),
        }
        classes = int(max(sizes.max() for sizes in groups.values()))
        self.readouts = nn.ModuleDict({name: nn.Linear(dim, len(sizes) * classes) for name, sizes in groups.items()})
        for name, sizes in groups.items():
            never = torch.where(torch.arange(classes) < sizes[:, None], 0.0, _NEVER)
            self.register_buffer(f"never_{name}", never, persistent=False)  # [groups, classes]

    def forward(self, states: Tensor, mask: Tensor) -> Readings:
        """Logits of every group.

        Args:
            states: `[B, T, dim]` of the encoder.
            mask: bool `[B, T]`, true where valid.
        """
        states = states.float()
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)  # [B, dim]
        shapes = self._read("shapes", mean)
        return Readings(
            self._read("scene", mean),
            shapes.unflatten(1, (len(SHAPES), len(_SHAPE_GROUPS))),
            self._read("words", states),
        )

    def _read(self, name: str, values: Tensor) -> Tensor:
        never = self.get_buffer(f"never_{name}")
        return self.readouts[name](values).unflatten(-1, never.shape) + never


def caption_reading_loss(readings: Readings, truth: CaptionTruth) -> tuple[Tensor, dict[str, Tensor]]:
    """How badly the truth is read: cross-entropy in nats, averaged within each group and over the groups of each kind.

    What a caption leaves open about its scene cannot be read, so that part has a floor well above zero.

    Args:
        readings: what `CaptionReader` gave.
        truth: of the same captions.

    Returns:
        The weighted sum of the three kinds, a scalar; and for the log each of them, and the share of words' classes
        that are right.
    """
    scene = _mean_by_group(readings.scene, truth.scene).mean()
    shapes = _mean_by_group(readings.shapes.flatten(0, 1), truth.shapes.flatten(0, 1)).mean()
    by_group = _mean_by_group(readings.words.flatten(0, 1), truth.words.flatten(0, 1))
    words = (by_group * by_group.new_tensor(_WORD_WEIGHTS)).mean()
    told = truth.words != UNTOLD
    right = ((readings.words.argmax(-1) == truth.words) & told).sum() / told.sum().clamp_min(1)
    parts = {"scene": scene, "shapes": shapes, "words": words, "words_right": right}
    return scene + shapes + words, {name: value.detach() for name, value in parts.items()}


def _mean_by_group(logits: Tensor, classes: Tensor) -> Tensor:
    """Mean cross-entropy `[G]` over the rows that count, of logits `[R, G, C]` and classes `[R, G]`."""
    losses = F.cross_entropy(logits.flatten(0, 1), classes.flatten(), ignore_index=UNTOLD, reduction="none")
    count = (classes != UNTOLD).sum(0).clamp_min(1)
    return losses.view(classes.shape).sum(0) / count


def _claim_classes(claim: ObjectClaim) -> list[int]:
    said = ((getattr(claim, name), values) for name, values in ATTRIBUTE_VALUES.items())
    return [UNTOLD if value is None else values.index(value) for value, values in said]


def _object_classes(item: SceneObject) -> list[int]:
    across = (camera.screen_position(item.x, item.depth) + 1) / 2
    away = (item.depth - _NEAREST) / (_FARTHEST - _NEAREST)
    return [
        *(values.index(getattr(item, name)) for name, values in ATTRIBUTE_VALUES.items()),
        *(min(NUM_PLACES - 1, max(0, int(share * NUM_PLACES))) for share in (across, away)),
    ]
