"""A Frechet distance of a method's pictures in a comparison, by a network whose weights a package brings.

Belongs here: features of calls as records keep them, the reference and its cache. Does not belong here: networks
(`metrics.extractors`), the formula (`metrics.frechet`), and evaluations by a protocol (`vargen.jobs.measuring`).
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from metrics.errors import DataError
from metrics.extractors import EXTRACTORS
from metrics.frechet import GaussianStatistics, frechet_distance
from metrics.images import resize
from vargen.base.errors import UserError
from vargen.base.resources import cache_folder
from vargen.jobs.cases import ReferencePictures
from vargen.runs.batches import BatchStore, Share
from vargen.runs.identity import digest
from vargen.runs.progress import progress

_BATCH = 64
PACKAGED = tuple(name for name, kind in EXTRACTORS.items() if not kind.argument)
"""Extractors that need no file."""


class FeatureDistance:
    """The distance to reference pictures by one network.

    Args:
        name: of `PACKAGED`.
        reference: pictures to compare with.
        quiet: show no progress.

    Raises:
        UserError: another name, or the network's package is not installed.
    """

    def __init__(self, name: str, reference: ReferencePictures, quiet: bool = False) -> None:
        if name not in PACKAGED:
            raise UserError(f"extractor must be one of {', '.join(PACKAGED)}, or null, got {name!r}")
        try:
            self.network = EXTRACTORS[name].load(None, "cpu")
        except DataError as error:
            raise UserError(f"extractor: {error}") from error
        self.name, self.reference, self.quiet = name, reference, quiet

    @property
    def identity(self) -> str:
        """Network and reference, for the identity of a run."""
        return f"{self.network.identity}, {len(self.reference)} {self.reference.digest()}"

    def encode(self, pixels: Tensor) -> str:
        """Features of uint8 `[B, 3, H, W]` as a text of records."""
        return base64.b64encode(self.network(pixels).numpy().tobytes()).decode()

    def figures(self, encoded: Sequence[str]) -> dict[str, Any]:
        """The distance of all calls' pictures; None for fewer than two."""
        raw = b"".join(base64.b64decode(each) for each in encoded)
        features = torch.from_numpy(np.frombuffer(raw, np.float32).reshape(-1, self.network.num_features).copy())
        distance = None
        if len(features) > 1:
            distance = frechet_distance(self._statistics, GaussianStatistics.of(features))
        return {"frechet_distance": distance, "extractor": self.name}

    @cached_property
    def _statistics(self) -> GaussianStatistics:
        """The statistics of the reference. Its features are cached by content, in batches, so that a kill loses one
        batch at most."""
        folder = cache_folder() / "references" / digest([self.identity, "comparison"])
        store = BatchStore(folder, len(self.reference), _BATCH)

        def make(indices: range) -> tuple[dict[str, Any], dict[str, Any]]:
            pictures = self.reference.read(indices)
            return {"features": self.network(resize(pictures, "none", pictures[0].shape[-1])).numpy()}, {}

        with progress(len(store.batches), "batches of the reference measured", self.quiet) as shown:
            store.work(Share(), make, shown)
        arrays = [store.read(number)[0]["features"] for number in range(len(store.batches))]
        return GaussianStatistics.of(torch.from_numpy(np.concatenate(arrays)))
