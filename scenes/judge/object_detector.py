"""The judge as a detector of objects, so that GenEval's own rule checks pictures of prompts about this world.

Does not belong here: reading a picture (`network.py`), and the rule (`metrics.composition`).
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from metrics.composition import Found
from metrics.errors import DataError
from scenes.judge.network import SceneJudge, load_judge, read_images
from scenes.judge.picture_reading import JudgedObject
from scenes.rendering import camera
from scenes.rendering.scene import SHAPES, Scene, SceneObject, object_boxes


class SceneDetector:
    """Finds shapes with their colours, as `metrics.picture_readers.Detector` asks for.

    What the judge takes for an object counts as surely there: its own threshold has decided. A box is where an object
    of the shape, size and place that were read would stand.

    Args:
        reader: of the pictures; None for the shipped one, on the CPU.
    """

    identity = "judge of scenes"

    def __init__(self, reader: SceneJudge | None = None) -> None:
        self.reader = load_judge(None, "cpu") if reader is None else reader

    def check(self, names: Sequence[str]) -> None:
        if unknown := [name for name in names if name not in SHAPES]:
            raise DataError(
                f"the judge of scenes knows no {unknown[0]!r}; name the folder of a detector, a Mask2Former or an OWL"
            )

    def __call__(self, picture: Tensor, names: Sequence[str]) -> list[Found]:
        (reading,) = read_images(self.reader, picture[None].float() / 255)
        read = [item for item in reading.objects if item.shape in names]
        if not read:
            return []
        scene = Scene(0, tuple(map(_standing, read)), reading.ground, reading.sky, 0.0, 0.0)
        boxes = object_boxes(scene, picture.shape[-1]).tolist()
        return [
            Found(item.shape, 1.0, (left, top, right, bottom), colour=item.colour)
            for item, (left, top, right, bottom) in zip(read, boxes, strict=True)
        ]


def _standing(item: JudgedObject) -> SceneObject:
    x = item.screen_x / camera.screen_position(1.0, item.depth)
    return SceneObject(item.shape, item.colour, item.material, item.size, x, item.depth, 0.0)
