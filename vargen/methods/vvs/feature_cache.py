"""Features by position, and which of them stand in for those that a skipped step does not make.

Belongs here: storage and the choice of stand-ins. Does not belong here: reading them (`specdecode.drafters.eagle`) and
deciding when steps are skipped (`vargen.methods.vvs.schedule`).

VVS reuses features of neighbouring tokens because they are alike (section "token-level feature caching"; in the paper
adjacent tokens' features have a cosine of 0.68). A skipped step of m tokens needs features at m positions that the
target has not been fed; it reads those of the m newest positions that the target has been fed, in order. After the
next verification step has fed the skipped tokens, their own features are written to their own positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.kernels import fused_ops
from specdecode.ragged import newest, put_rows


class FeatureCache:
    """Plays `specdecode.drafters.eagle.FeatureReuse`.

    Args:
        num_image_tokens: N, positions of a picture.

    Attributes:
        newest: [B] int64, the newest position of each row with known features; -1: only the prompt's are known.
    """

    graph_state = ("newest", "_features")

    def __init__(self, num_image_tokens: int) -> None:
        self.num_image_tokens = num_image_tokens
        self.newest = torch.empty(0)
        self._features = torch.empty(0)

    def start(self, feature: Tensor) -> None:
        """A new batch: [B, 1, F], the feature after the prompt, which stands before position 0."""
        batch_size, _, width = feature.shape
        # One slot before the first token, and one for what is dropped.
        self._features = feature.new_zeros(batch_size, self.num_image_tokens + 2, width)
        self._features[:, :1] = feature
        self.newest = torch.full((batch_size,), -1, device=feature.device)

    def write(self, features: Tensor, first: Tensor, counts: Tensor) -> None:
        """Keep the first `counts[b]` of features [B, k, F] at positions `first[b]`, `first[b] + 1`, ..."""
        alike = features.dtype == self._features.dtype and features.shape[2] == self._features.shape[2]
        if alike and fused_ops.serves(first, counts):
            fused_ops.store(features, first, counts, self._features, 1, self.newest)
            return
        place = torch.arange(features.shape[1], device=first.device)
        slots = torch.where(place < counts[:, None], first[:, None] + place + 1, self.num_image_tokens + 1)  # [B, k]
        self._features.scatter_(1, slots[..., None].expand_as(features), features.to(self._features.dtype))
        self.newest = torch.where(counts > 0, torch.maximum(self.newest, first + counts - 1), self.newest)

    def after_verified(self, features: Tensor, first: Tensor, counts: Tensor) -> Tensor:
        """Keep the features [B, k, F] of a verification step, as `write`. Returns those to draft from, [B, k, F]."""
        self.write(features, first, counts)
        return features

    def read(self, first: Tensor, counts: Tensor, width: int) -> Tensor:
        """Stand-ins for the features at positions `first[b]` ... `first[b] + counts[b] - 1`, [B, width, F].

        They are the features at the `counts[b]` newest known positions, in order; where fewer are known, the oldest is
        repeated. Entries from `counts[b]` on mean nothing.
        """
        return newest(self._features, self.newest + 2, counts, width)

    def at(self, positions: Tensor) -> Tensor:
        """Features [B, k, F] at positions [B, k]; positions beyond an end read the feature at that end."""
        slots = positions.clamp(min=-1, max=self.num_image_tokens - 1) + 1
        return self._features.gather(1, slots[..., None].expand(-1, -1, self._features.shape[-1]))

    def replace_rows(self, rows: Tensor, other: FeatureCache) -> None:
        """See `specdecode.roles.RowReplacing`."""
        self._features = put_rows(self._features, rows, other._features)
        self.newest = put_rows(self.newest, rows, other.newest)
