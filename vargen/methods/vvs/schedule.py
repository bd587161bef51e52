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

from specdecode.roles import DecodeState, Draft, RowReplacing, Selection
from vargen.methods.vvs.selector import Selector, confidence_of, path_vectors


class UniformSchedule:
    """VVS-U(i): of every i iterations one is skipped.

    An iteration of the paper is a verified or a skipped step. After i - 1 verified steps one is skipped, so i = 2
    alternates.

    Args:
        interval: i, 2 or more.
        selector: which tokens a skip takes.
        min_tokens: rows skip only once they have more tokens than this: before, there are no features to reuse. The
            released code has 5.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, interval: int, selector: Selector, min_tokens: int = 5) -> None:
        if interval < 2:
            raise ValueError(f"interval must be 2 or more (2 skips every other iteration), got {interval}")
        self.interval = interval
        self.selector = selector
        self.min_tokens = _checked_min_tokens(min_tokens)
        self._verified: list[int] = []  # of every row, on the host: nobody need wait to know that no row skips

    def start(self, state: DecodeState) -> None:
        """A new batch begins."""
        self._verified = [0] * len(state.lengths)

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Asked before every target pass; see `specdecode.roles.Schedule`."""
        due = [verified > 0 and verified % (self.interval - 1) == 0 for verified in self._verified]
        self._verified = [verified + 1 for verified in self._verified]
        if not any(due):
            return None
        rows = state.lengths > self.min_tokens
        if not all(due):
            rows = rows & torch.tensor(due, device=rows.device)
        return _only(self.selector(draft, state), rows)

    def replace_rows(self, rows: Tensor, other: UniformSchedule) -> None:
        """See `specdecode.roles.RowReplacing`."""
        for row, verified in zip(rows.tolist(), other._verified, strict=True):
            self._verified[row] = verified


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
        selector: Selector,
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
        self.threshold = threshold
        self.selector = selector
        self.codebook = codebook
        self.alpha = alpha
        self.path_stride = path_stride
        self.min_tokens = _checked_min_tokens(min_tokens)

    def start(self, state: DecodeState) -> None:
        """Nothing to forget."""

    def replace_rows(self, rows: Tensor, other: RowReplacing) -> None:
        """Nothing is kept about rows."""

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Asked before every target pass; waits for the device, to know whether any row skips."""
        alike = self._similarity(draft) > self.threshold
        skipping = alike & (state.lengths > self.min_tokens) & state.active
        if not bool(skipping.any()):
            return None
        return _only(self.selector(draft, state), skipping)

    def _similarity(self, draft: Draft) -> Tensor:
        """[B] how alike what could be taken is."""
        return tree_similarity(draft, self.codebook, self.alpha, self.path_stride)


class DynamicWindowSchedule(DynamicSchedule):
    """VVS-D(theta) for Jacobi windows: skip where whatever could be drawn for their first places looks alike.

    A window has one path, so there are no pairs to compare; but what else could have stood there is known exactly. The
    mean likeness (`path_likeness`) of its first guesses takes the place of the mean cosine of paths.

    Args:
        threshold, selector, codebook, alpha, min_tokens: as for `DynamicSchedule`.
        places: how many guesses are looked at.
    """

    def __init__(
        self,
        threshold: float,
        selector: Selector,
        codebook: Tensor,
        places: int,
        alpha: float = 0.9,
        min_tokens: int = 5,
    ) -> None:
        super().__init__(threshold, selector, codebook, alpha, min_tokens=min_tokens)
        self.places = places

    def _similarity(self, draft: Draft) -> Tensor:
        there = draft.tree.valid[:, 1 : self.places + 1]  # [B, k]
        path = torch.arange(there.shape[1] + 1, device=there.device).expand(len(there), -1)
        weights = self.alpha ** path[:, 1:] * there
        likeness = path_likeness(draft, path, self.codebook)
        return (likeness * weights).sum(1) / weights.sum(1).clamp(min=1e-9)


class LikenessSchedule:
    """Our own: skip as far as it is likely that whatever is drawn in place of the taken tokens looks like them.

    The dynamic schedule asks whether the paths of the tree look alike. It does not see that the drafter may believe in
    one of them only (then a different path does no harm), nor that it may believe in none (then likeness within the
    tree says little about what the target would draw). Here each token of the chosen path has a *likeness*: the
    drafter's probability, given the tokens before it, of the siblings in the tree, itself included, each counted with
    its cosine to the taken token where that is positive. What the drafter gives to tokens outside the tree counts as
    unlike. A likeness of 1 means a certain token, or certainly one of its doubles.

    Where the tokens were drawn from known distributions (`children: sampled`), those say what else could have been
    drawn: the likeness is then the mean of the positive cosines to the taken token under the distribution it was drawn
    from, and nothing is left out.

    The path is taken up to the first token whose likeness is below the threshold, and a skip shorter than `min_count`
    is not made: a skip costs a draft, which a single token does not pay for.

    Args:
        threshold: least likeness of a token that is taken unverified, 0 to 1.
        selector: proposes the path and the most of it that is taken.
        codebook: [V, d] unit vectors of the image tokens.
        min_tokens: as for `UniformSchedule`.
        min_count: the fewest tokens worth a skip.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(
        self, threshold: float, selector: Selector, codebook: Tensor, min_tokens: int = 5, min_count: int = 2
    ) -> None:
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is a likeness and must lie between 0 and 1, got {threshold}")
        if min_count < 1:
            raise ValueError(f"min_count must be 1 or more, got {min_count}")
        self.threshold = threshold
        self.selector = selector
        self.codebook = codebook
        self.min_tokens = _checked_min_tokens(min_tokens)
        self.min_count = min_count

    def start(self, state: DecodeState) -> None:
        """Nothing to forget."""

    def replace_rows(self, rows: Tensor, other: RowReplacing) -> None:
        """Nothing is kept about rows."""

    def select(self, draft: Draft, state: DecodeState) -> Selection | None:
        """Asked before every target pass; waits for the device, to know whether any row skips."""
        selection = self.selector(draft, state)
        alike = path_likeness(draft, selection.path, self.codebook) >= self.threshold  # [B, depth]
        counts = torch.minimum(alike.cumprod(1).sum(1), selection.counts)
        skipping = (counts >= self.min_count) & (state.lengths > self.min_tokens) & state.active
        if not bool(skipping.any()):
            return None
        return _only(replace(selection, counts=counts), skipping)


def path_likeness(draft: Draft, path: Tensor, codebook: Tensor) -> Tensor:
    """The likeness of each token on a path, [B, depth] in [0, 1]; see `LikenessSchedule`.

    Args:
        draft: trees with probabilities or with confidences.
        path: [B, depth + 1] nodes, the root first; entries past the path's end mean nothing, nor does their likeness.
        codebook: [V, d] unit vectors.
    """
    if draft.probabilities is not None:
        taken = path[:, 1:]  # [B, depth]
        cosines = (codebook[draft.tree.tokens.gather(1, taken)] @ codebook.T).clamp(min=0)  # [B, depth, V]
        rows = torch.arange(path.shape[0], device=path.device)[:, None]
        return (draft.probabilities[rows, taken] * cosines).sum(-1)
    tree, confidence = draft.tree, confidence_of(draft)
    vectors = codebook[tree.tokens]  # [B, n, d]
    likeness = []
    for level in range(1, path.shape[1]):
        above, taken = path[:, level - 1 : level], path[:, level : level + 1]  # [B, 1]
        siblings = (tree.parents == above) & tree.valid  # [B, n]
        given = (confidence - confidence.gather(1, above)).exp()
        own = vectors.gather(1, taken[..., None].expand(-1, -1, vectors.shape[-1]))  # [B, 1, d]
        cosine = (vectors * own).sum(-1).clamp(min=0)  # [B, n]
        likeness.append((siblings * given * cosine).sum(1))
    return torch.stack(likeness, dim=1) if likeness else confidence.new_zeros(path.shape[0], 0)


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


def _checked_min_tokens(min_tokens: int) -> int:
    if min_tokens < 1:
        raise ValueError(f"min_tokens must be 1 or more: the first token has no features to reuse, got {min_tokens}")
    return min_tokens


def _only(selection: Selection, rows: Tensor) -> Selection:
    """The selection, with nothing taken outside `rows` [B]."""
    return replace(selection, counts=selection.counts * rows)
