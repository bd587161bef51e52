"""Random chains and what a target says about them, and what a verifier or drafter is told and says, for their tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specdecode import DecodeState, Draft, RandomStreams, SamplingConfig, TargetOutput, TokenTree, Verdict


def random_chain(seed: int, batch_size: int, length: int, vocab_size: int) -> tuple[Draft, TargetOutput, Tensor]:
    """Drafts that share something with the target, each row clipped somewhere (the root too: a finished row), and the
    rows' lengths so far."""
    generator = torch.Generator().manual_seed(seed)
    logits = 1.75 * torch.randn(batch_size, length + 1, vocab_size, generator=generator)
    before = (logits + torch.randn(logits.shape, generator=generator)).softmax(-1)  # of the token after each node
    drawn_from = before.roll(1, dims=1)
    tokens = torch.multinomial(drawn_from.flatten(0, 1), 1, generator=generator).view(batch_size, length + 1)
    depth = torch.randint(-1, length + 1, (batch_size,), generator=generator)
    lengths = torch.randint(1, 50, (batch_size,), generator=generator)
    return Draft(TokenTree.chain(tokens).clip(depth), drawn_from), TargetOutput(logits), lengths


def state_for(
    lengths: Tensor,
    sampling: SamplingConfig,
    tokens: Tensor | None = None,
    active: Tensor | None = None,
    most: int = 99,
) -> DecodeState:
    """Of rows that have so many tokens, of `most` at the end; `tokens` None: a column of zeros, `active` None: all
    rows that have any."""
    tokens = torch.zeros(len(lengths), 1, dtype=torch.int64) if tokens is None else tokens
    active = lengths > 0 if active is None else active
    return DecodeState(tokens, lengths, active, most, sampling, RandomStreams.from_seeds(range(len(lengths))))


def outcomes(verdict: Verdict) -> list[tuple[list[int], int]]:
    """The nodes that stay and the token behind them, by row."""
    rows = zip(verdict.path.tolist(), verdict.accepted.tolist(), verdict.next_tokens.tolist(), strict=True)
    return [(path[: accepted + 1], token) for path, accepted, token in rows]


def random_parents(generator: torch.Generator, batch_size: int, num_nodes: int) -> list[list[int]]:
    """A shape for every row: the parent of each node stands before it."""
    return [
        [-1, *(int(torch.randint(0, node, (), generator=generator)) for node in range(1, num_nodes))]
        for _ in range(batch_size)
    ]


def clipped_tree(generator: torch.Generator, tokens: Tensor, parents: list[list[int]]) -> TokenTree:
    """The tree of these tokens [B, n], each row clipped somewhere."""
    most_children = max(1, *(row.count(node) for row in parents for node in range(tokens.shape[1])))
    tree = TokenTree.from_parents(tokens, torch.tensor(parents), max_children=most_children)
    return tree.clip(torch.randint(-1, tokens.shape[1], (len(tokens),), generator=generator))


def repeated(tree: TokenTree, rows: int) -> TokenTree:
    """A tree of one row as so many."""
    return replace(
        tree, **{name: getattr(tree, name).expand(rows, -1) for name in ("tokens", "parents", "depth", "valid")}
    )


def token_paths(tree: TokenTree, row: int) -> list[tuple[int, ...]]:
    """The tokens from below the root to each other node."""
    ways = [way_to(tree.parents[row].tolist(), node) for node in range(1, tree.num_nodes)]
    return [tuple(tree.tokens[row, way[1:]].tolist()) for way in ways]


def way_to(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the root to this one, pointer by pointer."""
    way = [node]
    while parents[way[0]] >= 0:
        way.insert(0, parents[way[0]])
    return way


def check_in_step(model: Any, waiting: Tensor, state: DecodeState) -> None:
    """A drafter's model holds the decoded tokens of a row but for the last ones, which wait: so many [B]."""
    for row in range(min(len(state.lengths), 5)):
        if state.active[row]:
            known = state.tokens[row, : int(state.lengths[row]) - int(waiting[row])].tolist()
            assert model.committed[row, 2 : 2 + int(model.lengths[row])].tolist() == known


def assert_same(one: Verdict, other: Verdict) -> None:
    """The same tokens stay and follow, along the same nodes."""
    assert torch.equal(one.accepted, other.accepted)
    assert torch.equal(one.next_tokens, other.next_tokens)
    assert one.path.shape == other.path.shape and one.path.dtype == other.path.dtype
    meaningful = torch.arange(one.path.shape[1]) <= one.accepted[:, None]
    assert torch.equal(one.path.where(meaningful, -1), other.path.where(meaningful, -1))
