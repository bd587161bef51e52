"""The acceptance rule of LANTERN's released code, reimplemented from its description for comparison.

Belongs here: that rule with its oddities, for children that are a deterministic choice and an additive bound.

Sampling. The children of a node are tested one after the other against a distribution p that starts as the target's
and changes with every rejection. For a child x, repeated tokens left out:

    reach  = cumulative p of x's k nearest neighbours, nearest first
    merged = the longest prefix with reach <= delta
    accept x if u <= p(x) + mass of merged
    rejected:   p(x) <- 0; if anything merged, p <- 0 at all k + 1 nearest neighbours
    then, if nothing is left of p, p <- 1 everywhere; normalise p

If no child is accepted, the token is drawn from p. "Anything merged" counts tokens, not mass: a prefix of tokens of
probability 0 is merged under any bound, even 0. With top-k filtering most neighbours have probability 0, so at delta =
0 a rejection still zeroes k + 1 neighbours. Hence the rule is *not* exact at zero relaxation, and delta does not bound
its total variation from p.

Greedy. Every draft token is tested on its own: p is the unfiltered softmax of the logits; x gets its own mass and that
of the merged ones, which lose nothing; it passes if it is then the most probable token. The longest path of passing
tokens is accepted (of several, the one whose last node comes first), and the target's most probable token follows.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from specdecode.roles import DecodeState, Verdict
from specdecode.sampling import Tag, logits_to_probabilities, sample
from specdecode.tree import TokenTree
from specdecode.verifiers.exact import Judgement, descend


def release_walk(tree: TokenTree, logits: Tensor, neighbours: Tensor, delta: float, state: DecodeState) -> Verdict:
    """Test the children of each node in turn; acceptance tests under `Tag.ACCEPT`, the draw under `Tag.TARGET`.

    Args:
        tree: Any tree whose children are a deterministic choice.
        logits: [B, n, V].
        neighbours: [V, k + 1] int64.
        delta: The mass that may be merged with a token.
        state: Lengths, sampling and random streams.
    """
    rows = torch.arange(tree.batch_size, device=tree.device)

    def judge(node: Tensor, level: int, descending: Tensor) -> Judgement:
        counters = state.lengths + level
        target = logits_to_probabilities(logits[rows, node], state.sampling)  # [B, V]
        found, chosen, lent = torch.zeros_like(descending), node, torch.zeros_like(descending)
        is_child = tree.parents == node[:, None]  # [B, n]
        rank = is_child.cumsum(1)
        num_children = tree.max_children if level < tree.max_depth else 0
        thresholds = state.streams.uniform(Tag.ACCEPT, counters, tree.max_children)  # [B, C]
        seen = torch.zeros_like(target, dtype=torch.bool)  # tokens of earlier siblings
        for child_rank in range(num_children):
            exists, child = (is_child & (rank == child_rank + 1)).max(dim=1)
            token = tree.tokens.gather(1, child[:, None])  # [B, 1]
            tested = exists & ~found & ~seen.gather(1, token)[:, 0]
            seen = seen.scatter(1, token, seen.gather(1, token) | exists[:, None])
            merged, mass = _merge(target, token, neighbours, delta)
            passes = tested & (thresholds[:, child_rank] <= mass)
            by_itself = thresholds[:, child_rank] <= target.gather(1, token)[:, 0]
            # Where nothing was merged the child alone is zeroed, k + 1 times over, to keep one shape.
            around = torch.where(merged[:, None], neighbours[token[:, 0]], token)  # [B, k + 1]
            left = target.scatter(1, token, 0.0).scatter(1, around, 0.0)
            total = left.sum(1, keepdim=True)
            left = torch.where(total > 0, left / total, 1 / target.shape[1])
            target = torch.where((tested & ~passes)[:, None], left, target)
            chosen = torch.where(passes, child, chosen)
            lent = lent | (passes & ~by_itself)
            found = found | passes
        noise = state.streams.exponential(Tag.TARGET, counters, target.shape[-1])
        return found, chosen, sample(target, noise), lent

    return descend(tree, judge)


def release_greedy_walk(tree: TokenTree, logits: Tensor, neighbours: Tensor, delta: float) -> Verdict:
    """Test every draft token at once and take the longest path that passes; arguments as for `release_walk`."""
    rows = torch.arange(tree.batch_size, device=tree.device)
    above = tree.parents.clamp(min=0)  # [B, n]
    before = logits.softmax(-1)[rows[:, None], above].flatten(0, 1)  # [B n, V]
    token = tree.tokens.reshape(-1, 1)
    _, mass = _merge(before, token, neighbours, delta)
    best = before.scatter(1, token, mass[:, None]).argmax(1)
    passes = (best == token[:, 0]).view(tree.tokens.shape) & (tree.parents >= 0)
    reached = functional.pad(torch.zeros_like(passes[:, 1:]), (1, 0), value=True)  # the root alone
    for _ in range(tree.max_depth):
        reached = reached | (passes & reached.gather(1, above))
    last = torch.where(reached, tree.depth, -1).argmax(1)
    path = tree.paths()[rows, last].clamp(min=0)
    choices = logits.argmax(-1)
    relaxed = tree.tokens.gather(1, path[:, 1:]) != choices.gather(1, path[:, :-1])
    return Verdict(path, tree.depth[rows, last], choices[rows, last], relaxed)


def _merge(target: Tensor, token: Tensor, neighbours: Tensor, delta: float) -> tuple[Tensor, Tensor]:
    """Whether any neighbour is merged with a token, and the mass of the token with all that are.

    Args:
        target: [B, V]. token: [B, 1]. neighbours: [V, k + 1], the first k of a row may merge.
        delta: The most mass of merged neighbours.

    Returns:
        [B] bool, and [B] of the type of `target`.
    """
    own = target.gather(1, token)[:, 0]
    reach = target.gather(1, neighbours[token[:, 0], :-1]).cumsum(1)  # [B, k]
    reach = functional.pad(reach, (1, 0))  # a prefix may be empty
    fits = reach <= delta
    return fits[:, 1:].any(1), own + torch.where(fits, reach, 0.0).amax(1)
