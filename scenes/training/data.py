"""Batches of rendered scenes as a function of the step, so that a resumed run continues where it stopped.

Only rendering and laying pictures side by side happen here; captions and codes are the transformer trainer's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image
from torch import Tensor

from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import OBJECT_COUNT_WEIGHTS, Scene, sample_scene
from vargen.runs.files import save_image_atomic


@dataclass(frozen=True)
class SceneBatch:
    """Scenes with their pictures.

    Attributes:
        scenes: the truth.
        seeds: the seed of each scene.
        images: [B, 3, H, W] fp32 in [-1, 1].
        object_mask: [B, H, W] fp32, share of each pixel covered by objects.
        ground_mask: [H, W] fp32, 1 below the horizon, the same in all pictures.
    """

    scenes: Sequence[Scene]
    seeds: Sequence[int]
    images: Tensor
    object_mask: Tensor
    ground_mask: Tensor


class SceneSource(Protocol):
    """Anything that gives the scenes of consecutive seeds."""

    def __call__(self, first_seed: int, count: int, split: str) -> SceneBatch: ...


class RenderedSceneSource:
    """Scenes from `scenes.rendering`, rendered on `device` at `image_size`.

    `object_count_weights` hold for the train split; held-out scenes are always drawn alike, so that figures compare.
    """

    def __init__(
        self, image_size: int, device: torch.device, object_count_weights: Sequence[float] = OBJECT_COUNT_WEIGHTS
    ):
        self.object_count_weights = object_count_weights
        self.renderer = SceneRenderer(image_size, device=device)

    @torch.no_grad()
    def __call__(self, first_seed: int, count: int, split: str) -> SceneBatch:
        seeds = list(range(first_seed, first_seed + count))
        weights = self.object_count_weights if split == "train" else OBJECT_COUNT_WEIGHTS
        scenes = [sample_scene(seed, split, weights) for seed in seeds]
        rendered = self.renderer(scenes)
        return SceneBatch(scenes, seeds, rendered.images * 2 - 1, rendered.object_mask, rendered.ground_mask)


def save_sheet(rows: list[Tensor], path: Path) -> None:
    """Write rows of pictures, each [B, 3, H, W] in [-1, 1], as one PNG, row under row."""
    picture = torch.cat([torch.cat(list(row.float().cpu()), dim=-1) for row in rows], dim=-2)  # [3, R*H, B*W]
    values = ((picture.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
    save_image_atomic(Image.fromarray(values.permute(1, 2, 0).numpy()), path)
