"""When verification is skipped.

Belongs here: schedules that say, before each target pass, which rows take drafted tokens unverified. Does not belong
here: which tokens those are (`selector`), and feeding them later (`specdecode.pending`).

A step of the decode loop is a target pass, before which rows may skip once; so no row ever skips twice in a row, and
rows of a batch skip independently without a pass being spent on any of them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from specdecode.roles import DecodeState, Draft, Selection
from vargen.vvs.selector import PathSelector, path_vectors


class UniformSchedule:
    """VVS-U(i): of every i iterations one is skipped.

    An iteration of the paper is a verified or a skipped step. After i - 1 verified steps one is skipped, so i = 2
    alternates.

    Args:
        interval: i, 2 or more.
        selector: which tokens a skip takes.
        min_tokens: rows skip only once they have more tokens than this: before, there are no features to reuse. The
            released code has 5.
        first_skip: verified steps before the first skip; None for i - 1 as later. The released code has 1, whatever i.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self, interval: int, selector: PathSelector, min_tokens: int = 5, first_skip: int | None = None
    ) -> None:
        if interval < 2:
            raise ValueError(f"interval must be 2 or more (2 skips every other iteration), got {interval}")
        if min_tokens < 1:
            raise ValueError(
                f"min_tokens must be 1 or more: the first token has no features to reuse, got {min_tokens}"
            )
        self.interval = interval
        self.selector = selector
        self.min_tokens = min_tokens
        self.first_skip = interval - 1 if first_skip is None else first_skip
        self._verified = 0

    def start(self) -> None:
        """A new batch begins."""
        self._verified = 0

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Asked before every target pass; see `specdecode.roles.Schedule`."""
        since_first = self._verified - self.first_skip
        self._verified += 1
        if since_first < 0 or since_first % (self.interval - 1):
            return None
        return _only(self.selector(draft, state), state.lengths > self.min_tokens)


class DynamicSchedule:
    """VVS-D(theta): skip where the tree's paths are alike, so that it matters little which is taken.

    The likeness is the mean cosine, over pairs of leaf paths, of the tokens at equal depth, averaged over depths with
    weights alpha^l. A path that has ended counts as unlike, so ragged trees score low (as in the released code, whose
    weights run to the longest path).

    Args:
        threshold: theta; rows above it skip. 0.65 in the paper, 0.7 in the released code.
        selector: which tokens a skip takes.
        codebook: [V, d] unit vectors of the image tokens.
        alpha: decay of the weights with depth.
        path_stride: look at every so-many-th leaf path; 2 in the released code, to save time.
        min_tokens: as for `UniformSchedule`.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self,
        threshold: float,
        selector: PathSelector,
        codebook: Tensor,
        alpha: float = 0.9,
        path_stride: int = 2,
        min_tokens: int = 5,
    ) -> None:
        if not -1 <= threshold <= 1:
            raise ValueError(f"threshold is a cosine and must lie between -1 and 1, got {threshold}")
        if not 0 < alpha <= 1:
            raise ValueError(f"alpha must lie above 0 and at most at 1, got {alpha}")
        if path_stride < 1:
            raise ValueError(f"path_stride must be 1 or more, got {path_stride}")
        if min_tokens < 1:
            raise ValueError(
                f"min_tokens must be 1 or more: the first token has no features to reuse, got {min_tokens}"
            )
        self.threshold = threshold
        self.selector = selector
        self.codebook = codebook
        self.alpha = alpha
        self.path_stride = path_stride
        self.min_tokens = min_tokens

    def start(self) -> None:
        """A new batch begins."""

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Asked before every target pass; waits for the device, to know whether any row skips."""
        alike = tree_similarity(draft, self.codebook, self.alpha, self.path_stride) > self.threshold
        skipping = alike & (state.lengths > self.min_tokens) & state.active
        if not bool(skipping.any()):
            return None
        return _only(self.selector(draft, state), skipping)


def tree_similarity(draft: Draft, codebook: Tensor, alpha: float = 0.9, path_stride: int = 1) -> Tensor:
    """How alike the leaf paths of each row's tree are, [B] in [-1, 1]; 0 where there are fewer than two.

    Args:
        draft: trees of n nodes.
        codebook: [V, d] unit vectors.
        alpha: decay of the depths' weights, which are alpha, alpha^2, ... normalised over the row's longest path.
        path_stride: of the leaf paths, in node order, the first and every so-many-th after it.
    """
    leaves = draft.tree.leaves() & (draft.tree.depth > 0)
    leaves = leaves & ((leaves.cumsum(1) - 1) % path_stride == 0)
    vectors = path_vectors(draft, leaves, codebook)  # [B, n, depth, d]
    number = leaves.sum(1).to(vectors)[:, None]  # [B, 1] paths
    there = (vectors.square().sum(-1) > 0).sum(1)  # [B, depth] paths that reach each depth
    # Sum over ordered pairs of cosines = |sum of vectors|^2 - number of vectors.
    pairs = vectors.sum(1).square().sum(-1) - there  # [B, depth]
    mean = pairs / (number * (number - 1)).clamp(min=1)
    depth = torch.arange(1, mean.shape[1] + 1, device=mean.device)
    weights = (alpha**depth) * (there > 0)
    return (mean * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


def _only(selection: Selection, rows: Tensor) -> Selection:
    """The selection, with nothing taken outside `rows` [B]."""
    return replace(selection, counts=selection.counts * rows)
