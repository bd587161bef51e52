"""Features by position, and which of them stand in for those that a skipped step does not make.

Belongs here: storage and the choice of stand-ins. Does not belong here: who reads them (`specdecode.drafters.eagle`)
and when steps are skipped (`vargen.methods.vvs.schedule`).

VVS reuses features across neighbouring tokens because they are alike (section "token-level feature caching"; in the
paper adjacent tokens' features have a cosine of 0.68). A skipped step of m tokens needs features at m positions that
the target has not been fed; it reads those of the m newest positions it has been fed, in order. Once post verification
has fed the skipped tokens, their own features are written to their own positions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.ragged import put_rows


class FeatureCache:
    """Plays `specdecode.drafters.eagle.FeatureReuse`.

    Args:
        num_image_tokens: N, positions of a picture.
        staleness: after a skipped step: 0 reads the newest known features; s > 0 those s positions older.
        verified_staleness: after a verified step: -1 reads its own, fresh features; 0 and more those known before it,
            as if it had made none. Only for repeating the paper's staleness study (its s_1, `staleness` being s_2).

    Raises:
        ValueError: `staleness` is negative, or `verified_staleness` below -1.
    """

    def __init__(self, num_image_tokens: int, staleness: int = 0, verified_staleness: int = -1) -> None:
        if staleness < 0:
            raise ValueError(f"staleness must be 0 or more, got {staleness}")
        if verified_staleness < -1:
            raise ValueError(f"verified_staleness must be -1 (fresh) or more, got {verified_staleness}")
        self.num_image_tokens = num_image_tokens
        self.staleness = staleness
        self.verified_staleness = verified_staleness
        self._features = torch.empty(0)
        self._newest = torch.empty(0)

    def start(self, feature: Tensor) -> None:
        """A new batch: [B, 1, F], the feature after the prompt, which stands before position 0."""
        batch_size, _, width = feature.shape
        # One slot before the first token, and one for what is dropped.
        self._features = feature.new_zeros(batch_size, self.num_image_tokens + 2, width)
        self._features[:, :1] = feature
        self._newest = torch.full((batch_size,), -1, device=feature.device)

    def write(self, features: Tensor, first: Tensor, counts: Tensor) -> None:
        """Keep the first `counts[b]` of features [B, k, F] at positions `first[b]`, `first[b] + 1`, ..."""
        place = torch.arange(features.shape[1], device=first.device)
        slots = torch.where(place < counts[:, None], first[:, None] + place + 1, self.num_image_tokens + 1)  # [B, k]
        self._features.scatter_(1, slots[..., None].expand_as(features), features.to(self._features.dtype))
        self._newest = torch.where(counts > 0, torch.maximum(self._newest, first + counts - 1), self._newest)

    def after_verified(self, features: Tensor, first: Tensor, counts: Tensor) -> Tensor:
        """Keep the features [B, k, F] of a verified step, as `write`. Returns those to draft from, [B, k, F]."""
        if self.verified_staleness < 0:
            self.write(features, first, counts)
            return features
        before = self._stand_ins(counts, features.shape[1], self.verified_staleness)
        self.write(features, first, counts)
        return before

    def read(self, first: Tensor, counts: Tensor, width: int) -> Tensor:
        """Stand-ins for the features at positions `first[b]` ... `first[b] + counts[b] - 1`, [B, width, F].

        They are the features at the `counts[b]` newest known positions, in order, `staleness` positions older;
        where there are not so many, the oldest is repeated. Entries from `counts[b]` on mean nothing.
        """
        return self._stand_ins(counts, width, self.staleness)

    def replace_rows(self, rows: Tensor, other: FeatureCache) -> None:
        """See `specdecode.roles.RowReplacing`."""
        self._features = put_rows(self._features, rows, other._features)
        self._newest = put_rows(self._newest, rows, other._newest)

    def _stand_ins(self, counts: Tensor, width: int, staleness: int) -> Tensor:
        place = torch.arange(width, device=counts.device)
        positions = self._newest[:, None] - (counts[:, None] - 1) + place - staleness  # [B, width]
        slots = positions.clamp(min=-1, max=self.num_image_tokens - 1) + 1
        return self._features.gather(1, slots[..., None].expand(-1, -1, self._features.shape[-1]))

    def at(self, positions: Tensor) -> Tensor:
        """Features [B, k, F] kept at positions [B, k]."""
        return self._features.gather(1, (positions + 1)[..., None].expand(-1, -1, self._features.shape[-1]))
