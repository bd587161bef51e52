"""Stochastic detail: grass, sand, wood grain and clouds as sums of random lattices seen through the fixed camera.

Because the camera never moves, every pixel samples each lattice at a fixed place, so a texture is one constant sparse
matrix (pixels x lattice values) and a batch of textures is one sparse product. Does not belong here: colours and light
(`renderer.py`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

LATTICE_SIDE = 48
LATTICES = 6
NOISE_LENGTH = LATTICES * LATTICE_SIDE * LATTICE_SIDE


@dataclass(frozen=True)
class Octave:
    """One layer of value noise.

    Attributes:
        lattice: which of the image's random lattices it reads.
        period: distance between lattice points along the two texture coordinates.
        amplitude: largest deviation it contributes.
    """

    lattice: int
    period: tuple[float, float]
    amplitude: float


def noise_matrix(coordinates: Tensor, footprint: Tensor, octaves: tuple[Octave, ...]) -> Tensor:
    """Sparse matrix that turns an image's random lattices into one value per pixel.

    Lattices wrap around. An octave finer than a pixel's own footprint fades out there instead of flickering.

    Args:
        coordinates: `[P, 2]` texture coordinates of the pixels.
        footprint: `[P, 2]` extent of a pixel along each texture coordinate.
        octaves: layers to add up.

    Returns:
        `[P, NOISE_LENGTH]` float32 CSR matrix; multiply with lattice values of unit variance and zero mean.
    """
    rows, columns, weights = [], [], []
    pixel = torch.arange(len(coordinates))
    for octave in octaves:
        period = torch.tensor(octave.period)
        place = coordinates / period
        fade = ((1.5 * period / footprint - 1.0).clamp(0, 1)).amin(-1) * octave.amplitude
        corner = place.floor()
        blend = place - corner
        blend = blend * blend * (3.0 - 2.0 * blend)
        for over in (0, 1):
            for up in (0, 1):
                u = (corner[:, 0] + over).long() % LATTICE_SIDE
                v = (corner[:, 1] + up).long() % LATTICE_SIDE
                weight = torch.where(torch.tensor(bool(over)), blend[:, 0], 1 - blend[:, 0])
                weight = weight * torch.where(torch.tensor(bool(up)), blend[:, 1], 1 - blend[:, 1])
                rows.append(pixel)
                columns.append((octave.lattice * LATTICE_SIDE + v) * LATTICE_SIDE + u)
                weights.append(weight * fade)
    entries = torch.stack([torch.cat(rows), torch.cat(columns)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Sparse (CSR tensor support|invariant checks)")
        matrix = torch.sparse_coo_tensor(
            entries, torch.cat(weights), (len(coordinates), NOISE_LENGTH), check_invariants=False
        )
        return matrix.coalesce().to_sparse_csr()


def lattice_values(seed: int) -> Tensor:
    """`[NOISE_LENGTH]` random values of zero mean and unit variance that belong to one scene, on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(NOISE_LENGTH, generator=generator) - 0.5) * 12.0**0.5
