"""The Frechet distance between two sets of features, each taken for a Gaussian (Heusel et al., arXiv 1706.08500).

Belongs here: means, covariances, their file, their distance. Which network the features come from is `extractors`'
business; with Inception's the distance is FID, with another's it is that network's Frechet distance, and says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.features import check_features
from metrics.images import open_npz

_CHUNK = 4096  # rows turned into float64 at once
_ROUNDING = 1e-3
"""How far below zero the least variance may be, in greatest ones: other tools round to float32."""


@dataclass(frozen=True)
class GaussianStatistics:
    """Mean and covariance of a set of features.

    Attributes:
        mean: float64 `[D]`.
        covariance: float64 `[D, D]`, unbiased.
        count: of features; None where a file does not say.
    """

    mean: Tensor
    covariance: Tensor
    count: int | None

    @classmethod
    def of(cls, features: Tensor) -> GaussianStatistics:
        """The statistics of features `[N, D]`; sums are in float64 and in order, so equal features give equal bits.
        Raises DataError for fewer than two features, or one that is not finite."""
        check_features(features)
        if (count := len(features)) < 2:
            raise DataError(f"a covariance needs 2 or more pictures, got {count}")
        total = torch.zeros(features.shape[1], dtype=torch.float64)
        for chunk in features.split(_CHUNK):
            total += chunk.double().sum(dim=0)
        mean = total / count
        scatter = torch.zeros(len(mean), len(mean), dtype=torch.float64)
        for chunk in features.split(_CHUNK):
            centred = chunk.double() - mean
            scatter += centred.T @ centred
        return cls(mean, scatter / (count - 1), count)

    def arrays(self, ending: str = "") -> dict[str, np.ndarray]:
        """`mu` and `sigma`, as pytorch-fid, clean-fid and the ADM suite call them; the latter ends those of sFID in
        "_s"."""
        return {f"mu{ending}": self.mean.numpy(), f"sigma{ending}": self.covariance.numpy()}

    def save(self, path: Path | BinaryIO, **more: np.ndarray) -> None:
        """Write `mu`, `sigma`, `count`, and other arrays."""
        np.savez(path, **self.arrays(), count=self.count or 0, **more)  # type: ignore[arg-type]  # numpy names one keyword

    @classmethod
    def load(cls, path: Path, ending: str = "") -> GaussianStatistics:
        """Read such a file; `ending` as for `arrays`. Raises DataError when it holds something else."""
        with open_npz(path) as arrays:
            return cls.read(arrays, path, ending)

    @classmethod
    def read(cls, arrays: np.lib.npyio.NpzFile, path: Path, ending: str = "") -> GaussianStatistics:
        """Do what `load` does, with a file that is open."""
        names = (f"mu{ending}", f"sigma{ending}")
        if any(name not in arrays for name in names):
            told = " and ".join(names)
            raise DataError(f"{path} holds no statistics (arrays {told}); it has {', '.join(arrays.files)}")
        stored = [arrays[name] for name in names]
        for array in stored:
            if array.dtype.kind not in "fiu":
                raise DataError(
                    f"{path}: {names[0]} and {names[1]} must hold real numbers, not {array.dtype}; make them again"
                )
        mean, covariance = (torch.from_numpy(np.asarray(array, dtype=np.float64)) for array in stored)
        count = arrays["count"] if "count" in arrays else np.asarray(0)
        if count.shape or count.dtype.kind not in "iu" or count == 1 or count < 0:  # 0: it is not known
            raise DataError(f"{path}: count must be a number of pictures from 2 on, got {count!s:.40}; make it again")
        if not torch.isfinite(mean.square().sum() + covariance.square().sum()):
            raise DataError(
                f"{path}: {names[0]} and {names[1]} hold numbers that are not finite, or too large; make them again"
            )
        if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
            raise DataError(
                f"{path}: {names[0]} {tuple(mean.shape)} and {names[1]} {tuple(covariance.shape)} do not fit each other"
            )
        # Properties of a covariance that are cheap to check; other tools' are symmetric up to rounding.
        variance, scale = covariance.diagonal(), 1e-6 * float(covariance.abs().amax())
        if bool((variance < -scale).any()) or not torch.allclose(covariance, covariance.T, rtol=0, atol=scale):
            raise DataError(f"{path}: {names[1]} is no covariance: it must be symmetric, with no variance below zero")
        if scale == 0:
            raise DataError(f"{path}: {names[1]} is no covariance of pictures: no feature differs; make it again")
        return cls(mean, covariance, int(count) or None)


def frechet_distance(reference: GaussianStatistics, generated: GaussianStatistics) -> float:
    """`|m - m'|^2 + tr(C + C' - 2 (C C')^(1/2))` in float64, never below zero.

    torchmetrics computes the same but takes features only, not statistics; tests hold the two together. The trace of
    the root is that of `(R C' R)^(1/2)` with `R = C^(1/2)`, which is symmetric, so that its eigenvalues are real.

    Raises:
        DataError: the features have different numbers of dimensions, or statistics that are none.
    """
    reference, generated = _checked("reference", reference), _checked("generated", generated)
    if len(reference.mean) != len(generated.mean):
        raise DataError(
            f"the reference has features of {len(reference.mean)} dimensions, the pictures of {len(generated.mean)}: "
            "they come from different networks"
        )
    values, vectors = torch.linalg.eigh(reference.covariance)
    if values[0] < -_ROUNDING * values[-1]:
        raise DataError("the reference is no covariance: it has directions of negative variance; make it again")
    root = vectors * values.clamp_min(0).sqrt() @ vectors.T
    product = torch.linalg.eigvalsh(root @ generated.covariance @ root).clamp_min(0)
    distance = (reference.mean - generated.mean).square().sum()
    distance = distance + reference.covariance.trace() + generated.covariance.trace() - 2 * product.sqrt().sum()
    return max(float(distance), 0.0)


def _checked(name: str, found: object) -> GaussianStatistics:
    """Statistics in float64. Raises DataError for others than finite numbers of fitting sizes."""
    if not isinstance(found, GaussianStatistics) or not all(
        isinstance(each, Tensor) and each.is_floating_point() for each in (found.mean, found.covariance)
    ):
        raise DataError(f"{name} must be statistics, as GaussianStatistics.of makes them, got {type(found).__name__}")
    mean, covariance = found.mean.double(), found.covariance.double()
    if mean.ndim != 1 or covariance.shape != (len(mean), len(mean)):
        raise DataError(f"{name} has a mean {list(mean.shape)} and a covariance {list(covariance.shape)}")
    if not torch.isfinite(mean.square().sum() + covariance.square().sum()):
        raise DataError(f"{name} has statistics that are not finite, or too large; make them again")
    return GaussianStatistics(mean, covariance, found.count)
