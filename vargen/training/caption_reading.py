"""What a caption says, read from the mean of its condition tokens: a helping loss for an untrained text encoder.

LlamaGen's own text encoder is a pretrained FLAN-T5; ours has no pretraining to lean on, and what it learns through the
picture tokens it learns slowly, since few of them depend on the caption. The truth behind a caption is known here, so
the encoder can be taught to tell it apart directly. Nothing of this remains in the exported weights.

Image tokens give every condition token the same attention logit (see `vargen.models.transformer`), so what they can use
is the mean of the condition tokens. The same mean is read here, by one linear map.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vargen.scenes import camera
from vargen.scenes.scene import COLOURS, GROUNDS, MATERIALS, MAX_OBJECTS, SHAPES, SIZES, SKIES, Scene, SceneObject

NUM_PLACES = 6
"""How finely the place of an object is told, across the picture and into its depth."""

_ABSENT = 0
_OBJECT_CLASSES = (len(SHAPES), len(COLOURS), len(MATERIALS), len(SIZES), NUM_PLACES, NUM_PLACES)
_NEAREST, _FARTHEST = 0.0, 2.6


def scene_classes(scene: Scene) -> list[int]:
    """The truth of a scene as class indices, one per output group of `CaptionReader`.

    The objects are listed twice, from left to right and from front to back, so that both kinds of relation matter.
    Index 0 means that there is no such object.
    """
    by_depth = sorted(scene.objects, key=lambda item: item.depth)
    classes = [GROUNDS.index(scene.ground), SKIES.index(scene.sky)]
    for objects in (scene.objects, by_depth):
        for place in range(MAX_OBJECTS):
            if place < len(objects):
                classes += [1 + index for index in _object_classes(objects[place])]
            else:
                classes += [_ABSENT] * len(_OBJECT_CLASSES)
    return classes


def _object_classes(item: SceneObject) -> tuple[int, ...]:
    across = (camera.screen_position(item.x, item.depth) + 1) / 2
    away = (item.depth - _NEAREST) / (_FARTHEST - _NEAREST)
    return (
        SHAPES.index(item.shape),
        COLOURS.index(item.colour),
        MATERIALS.index(item.material),
        SIZES.index(item.size),
        *(min(NUM_PLACES - 1, max(0, int(share * NUM_PLACES))) for share in (across, away)),
    )


class CaptionReader(nn.Module):
    """Reads a scene's truth from condition tokens: a linear map of their mean, in groups of class logits.

    Args:
        dim: width of the condition tokens.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        with_absent = tuple(1 + count for count in _OBJECT_CLASSES)
        self.group_sizes = (len(GROUNDS), len(SKIES), *(with_absent * (2 * MAX_OBJECTS)))
        self.readout = nn.Linear(dim, sum(self.group_sizes))

    def forward(self, condition: Tensor, condition_mask: Tensor) -> list[Tensor]:
        """Logits `[B, classes]` of each group.

        Args:
            condition: `[B, T, dim]`, as `LlamaGenTransformer.embed_condition` gives it.
            condition_mask: bool `[B, T]`, true where valid.
        """
        # Each token is scaled as the first layer's norm will scale it.
        tokens = F.rms_norm(condition.float(), condition.shape[-1:])
        mean = (tokens * condition_mask[..., None]).sum(1) / condition_mask.sum(1, keepdim=True)  # [B, dim]
        return list(self.readout(mean).split(self.group_sizes, dim=-1))


def caption_reading_loss(groups: Sequence[Tensor], scenes: Sequence[Scene], told: Tensor) -> tuple[Tensor, Tensor]:
    """How well the truth of each scene is read from its caption.

    What a caption leaves open cannot be read, so the loss has a floor well above zero.

    Args:
        groups: what `CaptionReader` gave.
        scenes: the scene behind each row.
        told: bool `[B]`, false for rows that saw the null caption; they do not count.

    Returns:
        Cross-entropy in nats, averaged over rows and groups, and the share of groups read rightly; both scalars.
    """
    truth = torch.tensor([scene_classes(scene) for scene in scenes], device=told.device)  # [B, G]
    losses = torch.stack(
        [F.cross_entropy(logits, truth[:, index], reduction="none") for index, logits in enumerate(groups)], dim=1
    )
    right = torch.stack([logits.argmax(-1) for logits in groups], dim=1) == truth
    rows = told[:, None].expand_as(losses)
    count = rows.sum().clamp_min(1)
    return (losses * rows).sum() / count, (right & rows).sum() / count
