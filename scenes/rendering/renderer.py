"""Pictures of scenes: ray casting in torch, a whole batch at once, on the CPU or on a GPU.

Belongs here: light, colour, material and shadow. Does not belong here: what is in a scene (`scene.py`), where a ray
meets a solid (`solids.py`), and random detail (`textures.py`).

The picture is computed in tiles of 8 x 8 pixels: ground and sky everywhere, a solid or its shadow only in the tiles
that it can touch. A tile of one solid is 256 rays (four per pixel), so a batch of pictures is a few
hundred tiles per kind of solid, and every step is one tensor operation over all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scenes.rendering import camera
from scenes.rendering.scene import EXTENTS, GROUNDS, MAX_OBJECTS, SHAPES, Scene, SceneObject, outline_points
from scenes.rendering.solids import MISS, Vector, intersect
from scenes.rendering.textures import Octave, lattice_values, noise_matrix

TILE = 8
_SAMPLES = ((0.375, 0.125), (0.875, 0.375), (0.125, 0.625), (0.625, 0.875))  # rotated grid, pixel fractions
_LIGHT_SPREAD = 0.09  # radius of the light's disc, radians
_BACKGROUND_CHUNK = 16  # backgrounds computed at once, so that intermediate values stay in the cache
_TILE_CHUNK = 192  # tiles of solids worked on at once, for the same reason
_FAR_FADE = 26.0  # distance over which the ground takes the colour of the horizon, world units

COLOUR_VALUES = {
    "red": (0.86, 0.10, 0.11),
    "orange": (0.98, 0.50, 0.04),
    "yellow": (0.98, 0.88, 0.10),
    "green": (0.07, 0.60, 0.16),
    "cyan": (0.08, 0.80, 0.86),
    "blue": (0.11, 0.22, 0.86),
    "purple": (0.56, 0.12, 0.72),
    "white": (0.95, 0.95, 0.95),
}
_PATTERN_LIGHT = (0.97, 0.96, 0.93)
_PATTERN_DARK = (0.20, 0.20, 0.22)  # the second colour of white solids

_SKY_COLOURS = {  # zenith, horizon, cloud
    "clear": ((0.30, 0.55, 0.92), (0.76, 0.88, 0.98), (0.86, 0.92, 0.98)),
    "cloudy": ((0.42, 0.52, 0.66), (0.72, 0.76, 0.80), (0.93, 0.93, 0.95)),
    "sunset": ((0.36, 0.30, 0.56), (0.99, 0.66, 0.36), (0.96, 0.48, 0.44)),
}
_CLOUD_COVER = {"clear": 0.18, "cloudy": 0.75, "sunset": 0.5}
_SUNLIGHT = {"clear": (1.0, 1.0, 0.98), "cloudy": (0.94, 0.95, 0.97), "sunset": (1.06, 0.93, 0.80)}

# Two random fields per ground: the first moves brightness, the second moves the hue.
_GROUND_OCTAVES = {
    "grass": (
        (
            *(Octave(0, (1.3, 1.3), 0.26), Octave(1, (0.5, 0.6), 0.34)),
            *(Octave(2, (0.2, 0.3), 0.46), Octave(3, (0.09, 0.17), 0.5)),
        ),
        (Octave(4, (0.9, 0.9), 0.4), Octave(5, (0.3, 0.3), 0.5)),
    ),
    "sand": (
        (
            *(Octave(0, (1.7, 0.8), 0.32), Octave(1, (0.7, 0.4), 0.36)),
            *(Octave(2, (0.3, 0.24), 0.36), Octave(3, (0.1, 0.1), 0.34)),
        ),
        (Octave(4, (1.2, 1.2), 0.4), Octave(5, (0.4, 0.4), 0.3)),
    ),
    "wood": (
        (Octave(0, (0.5, 4.0), 0.22), Octave(1, (0.18, 2.2), 0.42), Octave(2, (0.08, 1.2), 0.5)),
        (Octave(3, (0.6, 3.0), 0.4), Octave(4, (0.24, 1.6), 0.4)),
    ),
}
_GROUND_COLOURS = {  # base, change with the brightness field, change with the hue field
    "grass": ((0.27, 0.45, 0.14), (0.17, 0.20, 0.08), (0.09, 0.02, -0.02)),
    "sand": ((0.80, 0.69, 0.48), (0.13, 0.13, 0.11), (0.05, 0.01, -0.03)),
    "wood": ((0.58, 0.38, 0.22), (0.15, 0.12, 0.08), (0.05, 0.03, 0.01)),
}
_PLANK_WIDTH = 0.85
_CLOUD_OCTAVES = (
    *(Octave(0, (0.36, 0.11), 0.6), Octave(1, (0.16, 0.06), 0.45)),
    *(Octave(2, (0.07, 0.03), 0.3), Octave(3, (0.03, 0.018), 0.2)),
)


class RenderedScenes(NamedTuple):
    """A batch of pictures.

    Attributes:
        images: `[B, 3, H, W]` float32 in [0, 1].
        object_mask: `[B, H, W]` float32, share of each pixel covered by solids.
        ground_mask: `[H, W]` float32, 1 below the horizon and 0 above; the camera is fixed, so all pictures share it.
    """

    images: Tensor
    object_mask: Tensor
    ground_mask: Tensor


class SceneRenderer:
    """Renders batches of scenes with a fixed camera.

    Args:
        image_size: side of the square pictures in pixels, a multiple of 8, at least 32.
        device: where to render.

    Raises:
        ValueError: for an image size that is no multiple of 8.
    """

    def __init__(self, image_size: int = 128, device: str | torch.device = "cpu") -> None:
        if image_size < 4 * TILE or image_size % TILE:
            raise ValueError(f"image_size: {image_size} must be a multiple of {TILE} and at least {4 * TILE}")
        self.image_size = image_size
        self.device = torch.device(device)
        self._tiles_across = image_size // TILE
        # Pixel coordinates in tile order: [tiles * TILE * TILE]
        tile = torch.arange(self._tiles_across**2)
        inside = torch.arange(TILE * TILE)
        rows = ((tile // self._tiles_across) * TILE)[:, None] + inside // TILE
        columns = ((tile % self._tiles_across) * TILE)[:, None] + inside % TILE
        self._prepare_rays(columns.float(), rows.float())
        self._prepare_background(columns.flatten() + 0.5, rows.flatten() + 0.5)

    def _prepare_rays(self, columns: Tensor, rows: Tensor) -> None:
        """Directions of the rays of every tile, `[3][tiles, pixels * samples]`."""
        offsets = torch.tensor(_SAMPLES)
        directions = camera.ray_directions(
            columns[..., None] + offsets[:, 0], rows[..., None] + offsets[:, 1], self.image_size
        ).flatten(1, 2)
        self._directions = tuple(directions[..., axis].contiguous().to(self.device) for axis in range(3))

    def _prepare_background(self, columns: Tensor, rows: Tensor) -> None:
        """Everything about ground and sky that is the same in every picture."""
        step = torch.tensor([0.0, 1.0])
        samples = camera.ray_directions(columns[:, None] + step, rows[:, None] + step.flip(0), self.image_size)
        direction = camera.ray_directions(columns, rows, self.image_size)
        horizon_softness = 1.0 / self.image_size
        self._ground_share = (0.5 - direction[:, 1] / horizon_softness / 2.0).clamp(0, 1).to(self.device)
        downward = direction[:, 1].clamp_max(-0.02)
        distance = -camera.CAMERA_HEIGHT / downward
        place = torch.stack([direction[:, 0] * distance, direction[:, 2] * distance + camera.CAMERA_DEPTH], dim=-1)
        neighbour = -camera.CAMERA_HEIGHT / samples[..., 1].clamp_max(-0.02)
        neighbour_place = torch.stack(
            [samples[..., 0] * neighbour, samples[..., 2] * neighbour + camera.CAMERA_DEPTH], dim=-1
        )
        footprint = (neighbour_place - place[:, None]).abs().amax(1).clamp_min(1e-3)
        # In tile order the sky comes first and the ground last; only the tiles at the horizon are both.
        ground_tiles = (self._ground_share.cpu() > 0).unflatten(0, (-1, TILE * TILE)).any(-1).nonzero()
        sky_tiles = (self._ground_share.cpu() < 1).unflatten(0, (-1, TILE * TILE)).any(-1).nonzero()
        self._ground_start = int(ground_tiles.min()) * TILE * TILE
        self._sky_end = (int(sky_tiles.max()) + 1) * TILE * TILE
        self._full_ground_place = place.to(self.device)  # [P, 2] x and depth
        below = slice(self._ground_start, None)
        place, footprint, distance = place[below], footprint[below], distance[below]
        self._ground_place = place.to(self.device)
        self._haze = (1.0 - torch.exp(-(distance / _FAR_FADE).square())).to(self.device)
        self._ground_noise = {
            kind: tuple(noise_matrix(place, footprint, octaves).to(self.device) for octaves in fields)
            for kind, fields in _GROUND_OCTAVES.items()
        }
        direction = direction[: self._sky_end]
        sky_place = torch.stack([direction[:, 0] / direction[:, 2], direction[:, 1] / direction[:, 2]], dim=-1)
        self._sky_height = (sky_place[:, 1] / 0.25).clamp(0, 1).sqrt().to(self.device)
        self._cloud_noise = noise_matrix(sky_place, torch.full_like(sky_place, 0.005), _CLOUD_OCTAVES).to(self.device)
        gap = (place[:, 0] / _PLANK_WIDTH).frac().abs()
        gap = torch.minimum(gap, 1.0 - gap) * _PLANK_WIDTH
        width = footprint[:, 0].clamp_min(0.03)
        # A gap narrower than a pixel darkens it only in part.
        self._plank_gap = ((1.0 - gap / width).clamp(0, 1) * (0.03 / width)).to(self.device)
        self._plank = ((place[:, 0] / _PLANK_WIDTH).floor().long() % 64).to(self.device)

    @torch.no_grad()
    def __call__(self, scenes: Sequence[Scene]) -> RenderedScenes:
        """Render scenes; each picture depends on its own scene alone."""
        # A picture must not depend on whether a training step in lower precision asked for it.
        with torch.autocast(self.device.type, enabled=False):
            return self._render(scenes)

    def _render(self, scenes: Sequence[Scene]) -> RenderedScenes:
        tiles = torch.empty(len(scenes), self._tiles_across**2, TILE * TILE, 3, device=self.device)
        coverage = torch.zeros(tiles.shape[:3], device=self.device)
        # Frames of a video share ground and sky, which are most of the work.
        shared: dict[tuple[object, ...], list[int]] = {}
        for number, scene in enumerate(scenes):
            shared.setdefault((scene.seed, scene.ground, scene.sky), []).append(number)
        groups = list(shared.values())
        for start in range(0, len(groups), _BACKGROUND_CHUNK):
            chunk = groups[start : start + _BACKGROUND_CHUNK]
            painted = torch.empty(len(chunk), *tiles.shape[1:], device=self.device)
            self._background([scenes[numbers[0]] for numbers in chunk], painted.flatten(1, 2))
            for background, numbers in zip(painted, chunk, strict=True):
                tiles[numbers] = background
        solids = [batch for shape in SHAPES if (batch := SolidBatch.gather(shape, scenes, self.device))]
        # Shadows lie under every solid; far solids come first, so that nearer ones are painted over them.
        for picture, tile, keep in _by_layer([self._shadows(batch) for batch in solids]):
            tiles[picture, tile] *= keep[..., None]
        for picture, tile, alpha, pixel in _by_layer([self._solids(batch) for batch in solids]):
            tiles[picture, tile] = tiles[picture, tile] * (1.0 - alpha)[..., None] + pixel
            coverage[picture, tile] = coverage[picture, tile] * (1.0 - alpha) + alpha
        return RenderedScenes(
            self._untile(tiles.clamp_(0, 1)),
            self._untile(coverage[..., None])[:, 0],
            self._untile(self._ground_share.view(1, -1, TILE * TILE, 1))[0, 0],
        )

    def _untile(self, tiles: Tensor) -> Tensor:
        """`[B, T, 64, C]` -> `[B, C, H, W]`."""
        across = self._tiles_across
        return (
            tiles.unflatten(2, (TILE, TILE))
            .unflatten(1, (across, across))
            .permute(0, 5, 1, 3, 2, 4)
            .flatten(4, 5)
            .flatten(2, 3)
        )

    def _background(self, scenes: Sequence[Scene], out: Tensor) -> None:
        """Write ground and sky without solids to `out`, `[B, P, 3]` in tile order."""
        noise = torch.stack([lattice_values(scene.seed) for scene in scenes], dim=1).to(self.device)
        sky_end, ground_start = self._sky_end, self._ground_start
        sky = self._sky(scenes, noise)
        out[:, :ground_start] = sky[:, :ground_start]
        for kind in GROUNDS:
            members = [b for b, scene in enumerate(scenes) if scene.ground == kind]
            if members:
                index = torch.tensor(members, device=self.device)
                out[index, ground_start:] = self._ground(kind, noise[:, index])
        below = out[:, ground_start:]
        below.lerp_(self._palette(scenes, 1)[:, None], 0.7 * self._haze[None, :, None])
        seam = out[:, ground_start:sky_end]
        seam.copy_(torch.lerp(sky[:, ground_start:], seam, self._ground_share[None, ground_start:sky_end, None]))

    def _palette(self, scenes: Sequence[Scene], which: int) -> Tensor:
        return torch.tensor([_SKY_COLOURS[scene.sky][which] for scene in scenes], device=self.device)

    def _sky(self, scenes: Sequence[Scene], noise: Tensor) -> Tensor:
        """`[B, sky pixels, 3]`."""
        zenith, horizon, cloud = (self._palette(scenes, which)[:, None] for which in range(3))
        cover = torch.tensor([_CLOUD_COVER[scene.sky] for scene in scenes], device=self.device)[:, None]
        clouds = ((self._cloud_noise @ noise).t() * 0.9 + cover - 0.35).clamp(0, 1)
        sky = torch.lerp(horizon, zenith, self._sky_height[None, :, None])
        return torch.lerp(sky, cloud, clouds[..., None])

    def _ground(self, kind: str, noise: Tensor) -> Tensor:
        """`[B, ground pixels, 3]`."""
        base, by_brightness, by_hue = (torch.tensor(c, device=self.device) for c in _GROUND_COLOURS[kind])
        brightness, hue = ((matrix @ noise).t() for matrix in self._ground_noise[kind])
        if kind == "wood":
            # Each plank has its own shade; the lattices' first values serve as its random number.
            brightness = brightness + 0.45 * noise[self._plank].t()
        if kind == "sand":
            phase = self._ground_place[:, 1] * 7.0 + 0.6 * self._ground_place[:, 0]
            brightness = brightness + 0.27 * torch.sin(phase + 2.2 * brightness) * (1.0 - self._haze)
        colour = torch.addcmul(base, brightness[..., None], by_brightness)
        colour = colour.addcmul_(hue[..., None], by_hue)
        if kind == "wood":
            colour *= (1.0 - 0.55 * self._plank_gap)[None, :, None]
        return colour

    def _shadows(self, batch: SolidBatch) -> Painted:
        """How much light each ground pixel keeps beside solids: layer, picture, tile and factor `[K, 64]`."""
        owner, tile = _covering_tiles(batch.shadow_boxes(self.image_size), self._tiles_across)
        owner, tile = owner.to(self.device), tile.to(self.device)
        ground_place = self._full_ground_place.unflatten(0, (-1, TILE * TILE))
        ground_share = self._ground_share.unflatten(0, (-1, TILE * TILE))
        directions = batch.light_samples()
        factors = []
        for part in range(0, len(owner), _TILE_CHUNK):
            who, where = owner[part : part + _TILE_CHUNK], tile[part : part + _TILE_CHUNK]
            place = ground_place[where]  # [K, 64, 2]
            x, _, z = batch.to_local(
                who, place[..., 0] - batch.x[who, None], None, place[..., 1] - batch.depth[who, None]
            )
            light = tuple(component[who, None, :] for component in directions)  # [K, 1, 8]
            origin = (x[..., None], torch.zeros(1, 1, 1, device=self.device), z[..., None])
            distance, _ = intersect(batch.shape, origin, (light[0], light[1], light[2]))
            blocked = (distance != MISS).float().mean(-1)  # [K, 64]
            contact = torch.exp((0.6 - (x * x + z * z).sqrt()).clamp_max(0) * 3.0)
            share = ground_share[where]
            factors.append((1.0 - 0.62 * blocked * share) * (1.0 - 0.35 * contact * share))
        return batch.layer[owner], batch.picture[owner], tile, torch.cat(factors)

    def _solids(self, batch: SolidBatch) -> Painted:
        """Cover and colour of solids: layer, picture, tile, alpha `[K, 64]` and colour times alpha `[K, 64, 3]`."""
        owner, tile = _covering_tiles(batch.boxes(self.image_size), self._tiles_across)
        owner, tile = owner.to(self.device), tile.to(self.device)
        alphas, pixels = [], []
        for part in range(0, len(owner), _TILE_CHUNK):
            who, where = owner[part : part + _TILE_CHUNK], tile[part : part + _TILE_CHUNK]
            world = [component[where] for component in self._directions]
            direction = batch.to_local(who, world[0], world[1], world[2])
            origin = tuple(component[who, None] for component in batch.viewer)
            distance, normal = intersect(batch.shape, (origin[0], origin[1], origin[2]), direction)
            hit = distance != MISS
            reach = distance.masked_fill(~hit, 0.0)
            point = tuple(torch.addcmul(o, reach, d) for o, d in zip(origin, direction, strict=True))
            colour = batch.shade(who, (point[0], point[1], point[2]), normal, direction)
            share = hit.float()
            alphas.append(_pixel_mean(share))
            pixels.append(torch.stack([_pixel_mean(component * share) for component in colour], dim=-1))
        return batch.layer[owner], batch.picture[owner], tile, torch.cat(alphas), torch.cat(pixels)


Painted = tuple[Tensor, ...]


def _pixel_mean(samples: Tensor) -> Tensor:
    """`[K, 64 * samples]` -> `[K, 64]`."""
    return samples.unflatten(1, (TILE * TILE, len(_SAMPLES))).mean(-1)


def _by_layer(painted: Sequence[Painted]) -> Iterator[tuple[Tensor, ...]]:
    """Tiles of all shapes regrouped so that in each group a picture's tile occurs once, farthest solids first."""
    layer, *parts = (torch.cat(column) for column in zip(*painted, strict=True))
    for index in range(MAX_OBJECTS):
        chosen = (layer == index).nonzero()[:, 0]
        if len(chosen):
            yield tuple(part[chosen] for part in parts)


class SolidBatch:
    """All solids of one shape in a batch of pictures; every tensor has one entry a solid.

    Attributes:
        picture: `[N]` int64, which picture the solid is in.
        layer: `[N]` int64, 0 for the farthest solid of its picture.
        viewer: three `[N]` tensors, the camera in the solid's own frame.
    """

    def __init__(self, shape: str, entries: Sequence[tuple[int, int, SceneObject]], scenes: Sequence[Scene],
                 device: torch.device) -> None:  # fmt: skip
        items = [item for _, _, item in entries]
        self.shape = shape
        self.picture = torch.tensor([picture for picture, _, _ in entries], device=device)
        self.layer = torch.tensor([layer for _, layer, _ in entries], device=device)
        numbers = torch.tensor([(i.x, i.depth, i.rotation, i.radius) for i in items], device=device)
        self.x, self.depth, self.rotation, self.radius = numbers.unbind(-1)
        self._cos, self._sin, self._scale = self.rotation.cos(), self.rotation.sin(), 1.0 / self.radius
        self._light = torch.tensor([_light_direction(scenes[picture]) for picture, _, _ in entries], device=device)
        self._sunlight = torch.tensor([_SUNLIGHT[scenes[picture].sky] for picture, _, _ in entries], device=device)
        self._colour = torch.tensor([COLOUR_VALUES[item.colour] for item in items], device=device)
        self._second_colour = torch.tensor(
            [_PATTERN_DARK if item.colour == "white" else _PATTERN_LIGHT for item in items], device=device
        )
        self._material = {
            name: torch.tensor([float(item.material == name) for item in items], device=device)
            for name in ("shiny", "striped", "checkered")
        }
        px, py, pz = camera.POSITION
        offset = (px - self.x[:, None], torch.full_like(self.x[:, None], py), pz - self.depth[:, None])
        viewer = self.to_local(slice(None), *offset)
        self.viewer: Vector = (viewer[0][:, 0], viewer[1][:, 0], viewer[2][:, 0])

    @classmethod
    def gather(cls, shape: str, scenes: Sequence[Scene], device: torch.device) -> SolidBatch | None:
        """Every solid of a shape in the scenes; None if there is none."""
        entries = []
        for picture, scene in enumerate(scenes):
            for layer, item in enumerate(sorted(scene.objects, key=lambda item: -item.depth)):
                if item.shape == shape:
                    entries.append((picture, layer, item))
        return cls(shape, entries, scenes, device) if entries else None

    def to_local(self, owner: Tensor | slice, x: Tensor, y: Tensor | None, z: Tensor) -> Vector:
        """World vectors `[K, M]` in the frames of their solids `owner` `[K]`: turned, and measured in radii.

        A missing `y` stands for zeros.
        """
        cos, sin = (self._cos * self._scale)[owner, None], (self._sin * self._scale)[owner, None]
        height = torch.zeros_like(x) if y is None else y * self._scale[owner, None]
        return cos * x + sin * z, height, cos * z - sin * x

    def light_samples(self) -> Vector:
        """Directions to eight points on the light's disc, in the solids' frames: three tensors `[N, 8]`."""
        light = self._light
        across = torch.nn.functional.normalize(
            torch.stack([light[:, 2], torch.zeros_like(self.x), -light[:, 0]], dim=-1), dim=-1
        )
        upward = torch.linalg.cross(light, across)
        index = torch.arange(8, device=light.device) + 0.5
        radius, angle = _LIGHT_SPREAD * (index / 8).sqrt(), index * 2.399963
        points = (
            light[:, None]
            + (radius * angle.cos())[None, :, None] * across[:, None]
            + (radius * angle.sin())[None, :, None] * upward[:, None]
        )
        return self.to_local(slice(None), points[..., 0], points[..., 1], points[..., 2])

    def boxes(self, image_size: int) -> Tensor:
        """`[N, 4]` pixel boxes around the solids, on the CPU."""
        points = outline_points(self.shape, self.x.cpu(), self.depth.cpu(), self.rotation.cpu(), self.radius.cpu())
        return camera.bounding_boxes(points, image_size)

    def shadow_boxes(self, image_size: int) -> Tensor:
        """`[N, 4]` pixel boxes around the shadows and the darkening at the foot of the solids, on the CPU."""
        light, radius = self._light.cpu(), self.radius.cpu()
        level = light[:, [0, 2]].norm(dim=-1, keepdim=True)
        # The disc of the light reaches a little lower than its centre, which makes the shadow longer.
        length = EXTENTS[self.shape][1] * radius[:, None] * (level / light[:, 1:2] + 0.25)
        foot = torch.stack([self.x.cpu(), self.depth.cpu()], dim=-1)
        ends = torch.stack([foot, foot - light[:, [0, 2]] / level * length], dim=1)  # [N, 2, 2]
        corners = torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])
        reach = 1.55 * radius[:, None, None, None]
        x, z = (ends[:, :, None] + corners * reach).flatten(1, 2).unbind(-1)  # [N, 8]
        in_view = z.clamp_min(camera.POSITION[2] + 2.0)
        return camera.bounding_boxes(torch.stack([x, torch.zeros_like(x), in_view], dim=-1), image_size)

    def shade(self, owner: Tensor, point: Vector, normal: Vector, direction: Vector) -> Vector:
        """Colour of surface points: red, green and blue, each `[K, M]`.

        Args:
            owner: `[K]` int64, the solid of each point.
            point, normal, direction: three `[K, M]` tensors each, in the solid's frame; directions are unit vectors
                of the world measured in radii.
        """
        light = self.to_local(slice(None), self._light[:, :1], self._light[:, 1:2], self._light[:, 2:])
        lx, ly, lz = ((part * self.radius[:, None])[owner] for part in light)
        nx, ny, nz = normal
        # Light from the sky (less of it near the ground, which hides a part) and from the sun.
        openness = 0.72 + 0.28 * (point[1] * 1.4).clamp(0, 1)
        ambient = (0.42 + 0.16 * ny) * openness
        sun = (nx * lx + ny * ly + nz * lz).clamp_min_(0) * 0.62
        second = self._second_colour_share(owner, point)
        highlight, dulling = self._shine(owner, point, normal, direction, (lx, ly, lz))
        out = []
        for channel in range(3):
            albedo = torch.lerp(self._colour[owner, channel, None], self._second_colour[owner, channel, None], second)
            lit = torch.addcmul(ambient, sun, self._sunlight[owner, channel, None]).mul_(albedo)
            out.append(torch.addcmul(highlight, lit, dulling))
        return out[0], out[1], out[2]

    def _shine(
        self, owner: Tensor, point: Vector, normal: Vector, direction: Vector, light: Vector
    ) -> tuple[Tensor, Tensor]:
        """Mirrored light of shiny solids, and the share that their own colour keeps."""
        shiny = self._material["shiny"][owner, None]
        dx, dy, dz = (part * self.radius[owner, None] for part in direction)
        nx, ny, nz = normal
        facing = -(nx * dx + ny * dy + nz * dz)
        mx, my, mz = dx + 2 * facing * nx, dy + 2 * facing * ny, dz + 2 * facing * nz
        # Rays that missed have no true normal; the clamp keeps their unused values finite.
        gleam = (mx * light[0] + my * light[1] + mz * light[2]).clamp(0, 1)
        sheen = ((my - 0.12) * 20.0).clamp(0, 1) * (0.10 + 0.30 * (1.0 - facing.clamp(0, 1)).square())
        mirrored = 0.95 * gleam**24 + sheen
        if self.shape != "sphere":
            # Upright walls mirror only the ground; as in a photographer's studio, a bright band shows that they shine.
            mirrored = mirrored + 0.42 * (1.0 - ny.abs()) * torch.exp(-(3.2 * (point[1] - 1.05)).square())
        return shiny * mirrored, 1.0 - 0.12 * shiny

    def _second_colour_share(self, owner: Tensor, point: Vector) -> Tensor:
        """1 where a striped or checkered solid shows its second colour, else 0."""
        x, y, z = point
        stripe = (y * 2.1 + 0.5).floor().remainder(2) == 0
        check = ((x * 1.7).floor() + (y * 1.7 + 0.13).floor() + (z * 1.7).floor()).remainder(2) == 0
        return stripe * self._material["striped"][owner, None] + check * self._material["checkered"][owner, None]


def _light_direction(scene: Scene) -> tuple[float, float, float]:
    """Unit vector towards the light."""
    level = math.cos(scene.light_elevation)
    return (
        math.sin(scene.light_azimuth) * level,
        math.sin(scene.light_elevation),
        -math.cos(scene.light_azimuth) * level,
    )


def _covering_tiles(boxes: Tensor, tiles_across: int) -> tuple[Tensor, Tensor]:
    """Every tile that each box touches.

    Args:
        boxes: `[N, 4]` (left, top, right, bottom) in pixels, on the CPU.
        tiles_across: tiles along one side of the picture.

    Returns:
        owner: `[K]` int64, which box; tile: `[K]` int64, which tile.
    """
    first = (boxes[:, :2] / TILE).floor().long().clamp(0, tiles_across - 1)
    last = ((boxes[:, 2:] / TILE).ceil().long() - 1).clamp(0, tiles_across - 1)
    span = last - first + 1
    count = span.prod(-1)
    owner = torch.repeat_interleave(torch.arange(len(boxes)), count)
    within = torch.arange(len(owner)) - (count.cumsum(0) - count)[owner]
    row = first[owner, 1] + within // span[owner, 0]
    column = first[owner, 0] + within % span[owner, 0]
    return owner, row * tiles_across + column
