"""Ray meetings in closed form against a slow oracle that walks along each ray in small steps."""

import pytest
import torch

from scenes.rendering.scene import EXTENTS, SHAPES
from scenes.rendering.solids import MISS, intersect

STEP = 2e-3


def inside(shape: str, point: torch.Tensor) -> torch.Tensor:
    x, y, z = point.unbind(-1)
    half, height = EXTENTS[shape]
    around = (x * x + z * z).sqrt()
    if shape == "sphere":
        return (x * x + (y - 1) ** 2 + z * z) < 1
    if shape == "cube":
        return (x.abs() < half) & (z.abs() < half) & (y > 0) & (y < height)
    if shape == "cylinder":
        return (around < half) & (y > 0) & (y < height)
    return (y > 0) & (y < height) & (around < half * (1 - y / height))


def random_rays(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    angle = torch.rand(count, generator=generator) * 6.28
    origin = torch.stack([4 * angle.cos(), 2.2 + torch.rand(count, generator=generator) * 2, 4 * angle.sin()], -1)
    aim = (torch.rand(count, 3, generator=generator) - 0.5) * 2.6 + torch.tensor([0.0, 0.9, 0.0])
    return origin, torch.nn.functional.normalize(aim - origin, dim=-1)


@pytest.mark.parametrize("shape", SHAPES)
def test_meeting_agrees_with_walking_along_the_ray(shape):
    origin, direction = random_rays(300)
    distance, _ = intersect(shape, origin.unbind(-1), direction.unbind(-1))
    steps = torch.arange(0, 8, STEP)
    walked = inside(shape, origin[:, None] + steps[:, None] * direction[:, None])
    first = torch.where(walked.any(1), steps[walked.int().argmax(1)], torch.tensor(MISS))
    # Rays that only graze a solid may fall between two steps of the walk.
    grazing = walked.sum(1) < 3
    both = (distance != MISS) & ~grazing
    assert both.sum() > 80
    assert torch.equal(distance[~grazing] != MISS, first[~grazing] != MISS)
    assert (distance[both] - first[both]).abs().max() < 2 * STEP


@pytest.mark.parametrize("shape", SHAPES)
def test_normals_are_unit_vectors_that_leave_the_solid(shape):
    origin, direction = random_rays(300)
    distance, normal = intersect(shape, origin.unbind(-1), direction.unbind(-1))
    hit = distance != MISS
    normals = torch.stack(torch.broadcast_tensors(*normal), -1)[hit]
    points = (origin + distance[:, None] * direction)[hit]
    assert torch.allclose(normals.norm(dim=-1), torch.ones(len(normals)), atol=1e-3)
    assert ((normals * direction[hit]).sum(-1) < 1e-3).all()
    assert not inside(shape, points + 0.01 * normals).any()
    assert inside(shape, points - 0.01 * normals).float().mean() > 0.97  # but for points at an edge


@pytest.mark.parametrize("shape", SHAPES)
def test_what_lies_behind_is_not_met(shape):
    origin, direction = random_rays(50)
    assert (intersect(shape, origin.unbind(-1), direction.unbind(-1))[0] != MISS).any()
    assert (intersect(shape, origin.unbind(-1), (-direction).unbind(-1))[0] == MISS).all()
