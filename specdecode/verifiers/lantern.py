"""LANTERN: a draft token is also accepted where the target prefers a token that looks like it.

Belongs here: relaxed acceptance by moving probability from look-alike tokens to draft tokens, within a budget.
Does not belong here: the table of neighbours (`neighbours.py`), children drawn at random (`lantern_drawn.py`),
and the different rule of the released code (`lantern_release.py`).

The idea (LANTERN, arXiv 2410.03355; LANTERN++, arXiv 2502.06352): tokens with nearby codes are interchangeable. So at a
node with target distribution p, a child x may take over the probability of its nearest neighbours, nearest first, as
far as the budget allows.

The rule here takes one draw per node. Draw y from p with the random number of plain decoding. If y is a child, descend
to it; if a child has taken y over, descend to that child; else emit y and stop. The emitted distribution is p with the
taken probability moved, and its total variation from p is the probability moved.

* Each child, in draft order, takes the longest prefix of its neighbours whose cumulative probability fits its bound.
  Additive: as much of delta as earlier children left, so all children of a node move at most delta together.
  Multiplicative: (multiplier - 1) p(x), so no token becomes more than `multiplier` times as probable.
* Children are never moved, and count as 0 in a prefix. A token that two children reach goes to the first, but counts in
  both prefixes. This may waste budget and never exceeds it, and one cumulative sum serves all children of a node.
* Nothing is renormalised between siblings, since there is one draw and not a sequence of tests.

The bound holds for every set of children, and so for random ones too, as long as they do not depend on the random
numbers of this draw (`roles.Drafter` demands that).

Greedy decoding: p is the filtered softmax at temperature 1, probability is moved in the same way, and the most probable
token afterwards is chosen. A child can be accepted although top-k or top-p removed it, if its neighbours were kept.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.checks import check_bounds, check_vocabulary
from specdecode.kernels import fused_ops
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import Tag, logits_to_probabilities, sample
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import FEW_NUMBERS, ExactVerifier, multi_round_walk, walk_by_token
from specdecode.verifiers.lantern_drawn import Relaxation
from specdecode.verifiers.lantern_release import release_greedy_walk, release_walk
from specdecode.verifiers.neighbours import checked_table

MODES = ("exact_at_zero", "release")


class LanternVerifier:
    """Accepts look-alikes. Takes every draft: chains and trees, deterministic and random children.

    Exactly one of `delta` and `multiplier` is given. (The released code has one number for both, a multiplier if it is
    greater than 1.)

    Args:
        neighbours: [V, k] of any integer type: the k nearest other tokens of each, nearest first (see
            `nearest_neighbours`). k = 0 relaxes nothing. In mode "release" the last column is zeroed and never merged,
            since the released code zeroes one neighbour more than it merges.
        delta: LANTERN's additive budget in [0, 1]: the most probability that is moved at a node, which bounds the total
            variation between the emitted and the target's distribution there.
        multiplier: LANTERN++'s multiplicative bound, its lambda, >= 1: the neighbours taken by a child x may have
            (multiplier - 1) p(x) between them.
        mode: "exact_at_zero": the rules of this module and of `lantern_drawn`; at zero relaxation (delta 0, multiplier
            1 or k = 0) they are `ExactVerifier`. "release": the released code's sequential tests (`lantern_release`),
            with `delta` and deterministic children, for comparison with published figures; not exact at zero.

    Raises:
        ValueError: An argument is out of range, both or neither of `delta` and `multiplier` are given, or `neighbours`
            is no such table.
    """

    graph_state = ("neighbours", "_relaxation")

    def __init__(
        self,
        neighbours: Tensor,
        *,
        delta: float | None = None,
        multiplier: float | None = None,
        mode: Literal["exact_at_zero", "release"] = "exact_at_zero",
    ) -> None:
        if (delta is None) == (multiplier is None):
            given = "neither" if delta is None else "both"
            raise ValueError(f"give exactly one of delta (LANTERN) and multiplier (LANTERN++'s lambda), got {given}")
        if mode not in MODES:
            raise ValueError(f"mode must be one of {MODES}, got {mode!r}")
        self.delta = None if delta is None else check_bounds("delta", delta, 0, 1)
        self.multiplier = None if multiplier is None else check_bounds("multiplier", multiplier, 1)
        self.mode = mode
        self.neighbours = checked_table(neighbours).contiguous()
        self._limits = torch.tensor([self.delta or 0.0, (self.multiplier or 1.0) - 1, float(self.delta is None)])
        self._relaxation: Relaxation | None = None
        if mode == "release" and (self.delta is None or self.neighbours.shape[1] == 0):
            raise ValueError('mode "release" needs delta, and a column of neighbours that it zeroes')

    @property
    def exact(self) -> bool:
        """Whether nothing is relaxed. Never in mode "release": see `lantern_release`."""
        return self.mode == "exact_at_zero" and (
            self.delta == 0 or self.multiplier == 1 or self.neighbours.shape[1] == 0
        )

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Walk the tree; see the module's description.

        Args:
            draft: Any tree of n nodes, with `probabilities` [B, n, V] where its children were drawn at random.
            output: `logits` [B, n, V].
            state: Lengths, sampling and random streams.

        Raises:
            ValueError: The target has another vocabulary than the table of neighbours, or mode "release" is given
                children drawn at random.
        """
        check_vocabulary("neighbours", self.neighbours, output.logits)
        if self.exact:
            return ExactVerifier().accept(draft, output, state)
        if self.neighbours.device != output.logits.device:
            self.neighbours = self.neighbours.to(output.logits.device)
        if self.mode == "exact_at_zero":
            if draft.probabilities is None or state.sampling.is_greedy:
                return self._one_draw_walk(draft.tree, output.logits, state)
            if self._relaxation is None or self._relaxation.sums.device != output.logits.device:
                self._relaxation = Relaxation(self.neighbours, self.delta, self.multiplier)
            return multi_round_walk(draft.tree, draft.probabilities, output.logits, state, self._relaxation)
        assert self.delta is not None
        if state.sampling.is_greedy:
            return release_greedy_walk(draft.tree, output.logits, self.neighbours, self.delta)
        if draft.probabilities is not None:
            raise ValueError('mode "release" judges children that are a deterministic choice; draft the likeliest ones')
        return release_walk(draft.tree, output.logits, self.neighbours, self.delta, state)

    def _one_draw_walk(self, tree: TokenTree, logits: Tensor, state: DecodeState) -> Verdict:
        sampling = state.sampling
        softened = replace(sampling, temperature=1.0) if sampling.is_greedy else sampling
        rows = torch.arange(tree.batch_size, device=tree.device)
        is_small = tree.max_depth > 0 and logits.numel() <= FEW_NUMBERS
        if not sampling.is_greedy and is_small and fused_ops.serves(logits, state.lengths):
            target = logits_to_probabilities(logits, sampling)
            noise = state.streams.numbers(Tag.TARGET, state.lengths, target.shape[-1], tree.max_depth + 1)
            assert noise is not None  # a row's counters follow each other
            given = tree.tokens, tree.parents, target, noise, state.lengths, self.neighbours, self._limits
            return Verdict(*fused_ops.lantern(*given, tree.max_depth))

        def token_at(node: Tensor, level: int) -> tuple[Tensor, Tensor]:
            """The token that follows a node, and whether a child replaced the target's own, both [B]."""
            nothing = torch.zeros_like(node, dtype=torch.bool)
            node_logits = logits[rows, node]  # [B, V]
            target = logits_to_probabilities(node_logits, softened)
            if sampling.is_greedy:
                choice = node_logits.argmax(1)
            else:
                noise = state.streams.exponential(Tag.TARGET, state.lengths + level, target.shape[1])
                choice = sample(target, noise)
            if level == tree.max_depth:
                return choice, nothing
            tokens, has_child = _child_tokens(tree, node)  # [B, C], [B]
            nearest = self.neighbours[tokens]  # [B, C, k]
            if not sampling.is_greedy:
                # A child's bound depends on earlier children only, so children after the last one that could take the
                # drawn token are left out. A drawn child stays itself.
                drawn = (tokens == choice[:, None]).any(1, keepdim=True)
                could = (nearest == choice[:, None, None]).any(2) & has_child[:, None] & ~drawn  # [B, C]
                count = ragged.columns_needed(could)
                if not count:
                    return choice, nothing
                nearest, could = nearest[:, :count], could[:, :count]
            free = target.scatter(1, tokens, 0.0)  # what may move: everything but the children
            tokens = tokens[:, : nearest.shape[1]]
            reach = free.gather(1, nearest.flatten(1)).view(nearest.shape).cumsum(2)  # [B, C, k]
            if self.multiplier is None:
                bounds = _additive_bounds(reach, self.delta or 0.0)
            else:
                bounds = target.gather(1, tokens) * (self.multiplier - 1)
            takes = reach <= bounds[..., None]
            if sampling.is_greedy:
                relaxed = _most_probable(node_logits, target, tokens, nearest, takes)
                relaxed = torch.where(has_child, relaxed, choice)
                return relaxed, relaxed != choice
            claims = (takes & (nearest == choice[:, None, None])).any(2) & could  # [B, C]
            taken, first = claims.max(dim=1)
            return torch.where(taken, tokens.gather(1, first[:, None])[:, 0], choice), taken

        return walk_by_token(tree, token_at)


def _child_tokens(tree: TokenTree, node: Tensor) -> tuple[Tensor, Tensor]:
    """The children's tokens in draft order, [B, C], the first repeated where there are fewer; and whether any, [B]."""
    index = torch.arange(tree.num_nodes, device=tree.device)
    children = torch.where(tree.parents == node[:, None], index, tree.num_nodes)  # [B, n]
    children = children.topk(min(tree.max_children, tree.num_nodes), dim=1, largest=False).values  # [B, C], in order
    exists = children < tree.num_nodes
    children = torch.where(exists, children, children[:, :1]).clamp(max=tree.num_nodes - 1)
    return tree.tokens.gather(1, children), exists[:, 0]


def _additive_bounds(reach: Tensor, delta: float) -> Tensor:
    """[B, C]: how much of the shared budget each child may move.

    Args:
        reach: [B, C, k] cumulative mass of each child's neighbours.
        delta: The budget.
    """
    remaining = torch.full_like(reach[:, 0, :1], delta)  # [B, 1]
    bounds = []
    for child_reach in reach.unbind(1):  # [B, k]
        bounds.append(remaining)
        remaining = remaining - torch.where(child_reach <= remaining, child_reach, 0.0).amax(1, keepdim=True)
    return torch.cat(bounds, dim=1)


def _most_probable(logits: Tensor, target: Tensor, tokens: Tensor, nearest: Tensor, takes: Tensor) -> Tensor:
    """[B] int64: the most probable token after moving. In float64, so that different logits stay different.

    Args:
        logits: [B, V]. target: [B, V], zero at filtered tokens.
        tokens: [B, C] the children. nearest: [B, C, k] their neighbours. takes: [B, C, k] which of them are taken.
    """
    (batch_size, vocab_size), num_children = logits.shape, tokens.shape[1]
    mass = torch.where(target > 0, logits.double(), -torch.inf).softmax(1)
    free = mass.scatter(1, tokens, 0.0)
    # The first child that takes a token owns it; one column more for entries that take nothing.
    claimed = torch.where(takes, nearest, vocab_size).flatten(1)
    rank = torch.arange(num_children, device=logits.device)[:, None].expand(nearest.shape).flatten(1)
    owner = torch.full((batch_size, vocab_size + 1), num_children, device=logits.device)
    owner = owner.scatter_reduce_(1, claimed, rank, "amin")[:, :-1]  # [B, V]; num_children: nobody
    received = mass.new_zeros(batch_size, num_children + 1).scatter_add_(1, owner, free)
    moved = mass - torch.where(owner < num_children, free, 0.0)
    return moved.scatter_add_(1, tokens, received[:, :-1]).argmax(1)
