"""Helping losses: hidden states predict, at every position of a picture, which object is there and how many follow.

Few tokens of a picture depend on what its caption says about objects, and most of the others are texture. So a model
learns textures for hours before it learns which of two objects is the red one. These losses ask hidden states directly.
The readers are not exported. Belongs here: the truth by cell, and reading it. Does not belong here: any model.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scenes.rendering import camera
from scenes.rendering.scene import ATTRIBUTE_VALUES, Scene

GROUNDING = ATTRIBUTE_VALUES
"""Properties of the object that covers a cell; class 0 is "no object"."""


def cell_owners(scenes: Sequence[Scene], grid_size: int, margin: float = 0.0) -> Tensor:
    """Which object covers each cell of a picture.

    Args:
        scenes: B of them.
        grid_size: cells along a side.
        margin: how far an object's box is widened on every side, cells; with 0.5 it has every cell that it touches.

    Returns:
        [B, grid_size, grid_size] int64: 0 for no object, else one more than its place in `Scene.objects`. An object
        covers the cells with their centres in its box; a nearer object hides a farther one.
    """
    owners = torch.zeros(len(scenes), grid_size, grid_size, dtype=torch.int64)
    standing = [
        (number, place, item)
        for number, scene in enumerate(scenes)
        for place, item in sorted(enumerate(scene.objects), key=lambda each: -each[1].depth)
    ]
    if not standing:
        return owners
    middles = torch.tensor([(item.x, 0.0, item.depth) for _, _, item in standing])
    reach = torch.tensor([(item.half_width, item.height, item.half_width) for _, _, item in standing])
    sides = torch.tensor([*itertools.product((-1, 1), (0, 1), (-1, 1))])
    corners = middles[:, None] + reach[:, None] * sides  # [N, 8, 3]
    # Cell number i has its centre at i + 0.5, so a box from a to b covers ceil(a - 0.5) to floor(b - 0.5).
    boxes = camera.bounding_boxes(corners, grid_size) - 0.5
    firsts, lasts = (boxes[:, :2] - margin).ceil().long().clamp(min=0), (boxes[:, 2:] + margin).floor().long()
    for (number, place, _), (left, top), (right, bottom) in zip(standing, firsts.tolist(), lasts.tolist(), strict=True):
        owners[number, top : bottom + 1, left : right + 1] = 1 + place
    return owners


def told_by_owner(owners: Tensor, classes: Sequence[Sequence[int]]) -> Tensor:
    """Classes of cells, where all cells of an object have the same class.

    Args:
        owners: [B, grid_size, grid_size], of `cell_owners`.
        classes: for each picture, the class of each of its objects.

    Returns:
        [B, grid_size, grid_size] int64 classes; 0 where no object is.
    """
    table = torch.zeros(len(classes), 1 + max(map(len, classes), default=0), dtype=torch.int64)
    for row, own in zip(table, classes, strict=True):
        row[1 : 1 + len(own)] = torch.tensor(own, dtype=torch.int64)
    return table.gather(1, owners.flatten(1)).view_as(owners)


def cell_attributes(scenes: Sequence[Scene], grid_size: int, owners: Tensor | None = None) -> dict[str, Tensor]:
    """What the object is that covers each cell of a picture.

    Args:
        scenes: B of them.
        grid_size: cells along a side.
        owners: of `cell_owners`, where they are known.

    Returns:
        Classes int64 [B, grid_size, grid_size] by attribute: 0 for no object, else one more than the place in
        `GROUNDING`.
    """
    owners = cell_owners(scenes, grid_size) if owners is None else owners
    told = {}
    for name, values in GROUNDING.items():
        classes = [[1 + values.index(getattr(item, name)) for item in scene.objects] for scene in scenes]
        told[name] = told_by_owner(owners, classes)
    return told


def objects_to_come(owners: Tensor) -> Tensor:
    """How many objects begin at a place or after it, in the order in which a picture is drawn.

    Args:
        owners: int64 [B, N], in that order: 0 for no object, else which one a token shows something of.

    Returns:
        int64 [B, N]. A place does not know its own token yet, so an object that begins there is still to come; one of
        which nothing is seen never comes.
    """
    batch_size, num_places = owners.shape
    order = torch.arange(num_places).expand(batch_size, -1)
    nowhere = torch.full((batch_size, 1 + int(owners.max())), -1)
    first = nowhere.scatter_reduce(1, owners, order, "amin", include_self=False)  # by object, -1: unseen
    return (first[:, 1:, None] >= order[:, None]).sum(1)


class CellReader(nn.Module):
    """Reads properties off hidden states: one linear map for each property.

    Args:
        dim: width of a hidden state.
        classes: by name, how many there are.
    """

    def __init__(self, dim: int, classes: Mapping[str, int]) -> None:
        super().__init__()
        self.readers = nn.ModuleDict({name: nn.Linear(dim, count) for name, count in classes.items()})

    def forward(self, states: Tensor) -> dict[str, Tensor]:
        """Logits [B, N, classes] of hidden states [B, N, dim], by name."""
        states = F.rms_norm(states.float(), states.shape[-1:])
        return {name: reader(states) for name, reader in self.readers.items()}


def grounding_loss(read: dict[str, Tensor], truth: dict[str, Tensor], told: Tensor) -> tuple[Tensor, Tensor]:
    """How well the properties are predicted at each position.

    Args:
        read: what `CellReader` gave, [B, N, classes] by name.
        truth: int64 [B, N] by name, 0 for nothing there.
        told: bool [B], rows that count: those with a caption.

    Returns:
        Cross-entropy in nats, a mean over names of the cells with something and of those with nothing alike, and the
        share of the former that is read rightly; both scalars.
    """
    losses, right = [], []
    for name, logits in read.items():
        each = F.cross_entropy(logits.flatten(0, 1), truth[name].flatten(), reduction="none").view_as(truth[name])
        covered = (truth[name] > 0) & told[:, None]
        bare = (truth[name] == 0) & told[:, None]
        losses.append((_mean(each, covered) + _mean(each, bare)) / 2)
        right.append(_mean((logits.argmax(-1) == truth[name]).float(), covered))
    return torch.stack(losses).mean(), torch.stack(right).mean()


def _mean(values: Tensor, counts: Tensor) -> Tensor:
    return (values * counts).sum() / counts.sum().clamp_min(1)
