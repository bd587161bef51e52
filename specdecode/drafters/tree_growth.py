"""Growing a draft tree level by level from the outputs of a network.

Belongs here: dynamic trees, trees of a fixed shape, and the distributions their nodes are drawn from. Does not belong
here: the network and its input (`eagle.py`), and shapes (`tree_shapes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode import ragged
from specdecode.drafters.draft_size import DraftSize
from specdecode.drafters.tree_plan import TreePlan, coupled, likeliest
from specdecode.kernels import fused_ops
from specdecode.ragged import take
from specdecode.roles import DecodeState, Draft
from specdecode.sampling import SamplingConfig, Tag, filtered, logits_to_probabilities
from specdecode.tree import TokenTree, chain_layout

_RAISED = 2.0**64
"""Without it later siblings of a very sure network would race with numbers that float32 rounds to a few values."""
_SHARPNESS = 2.0
"""How much a race's margin counts for how far its winners are trusted: the best of 1, 2 and 4 (the lab book)."""
_TIE_BREAK = 1e-4  # nats per level: a child's score is below its parent's even if its probability rounds to one


@dataclass
class DraftHeadOutput:
    """The output of a network at each pair of token and feature.

    Args:
        logits: [B, q, V] float32 of the token after the pair; guidance is already applied.
        hidden_states: [B, q, F] the guessed features, for the next pairs.
    """

    logits: Tensor
    hidden_states: Tensor


Children = Literal["coupled", "top", "sampled"]
Guess = Callable[[int, Tensor, Tensor, Tensor, Tensor], DraftHeadOutput]
"""`guess(depth, tokens, features, mask, depths)`: the output at nodes `depth` >= 1 levels below the root; the other
arguments as in `DraftHead.forward`."""


def dynamic_tree(
    root: Tensor,
    logits: Tensor,
    feature: Tensor,
    state: DecodeState,
    top_k: int,
    size: DraftSize,
    guess: Guess,
    children: Children = "top",
) -> Draft:
    """EAGLE-2 (Li et al. 2024, arXiv 2406.16858, section 4): grow by confidence, keep the best.

    Args:
        root: [B] int64, the newest tokens. logits: [B, 1, V] after them. feature: [B, 1, F] there.
        state: its sampling, lengths and random streams.
        top_k: nodes expanded per level, and children of each.
        size: levels grown, and nodes kept, the root included.
        guess: calls the network.
        children: "top", by the network's probabilities; "coupled", by the races that they run with the target's own
            random numbers, this project's own.
    """
    batch_size, device, depth = root.shape[0], root.device, size.depth
    rank = _ranking(state, children, depth, logits.shape[-1])
    score, token = rank(logits, 0)[:, 0].topk(top_k)  # [B, k]
    score = score - _TIE_BREAK
    tokens, scores = [token], [score]
    frontier, oneself, pair_depths, levels = _growth_start(batch_size, top_k, depth, device)
    mask = oneself  # [B, k, k * level]
    expanded: list[Tensor] = []  # the frontier by level, the parents of what is recorded then
    features = feature.expand(-1, top_k, -1)  # [B, k, F]
    recorded = top_k
    for level in range(1, depth):
        output = guess(level, token, features, mask, pair_depths[level - 1])
        child_score, child_token = rank(output.logits, level).topk(top_k)  # [B, k, k]
        child_score = (child_score + score[..., None] - _TIE_BREAK).flatten(1)  # [B, k * k]
        child_token = child_token.flatten(1)
        tokens.append(child_token)
        scores.append(child_score)
        expanded.append(frontier)
        if level + 1 == depth:
            break
        score, chosen = child_score.topk(top_k)  # [B, k]
        token = child_token.gather(1, chosen)
        above = chosen // top_k  # [B, k] which of the expanded nodes is the parent
        features = take(output.hidden_states, above)
        mask = torch.cat([take(mask, above), oneself], dim=2)
        frontier = recorded + chosen
        recorded += top_k * top_k
    all_tokens, all_scores = torch.cat(tokens, 1), torch.cat(scores, 1)
    num_drafted = min(size.total_tokens - 1, all_tokens.shape[1])
    # Scores fall along every path, so the best nodes include their ancestors; sorted, parents come first. Where float32
    # cannot tell a child's score from its parent's (both -inf, say), a stable order takes the parent.
    ranked = all_scores.sort(dim=1, descending=True, stable=True).indices
    best = ranked[:, :num_drafted].sort(dim=1).values  # [B, m]
    if fused_ops.serves(all_scores, root):
        levels_expanded = torch.stack(expanded) if expanded else frontier[None]
        fields = fused_ops.grown(root, best, all_tokens, all_scores, levels_expanded)
    else:
        fields = _best_nodes(root, best, all_tokens, all_scores, expanded, levels)
    kept_tokens, parents, depths, kept_scores = fields
    all_valid = chain_layout(batch_size, num_drafted + 1, device).valid
    tree = TokenTree(kept_tokens, parents, depths, all_valid, max_depth=depth, max_children=top_k)
    return Draft(tree, confidence=kept_scores)


def _ranking(state: DecodeState, children: Children, depth: int, vocab_size: int) -> Callable[[Tensor, int], Tensor]:
    """`rank(logits [B, k, V], level)`: what the children of nodes so many levels below the root are ranked by, as
    log-probabilities."""
    sampling = state.sampling
    if children == "top" or sampling.is_greedy:
        # At the sampling temperature; filters change no ranks and are left out.
        return lambda logits, level: sampling.tempered(logits).log_softmax(-1)
    places = state.lengths[:, None] + torch.arange(depth, device=state.lengths.device)
    late = state.streams.exponential(Tag.TARGET, places, vocab_size).log()  # [B, depth, V]
    return lambda logits, level: (
        (filtered(logits, sampling) - late[:, level : level + 1]).mul_(_SHARPNESS).log_softmax(-1)
    )


@ragged.constant
def _growth_start(
    batch_size: int, top_k: int, depth: int, device: torch.device
) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
    """What every growth of some sizes begins with: the first expanded nodes [B, k], a mask [B, k, k] by which each
    node sees itself, the depths [1, k] of each level's pairs, and the level of every node seen [B, R]."""
    index = torch.arange(top_k, device=device)
    depths = [torch.full((1, top_k), level, device=device) for level in range(depth - 1)]
    sizes = [top_k, *[top_k * top_k] * (depth - 1)]
    levels = torch.cat([torch.full((size,), level + 1, device=device) for level, size in enumerate(sizes)])
    oneself = torch.eye(top_k, dtype=torch.bool, device=device).repeat(batch_size, 1, 1)
    return index.repeat(batch_size, 1), oneself, depths, levels.repeat(batch_size, 1)


def _best_nodes(
    root: Tensor, best: Tensor, tokens: Tensor, scores: Tensor, expanded: list[Tensor], levels: Tensor
) -> tuple[Tensor, ...]:
    """Tokens, parents, depths and scores [B, m + 1] of the best of all nodes, the root first.

    Args:
        root: [B]. best: [B, m], rising. tokens, scores, levels: [B, R] of all nodes.
        expanded: by level, the nodes [B, k] whose children were recorded.
    """
    root = root[:, None]
    top_k = tokens.shape[1] if not expanded else expanded[0].shape[1]
    above = [each.repeat_interleave(top_k, dim=1) for each in expanded]
    parents = torch.cat([torch.full_like(tokens[:, :top_k], -1), *above], 1).gather(1, best)
    parents = torch.where(parents < 0, 0, torch.searchsorted(best, parents.contiguous()) + 1)
    return (
        torch.cat([root, tokens.gather(1, best)], 1),
        torch.cat([torch.full_like(root, -1), parents], 1),
        torch.cat([torch.zeros_like(root), levels.gather(1, best)], 1),
        F.pad(scores.gather(1, best), (1, 0)),
    )


def static_tree(
    root: Tensor,
    logits: Tensor,
    feature: Tensor,
    state: DecodeState,
    plan: TreePlan,
    depth: int,
    guess: Guess,
    children: Children = "top",
) -> Draft:
    """A tree of a fixed shape, down to a depth.

    Args:
        root: [B] int64, the newest tokens. logits: [B, 1, V] after them. feature: [B, 1, F] there.
        state: its sampling and random streams.
        plan: the shape. depth: levels of it that are drafted, 1 or more.
        guess: calls the network.
        children: "top" for the likeliest tokens, "coupled" for the first in races with the target's own random numbers
            (`tree_plan.coupled`), "sampled" for draws without replacement.
    """
    sampled = children == "sampled"
    depth = min(depth, len(plan.levels))
    tokens, drawn_from = [root[:, None]], [logits]  # the root's row is not read
    # The output at each node whose children come next.
    inner_logits, inner_features = logits, feature  # [B, i, V], [B, i, F]
    noise = _draw_noise(state, plan, depth, logits.shape[-1]) if sampled else (None,) * depth
    for number, level in enumerate(plan.levels[:depth]):
        if sampled:
            choices, probabilities = _draw_children(inner_logits, level.width, state.sampling, noise[number])
            probabilities = level.below(probabilities)
            if level.width > 1:
                probabilities = _without_earlier(probabilities, level.below(choices), level.rank)
            drawn_from.append(probabilities)
        elif children == "coupled":
            choices = coupled(inner_logits, level.width, state, number)  # [B, i, width]
        else:
            choices = likeliest(inner_logits, level.width)
        tokens.append(level.chosen(choices))  # [B, m]
        if len(tokens) > depth:
            break
        inner_tokens, above = level.of_inner(tokens[-1]), level.above_inner(inner_features)
        output = guess(number + 1, inner_tokens, above, level.mask, level.depths)
        inner_logits, inner_features = output.logits, output.hidden_states
    return Draft(plan.tree(torch.cat(tokens, 1), depth), torch.cat(drawn_from, 1) if sampled else None)


def _draw_noise(state: DecodeState, plan: TreePlan, depth: int, vocab_size: int) -> Sequence[Tensor | None]:
    """For each level the Exp(1) noise [B, i, V] of the nodes whose children are drawn, all made at once, which is
    cheaper; None for greedy sampling."""
    if state.sampling.is_greedy:
        return (None,) * depth
    above = ragged.first(plan.all_above, sum(plan.num_above[:depth]))
    counters = torch.add(above, state.lengths[:, None], alpha=plan.num_nodes)
    return state.streams.exponential(Tag.DRAFT, counters, vocab_size).split(plan.num_above[:depth], dim=1)


def _draw_children(logits: Tensor, width: int, sampling: SamplingConfig, noise: Tensor | None) -> tuple[Tensor, Tensor]:
    """Children of each node, first choice first.

    Args:
        logits: [B, i, V]. width: children wanted. noise: see `_draw_noise`.

    Returns:
        Tokens [B, i, width], and the distribution [B, i, V] the first was drawn from.
    """
    probabilities = logits_to_probabilities(logits, sampling)
    if noise is None:
        return likeliest(logits, width), probabilities
    # The first arrivals of the exponential race are a draw without replacement, in order (Gumbel top-k).
    # Where filters leave fewer tokens than are wanted, the rest are guesses; see `_without_earlier`.
    return likeliest(probabilities * _RAISED / noise, width), probabilities


def _without_earlier(probabilities: Tensor, choices: Tensor, rank: Tensor) -> Tensor:
    """The distribution each node was drawn from: earlier siblings zeroed, the rest renormalised.

    Args:
        probabilities: [B, m, V] of each node's parent. choices: [B, m, width] of each node's parent. rank: [m].

    Returns:
        [B, m, V].
    """
    earlier = torch.arange(choices.shape[-1], device=rank.device) < rank[:, None]  # [m, width]
    kept = probabilities.gather(-1, choices).masked_fill(earlier, 0.0)  # choices of a node are different tokens
    left = probabilities.scatter(-1, choices, kept).double()  # what a very sure network leaves is below float32's reach
    total = left.sum(-1, keepdim=True)
    if ragged.surely_none(total <= 0):
        return (left / total).float()
    # With nothing left to draw from, the node is a deterministic guess, and its distribution says so.
    own = choices.gather(-1, rank.view(1, -1, 1).expand(choices.shape[0], -1, 1))  # [B, m, 1]
    return torch.where(total > 0, left / total, torch.zeros_like(left).scatter_(-1, own, 1.0)).float()
