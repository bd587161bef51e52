"""Shapes of draft trees: fixed, or chosen by the drafter's confidence.

Belongs here: shapes, by name, from a user's list, or as a chain. Does not belong here: tokens, and how a tree grows
(`tree_growth.py`).

A node is named by the ranks on its way from the root: (0, 2) is the third choice after the first. The published shapes
are written as numbers of children, level by level: "3 / 2 1" is a root with three children; its first child has two
children, its second has one. Trailing zeros are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from specdecode.checks import check_counts

PUBLISHED_TREES = {
    # LANTERN++ (arXiv 2502.06352), its default and its alternatives.
    "naive_extend_57": "5 / 4 3 3 2 1 / 4 3 3 2 2 1 0 1 / 4 3 2 1 2 1 0 1 / 3 2 0 0 2 1 0 1",
    "mc_sim_7b_63_balanced": "3 / 3 3 2 / 3 2 0 2 2 / 3 / 2",
    "reverse_balanced_25": "3 / 2 1 1 / 3 2 1 / 3 2 / 4 3",
    # Medusa and EAGLE, found by search on a language model.
    "mc_sim_7b_63": "4 / 3 2 2 1 / 3 2 2 1 / 3 / 2",
    "medusa_2_7b_63": "10 / 10 5 2 2 1 1 1 1 / 9 4 2 1 1 1 0 0 0 0 3 1 0 0 0 1 / 4 1 1 0 0 0 0 0 0 1",
}
"""Fixed trees by the names of the released code; the numbers in the names are theirs and do not count nodes."""


@dataclass(frozen=True)
class StaticTree:
    """A fixed shape; node 0 is the root, and nodes stand level by level.

    Args:
        parents: the parent of each node, -1 for the root.
        ranks: which of its parent's choices each node is, from 0; 0 for the root.
    """

    parents: tuple[int, ...]
    ranks: tuple[int, ...]

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> StaticTree:
        """A shape from its nodes, each a list of ranks, such as `[[0], [1], [0, 0]]`; the root is not listed.

        Raises:
            ValueError: no node, a node without its parent or its earlier siblings, or a node listed twice.
        """
        listed = [tuple(int(rank) for rank in path) for path in paths]
        nodes = [(), *sorted(listed, key=lambda path: (len(path), path))]
        if not listed or () in listed:
            raise ValueError("tree must list at least one node below the root, and not the root itself")
        index = {node: position for position, node in enumerate(nodes)}
        if len(index) != len(nodes):
            raise ValueError("tree lists a node twice")
        for node in nodes[1:]:
            if node[:-1] not in index:
                raise ValueError(f"tree lists {list(node)} but not its parent {list(node[:-1])}")
            if node[-1] < 0 or (node[-1] > 0 and (*node[:-1], node[-1] - 1) not in index):
                raise ValueError(f"tree lists {list(node)} but not the choice before it; ranks count from 0")
        return cls((-1, *(index[node[:-1]] for node in nodes[1:])), (0, *(node[-1] for node in nodes[1:])))

    @classmethod
    def from_child_counts(cls, levels: str) -> StaticTree:
        """A shape from the numbers of children, see the module's description."""
        parents, ranks, level = [-1], [0], [0]
        for counts in levels.split("/"):
            below = []
            for node, count in zip(level, map(int, counts.split()), strict=False):
                for rank in range(count):
                    below.append(len(parents))
                    parents.append(node)
                    ranks.append(rank)
            level = below
        return cls(tuple(parents), tuple(ranks))

    @classmethod
    def chain(cls, draft_length: int) -> StaticTree:
        """A tree of width one, `draft_length` tokens long.

        Raises:
            ValueError: `draft_length` < 1.
        """
        return cls.branches(1, draft_length)

    @classmethod
    def branches(cls, count: int, draft_length: int) -> StaticTree:
        """`count` choices below the root, each followed by a chain; all are `draft_length` tokens long.

        Raises:
            ValueError: a number below 1.
        """
        check_counts(count=count, draft_length=draft_length)
        parents = (-1, *(max(0, node - count) for node in range(1, count * draft_length + 1)))
        return cls(parents, (0, *range(count), *(0,) * (count * (draft_length - 1))))

    @classmethod
    def published(cls, name: str) -> StaticTree:
        """A shape of `PUBLISHED_TREES`. Raises ValueError for another name."""
        if name not in PUBLISHED_TREES:
            raise ValueError(f"tree {name!r} is not known; choose one of: {', '.join(PUBLISHED_TREES)}")
        return cls.from_child_counts(PUBLISHED_TREES[name])

    @property
    def num_nodes(self) -> int:
        """Nodes, the root included."""
        return len(self.parents)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """The depth of each node, 0 for the root."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @property
    def max_depth(self) -> int:
        """Levels below the root."""
        return self.depths[-1]

    @property
    def max_children(self) -> int:
        """The most children of any node."""
        return max(self.ranks) + 1

    def level(self, depth: int) -> tuple[int, ...]:
        """The nodes at a depth, in order."""
        return tuple(node for node, at in enumerate(self.depths) if at == depth)

    def inner_level(self, depth: int) -> tuple[int, ...]:
        """The nodes at a depth that have children, in order."""
        inner = set(self.parents)
        return tuple(node for node in self.level(depth) if node in inner)


@dataclass(frozen=True)
class DynamicTree:
    """EAGLE-2's shape; how many nodes and levels is the sizer's choice.

    Args:
        top_k: nodes expanded per level, and children of each.
    """

    top_k: int = 10

    def __post_init__(self) -> None:
        check_counts(top_k=self.top_k)
