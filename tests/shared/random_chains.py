"""Random chains and what a target says about them, for tests of verifiers that judge chains."""

from __future__ import annotations

import torch
from torch import Tensor

from specdecode.roles import DecodeState, Draft, TargetOutput, Verdict
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.tree import TokenTree


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


def state_for(lengths: Tensor, sampling: SamplingConfig) -> DecodeState:
    """Of rows that have so many tokens."""
    tokens = torch.zeros(len(lengths), 1, dtype=torch.int64)
    return DecodeState(tokens, lengths, lengths > 0, 99, sampling, RandomStreams.from_seeds(range(len(lengths))))


def assert_same(one: Verdict, other: Verdict) -> None:
    """The same tokens stay and follow, along the same nodes."""
    assert torch.equal(one.accepted, other.accepted)
    assert torch.equal(one.next_tokens, other.next_tokens)
    assert one.path.shape == other.path.shape and one.path.dtype == other.path.dtype
    meaningful = torch.arange(one.path.shape[1]) <= one.accepted[:, None]
    assert torch.equal(one.path.where(meaningful, -1), other.path.where(meaningful, -1))
