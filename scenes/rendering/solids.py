"""Where a ray meets a sphere, a cube, a cylinder or a cone: closed forms, vectorised over rays.

Every solid is described in its own frame: centred on its vertical axis, standing on y = 0, of nominal radius 1 (so a
cube's half-edge is 0.8, see `scene.EXTENTS`). Nothing here knows of colour or light.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scenes.rendering.scene import EXTENTS

MISS = float("inf")
_TINY = 1e-6

Vector = tuple[Tensor, Tensor, Tensor]


def intersect(shape: str, origin: Vector, direction: Vector) -> tuple[Tensor, Vector]:
    """First meeting of rays with a solid, from outside.

    Args:
        shape: one of `scene.SHAPES`.
        origin, direction: x, y and z parts of the rays in the solid's frame; tensors that broadcast together.
            Directions need not have unit length.

    Returns:
        distance: ray parameter of the first meeting, `inf` where the ray misses.
        normal: x, y and z parts of the outward unit normal there; meaningless where the ray misses.
    """
    return _INTERSECTIONS[shape](origin, direction)


def _sphere(origin: Vector, direction: Vector) -> tuple[Tensor, Vector]:
    ox, oy, oz = origin
    dx, dy, dz = direction
    oy = oy - 1.0
    a = dx * dx + dy * dy + dz * dz
    b = ox * dx + oy * dy + oz * dz
    c = ox * ox + oy * oy + oz * oz - 1.0
    discriminant = b * b - a * c
    t = (-b - discriminant.clamp_min(0).sqrt()) / a
    hit = (discriminant > 0) & (t > 0)
    return t.masked_fill(~hit, MISS), (ox + t * dx, oy + t * dy, oz + t * dz)


def _cube(origin: Vector, direction: Vector) -> tuple[Tensor, Vector]:
    half, height = EXTENTS["cube"]
    near, far = None, None
    entries = []
    for place, step, middle in zip(origin, direction, (0.0, 0.5 * height, 0.0), strict=True):
        inverse = 1.0 / torch.where(step.abs() < _TINY, _TINY, step)
        at_middle = (middle - place) * inverse
        reach = inverse.abs() * half
        enter, leave = at_middle - reach, at_middle + reach
        entries.append(enter)
        near = enter if near is None else torch.maximum(near, enter)
        far = leave if far is None else torch.minimum(far, leave)
    assert near is not None and far is not None
    hit = (near < far) & (near > 0)
    # The face that was entered last is the face that is seen.
    nx, ny, nz = (
        torch.where(enter >= near, -step.sign(), torch.zeros_like(near))
        for enter, step in zip(entries, direction, strict=True)
    )
    return near.masked_fill(~hit, MISS), (nx, ny, nz)


def _cylinder(origin: Vector, direction: Vector) -> tuple[Tensor, Vector]:
    radius, height = EXTENTS["cylinder"]
    ox, oy, oz = origin
    dx, dy, dz = direction
    a = (dx * dx + dz * dz).clamp_min(_TINY)
    b = ox * dx + oz * dz
    c = ox * ox + oz * oz - radius * radius
    discriminant = b * b - a * c
    side = (-b - discriminant.clamp_min(0).sqrt()) / a
    y = oy + side * dy
    side = side.masked_fill((discriminant <= 0) | (y < 0) | (y > height) | (side <= 0), MISS)
    top = (height - oy) / torch.where(dy.abs() < _TINY, _TINY, dy)
    x, z = ox + top * dx, oz + top * dz
    top = top.masked_fill((x * x + z * z > radius * radius) | (top <= 0) | (oy < height), MISS)
    t = torch.minimum(side, top)
    on_top = top < side
    off_top = (~on_top).to(t.dtype) / radius
    reach = t.masked_fill(t == MISS, 0.0)
    return t, ((ox + reach * dx) * off_top, on_top.to(t.dtype), (oz + reach * dz) * off_top)


def _cone(origin: Vector, direction: Vector) -> tuple[Tensor, Vector]:
    radius, height = EXTENTS["cone"]
    slope = radius / height
    ox, oy, oz = origin
    dx, dy, dz = direction
    below_tip = height - oy
    a = dx * dx + dz * dz - (slope * dy) ** 2
    a = torch.where(a.abs() < _TINY, _TINY, a)
    b = ox * dx + oz * dz + slope * slope * below_tip * dy
    c = ox * ox + oz * oz - (slope * below_tip) ** 2
    root = (b * b - a * c).clamp_min(0).sqrt()
    best = None
    # The mirror cone above the tip is cut away by the height test, so both roots have to be tried.
    for t in ((-b - root) / a, (-b + root) / a):
        y = oy + t * dy
        t = t.masked_fill((b * b - a * c <= 0) | (y < 0) | (y > height) | (t <= 0), MISS)
        best = t if best is None else torch.minimum(best, t)
    assert best is not None
    reach = best.masked_fill(best == MISS, 0.0)
    x, z = ox + reach * dx, oz + reach * dz
    outward = 1.0 / (1.0 + slope * slope) ** 0.5
    around = (x * x + z * z).clamp_min(_TINY).rsqrt() * outward
    return best, (x * around, torch.full_like(x, slope * outward), z * around)


_INTERSECTIONS = {"sphere": _sphere, "cube": _cube, "cylinder": _cylinder, "cone": _cone}
