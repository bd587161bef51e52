"""A tree of a fixed shape, as tensors for drafting level by level.

Belongs here: which nodes are chosen, fed and seen at each level. Does not belong here: shapes (`tree_shapes.py`), and
drafters.

Only nodes with children are fed to a drafter, level by level; they are counted in the order of feeding.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from specdecode.drafters.tree_shapes import StaticTree
from specdecode.ragged import constant
from specdecode.roles import DecodeState
from specdecode.sampling import Tag, draw_tokens, largest, logits_to_probabilities
from specdecode.tree import TokenTree


def likeliest(values: Tensor, width: int) -> Tensor:
    """Indices of the `width` largest of `values` [..., V], largest first."""
    return largest(values)[..., None] if width == 1 else values.topk(width).indices


def coupled(logits: Tensor, width: int, state: DecodeState, level: int) -> Tensor:
    """The tokens that come first in the races that logits [B, i, V] run with the target's own random numbers: those by
    which it draws the token `level` places behind the first one that is not decoded yet. Greedily, the likeliest ones.

    So the first is the target's own draw wherever both distributions are alike enough, and the target's draw stays what
    it is, whatever was drafted (predictive sampling: Wiggers and Hoogeboom, arXiv 2002.09928).

    Returns:
        [B, i, width] int64, the first arrival first.
    """
    sampling, places = state.sampling, (state.lengths + level)[:, None]  # [B, 1]
    if width == 1:
        counters = places.expand(-1, logits.shape[1])
        return draw_tokens(logits, sampling, state.streams, counters, Tag.TARGET)[..., None]
    if sampling.is_greedy:
        return likeliest(logits, width)
    noise = state.streams.exponential(Tag.TARGET, places, logits.shape[-1])  # [B, 1, V], one for all nodes of a level
    return likeliest(logits_to_probabilities(logits, sampling) / noise, width)


@dataclass(frozen=True)
class PlanLevel:
    """How one level of a fixed shape of m nodes is drafted; all indices as tensors on the device.

    Args:
        above: [i] the nodes one level up that have children, counted from the root.
        parent: [m] the parent of each node, as an index into `above`. rank: [m]. width: the most children.
        inner: [j] those of the m nodes that have children themselves.
        inner_parent: [j] their parents, as indices into `above`.
        mask: [1, j, n] which of the nodes fed so far each of them sees. depths: [1, j].
        only_children: whether node k is the only child of the kth node above. all_inner: whether all nodes have
            children. On such levels, as in chains, nothing has to be looked up.
    """

    above: Tensor
    parent: Tensor
    rank: Tensor
    width: int
    inner: Tensor
    inner_parent: Tensor
    mask: Tensor
    depths: Tensor
    only_children: bool
    all_inner: bool

    def below(self, values: Tensor) -> Tensor:
        """The values of each node's parent [B, m, ...], of those of the nodes above [B, i, ...]."""
        return values if self.only_children else values[:, self.parent]

    def chosen(self, choices: Tensor) -> Tensor:
        """Each node's token [B, m], of the choices of the nodes above [B, i, width]."""
        return choices[..., 0] if self.only_children else choices[:, self.parent, self.rank]

    def of_inner(self, tokens: Tensor) -> Tensor:
        """The tokens of nodes with children [B, j], of those of all nodes [B, m]."""
        return tokens if self.all_inner else tokens[:, self.inner]

    def above_inner(self, values: Tensor) -> Tensor:
        """The values of the parents of nodes with children [B, j, ...], of those of the nodes above [B, i, ...]."""
        return values if self.only_children and self.all_inner else values[:, self.inner_parent]


class TreePlan:
    """A fixed shape, unrolled for drafting on a device.

    Attributes:
        num_nodes: the root included.
        is_chain: whether no node has two children.
        parents, depths: [num_nodes] int64.
        levels: how each is drafted, from depth 1 on.
        num_above: for each level, how many nodes one level up have children; `all_above` [1, k]: all of those.
        place_fed: [num_nodes] int64, which of the fed nodes each node is; -1 for the root and for leaves.
    """

    def __init__(self, shape: StaticTree, device: torch.device) -> None:
        self.num_nodes = shape.num_nodes
        self.is_chain = list(shape.parents) == list(range(-1, shape.num_nodes - 1))
        tensor = partial(torch.tensor, dtype=torch.int64, device=device)
        self.parents, self.depths = tensor(shape.parents), tensor(shape.depths)
        self.levels: list[PlanLevel] = []
        self.num_above: list[int] = []
        every_above: list[int] = []
        above: tuple[int, ...] = (0,)
        fed: list[int] = []
        for depth in range(1, shape.max_depth + 1):
            nodes, inner = shape.level(depth), shape.inner_level(depth)
            parent = [above.index(shape.parents[node]) for node in nodes]
            self.num_above.append(len(above))
            every_above += above
            fed += inner
            sees = [[_is_ancestor(shape, other, node) for other in fed] for node in inner]
            self.levels.append(
                PlanLevel(
                    above=tensor(above),
                    parent=tensor(parent),
                    rank=tensor([shape.ranks[node] for node in nodes]),
                    width=max(shape.ranks[node] for node in nodes) + 1,
                    inner=tensor([nodes.index(node) for node in inner]),
                    inner_parent=tensor([above.index(shape.parents[node]) for node in inner]),
                    mask=torch.tensor(sees, dtype=torch.bool, device=device)[None],
                    depths=torch.full((1, len(inner)), depth - 1, device=device),
                    only_children=parent == list(range(len(above))),
                    all_inner=len(inner) == len(nodes),
                )
            )
            above = inner
        self.all_above = tensor([every_above])
        self.place_fed = torch.full((self.num_nodes,), -1, dtype=torch.int64, device=device)
        self.place_fed[fed] = torch.arange(len(fed), device=device)

    def tree(self, tokens: Tensor, depth: int) -> TokenTree:
        """The first `depth` levels with their tokens [B, nodes], the root's first."""
        batch_size, num_nodes = tokens.shape
        if self.is_chain:
            return TokenTree.chain(tokens)
        return TokenTree(
            tokens=tokens,
            parents=self.parents[:num_nodes].expand(batch_size, -1),
            depth=self.depths[:num_nodes].expand(batch_size, -1),
            valid=torch.ones_like(tokens, dtype=torch.bool),
            max_depth=depth,
            max_children=max(level.width for level in self.levels[:depth]),
        )


@constant
def plan_of(shape: StaticTree, device: torch.device) -> TreePlan:
    """The plan of a shape, one for all that draft by it: graphs of one run then serve the next."""
    return TreePlan(shape, device)


def _is_ancestor(shape: StaticTree, other: int, node: int) -> bool:
    """Whether `other` is `node` or lies on its way to the root."""
    while node > other:
        node = shape.parents[node]
    return node == other
