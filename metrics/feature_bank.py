"""Features of numbered pictures, gathered from all processes of a job and put in order.

The states are torchmetrics', which gathers them over torch.distributed when `compute` is called. Figures are then
computed from features in the order of the pictures, so they are the same, to the bit, however many processes there
were and whichever of them made which picture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from metrics.errors import DataError


class FeatureBank(Metric):
    """Numbers and features of pictures.

    Args:
        num_items: how many pictures there must be in the end.
        **kwargs: as for every torchmetrics metric.
    """

    full_state_update = False
    indices: list[Tensor]
    features: list[Tensor]

    def __init__(self, num_items: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_items = num_items
        self.add_state("indices", default=[], dist_reduce_fx="cat")
        self.add_state("features", default=[], dist_reduce_fx="cat")

    def update(self, indices: Tensor, features: Tensor) -> None:
        """Add pictures: int64 `[B]` and `[B, D]`."""
        self.indices.append(indices)
        self.features.append(features)

    def compute(self) -> Tensor:
        """`[num_items, D]`, row i the features of picture i. Raises DataError where a picture is missing or was counted
        twice."""
        # After gathering the states are tensors, before they are lists.
        indices, features = (
            torch.cat(list(state)) if isinstance(state, (list, tuple)) else state
            for state in (self.indices, self.features)
        )
        order = indices.argsort()
        if not torch.equal(indices[order], torch.arange(self.num_items, device=indices.device)):
            raise DataError(
                f"{len(indices)} pictures were measured, {indices.unique().numel()} of them different, of "
                f"{self.num_items}; delete the folder `measured` of the job and run it again"
            )
        return features[order]
