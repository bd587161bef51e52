"""The one fixed camera of the scene world: where a point of the world lands in the picture.

Only projection lives here. What is in the world is in `scene.py`; how it is shaded is in `renderer.py`.

World axes: x to the right, y up, z away from the viewer; the ground is the plane y = 0. Lengths are world units (a
large sphere has radius 0.9).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

CAMERA_HEIGHT = 2.6
CAMERA_DEPTH = -6.0
PITCH_TANGENT = 0.27
HALF_FIELD_OF_VIEW_TANGENT = 0.42

_PITCH = math.atan(PITCH_TANGENT)
_COS, _SIN = math.cos(_PITCH), math.sin(_PITCH)

POSITION = (0.0, CAMERA_HEIGHT, CAMERA_DEPTH)
RIGHT = (1.0, 0.0, 0.0)
UP = (0.0, _COS, _SIN)
FORWARD = (0.0, -_SIN, _COS)


def project(points: Tensor, image_size: int) -> Tensor:
    """Pixel coordinates of world points.

    Args:
        points: `[..., 3]` float, world units; every point must lie in front of the camera.
        image_size: side of the square picture in pixels.

    Returns:
        `[..., 2]` float, (column, row) in pixels; (0, 0) is the outer corner of the top-left pixel.
    """
    relative = points - points.new_tensor(POSITION)
    across = relative @ points.new_tensor(RIGHT)
    upward = relative @ points.new_tensor(UP)
    ahead = relative @ points.new_tensor(FORWARD)
    scale = 0.5 * image_size / (HALF_FIELD_OF_VIEW_TANGENT * ahead)
    return torch.stack([0.5 * image_size + across * scale, 0.5 * image_size - upward * scale], dim=-1)


def bounding_boxes(points: Tensor, image_size: int) -> Tensor:
    """Boxes around sets of world points in the picture.

    Args:
        points: `[N, P, 3]` world points in front of the camera.
        image_size: side of the square picture in pixels.

    Returns:
        `[N, 4]` (left, top, right, bottom) in pixels, clipped to the picture.
    """
    pixels = project(points, image_size).clamp(0, image_size)
    return torch.cat([pixels.amin(1), pixels.amax(1)], dim=-1)


def screen_position(x: float, depth: float) -> float:
    """Horizontal place of the ground point (x, depth) in the picture: -1 is the left edge, 1 the right edge."""
    ahead = CAMERA_HEIGHT * _SIN + (depth - CAMERA_DEPTH) * _COS
    return x / (HALF_FIELD_OF_VIEW_TANGENT * ahead)


def horizon(image_size: int) -> float:
    """Row of the horizon in pixels; above it there is sky."""
    return 0.5 * image_size * (1.0 - PITCH_TANGENT / HALF_FIELD_OF_VIEW_TANGENT)


def ray_directions(columns: Tensor, rows: Tensor, image_size: int) -> Tensor:
    """Unit ray directions through pixel coordinates.

    Args:
        columns: `[...]` float pixel coordinates to the right.
        rows: `[...]` float pixel coordinates downwards.
        image_size: side of the square picture in pixels.

    Returns:
        `[..., 3]` float32 unit vectors.
    """
    across = (2.0 * columns / image_size - 1.0) * HALF_FIELD_OF_VIEW_TANGENT
    upward = (1.0 - 2.0 * rows / image_size) * HALF_FIELD_OF_VIEW_TANGENT
    direction = (
        columns.new_tensor(FORWARD)
        + across[..., None] * columns.new_tensor(RIGHT)
        + upward[..., None] * columns.new_tensor(UP)
    )
    return torch.nn.functional.normalize(direction, dim=-1)
