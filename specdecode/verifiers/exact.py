"""Exact verification: the emitted tokens are those of plain decoding, or have exactly its distribution.

Belongs here: greedy matching, the one-draw walk, and multi-round rejection sampling.
Does not belong here: any rule that accepts more than the target's own distribution allows.

Which rule is used:

* Greedy: descend while the target's most probable token is among the children.
* Deterministic children (`draft.probabilities is None`): draw one token from the target at the node; if it is a child,
  descend, else emit it. For distinct children this accepts as often as testing each with probability p(x) and removing
  the rejected (the rule of the released EAGLE-2 code), but takes one draw per node. The draw for output position i uses
  the same random number as in plain decoding, so the tokens are even the same, whatever was drafted.
* Children drawn at random from known distributions: accept child x with probability min(1, p(x) / q(x)); after a
  rejection go on with p <- normalised max(p - q, 0) (Leviathan et al. 2023, "Fast inference from transformers via
  speculative decoding"; several children: Miao et al. 2024, "SpecInfer", multi-step speculative sampling).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import Tag, draw_tokens, logits_to_probabilities, sample
from specdecode.tree import TokenTree


class ExactVerifier:
    """Accepts as much as the target's own distribution allows, and no more."""

    exact = True

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Choose the rule for this draft and walk the tree; see the module's description.

        Args:
            draft: A tree of n nodes; `probabilities` [B, n, V] where its children were drawn at random.
            output: `logits` [B, n, V] for every node.
            state: Lengths, sampling and random streams. The random numbers of output position i have counter i.
        """
        if state.sampling.is_greedy:
            choices = output.logits.argmax(-1)  # [B, n]
            return walk_by_token(draft.tree, lambda node, level: choices.gather(1, node[:, None])[:, 0])
        if draft.probabilities is None:
            return one_draw_walk(draft.tree, output.logits, state)
        return multi_round_walk(draft.tree, draft.probabilities, output.logits, state)


def walk_by_token(tree: TokenTree, token_at: Callable[[Tensor, int], Tensor]) -> Verdict:
    """Descend from the root as long as the token chosen at a node is among its children.

    Args:
        tree: The drafted tree.
        token_at: `token_at(node [B], level) -> [B]`: the token that follows a node. It is asked once per level, for
            rows that have stopped descending too, whose answer is not used.
    """
    node = torch.zeros_like(tree.tokens[:, 0])
    descending = torch.ones_like(node, dtype=torch.bool)
    path, accepted, next_tokens = [node], torch.zeros_like(node), token_at(node, 0)
    for level in range(1, tree.max_depth + 1):
        matches = (tree.parents == node[:, None]) & (tree.tokens == next_tokens[:, None])  # [B, n]
        found, child = matches.max(dim=1)
        descending = descending & found
        node = torch.where(descending, child, node)
        next_tokens = torch.where(descending, token_at(node, level), next_tokens)
        accepted = accepted + descending
        path.append(node)
    return Verdict(torch.stack(path, dim=1), accepted, next_tokens)


def one_draw_walk(tree: TokenTree, logits: Tensor, state: DecodeState) -> Verdict:
    """One draw from the target per level; exact for deterministic children, and for any others.

    Distributions are computed along the path only: one filtered softmax per level instead of one per node.
    """
    rows = torch.arange(tree.batch_size, device=tree.device)

    def token_at(node: Tensor, level: int) -> Tensor:
        counters = (state.lengths + level)[:, None]
        return draw_tokens(logits[rows, node][:, None], state.sampling, state.streams, counters, Tag.TARGET)[:, 0]

    return walk_by_token(tree, token_at)


def multi_round_walk(tree: TokenTree, probabilities: Tensor, logits: Tensor, state: DecodeState) -> Verdict:
    """Test the children of each node in order, against what the earlier rejections have left of the target.

    Args:
        tree: The drafted tree.
        probabilities: [B, n, V] the distribution each node was drawn from.
        logits: [B, n, V] of the target.
        state: Lengths, sampling and random streams.
    """
    rows = torch.arange(tree.batch_size, device=tree.device)
    node = torch.zeros_like(tree.tokens[:, 0])
    next_tokens, accepted = torch.zeros_like(node), torch.zeros_like(node)
    descending = torch.ones_like(node, dtype=torch.bool)
    path = [node]
    for level in range(tree.max_depth + 1):
        counters = state.lengths + level
        target = logits_to_probabilities(logits[rows, node], state.sampling)  # [B, V]
        found, chosen = torch.zeros_like(descending), node
        if level < tree.max_depth:
            is_child = tree.parents == node[:, None]  # [B, n]
            rank = is_child.cumsum(1)
            thresholds = state.streams.uniform(Tag.ACCEPT, counters, tree.max_children)  # [B, children]
            for child_rank in range(tree.max_children):
                exists, child = (is_child & (rank == child_rank + 1)).max(dim=1)
                token = tree.tokens.gather(1, child[:, None])  # [B, 1]
                drawn_from = probabilities[rows, child]  # [B, V]
                tested = exists & ~found
                passes = thresholds[:, child_rank] * drawn_from.gather(1, token)[:, 0] < target.gather(1, token)[:, 0]
                chosen = torch.where(tested & passes, child, chosen)
                found = found | (tested & passes)
                target = torch.where((tested & ~passes)[:, None], _residual(target, drawn_from), target)
        # Whoever found no child ends here, with a draw from what is left; at the last level everyone does.
        ends = descending & ~found
        noise = state.streams.exponential(Tag.TARGET, counters, target.shape[-1])
        next_tokens = torch.where(ends, sample(target, noise), next_tokens)
        descending = descending & found
        if level < tree.max_depth:
            node = torch.where(descending, chosen, node)
            accepted = accepted + descending
            path.append(node)
    return Verdict(torch.stack(path, dim=1), accepted, next_tokens)


def _residual(target: Tensor, drawn_from: Tensor) -> Tensor:
    """Normalised max(p - q, 0). Where nothing is left p equals q up to rounding, and p is as good: [B, V]."""
    remainder = (target - drawn_from).clamp(min=0)
    total = remainder.sum(-1, keepdim=True)
    return torch.where(total > 0, remainder / total, target)
