"""Many visual tokens into few, by learned queries, for heads that cannot afford them all.

Belongs here: the compression. Does not belong here: the use of the few rows (`video_head.py`).

FLASH (arXiv 2505.12728, equation 3) has queries only: softmax(C F^T) F, without a scale. The features' norm grows with
the square root of their width, so the softmax soon selects one token and stops learning; `scale` divides by the
square root of the width, as attention does. ViSpec (arXiv 2509.15235) scales, and projects
keys and values; its several attention heads are one here.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class VisualCompressor(nn.Module):
    """Weighted means of visual tokens, one for each learned query.

    Args:
        dim: width of a visual token.
        num_queries: C, number of output tokens.
        scale: divide the scores by the square root of `dim`.
        projected: learn projections of keys and values, which start as the identity.

    Raises:
        ValueError: no query.
    """

    def __init__(self, dim: int, num_queries: int, scale: bool = False, projected: bool = False) -> None:
        super().__init__()
        if num_queries < 1:
            raise ValueError(f"num_queries must be at least 1, got {num_queries}")
        self.queries = nn.Parameter(torch.randn(num_queries, dim) / dim**0.5)
        self.factor = dim**-0.5 if scale else 1.0
        self.keys: nn.Module = _identity(dim) if projected else nn.Identity()
        self.values: nn.Module = _identity(dim) if projected else nn.Identity()

    def weights(self, visual: Tensor) -> Tensor:
        """[B, C, m] float32: the weight of each of the visual tokens [B, m, dim] for each query."""
        with torch.autocast(visual.device.type, enabled=False):  # large scores in bfloat16 are often equal
            keys = self.keys(visual.to(self.queries.dtype)).float()
            return (self.queries.float() @ keys.mT * self.factor).softmax(-1)

    def forward(self, visual: Tensor) -> Tensor:
        """[B, C, dim] of visual tokens [B, m, dim]; m must be above 0."""
        values = self.values(visual.to(self.queries.dtype))
        return self.weights(visual).to(values.dtype) @ values


def _identity(dim: int) -> nn.Linear:
    projection = nn.Linear(dim, dim, bias=False)
    nn.init.eye_(projection.weight)
    return projection
