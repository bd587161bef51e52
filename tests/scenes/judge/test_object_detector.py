"""The judge as a detector, on pictures whose truth is known."""

import torch

from metrics.composition import Composition, CompositionRule, Wanted
from scenes.judge.object_detector import SceneDetector
from scenes.rendering.renderer import SceneRenderer
from scenes.rendering.scene import Scene, SceneObject, object_boxes


def test_objects_are_found_where_they_stand():
    red = SceneObject("cube", "red", "matte", "large", -1.3, 0.4, 0.0)
    blue = SceneObject("sphere", "blue", "matte", "large", 1.3, 0.8, 0.0)
    scene = Scene(3, (red, blue), "grass", "clear", 0.3, 0.9)
    picture = (SceneRenderer(128)([scene]).images[0].clamp(0, 1) * 255).round().to(torch.uint8)
    found = SceneDetector()(picture, ["cube", "sphere"])
    assert [(item.name, item.colour) for item in found] == [("cube", "red"), ("sphere", "blue")]
    boxes = torch.tensor([item.box for item in found])
    assert (boxes - object_boxes(scene)).abs().max() < 8, "pixels of 128"
    assert [item.name for item in SceneDetector()(picture, ["cone", "sphere"])] == ["sphere"]
    assert SceneDetector()(picture, ["cone"]) == []
    for place, holds in (("left of", True), ("right of", False)):
        wanted = Composition((Wanted("sphere", 1, "blue"), Wanted("cube", 1, "red", (place, 0))), (), "position")
        assert CompositionRule().holds(wanted, found, lambda item: item.colour) is holds
