"""Which visual tokens a drafter may see.

Belongs here: scores of visual tokens and choosing by them, as plain functions of hidden states or attention, and
spreads that look at nothing. Does not belong here: leaving tokens out of a request (`request.keep_visual`), running a
model.

All choices are numbers of visual tokens, counted among the visual tokens, ascending: order is kept.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_GOLDEN = (5**0.5 - 1) / 2


def token_budget(count: int, keep_ratio: float) -> int:
    """How many of `count` tokens a share of `keep_ratio` is: rounded, at least one.

    (The released SpecVLM truncates in floating point, so that a tenth of 100 becomes 9.)

    Raises:
        ValueError: a share outside (0, 1], or no tokens.
    """
    if count < 1:
        raise ValueError(f"count must be at least 1, got {count}: the prompt has no visual tokens")
    if not 0 < keep_ratio <= 1:
        raise ValueError(f"keep_ratio must lie above 0 and at most at 1, got {keep_ratio}")
    return min(count, max(1, round(count * keep_ratio)))


def keep_uniform(count: int, budget: int) -> Tensor:
    """[budget] int64: one token of each of `budget` bins of equal length. The simple choice everywhere.

    The place in a bin turns by the golden ratio from bin to bin. With one fixed place, a stride that divides the width
    of a frame's grid keeps a few columns and never sees the others.
    """
    return _one_of_each_bin(count, (torch.arange(budget, dtype=torch.float64) + 0.5) * _GOLDEN % 1)


def keep_jittered(count: int, budget: int, generator: torch.Generator) -> Tensor:
    """[budget] int64: one token of each of `budget` bins of equal length, at a place drawn at random."""
    return _one_of_each_bin(count, torch.rand(budget, dtype=torch.float64, generator=generator))


def keep_random(count: int, budget: int, generator: torch.Generator) -> Tensor:
    """[budget] int64: drawn at random, without repetition."""
    return torch.randperm(count, generator=generator)[:budget].sort().values


def keep_low_discrepancy(places: Tensor, budget: int, generator: torch.Generator) -> Tensor:
    """[budget] int64: spread evenly over every axis at once, and over their diagonals, from an origin drawn at random.

    Each axis turns by a power of the generalised golden ratio, the root of x^(A + 1) = x + 1 (Roberts, 2018). Cells
    whose turns add up to least are kept, which are the points of a lattice that is skew to all axes.

    Args:
        places: [A, m] int64, where each visual token stands on every axis.
        budget: tokens to keep.
        generator: draws the origin.
    """
    ratio = 1.0
    for _ in range(64):  # a contraction: the root to the last bit
        ratio = (1 + ratio) ** (1 / (len(places) + 1))
    turns = torch.rand(1, dtype=torch.float64, generator=generator).expand(places.shape[1])
    for axis, along in enumerate(places.cpu()):
        turns = turns + along.unique(return_inverse=True)[1] * ratio ** -(axis + 1)
    return keep_highest(-(turns % 1), budget)


def _one_of_each_bin(count: int, shares: Tensor) -> Tensor:
    """[budget] int64 of `count` tokens: that in each bin which lies at this share of its length, [budget] in [0, 1)."""
    edges = torch.arange(len(shares) + 1) * count // len(shares)
    return edges[:-1] + (edges.diff() * shares).long()


def keep_highest(scores: Tensor, budget: int) -> Tensor:
    """[budget] int64: those with the highest scores [m]."""
    return scores.topk(budget).indices.sort().values


def visual_gain(visual_before: Tensor, visual_after: Tensor, text_before: Tensor, text_after: Tensor) -> Tensor:
    """[m] float32: how much likelier to the text each visual token has become between two layers (UV-Prune).

    ParallelVLM (arXiv 2603.19610) sums the growth of the cosine over all text tokens and all layers up to one; the sum
    over layers telescopes to the difference between that layer and the embeddings, and the sum over text tokens is one
    product with the sum of their unit vectors, so no m x n matrix is made.

    Args:
        visual_before, visual_after: [m, dim] visual tokens at the embeddings and after the layer.
        text_before, text_after: [n, dim] text tokens likewise; which ones count is the caller's choice.
    """

    def likeness(visual: Tensor, text: Tensor) -> Tensor:
        # A zero vector is like nothing, not NaN.
        return F.normalize(visual.float(), dim=-1) @ F.normalize(text.float(), dim=-1).sum(0)

    return likeness(visual_after, text_after) - likeness(visual_before, text_before)


def keep_by_attention(scores: Tensor, budget: int, share: float = 0.4) -> Tensor:
    """[budget] int64: SpecVLM's two stages (arXiv 2508.16201).

    First the fewest tokens that together have `share` of all attention, cut to the budget; then the rest of the budget
    evenly spread over those left.

    Args:
        scores: [m] non-negative, the attention that the text after the video pays to each visual token.
        budget: tokens to keep.
        share: of the first stage.

    Raises:
        ValueError: a share outside [0, 1].
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share must lie between 0 and 1, got {share}")
    order = scores.argsort(descending=True, stable=True)
    reached = scores[order].double().cumsum(0)
    num_first = int((reached < share * reached[-1]).sum()) + 1 if share > 0 else 0
    return fill_evenly(order[: min(num_first, budget)], len(scores), budget)


def fill_evenly(first: Tensor, count: int, budget: int) -> Tensor:
    """[budget] int64: the tokens `first` of `count`, and more that are evenly spread over those left."""
    left = torch.ones(count, dtype=torch.bool, device=first.device)
    left[first] = False
    others = left.nonzero()[:, 0]
    missing = budget - len(first)
    second = others[keep_uniform(len(others), missing).to(others.device)] if missing else others[:0]
    return torch.cat((first, second)).sort().values
