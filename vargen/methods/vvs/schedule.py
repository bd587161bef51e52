"""When verification is skipped.

Belongs here: schedules that say, before each forward pass of the target, which rows take draft tokens unverified. Does
not belong here: which tokens those are (`selector`), and feeding them later (`specdecode.pending`).

A step of the decode loop is a forward pass, before which each row may skip once. So no row skips twice in a row, and
the rows of a batch skip independently without an extra pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.kernels import fused_ops
from specdecode.kernels.in_graph import in_graph
from specdecode.ragged import take
from specdecode.roles import DecodeState, Draft, RowReplacing, Schedule, Selection
from vargen.methods.vvs.selector import Selector, confidence_of, path_vectors

ALPHA = 0.9
"""Decay of a path's weights with depth, in the paper."""
_PATH_STRIDE = 2
"""Every so-many-th leaf path is compared, as in the released code, to save time."""


class _SkippingSchedule(Schedule):
    """What all schedules share; this one keeps nothing about rows.

    Args:
        selector: which tokens a skip takes.

    Attributes:
        min_tokens: rows skip only once they have more tokens than this: before, there are no features to reuse. As in
            the released code.
    """

    graph_state: tuple[str, ...] = ("selector", "codebook")
    min_tokens = 5

    def __init__(self, selector: Selector) -> None:
        self.selector = selector

    def _skipping(self, wanted: Tensor, state: DecodeState, select: Callable[[], Selection]) -> Selection | None:
        """What is selected of the rows [B] that want to skip and may; None: eagerly no row does."""
        rows = wanted & (state.lengths > self.min_tokens) & state.active
        return None if not in_graph() and not bool(rows.any()) else _only(select(), rows)

    def start(self, state: DecodeState) -> None:
        """A new batch begins."""

    def replace_rows(self, rows: Tensor, other: RowReplacing) -> None:
        """See `specdecode.roles.RowReplacing`."""


class UniformSchedule(_SkippingSchedule):
    """VVS-U(i): one of every i iterations is skipped.

    An iteration of the paper is a verification step or a skipped step. After i - 1 verification steps one is skipped,
    so i = 2 alternates. (The released code skips after its first verification step, whatever i.)

    Args:
        interval: i, 2 or more.
        selector: as for `_SkippingSchedule`.

    Raises:
        ValueError: a number is out of range.
    """

    graph_state = (*_SkippingSchedule.graph_state, "_is_due")

    def __init__(self, interval: int, selector: Selector) -> None:
        super().__init__(selector)
        if interval < 2:
            raise ValueError(f"interval must be 2 or more (2 skips every other iteration), got {interval}")
        self.interval = interval
        self._verified: list[int] = []  # by row, on the host: knowing that no row skips needs no wait for the device
        self._due: list[bool] = []

    def start(self, state: DecodeState) -> None:
        """A new batch begins."""
        self._verified, self._due = [0] * len(state.lengths), []
        self._is_due = torch.zeros_like(state.active)  # [B]

    def prepare(self) -> bool:
        """Whether any row is due. Counts a verification step for every row."""
        due = [verified > 0 and verified % (self.interval - 1) == 0 for verified in self._verified]
        self._verified = [verified + 1 for verified in self._verified]
        if any(due) and due != self._due:
            self._is_due.copy_(torch.tensor(due), non_blocking=True)
            self._due = due
        self._any_due = any(due)
        return self._any_due

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Asked before every forward pass of the target; see `specdecode.roles.Schedule`."""
        if not self._any_due:
            return None
        return _only(self.selector(draft, state), (state.lengths > self.min_tokens) & self._is_due)

    def replace_rows(self, rows: Tensor, other: UniformSchedule) -> None:  # type: ignore[override]
        """See `specdecode.roles.RowReplacing`."""
        for row, verified in zip(rows.tolist(), other._verified, strict=True):
            self._verified[row] = verified


class DynamicSchedule(_SkippingSchedule):
    """VVS-D(theta): skip where the tree's paths are alike, so that it matters little which one is taken.

    The likeness is the mean cosine, over pairs of leaf paths, of the tokens at equal depth, averaged over depths with
    weights alpha^l. A path that has ended counts as unlike, so ragged trees score low (as in the released code, whose
    weights run to the longest path).

    Args:
        threshold: theta; rows above it skip. 0.65 in the paper, 0.7 in the released code.
        selector: as for `_SkippingSchedule`.
        codebook: [V, d] unit vectors of the image tokens.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, threshold: float, selector: Selector, codebook: Tensor) -> None:
        super().__init__(selector)
        if not -1 <= threshold <= 1:
            raise ValueError(f"threshold is a cosine and must lie between -1 and 1, got {threshold}")
        self.threshold = threshold
        self.codebook = codebook

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Asked before every forward pass of the target; eagerly it waits for the device, to know whether any row
        skips. In a graph a second draft is always made."""
        alike = self._similarity(draft) > self.threshold
        return self._skipping(alike, state, lambda: self.selector(draft, state))

    def _similarity(self, draft: Draft) -> Tensor:
        """[B]: how alike the tokens are that could be taken."""
        return tree_similarity(draft, self.codebook, path_stride=_PATH_STRIDE)


class DynamicWindowSchedule(DynamicSchedule):
    """VVS-D(theta) for Jacobi windows: skip where everything that could be drawn for their first places looks alike.

    A window has one path, so there are no pairs to compare; but the distribution of each guess is known exactly. The
    mean likeness (`path_likeness`) of the first guesses replaces the mean cosine of paths.

    Args:
        threshold, selector, codebook: as for `DynamicSchedule`.
        places: how many guesses are looked at.
    """

    def __init__(self, threshold: float, selector: Selector, codebook: Tensor, places: int) -> None:
        super().__init__(threshold, selector, codebook)
        self.places = places

    def _similarity(self, draft: Draft) -> Tensor:
        there = draft.tree.valid[:, 1 : self.places + 1]  # [B, k]
        path = torch.arange(there.shape[1] + 1, device=there.device).expand(len(there), -1)
        weights = ALPHA ** path[:, 1:] * there
        likeness = path_likeness(draft, path, self.codebook)
        return (likeness * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


class LikenessSchedule(_SkippingSchedule):
    """This project's own: skip as far as any token drawn instead would probably look like the one taken.

    The dynamic schedule asks whether the paths of the tree look alike. It does not know whether the drafter believes in
    one of them only (then a different path does no harm), or in none (then likeness within the tree says little about
    what the target would draw). Here each token of the chosen path has a *likeness*: the sum over its siblings in the
    tree, itself included, of the drafter's probability of the sibling, given the tokens before it, times the sibling's
    cosine to the taken token where that is positive. Tokens outside the tree count as unlike. A likeness of 1 means
    that the token, or one that looks the same, is certain.

    If the tokens were drawn from known distributions (`children: sampled`), the likeness is the mean of the positive
    cosines to the taken token under the distribution that it was drawn from, and nothing is left out.

    The path is taken up to the first token whose likeness is below the threshold. A skip costs a draft, so a skip
    shorter than `min_count` is not made.

    Args:
        threshold: least likeness of a token that is taken unverified, 0 to 1.
        selector: proposes the path and the most of it that is taken.
        codebook: [V, d] unit vectors of the image tokens.
        min_count: the fewest tokens worth a skip.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, threshold: float, selector: Selector, codebook: Tensor, min_count: int = 2) -> None:
        super().__init__(selector)
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is a likeness and must lie between 0 and 1, got {threshold}")
        if min_count < 1:
            raise ValueError(f"min_count must be 1 or more, got {min_count}")
        self.threshold = threshold
        self.codebook = codebook
        self.min_count = min_count

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Asked before every forward pass of the target; eagerly it waits for the device, to know whether any row
        skips. In a graph a second draft is always made."""
        selection = self.selector(draft, state)
        alike = path_likeness(draft, selection.path, self.codebook) >= self.threshold  # [B, depth]
        if fused_ops.serves(alike):
            rows = selection.counts, state.lengths, state.active
            counts, any_taken = fused_ops.taken(alike, *rows, self.min_tokens, self.min_count)
            return replace(selection, counts=counts) if any_taken else None
        counts = torch.minimum(alike.cumprod(1).sum(1), selection.counts)
        return self._skipping(counts >= self.min_count, state, lambda: replace(selection, counts=counts))


def path_likeness(draft: Draft, path: Tensor, codebook: Tensor) -> Tensor:
    """The likeness of each token on a path, [B, depth] in [0, 1]; see `LikenessSchedule`.

    Args:
        draft: trees with probabilities or with confidences.
        path: [B, depth + 1] nodes, the root first; entries past the path's end, and their likeness, mean nothing.
        codebook: [V, d] unit vectors.
    """
    if draft.probabilities is not None:
        tokens, probabilities = draft.tree.tokens, draft.probabilities
        if draft.tree.is_chain:  # its path has all nodes in order
            tokens, probabilities = tokens[:, 1 : path.shape[1]], probabilities[:, 1 : path.shape[1]]
        else:
            tokens, probabilities = tokens.gather(1, path[:, 1:]), take(probabilities, path[:, 1:])
        cosines = F.linear(codebook[tokens], codebook).clamp_(min=0)  # [B, depth, V]
        return cosines.mul_(probabilities).sum(-1)
    tree, confidence = draft.tree, confidence_of(draft)
    vectors = codebook[tree.tokens]  # [B, n, d]
    likeness = []
    for level in range(1, path.shape[1]):
        above, taken = path[:, level - 1 : level], path[:, level : level + 1]  # [B, 1]
        siblings = tree.parents == above  # [B, n]; padding has no parent
        given = (confidence - confidence.gather(1, above)).exp()
        own = vectors.gather(1, taken[..., None].expand(-1, -1, vectors.shape[-1]))  # [B, 1, d]
        cosine = (vectors * own).sum(-1).clamp(min=0)  # [B, n]
        likeness.append((siblings * given * cosine).sum(1))
    return torch.stack(likeness, dim=1) if likeness else confidence.new_zeros(path.shape[0], 0)


def tree_similarity(draft: Draft, codebook: Tensor, alpha: float = ALPHA, path_stride: int = 1) -> Tensor:
    """How alike the leaf paths of each row's tree are, [B] in [-1, 1]; 0 where there are fewer than two.

    Args:
        draft: trees of n nodes.
        codebook: [V, d] unit vectors.
        alpha: decay of the depths' weights, which are alpha, alpha^2, ... normalised over the row's longest path.
        path_stride: compare the first leaf path, in node order, and every so-many-th after it.
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
