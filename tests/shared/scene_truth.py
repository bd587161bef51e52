"""What tests know of scenes: their pictures, their frames, and a reading without fault."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from scenes.judge.picture_reading import JudgedObject, Reading
from scenes.rendering import camera
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import Scene, SceneObject, sample_scene
from scenes.rendering.story import Story


def reading_from_scene(scene: Scene) -> Reading:
    """What a reader without fault would see in the picture of a scene."""
    objects = [
        JudgedObject(
            item.shape, item.colour, item.material, item.size, camera.screen_position(item.x, item.depth), item.depth
        )
        for item in scene.objects
    ]
    return Reading(tuple(sorted(objects, key=lambda item: item.screen_x)), scene.ground, scene.sky)


def render_video(video: Story, image_size: int = 64) -> Tensor:
    """Frames `[F, 3, image_size, image_size]`, float in [0, 1]."""
    return SceneRenderer(image_size)(list(video.frames)).images


def scene_from_record(values: dict[str, Any]) -> Scene:
    """The scene that `vargen scenes` wrote down."""
    return Scene(**{**values, "objects": tuple(SceneObject(**item) for item in values["objects"])})


def render(seed: int, split: str = "train", image_size: int = 128) -> tuple[Tensor, Scene]:
    """The picture and the truth of a seed.

    Returns:
        image `[3, H, W]` float32 in [0, 1], and its scene; the same arguments give the same picture.
    """
    scene = sample_scene(seed, split)
    return SceneRenderer(image_size)([scene]).images[0], scene
