"""Token trees: a drafter proposes one, and a target judges it in one forward pass.

Belongs here: the batched, padded tree of tokens, and all that follows from its shape (ancestors, paths, clipping). Does
not belong here: how tokens are drafted, which are accepted, and caches.

Layout. Node 0 is the root: the newest token of the row, drawn but not yet fed to the target. Parents stand before their
children. A node at depth d, if accepted, stands d positions after the root. Padding nodes have `valid` False, parent
-1, depth 0 and token 0; they are no node's ancestor, so nothing depends on them. A finished row is all padding, its
root included. A chain is a tree of width one (`max_children` 1), always in order: node i + 1 below node i, padding at
the end. So its cache entries never have to move.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode import ragged
from specdecode.kernels import fused_ops


@dataclass(frozen=True)
class TokenTree:
    """A batch of trees over tokens, all padded to n nodes.

    Args:
        tokens: [B, n] int64.
        parents: [B, n] int64 index of the parent; -1 for the root and for padding.
        depth: [B, n] int64; 0 for the root and for padding.
        valid: [B, n] bool.
        max_depth: A bound on `depth` known without looking at it, so that walks have a static length.
        max_children: The same for the number of children of a node; 1 says that this is a chain, in order.
    """

    tokens: Tensor
    parents: Tensor
    depth: Tensor
    valid: Tensor
    max_depth: int
    max_children: int

    @property
    def batch_size(self) -> int:
        """Number of rows."""
        return self.tokens.shape[0]

    @property
    def num_nodes(self) -> int:
        """Nodes of a row, root and padding included."""
        return self.tokens.shape[1]

    @property
    def device(self) -> torch.device:
        """Where the tensors lie."""
        return self.tokens.device

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children: node i + 1 stands below node i."""
        return self.max_children <= 1

    @classmethod
    def chain(cls, tokens: Tensor) -> TokenTree:
        """A tree of width one.

        Args:
            tokens: [B, n] int64; column 0 is the root, each later column the child of the one before.
        """
        layout = chain_layout(*tokens.shape, tokens.device)
        return cls(tokens, layout.parents, layout.depth, layout.valid, tokens.shape[1] - 1, 1)

    @classmethod
    def from_parents(
        cls,
        tokens: Tensor,
        parents: Tensor,
        valid: Tensor | None = None,
        max_depth: int | None = None,
        max_children: int | None = None,
    ) -> TokenTree:
        """A tree from its parent pointers.

        Args:
            tokens: [B, n] int64, the root first.
            parents: [B, n] int64, each smaller than its own index; -1 for the root. Ignored at padding.
            valid: [B, n] bool; None: no padding. A node below padding must be padding too.
            max_depth: A bound on the depth; the tighter it is, the shorter are all walks; None: n - 1.
            max_children: A bound on the children of a node; None: n - 1.
        """
        valid = torch.ones_like(tokens, dtype=torch.bool) if valid is None else valid
        max_depth = tokens.shape[1] - 1 if max_depth is None else max_depth
        max_children = tokens.shape[1] - 1 if max_children is None else max_children
        parents = parents.masked_fill(~valid, -1)
        depth = torch.zeros_like(parents)
        for _ in range(max_depth):
            depth = torch.where(parents >= 0, depth.gather(1, parents.clamp(min=0)) + 1, 0)
        return cls(tokens.masked_fill(~valid, 0), parents, depth, valid, max_depth, max_children)

    @classmethod
    def where(cls, rows: Tensor, yes: TokenTree, no: TokenTree) -> TokenTree:
        """Row by row the one tree or the other, padded to the larger.

        Args:
            rows: [B] bool, True for rows of `yes`.
            yes, no: trees of B rows.
        """
        num_nodes = max(yes.num_nodes, no.num_nodes)
        padding = {"tokens": 0, "parents": -1, "depth": 0, "valid": False}
        values = {}
        for name, value in padding.items():
            left, right = (
                F.pad(getattr(tree, name), (0, num_nodes - tree.num_nodes), value=value) for tree in (yes, no)
            )
            values[name] = torch.where(rows[:, None], left, right)
        return cls(
            **values, max_depth=max(yes.max_depth, no.max_depth), max_children=max(yes.max_children, no.max_children)
        )

    def check(self) -> None:
        """Verify the layout (reads the tensors, so it waits for the device: for tests and new drafters).

        Raises:
            ValueError: The first rule that does not hold, with its row and node.
        """
        shape = self.tokens.shape
        for name in ("parents", "depth", "valid"):
            if getattr(self, name).shape != shape:
                raise ValueError(f"tree.{name} must have the shape of tree.tokens {list(shape)}")
        index = torch.arange(self.num_nodes, device=self.device).expand(shape)
        inner = self.valid & (index > 0)
        parent_depth = self.depth.gather(1, self.parents.clamp(min=0))
        parent_valid = self.valid.gather(1, self.parents.clamp(min=0))
        rules = {
            "the root and padding must have parent -1": inner | (self.parents == -1),
            "the root and padding must have depth 0": inner | (self.depth == 0),
            "padding must have token 0": self.valid | (self.tokens == 0),
            "a parent must stand before its child": ~inner | ((self.parents >= 0) & (self.parents < index)),
            "a parent must not be padding": ~inner | parent_valid,
            "a child must be one deeper than its parent": ~inner | (self.depth == parent_depth + 1),
            f"depth must not exceed max_depth {self.max_depth}": self.depth <= self.max_depth,
        }
        if self.is_chain:
            rules["a chain (max_children 1) must stand in order"] = ~inner | (self.parents == index - 1)
        for rule, holds in rules.items():
            if not bool(holds.all()):
                row, node = (~holds).nonzero()[0].tolist()
                raise ValueError(f"invalid token tree: {rule} (row {row}, node {node})")

    def paths(self) -> Tensor:
        """[B, n, max_depth + 1] int64: the nodes from the root to each node, itself included; -1 beyond its depth."""
        index = torch.arange(self.num_nodes, device=self.device).expand(self.tokens.shape)
        paths = torch.full((*self.tokens.shape, self.max_depth + 1), -1, dtype=torch.int64, device=self.device)
        current = index
        for _ in range(self.max_depth + 1):
            # At the root the walk stands still and writes the root again.
            paths.scatter_(2, self.depth.gather(1, current)[..., None], current[..., None])
            parent = self.parents.gather(1, current)
            current = torch.where(parent >= 0, parent, current)
        return paths

    def path_to(self, nodes: Tensor) -> Tensor:
        """[B, max_depth + 1] int64: `paths` of one node of each row, [B] int64."""
        above = self.ancestor_mask()[ragged.rows_of(nodes)[:, 0], nodes]  # [B, n]
        index = torch.arange(self.num_nodes, device=self.device).expand(self.tokens.shape)
        path = torch.full((self.batch_size, self.max_depth + 2), -1, device=self.device)
        # Nodes that are not on the way go to a column more, which is cut off.
        return path.scatter_(1, torch.where(above, self.depth, self.max_depth + 1), index)[:, :-1]

    def ancestor_mask(self) -> Tensor:
        """[B, n, n] bool: entry (i, j) is True where node j is node i or an ancestor of it (padding: only itself)."""
        num_nodes = self.num_nodes
        if self.is_chain and self.valid is (layout := chain_layout(*self.tokens.shape, self.device)).valid:
            return layout.mask
        if (known := fused_ops.ancestors(self.parents)) is not None:
            return known
        index = torch.arange(num_nodes, device=self.device)
        mask = index[:, None] == index
        if self.is_chain:
            return mask | (self.valid[..., None] & (index[:, None] > index))
        mask = mask.expand(*self.tokens.shape, num_nodes)
        # Each round doubles how far up a node has looked: it takes over what the node it has come to has seen.
        reached = torch.where(self.parents >= 0, self.parents, index)
        for _ in range(self.max_depth.bit_length()):
            mask = mask | mask.gather(1, reached[..., None].expand_as(mask))
            reached = reached.gather(1, reached)
        return mask

    def leaves(self) -> Tensor:
        """[B, n] bool: valid nodes without a child."""
        # Roots and padding point at an extra column, which is cut off.
        targets = torch.where(self.parents >= 0, self.parents, self.num_nodes)
        has_child = torch.zeros(self.batch_size, self.num_nodes + 1, dtype=torch.bool, device=self.device)
        has_child.scatter_(1, targets, True)
        return self.valid & ~has_child[:, :-1]

    def leaf_paths(self) -> Tensor:
        """[B, n, max_depth + 1] int64: `paths`, with every entry -1 at nodes that are not leaves."""
        return self.paths().masked_fill(~self.leaves()[..., None], -1)

    def clip(self, max_depth: Tensor) -> TokenTree:
        """Turn nodes deeper than their row allows into padding.

        Args:
            max_depth: [B] int64, the greatest depth kept in each row; at a negative one the root goes as well.
        """
        valid = self.valid & (self.depth <= max_depth[:, None])
        padding = ~valid
        return replace(
            self,
            tokens=self.tokens.masked_fill(padding, 0),
            parents=self.parents.masked_fill(padding, -1),
            depth=self.depth.masked_fill(padding, 0),
            valid=valid,
        )


class ChainLayout(NamedTuple):
    """The fields of a chain without padding, and its ancestor mask [B, n, n]. Do not write to them."""

    parents: Tensor
    depth: Tensor
    valid: Tensor
    mask: Tensor


@ragged.constant
def chain_layout(batch_size: int, num_nodes: int, device: torch.device) -> ChainLayout:
    """The layout of a chain."""
    index = torch.arange(num_nodes, device=device)
    depth = index.repeat(batch_size, 1)
    mask = (index[:, None] >= index).repeat(batch_size, 1, 1)
    return ChainLayout(depth - 1, depth, torch.ones_like(depth, dtype=torch.bool), mask)
