"""The verification-free token selector: which path of a drafted tree is taken unverified, and how much of it.

Belongs here: choosing a path and cutting it. Does not belong here: whether to skip at all (`schedule`).

VVS chooses among the paths from the root to the leaves, by default uniformly at random, which keeps the picture's
variety (choosing the most confident one costs about 1 FID in the paper). It cuts the path at the mean length, the
"dynamic truncation": `min(L_s, floor(mean L))`, where L counts draft tokens (the paper's definition). The released code
counts the root too and subtracts it again, which gives the same number and the same sequence.

A Jacobi window has one path. Its last guesses have not settled, so `WindowSelector` takes the first ones.

One choice is this project's own: "drafter" draws the path as the drafter would, level by level in proportion to its
probabilities within the tree. Uniform choice takes improbable tokens as often as probable ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from specdecode.roles import DecodeState, Draft, Selection
from specdecode.sampling import Tag
from specdecode.tree import chain_layout
from vargen.methods.vvs import CHOICES

Selector = Callable[[Draft, DecodeState], Selection]
"""Proposes a path for every row, and the most of it that is taken."""


class PathSelector:
    """Chooses a leaf path of each row's tree and cuts it.

    Args:
        choice: "sample", uniformly among leaf paths (not nodes); "confidence", the path the drafter believes in most;
            "central", the path most like all others by codebook vectors; "drafter", drawn level by level in proportion
            to the drafter's probabilities. "confidence" needs a draft with confidences, "drafter" one with those or
            with probabilities.
        truncate: cut at the mean length of the leaf paths.
        codebook: [V, d] unit vectors, for "central".

    Raises:
        ValueError: the choice is unknown or lacks what it needs.
    """

    graph_state = ("codebook",)

    def __init__(
        self,
        choice: Literal["sample", "confidence", "central", "drafter"] = "sample",
        truncate: bool = True,
        codebook: Tensor | None = None,
    ) -> None:
        if choice not in CHOICES:
            raise ValueError(f"choice must be one of {', '.join(CHOICES)}, got {choice!r}")
        if choice == "central" and codebook is None:
            raise ValueError('choice "central" compares codes, so codebook must be given')
        self.choice = choice
        self.truncate = truncate
        self.codebook = codebook

    def __call__(self, draft: Draft, state: DecodeState) -> Selection:
        """A path for every row; rows without a leaf below the root get a count of 0. Raises ValueError where a choice
        needs confidences and the draft has none."""
        tree = draft.tree
        if tree.is_chain:  # one path, as long as the mean of all
            width = min(tree.max_depth + 1, tree.num_nodes)
            path = chain_layout(tree.batch_size, width, tree.device).depth
            return Selection(path, tree.depth.amax(1))
        leaves = tree.leaves() & (tree.depth > 0)  # [B, n]
        number = leaves.sum(1)  # [B]
        if self.choice == "sample":
            draw = state.streams.uniform(Tag.SKIP, state.lengths)  # [B]
            wanted = (draw * number).long().clamp(max=(number - 1).clamp(min=0)) + 1
            leaf = ((leaves.cumsum(1) == wanted[:, None]) & leaves).int().argmax(1)
        elif self.choice == "confidence":
            leaf = torch.where(leaves, confidence_of(draft), -torch.inf).argmax(1)
        elif self.choice == "drafter":
            leaf = _draw_leaf(draft, state)
        else:
            assert self.codebook is not None
            leaf = torch.where(leaves, _mean_similarity(draft, leaves, self.codebook), -torch.inf).argmax(1)
        rows = torch.arange(tree.batch_size, device=tree.device)
        counts = tree.depth[rows, leaf]
        if self.truncate:
            mean = (tree.depth * leaves).sum(1) // number.clamp(min=1)  # floor
            counts = torch.minimum(counts, mean)
        path = tree.path_to(leaf).clamp(min=0)
        return Selection(path, counts * (number > 0))


class WindowSelector:
    """The first guesses of a window, as long as they have settled.

    Args:
        most: tokens taken at most.
        survival: the least confidence of a guess that is taken, in [0, 1]. For Jacobi windows this is the share of the
            distributions up to its place that did not change in the last forward pass. 0 does not ask.

    Raises:
        ValueError: a number is out of range.
    """

    def __init__(self, most: int, survival: float = 0.0) -> None:
        if most < 1:
            raise ValueError(f"most must be 1 or more, got {most}")
        if not 0 <= survival <= 1:
            raise ValueError(f"survival must lie between 0 and 1, got {survival}")
        self.most = most
        self.survival = survival

    def __call__(self, draft: Draft, state: DecodeState) -> Selection:
        """Take as much for every row as has settled; the draft is a chain."""
        tree = draft.tree
        taken = tree.valid[:, 1 : self.most + 1]
        if self.survival > 0:
            taken = taken & (confidence_of(draft)[:, 1 : self.most + 1] >= math.log(self.survival))
        path = torch.arange(taken.shape[1] + 1, device=tree.device).expand(tree.batch_size, -1)
        return Selection(path, taken.cumprod(1).sum(1))


def confidence_of(draft: Draft) -> Tensor:
    """The draft's confidences [B, n]. Raises ValueError where it has none."""
    if draft.confidence is None:
        raise ValueError("this choice needs a drafter that reports how sure it is, such as EAGLE with a dynamic tree")
    return draft.confidence


def _draw_leaf(draft: Draft, state: DecodeState) -> Tensor:
    """[B]: the leaf below the root reached by drawing a child in proportion to its probability at every node."""
    tree = draft.tree
    if draft.probabilities is not None:
        # Sampled children are draws already, and the first is the drafter's own.
        arrival = torch.arange(tree.num_nodes, device=tree.device).expand_as(tree.tokens).float()
    else:
        # The least of Exp(1) / p among siblings is a draw from p; in logarithms, and p up to the parent's share.
        noise = state.streams.exponential(Tag.SKIP, state.lengths, tree.num_nodes)  # [B, n]
        arrival = noise.log() - confidence_of(draft)
    node = torch.zeros_like(tree.tokens[:, 0])
    for _ in range(tree.max_depth):
        is_child = (tree.parents == node[:, None]) & tree.valid
        first = torch.where(is_child, arrival, torch.inf).argmin(1)
        node = torch.where(is_child.any(1), first, node)
    return node


def path_vectors(draft: Draft, leaves: Tensor, codebook: Tensor) -> Tensor:
    """Unit vectors of the drafted tokens on every leaf path, [B, n, depth, d]; zero at other nodes and past an end.

    Args:
        draft: trees of n nodes.
        leaves: [B, n] bool, the leaves to consider.
        codebook: [V, d] unit vectors.
    """
    paths = draft.tree.paths()[..., 1:]  # [B, n, depth]
    batch_size, num_nodes, depth = paths.shape
    tokens = draft.tree.tokens.gather(1, paths.clamp(min=0).flatten(1)).view(batch_size, num_nodes, depth)
    return codebook[tokens] * ((paths >= 0) & leaves[..., None])[..., None]


def _mean_similarity(draft: Draft, leaves: Tensor, codebook: Tensor) -> Tensor:
    """[B, n]: for each leaf path the cosines to all leaf paths' tokens at the same depths, averaged over its length."""
    vectors = path_vectors(draft, leaves, codebook)
    together = vectors.sum(1, keepdim=True)  # [B, 1, depth, d]
    return (vectors * together).sum((-1, -2)) / draft.tree.depth.clamp(min=1)
