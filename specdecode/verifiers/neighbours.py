"""Tables of look-alike tokens: the nearest neighbours of every vector of a codebook.

Belongs here: distances between vectors, and checks of a table. Does not belong here: the origin of vectors, and
verifiers, which use neighbours.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.checks import FLOATS, INTEGERS, check_tensor, is_integer

# Distances computed at once: 16 MiB of float32, whatever the vocabulary's size.
_BLOCK_ELEMENTS = 1 << 22


@torch.no_grad()
def nearest_neighbours(vectors: Tensor, num_neighbours: int) -> Tensor:
    """The nearest other vectors of each vector by Euclidean distance, as in LANTERN (arXiv 2410.03355).

    Args:
        vectors: [V, d] of any float type, finite. They are not normalised: pass codes in the form the model uses.
        num_neighbours: k, between 0 and V - 1.

    Returns:
        [V, k] int64, nearest first, and of equally distant ones the smaller index first. A token is never its own
        neighbour, even if another has the same vector.

    Raises:
        ValueError: `vectors` has another shape or type or is not finite, or `num_neighbours` is out of range.
    """
    check_tensor("vectors must be", vectors, FLOATS, ("tokens", "dim"))
    vocab_size = vectors.shape[0]
    if not is_integer(num_neighbours):
        raise ValueError(f"num_neighbours must be an integer, got {num_neighbours!r}")
    if not 0 <= num_neighbours < vocab_size:
        raise ValueError(
            f"num_neighbours must lie in [0, {vocab_size - 1}], as there are {vocab_size} vectors and none is its own "
            f"neighbour, got {num_neighbours}"
        )
    vectors = vectors.float()
    if not bool(vectors.isfinite().all()):
        raise ValueError("vectors must be finite; some entry is infinite or not a number")

    index = torch.arange(vocab_size, device=vectors.device)
    blocks = []
    for rows in index.split(max(1, _BLOCK_ELEMENTS // vocab_size)):
        # Differences, not |a|^2 + |b|^2 - 2ab: that loses the small distances, which are the ones that matter here.
        distances = torch.cdist(vectors[rows], vectors, compute_mode="donot_use_mm_for_euclid_dist")  # [b, V]
        # Non-negative floats are ordered like their bits. Distance above, index below: one order without ties.
        keys = (distances.view(torch.int32).long() << 32) | index
        keys.scatter_(1, rows[:, None], torch.iinfo(torch.int64).max)
        nearest = keys.topk(num_neighbours, dim=1, largest=False, sorted=True).values
        blocks.append(nearest & 0xFFFFFFFF)
    return torch.cat(blocks)


def checked_table(neighbours: Tensor) -> Tensor:
    """A table of neighbours as int64 [V, k]. Raises ValueError where it is not one."""
    check_tensor("neighbours must be", neighbours, INTEGERS, ("tokens", "k"))
    table = neighbours.long()
    own = torch.arange(table.shape[0], device=table.device)[:, None]
    if bool(((table < 0) | (table >= table.shape[0])).any()):
        raise ValueError(f"neighbours must hold tokens in [0, {table.shape[0]}), the number of its rows")
    if bool((table == own).any()):
        raise ValueError("neighbours must not name a token as its own neighbour; see `nearest_neighbours`")
    return table
