"""The judge: a small network that reads objects, ground and sky off a picture of the scene world.

Belongs here: the network, and turning its maps into readings. Does not belong here: training (`scenes.training.judge`),
and whether a reading fits a sentence (`claim_checks.py`).

Objects are found as points, after Zhou et al., "Objects as Points" (arXiv 1904.07850): one map gives the centres, the
others give at every cell the properties of an object that is centred there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from diffusers.utils import BaseOutput
from torch import Tensor, nn

from scenes.judge.picture_reading import JudgedObject, Reading
from scenes.rendering.scene import ATTRIBUTE_VALUES, SETTING_VALUES
from scenes.shipped import WEIGHTS
from vargen.base.errors import UserError
from vargen.checkpoints.finite import check_weights
from vargen.checkpoints.model_folder import check_component_folder

JUDGE_NAME = "judge"
"""Folder of the shipped judge among the shipped weights."""
STRIDE = 4
"""Pixels per cell of the maps."""

_MAP_CHANNELS = {
    "centre": 1,
    **{name: len(values) for name, values in ATTRIBUTE_VALUES.items()},
    "across": 1,
    "depth": 1,
}
_MIDDLE_DEPTH = 1.3  # world units; the depth head learns the difference from it
_PEAK_REACH = 2  # cells; two objects of the scene world are always centred farther apart
_READ_CHUNK = 64  # pictures per forward


@dataclass
class SceneJudgeOutput(BaseOutput):
    """Everything the network says; G is the side of the maps, all tensors float.

    Attributes:
        centre: `[B, G, G]` logits of an object being centred in the cell.
        shape, colour, material, size: `[B, number of values, G, G]` logits of the attributes of that object.
        screen_x: `[B, G, G]` its horizontal place as in `JudgedObject`.
        depth: `[B, G, G]` its depth, world units.
        ground, sky: `[B, 3]` logits for the whole picture.
    """

    centre: Tensor
    shape: Tensor
    colour: Tensor
    material: Tensor
    size: Tensor
    screen_x: Tensor
    depth: Tensor
    ground: Tensor
    sky: Tensor


class SceneJudge(ModelMixin, ConfigMixin):
    """Reads pictures of the scene world; see `read_images`.

    A convolutional network down to a sixteenth of the picture's side and back up to a quarter. Norms are over all of a
    picture's values, so a reading depends on its picture alone, in training too.

    Args:
        image_size: side of the pictures it reads, pixels, a multiple of 16.
        block_out_channels: channels of the stem and of the levels at a quarter, an eighth and a sixteenth of the side.
        centre_threshold: from which probability on a centre counts as an object.
        max_objects: at most so many objects are read off a picture, the surest ones.
    """

    config: Any  # a FrozenDict with its entries as attributes; diffusers annotates it as a dict

    @register_to_config
    def __init__(
        self,
        image_size: int = 128,
        block_out_channels: Sequence[int] = (24, 48, 80, 88),
        centre_threshold: float = 0.4,
        max_objects: int = 6,
    ) -> None:
        super().__init__()
        if image_size % 16:
            raise ValueError(f"image_size: {image_size} must be a multiple of 16")
        if len(block_out_channels) != 4:
            raise ValueError(f"block_out_channels: needs 4 numbers, got {list(block_out_channels)}")
        stem, fine, middle, coarse = block_out_channels
        grid = image_size // STRIDE
        self.stem = nn.Conv2d(3, stem, 3, stride=2, padding=1)
        self.down = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1)
            for before, after in ((stem, fine), (fine, middle), (middle, coarse))
        )
        self.blocks = nn.ModuleList(_ResidualBlock(channels) for channels in (fine, middle, coarse))
        self.up = nn.ModuleList(nn.Conv2d(before, after, 1) for before, after in ((coarse, middle), (middle, fine)))
        # Depth follows from the row and size from the depth, so every cell gets its position.
        self.row = nn.Parameter(torch.zeros(1, fine, grid, 1))
        self.column = nn.Parameter(torch.zeros(1, fine, 1, grid))
        self.last = _ResidualBlock(fine)
        self.map_head = nn.Conv2d(fine, sum(_MAP_CHANNELS.values()), 1)
        self.setting_head = nn.Linear(fine + coarse, sum(map(len, SETTING_VALUES.values())))
        # Centres are rare; without this the first steps would be spent on unlearning them.
        with torch.no_grad():
            self.map_head.get_parameter("bias")[0] = -4.0

    def forward(self, images: Tensor) -> SceneJudgeOutput:
        """Maps and settings of images `[B, 3, image_size, image_size]` in [0, 1]."""
        features = F.relu(self.stem(images * 2 - 1))  # [B, stem, H/2, W/2]
        levels = []
        for down, block in zip(self.down, self.blocks, strict=True):
            features = block(F.relu(down(features)))
            levels.append(features)
        fine, middle, coarse = levels
        setting = torch.cat([fine.mean((2, 3)), coarse.mean((2, 3))], dim=-1)
        features = middle + F.interpolate(self.up[0](coarse), scale_factor=2.0)
        features = fine + F.interpolate(self.up[1](features), scale_factor=2.0)  # [B, fine, G, G]
        maps = self.map_head(F.relu(self.last(features + self.row + self.column))).float()
        part = dict(zip(_MAP_CHANNELS, maps.split(list(_MAP_CHANNELS.values()), dim=1), strict=True))
        ground, sky = self.setting_head(setting).float().split([len(v) for v in SETTING_VALUES.values()], dim=-1)
        # The head says how many cells the object's foot is to the right of this cell's middle.
        grid = maps.shape[-1]
        middles = torch.arange(grid, device=maps.device) + 0.5
        screen_x = (part["across"][:, 0] + middles) * (2.0 / grid) - 1.0
        attributes = {name: part[name] for name in ATTRIBUTE_VALUES}
        return SceneJudgeOutput(
            centre=part["centre"][:, 0],
            **attributes,
            screen_x=screen_x,
            depth=part["depth"][:, 0] + _MIDDLE_DEPTH,
            ground=ground,
            sky=sky,
        )


class _ResidualBlock(nn.Module):
    """Two 3 x 3 convolutions, each after a norm over the whole picture and a rectifier."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(1, channels), nn.GroupNorm(1, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        hidden = self.conv1(F.relu(self.norm1(features)))
        return features + self.conv2(F.relu(self.norm2(hidden)))


def load_judge(folder: str | PathLike[str] | None = None, device: str | torch.device = "cpu") -> SceneJudge:
    """The judge in a folder, or the shipped one, ready to read in float32.

    Raises:
        UserError: if there is none.
    """
    place = WEIGHTS / JUDGE_NAME if folder is None else Path(folder)
    if not (place / "config.json").is_file():
        raise UserError(f"judge: {place} holds none; train it with `vargen train judge` and name its export folder")
    check_component_folder(place, SceneJudge)
    judge = SceneJudge.from_pretrained(place, torch_dtype=torch.float32)
    check_weights(judge, place)
    return judge.to(device).eval()


@torch.no_grad()
def read_images(judge: SceneJudge, images: Tensor) -> list[Reading]:
    """Read pictures.

    Args:
        judge: in any state of training; it is not changed.
        images: `[B, 3, H, W]` float in [0, 1]; values outside are clipped, another size than the judge's is resized.

    Returns:
        One reading a picture, its objects from left to right.

    Raises:
        ValueError: for another shape.
    """
    if images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(f"images: must be [B, 3, H, W], got {list(images.shape)}")
    side = judge.config.image_size
    readings: list[Reading] = []
    for chunk in images.split(_READ_CHUNK):
        pictures = chunk.to(judge.device, judge.dtype)
        if pictures.shape[-2:] != (side, side):
            pictures = F.interpolate(pictures, size=(side, side), mode="bilinear", antialias=True)
        output = judge(pictures.clamp(0, 1))
        readings += decode_readings(output, judge.config.centre_threshold, judge.config.max_objects)
    return readings


def decode_readings(output: SceneJudgeOutput, centre_threshold: float, max_objects: int) -> list[Reading]:
    """Turn the maps of B pictures into readings.

    An object is a cell with the highest centre logit within two cells and a probability above the threshold. Its
    properties are the mean prediction of the 3 x 3 cells around it.
    """
    logits = output.centre.float()
    window = 2 * _PEAK_REACH + 1
    highest = F.max_pool2d(logits[:, None], window, stride=1, padding=_PEAK_REACH)[:, 0]
    found = (logits == highest) & (logits.sigmoid() >= centre_threshold)
    scores, cells = logits.masked_fill(~found, -torch.inf).flatten(1).topk(max_objects)  # [B, K]

    def at_cells(values: Tensor) -> Tensor:
        """`[B, C, G, G]` -> `[B, C, K]`."""
        mean = F.avg_pool2d(values.float(), 3, stride=1, padding=1, count_include_pad=False).flatten(2)
        return mean.gather(2, cells[:, None].expand(-1, mean.shape[1], -1))

    opinions = {name: at_cells(getattr(output, name)).softmax(1).max(1) for name in ATTRIBUTE_VALUES}  # over [B, C, K]
    attributes = {name: opinion.indices.tolist() for name, opinion in opinions.items()}
    certainties = torch.stack([opinion.values for opinion in opinions.values()]).prod(0).tolist()
    places = at_cells(torch.stack([output.screen_x, output.depth], dim=1)).tolist()
    confidences = scores.sigmoid().tolist()
    settings = {name: getattr(output, name).argmax(-1).tolist() for name in SETTING_VALUES}
    readings = []
    for row, confidence_row in enumerate(confidences):
        objects = [
            JudgedObject(
                **{name: values[attributes[name][row][k]] for name, values in ATTRIBUTE_VALUES.items()},
                screen_x=places[row][0][k],
                depth=places[row][1][k],
                confidence=confidence,
                certainty=certainties[row][k],
            )
            for k, confidence in enumerate(confidence_row)
            if confidence > 0  # the sigmoid of minus infinity: fewer objects than places
        ]
        setting = {name: values[settings[name][row]] for name, values in SETTING_VALUES.items()}
        readings.append(Reading(tuple(sorted(objects, key=lambda item: item.screen_x)), **setting))
    return readings
