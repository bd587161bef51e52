"""Scenes, and how one is drawn at random: the truth behind every picture of the project's own world.

Belongs here: attributes, positions, relations and the held-out split, as data. Does not belong here: pixels
(`renderer.py`) and sentences (`scenes.captions`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from scenes.rendering import camera

SHAPES = ("sphere", "cube", "cylinder", "cone")
COLOURS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "white")
MATERIALS = ("matte", "shiny", "striped", "checkered")
SIZES = ("small", "large")
GROUNDS = ("grass", "sand", "wood")
SKIES = ("clear", "cloudy", "sunset")
ATTRIBUTE_VALUES = {"shape": SHAPES, "colour": COLOURS, "material": MATERIALS, "size": SIZES}
SETTING_VALUES = {"ground": GROUNDS, "sky": SKIES}
RELATIONS = ("left of", "right of", "in front of", "behind")
SPLITS = ("train", "heldout", "all")
MAX_OBJECTS = 3
OBJECT_COUNT_WEIGHTS = (0.3, 0.4, 0.3)
"""How often a scene has one, two and three objects."""

RADIUS = {"small": 0.55, "large": 0.9}
# Half-width (or radius) and height of each shape in multiples of the object's radius.
EXTENTS = {"sphere": (1.0, 2.0), "cube": (0.8, 1.6), "cylinder": (0.78, 1.7), "cone": (0.95, 1.9)}

_DEPTH_RANGE = (0.0, 2.6)
_SCREEN_MARGIN = 0.06
CLEAR_SCREEN_GAP = 0.22
CLEAR_DEPTH_GAP = 0.8
_MAX_TRIES = 2000


@dataclass(frozen=True)
class SceneObject:
    """One object standing on the ground.

    Attributes:
        shape, colour, material, size: one of `SHAPES`, `COLOURS`, `MATERIALS`, `SIZES`.
        x: centre to the right of the picture's axis, world units.
        depth: centre away from the viewer, world units; larger is farther.
        rotation: turn about the vertical axis, radians.
    """

    shape: str
    colour: str
    material: str
    size: str
    x: float
    depth: float
    rotation: float

    @property
    def radius(self) -> float:
        """Nominal radius in world units."""
        return RADIUS[self.size]

    @property
    def half_width(self) -> float:
        """Half-edge of a cube, radius of anything else at its widest, world units."""
        return EXTENTS[self.shape][0] * self.radius

    @property
    def height(self) -> float:
        """Height above the ground in world units."""
        return EXTENTS[self.shape][1] * self.radius

    @property
    def footprint(self) -> float:
        """Radius of the circle on the ground that no other object may enter."""
        return self.half_width * (math.sqrt(2.0) if self.shape == "cube" else 1.0)


@dataclass(frozen=True)
class Scene:
    """The whole truth about one picture.

    Attributes:
        seed: identity of the scene; also seeds its stochastic detail.
        objects: one to three objects, from left to right in the picture.
        ground: one of `GROUNDS`. sky: one of `SKIES`.
        light_azimuth: direction the light comes from, radians; 0 is from behind the viewer, positive from the right.
        light_elevation: height of the light above the horizon, radians.
    """

    seed: int
    objects: tuple[SceneObject, ...]
    ground: str
    sky: str
    light_azimuth: float
    light_elevation: float


def relation_between(subject: SceneObject, other: SceneObject) -> tuple[str, ...]:
    """Relations of `subject` to `other` that hold beyond dispute.

    Left and right are judged in the picture, in front and behind along the ground. Small gaps give no relation.

    Returns:
        Zero, one or two of `RELATIONS`.
    """
    relations = []
    gap = camera.screen_position(subject.x, subject.depth) - camera.screen_position(other.x, other.depth)
    if abs(gap) >= CLEAR_SCREEN_GAP:
        relations.append("left of" if gap < 0 else "right of")
    depth_gap = subject.depth - other.depth
    if abs(depth_gap) >= CLEAR_DEPTH_GAP:
        relations.append("in front of" if depth_gap < 0 else "behind")
    return tuple(relations)


def is_heldout_object(shape: str, colour: str, material: str) -> bool:
    """Whether training never shows an object of this shape, colour and material (8 of 128 combinations)."""
    key = COLOURS.index(colour) + 2 * SHAPES.index(shape) + 4 * MATERIALS.index(material)
    return key % 16 == 5


def is_heldout_relation(shape: str, colour: str, relation: str) -> bool:
    """Whether training never shows an object of this shape and colour in this relation to another (16 of 128)."""
    return (COLOURS.index(colour) + 2 * SHAPES.index(shape) + 3 * RELATIONS.index(relation)) % 8 == 3


def is_heldout_combination(scene: Scene) -> bool:
    """Whether the scene holds a combination that the training split never shows."""
    if any(is_heldout_object(item.shape, item.colour, item.material) for item in scene.objects):
        return True
    return any(
        is_heldout_relation(subject.shape, subject.colour, relation)
        for subject in scene.objects
        for other in scene.objects
        if subject is not other
        for relation in relation_between(subject, other)
    )


def sample_scene(
    seed: int, split: str = "train", object_count_weights: Sequence[float] = OBJECT_COUNT_WEIGHTS
) -> Scene:
    """Draw the scene of a seed.

    Args:
        seed: any non-negative integer; the same seed and split give the same scene.
        split: "train" (no held-out combination), "heldout" (at least one), or "all" (no condition).
        object_count_weights: how often one, two or three objects are drawn.

    Raises:
        ValueError: for an unknown split.
    """
    if split not in SPLITS:
        raise ValueError(f"split: {split!r} is not one of {', '.join(SPLITS)}")
    rng = random.Random(f"scene-{split}-{seed}")
    count = rng.choices(range(1, MAX_OBJECTS + 1), weights=object_count_weights)[0]
    for _ in range(_MAX_TRIES):
        objects = _place_objects(rng, count)
        if objects is None:
            continue
        scene = Scene(
            seed=seed,
            objects=objects,
            ground=rng.choice(GROUNDS),
            sky=rng.choice(SKIES),
            light_azimuth=rng.uniform(-1.1, 1.1),
            light_elevation=rng.uniform(0.65, 1.15),
        )
        if split == "all" or is_heldout_combination(scene) == (split == "heldout"):
            return scene
    raise RuntimeError(f"seed: no {split} scene found for {seed} in {_MAX_TRIES} tries")


def _place_objects(rng: random.Random, count: int) -> tuple[SceneObject, ...] | None:
    """`count` objects that stand apart, the farther ones hidden in small part at most; None if the draw got stuck."""
    placed: list[SceneObject] = []
    for _ in range(count):
        shape, colour, material, size = (rng.choice(c) for c in (SHAPES, COLOURS, MATERIALS, SIZES))
        for _ in range(20):
            candidate = _propose_place(rng, shape, colour, material, size)
            if all(two_stand_apart(candidate, other, 1.08, 0.8) for other in placed):
                placed.append(candidate)
                break
        else:
            return None
    placed.sort(key=lambda item: camera.screen_position(item.x, item.depth))
    return tuple(placed)


def _propose_place(rng: random.Random, shape: str, colour: str, material: str, size: str) -> SceneObject:
    depth = rng.uniform(*_DEPTH_RANGE)
    half_width = EXTENTS[shape][0] * RADIUS[size]
    view_half_width = 1.0 / camera.screen_position(1.0, depth)
    reach = view_half_width * (1.0 - _SCREEN_MARGIN) - half_width * 1.2
    return SceneObject(shape, colour, material, size, rng.uniform(-reach, reach), depth, rng.uniform(0.0, math.pi / 2))


def two_stand_apart(a: SceneObject, b: SceneObject, on_ground: float, in_picture: float) -> bool:
    """Whether two objects are so far apart, as shares of their footprints and of their half widths in the picture."""
    if math.hypot(a.x - b.x, a.depth - b.depth) < on_ground * (a.footprint + b.footprint):
        return False
    gap = abs(camera.screen_position(a.x, a.depth) - camera.screen_position(b.x, b.depth))
    widths = sum(item.half_width * camera.screen_position(1.0, item.depth) for item in (a, b))
    return gap >= in_picture * widths


def object_boxes(scene: Scene, image_size: int = 128) -> Tensor:
    """Boxes around the objects in the picture.

    Returns:
        `[n, 4]` float32 (left, top, right, bottom) in pixels, clipped to the picture; each box covers its object.
    """
    boxes = []
    for item in scene.objects:
        numbers = torch.tensor([[item.x], [item.depth], [item.rotation], [item.radius]])
        boxes.append(camera.bounding_boxes(outline_points(item.shape, *numbers), image_size))
    return torch.cat(boxes)


def outline_points(shape: str, x: Tensor, depth: Tensor, rotation: Tensor, radius: Tensor) -> Tensor:
    """Points around each of N objects of one shape: seen from the camera, their convex hull covers the object.

    Args:
        shape: one of `SHAPES`.
        x, depth, rotation, radius: `[N]` float, as in `SceneObject`.

    Returns:
        `[N, P, 3]` world points.
    """
    if shape == "sphere":
        return _sphere_silhouettes(x, depth, radius)
    half_width, height = EXTENTS[shape]
    corners = 4 if shape == "cube" else 16
    # A cube's own corners are exact; a polygon that is to cover a circle has to lie outside it.
    reach = (half_width * radius)[:, None] * (math.sqrt(2.0) if shape == "cube" else 1.0 / math.cos(math.pi / corners))
    angles = rotation[:, None] + math.pi / 4 + torch.arange(corners, device=x.device) * (2 * math.pi / corners)
    ring_x, ring_z = x[:, None] + reach * angles.cos(), depth[:, None] + reach * angles.sin()
    low = torch.stack([ring_x, torch.zeros_like(ring_x), ring_z], dim=-1)
    top = (height * radius)[:, None]
    if shape == "cone":
        high = torch.stack([x[:, None], top, depth[:, None]], dim=-1)
    else:
        high = torch.stack([ring_x, top.expand_as(ring_x), ring_z], dim=-1)
    return torch.cat([low, high], dim=1)


def _sphere_silhouettes(x: Tensor, depth: Tensor, radius: Tensor) -> Tensor:
    """`[N, 16, 3]` points around the circle in which the viewer's cone of sight touches each sphere."""
    centre = torch.stack([x, radius, depth], dim=-1)
    to_viewer = centre.new_tensor(camera.POSITION) - centre
    distance = to_viewer.norm(dim=-1, keepdim=True)
    axis = to_viewer / distance
    side = torch.linalg.cross(axis, axis.new_tensor([0.0, 1.0, 0.0]).expand_as(axis))
    side = side / side.norm(dim=-1, keepdim=True)
    over = torch.linalg.cross(side, axis)
    offset = radius[:, None] ** 2 / distance
    ring = ((radius[:, None] ** 2 - offset**2).sqrt() / math.cos(math.pi / 16))[:, None]
    angles = (torch.arange(16, device=x.device) * (2 * math.pi / 16))[:, None]
    middle = (centre + offset * axis)[:, None]
    return middle + ring * (angles.cos() * side[:, None] + angles.sin() * over[:, None])
