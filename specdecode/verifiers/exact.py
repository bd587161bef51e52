"""Exact verification: the emitted tokens are those of plain decoding, or have exactly its distribution.

Belongs here: greedy matching, the one-draw walk, and multi-round rejection sampling. Does not belong here: rules that
accept more than the target's distribution allows.

* Greedy: descend while the target's most probable token is among the children.
* Deterministic children (`draft.probabilities is None`): draw one token from the target at the node; if it is a child,
  descend, else emit it. This accepts as often as testing each child with probability p(x) (the rule of the released
  EAGLE-2 code), with one draw per node. The draw for output position i uses the random number of plain decoding, so the
  tokens are those of plain decoding, whatever was drafted.
* Children drawn at random: accept child x with probability min(1, p(x) / q(x)); after a rejection continue with
  p <- normalised max(p - q, 0) (Leviathan et al. 2023, "Fast inference from transformers via speculative decoding";
  several children: Miao et al. 2024, "SpecInfer", multi-step speculative sampling).

Chains (`tree.max_children` 1) need no walk: the verdict at a node does not depend on how it was reached, so all nodes
are judged at once and the first rejection ends the chain. The tokens are the same, with a fixed number of operations.
Other verifiers change the test or the residual of `judge_chain`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode import ragged
from specdecode.kernels import fused_ops
from specdecode.kernels.fused_ops import Ahead
from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import Tag, draw_tokens, largest, logits_to_probabilities, sample
from specdecode.tree import TokenTree, chain_layout

FEW_NUMBERS = 2**18
"""Distributions of a tree's nodes are computed all at once up to so many probabilities."""


class ExactVerifier:
    """Accepts as much as the target's own distribution allows, and no more."""

    exact = True

    def accept(self, draft: Draft, output: TargetOutput, state: DecodeState) -> Verdict:
        """Judge a draft by the rule for its kind; see the module's description.

        Args:
            draft: A tree of n nodes; `probabilities` [B, n, V] where its children were drawn at random.
            output: `logits` [B, n, V] for every node.
            state: Lengths, sampling and random streams. The random numbers of output position i have counter i.
        """
        if draft.tree.num_nodes == 1:
            return root_only(output, state)
        if state.sampling.is_greedy:
            return greedy_walk(draft.tree, output.logits)
        if draft.probabilities is None:
            return one_draw_walk(draft.tree, output, state)
        if draft.tree.is_chain:
            return judge_chain(draft, chain_targets(draft.tree, output, state), state)
        return multi_round_walk(draft.tree, draft.probabilities, output.logits, state)


def root_only(output: TargetOutput, state: DecodeState) -> Verdict:
    """The verdict where nothing was drafted: draw the next token after the root."""
    if state.sampling.is_greedy:
        tokens = largest(output.logits)
    else:
        tokens = state.streams.race(output.probabilities(state.sampling), Tag.TARGET, state.lengths[:, None])
    nothing = torch.zeros_like(tokens)
    return Verdict(nothing, nothing[:, 0], tokens[:, 0])


def greedy_walk(tree: TokenTree, logits: Tensor) -> Verdict:
    """Descend while the most probable token is among the children.

    Args:
        tree: The drafted tree.
        logits: [B, n, V] of the target.
    """
    if fused_ops.serves(logits):
        return _walked(tree, logits, None, tree.tokens[:, 0])
    choices = largest(logits)  # [B, n]
    if tree.is_chain:
        return chain_by_token(tree, choices)
    return walk_by_token(tree, lambda node, level: (choices.gather(1, node[:, None])[:, 0], None))


Judgement = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""What a rule says of a node of each row: whether one of its children is accepted [B] bool, which [B] int64, the token
that follows where none is [B] int64, and whether the exact rule would have rejected it [B] bool, None: never."""


def descend(tree: TokenTree, judge: Callable[[Tensor, int, Tensor], Judgement]) -> Verdict:
    """Walk from the root along accepted children.

    Args:
        tree: The drafted tree.
        judge: `judge(node [B], level, descending [B])`, called once per level until all rows are known to have stopped;
            what it says of rows that are not descending is not used.
    """
    node = torch.zeros_like(tree.tokens[:, 0])
    accepted, next_tokens = torch.zeros_like(node), torch.zeros_like(node)
    descending = torch.ones_like(node, dtype=torch.bool)
    path, relaxed = [node], []
    for level in range(tree.max_depth + 1):
        found, child, token, lent = judge(node, level, descending)
        next_tokens = torch.where(descending & ~found, token, next_tokens)
        descending = descending & found
        if level == tree.max_depth:
            break
        node = torch.where(descending, child, node)
        accepted = accepted + descending
        path.append(node)
        if lent is not None:
            relaxed.append(lent & descending)
        if ragged.surely_none(descending):
            break
    missing = tree.max_depth + 1 - len(path)
    path += [node] * missing
    lent_by_level = F.pad(torch.stack(relaxed, dim=1), (0, missing)) if relaxed else None
    return Verdict(torch.stack(path, dim=1), accepted, next_tokens, lent_by_level)


def walk_by_token(tree: TokenTree, token_at: Callable[[Tensor, int], tuple[Tensor, Tensor | None]]) -> Verdict:
    """Descend from the root as long as the token chosen at a node is among its children.

    Args:
        tree: The drafted tree.
        token_at: `token_at(node [B], level)`: the token that follows a node, and whether the exact rule would not have
            chosen it (None: never), both [B]; called as `descend` says.
    """

    def judge(node: Tensor, level: int, descending: Tensor) -> Judgement:
        token, lent = token_at(node, level)
        found, child = ((tree.parents == node[:, None]) & (tree.tokens == token[:, None])).max(dim=1)
        return found, child, token, lent

    return descend(tree, judge)


def one_draw_walk(tree: TokenTree, output: TargetOutput, state: DecodeState) -> Verdict:
    """One draw from the target per level; exact for deterministic children, and for any others.

    In a large tree, distributions are computed along the path only: one filtered softmax for each level instead of one
    for each node.
    """
    logits = output.logits
    if tree.is_chain or logits.numel() <= FEW_NUMBERS:
        target = output.probabilities(state.sampling)
        if fused_ops.serves(target, state.lengths):
            count = tree.max_depth + 1
            noise = state.streams.numbers(Tag.TARGET, state.lengths, target.shape[-1], count)
            return _walked(tree, target, noise, state.lengths)
    if tree.is_chain:
        target = chain_targets(tree, output, state)
        return chain_by_token(tree, state.streams.race(target, Tag.TARGET, chain_counters(tree, state)))
    rows = torch.arange(tree.batch_size, device=tree.device)

    def token_at(node: Tensor, level: int) -> tuple[Tensor, None]:
        counters, here = (state.lengths + level)[:, None], logits[rows, node][:, None]
        return draw_tokens(here, state.sampling, state.streams, counters, Tag.TARGET)[:, 0], None

    return walk_by_token(tree, token_at)


def _walked(tree: TokenTree, target: Tensor, noise: Ahead | None, lengths: Tensor) -> Verdict:
    """`walk_by_token` in one call of the kernels, by races of `target` [B, n, V] or, without noise, its largest."""
    path, accepted, following = fused_ops.walk(
        tree.tokens, tree.parents, tree.valid, target, noise, lengths, tree.max_depth, tree.is_chain
    )
    return Verdict(chain_path(tree) if path is None else path, accepted, following)


def chain_length(tree: TokenTree) -> int:
    """L: the most draft tokens of a chain, known from its shape."""
    return min(tree.max_depth, tree.num_nodes - 1)


def chain_counters(tree: TokenTree, state: DecodeState) -> Tensor:
    """[B, L + 1] int64: the output position of the token after each node of a chain."""
    return state.lengths[:, None] + torch.arange(chain_length(tree) + 1, device=tree.device)


def chain_follows(tree: TokenTree) -> Tensor:
    """[B, L] bool: whether the chain goes on after node i, or has ended."""
    return tree.valid[:, 1 : chain_length(tree) + 1]


def chain_targets(tree: TokenTree, output: TargetOutput, state: DecodeState) -> Tensor:
    """[B, L + 1, V]: the target's distribution after each node of a chain."""
    return ragged.first(output.probabilities(state.sampling), chain_length(tree) + 1)


def chain_masses(draft: Draft, target: Tensor) -> tuple[Tensor, Tensor]:
    """The probabilities of each draft token of a chain, of the target and the drafter: p(x) and q(x), both [B, L].

    Args:
        draft: A chain with `probabilities` [B, n, V].
        target: [B, L + 1, V], see `chain_targets`.
    """
    assert draft.probabilities is not None
    length = target.shape[1] - 1
    tokens = draft.tree.tokens[:, 1 : length + 1, None]  # [B, L, 1]
    drawn_from = draft.probabilities[:, 1 : length + 1]
    return target[:, :-1].gather(2, tokens)[..., 0], drawn_from.gather(2, tokens)[..., 0]


def chain_by_token(tree: TokenTree, choices: Tensor) -> Verdict:
    """Accept draft tokens of a chain as long as each is the token chosen after the node before it.

    Args:
        tree: A chain.
        choices: [B, L + 1] int64 or wider: the token that follows each node.
    """
    length = chain_length(tree)
    accepted = count_accepted(tree, choices[:, :length] == tree.tokens[:, 1 : length + 1])
    return Verdict(chain_path(tree), accepted, choices.gather(1, accepted[:, None])[:, 0])


def judge_chain(
    draft: Draft,
    target: Tensor,
    state: DecodeState,
    compared: tuple[Tensor, Tensor] | None = None,
    weights: Tensor | None = None,
) -> Verdict:
    """Accept each draft token with probability min(1, numerator / denominator), up to the first rejection.

    The replacement is drawn from what p has beyond the probability that acceptance gives each token: q, or with weights
    min(q, w p).

    Args:
        draft: A chain with `probabilities` [B, n, V].
        target: [B, L + 1, V] the target's distributions, see `chain_targets`.
        state: Lengths, sampling and random streams.
        compared: numerators and non-negative denominators of another test, both [B, L]; None: p(x) and q(x), exact.
        weights: [L] factors w by which another test raises p; None: it leaves the replacement as it is.

    Returns:
        A verdict with the counters and tags of `multi_round_walk`: acceptance tests under `Tag.ACCEPT`, one draw under
        `Tag.TARGET`.
    """
    tree, streams, length = draft.tree, state.streams, target.shape[1] - 1
    assert draft.probabilities is not None
    tags = Tag.ACCEPT, Tag.TARGET
    at_once = fused_ops.chain(tree, target, draft.probabilities, streams, tags, state.lengths, compared, weights)
    if at_once is not None:
        return Verdict(chain_path(tree), *at_once)
    counters = chain_counters(tree, state)
    thresholds = streams.uniform(Tag.ACCEPT, counters[:, :-1])
    own, proposed = chain_masses(draft, target)
    numerators, denominators = (own, proposed) if compared is None else compared
    accepted = count_accepted(tree, thresholds * denominators < numerators)
    relaxed = None
    if compared is not None:
        relaxed = F.pad(thresholds * proposed >= own, (0, tree.max_depth - length))

    # The chain stops at its end, with a draw from p, or at a rejected child, with a draw from what is left.
    rows = torch.arange(tree.batch_size, device=tree.device)
    child = (accepted + 1).clamp(max=length)
    rejected = tree.parents.gather(1, child[:, None]) == accepted[:, None]  # [B, 1]
    last, taken = target[rows, accepted], draft.probabilities[rows, child]  # [B, V]
    if weights is not None:
        # Behind the last draft token nothing can be rejected; its weight is not used.
        taken = torch.minimum(taken, weights[accepted.clamp(max=length - 1)][:, None] * last)
    left = torch.where(rejected, residual(last, taken), last)  # a race needs no normalisation
    noise = streams.exponential(Tag.TARGET, state.lengths + accepted, left.shape[-1])
    return Verdict(chain_path(tree), accepted, sample(left, noise), relaxed)


def count_accepted(tree: TokenTree, passes: Tensor) -> Tensor:
    """[B] int64: draft tokens of a chain before the first that does not pass [B, L], or before its end."""
    return (passes & chain_follows(tree)).cumprod(1).sum(1)


def chain_path(tree: TokenTree) -> Tensor:
    """[B, max_depth + 1] int64: the nodes of a chain in order."""
    path = chain_layout(tree.batch_size, tree.max_depth + 1, tree.device).depth
    return path if tree.max_depth < tree.num_nodes else path.clamp(max=tree.num_nodes - 1)


class Relaxing(Protocol):
    """`relax(p [B, V], q [B, V]) -> [B, V]`: the distribution that is emitted instead of the target's p at a node whose
    first child was drawn from q. It must lie between p and q at every token: then a first child that p accepts is
    accepted in any case, and `relax` need not be called."""

    def __call__(self, target: Tensor, drawn_from: Tensor, /) -> Tensor:
        """The relaxed distribution."""

    def fields(self) -> tuple[Any, ...]:
        """The same as the kernels take it, see `lantern_drawn.Relaxation`."""


def multi_round_walk(
    tree: TokenTree, probabilities: Tensor, logits: Tensor, state: DecodeState, relax: Relaxing | None = None
) -> Verdict:
    """Test the children of each node in order, each against what earlier rejections leave of the target.

    Args:
        tree: The drafted tree.
        probabilities: [B, n, V] the distribution each node was drawn from.
        logits: [B, n, V] of the target.
        state: Lengths, sampling and random streams.
        relax: What is emitted instead of the target's distribution; None: that.
    """
    few = logits.numel() <= FEW_NUMBERS and probabilities.is_floating_point()
    if few and fused_ops.serves(logits, probabilities, state.lengths):
        target, tags = logits_to_probabilities(logits, state.sampling), (Tag.ACCEPT, Tag.TARGET)
        fields = None if relax is None else relax.fields()
        return Verdict(*fused_ops.rounds(tree, target, probabilities, state.streams, tags, state.lengths, fields))
    rows = torch.arange(tree.batch_size, device=tree.device)

    def judge(node: Tensor, level: int, descending: Tensor) -> Judgement:
        counters = state.lengths + level
        target = own = logits_to_probabilities(logits[rows, node], state.sampling)  # [B, V]; own is never relaxed
        found, chosen, lent = torch.zeros_like(descending), node, torch.zeros_like(descending)
        is_child = tree.parents == node[:, None]  # [B, n]
        rank = is_child.cumsum(1)
        num_children = tree.max_children if level < tree.max_depth else 0
        thresholds = state.streams.uniform(Tag.ACCEPT, counters, tree.max_children)  # [B, children]
        for child_rank in range(num_children):
            exists, child = (is_child & (rank == child_rank + 1)).max(dim=1)
            token = tree.tokens.gather(1, child[:, None])  # [B, 1]
            drawn_from = probabilities[rows, child]  # [B, V]
            tested = exists & ~found
            if ragged.surely_none(descending & tested):  # nor is there a later sibling to test
                break
            compared = thresholds[:, child_rank] * drawn_from.gather(1, token)[:, 0]
            passes = compared < target.gather(1, token)[:, 0]
            if relax is not None:
                by_itself = compared < own.gather(1, token)[:, 0]
                if child_rank == 0 and not ragged.surely_none(descending & tested & ~by_itself):
                    target = torch.where(exists[:, None], relax(own, drawn_from), own)
                    passes = by_itself | (compared < target.gather(1, token)[:, 0])
                lent = lent | (tested & passes & ~by_itself)
                own = torch.where((tested & ~passes)[:, None], _normalised(residual(own, drawn_from)), own)
            chosen = torch.where(tested & passes, child, chosen)
            found = found | (tested & passes)
            left = _normalised(residual(target, drawn_from))
            target = torch.where((tested & ~passes)[:, None], left, target)
        # Rows without an accepted child end here, with a draw from what is left; at the last level all rows do.
        drawn = state.streams.race(target[:, None], Tag.TARGET, counters[:, None])[:, 0]
        return found, chosen, drawn, None if relax is None else lent

    return descend(tree, judge)


def residual(target: Tensor, drawn_from: Tensor) -> Tensor:
    """[B, V]: max(p - q, 0), not normalised; p where nothing is left, since p equals q up to rounding then."""
    remainder = (target - drawn_from).clamp(min=0)
    return torch.where((remainder > 0).any(-1, keepdim=True), remainder, target)


def _normalised(numbers: Tensor) -> Tensor:
    """[B, V] with rows that sum to one."""
    return numbers / total(numbers)


def total(numbers: Tensor) -> Tensor:
    """[B, 1]: sums of the rows of [B, V], one number after another, as the kernels add them up."""
    return numbers.cumsum(-1)[:, -1:]


def check_chain(verifier: str, draft: Draft) -> None:
    """The draft is a chain. Reads only what is known without looking at the tensors.

    Raises:
        ValueError: Its nodes may have several children.
    """
    if not draft.tree.is_chain:
        raise ValueError(
            f"{verifier} judges chains only, but the nodes of this draft have up to {draft.tree.max_children} "
            f"children: draft a chain (tree.max_children 1), or use a verifier of trees"
        )
