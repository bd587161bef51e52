"""Parallel decoding, the target's side: feed, judge, order the next window, for one row.

Belongs here: the order of calls to target and channel, the acceptance of tokens. Does not belong here:
the bookkeeping (`rounds.py`), how messages travel, and how the drafter drafts.

Exactness. The token at each output position is drawn from the target with the random number of that position, as in
plain decoding; a draft token is accepted if it is the one drawn. So the tokens are those of plain decoding, whatever is
drafted, however long windows are, and whichever side is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdecode.checks import FiniteWatch, check_counts
from specdecode.loop import DecodeResult, stop_tokens
from specdecode.roles import DecodeState, Target
from specdecode.runs.parallel.channel import DraftChannel, DraftRequest
from specdecode.runs.parallel.rounds import Round, Rounds
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, draw_tokens
from specdecode.trace import DecodeTrace, StepRecord


@dataclass
class ParallelResult(DecodeResult):
    """The result of decoding, with an account of the overlap.

    Args:
        account: Its rounds, and runs between rejections.
    """

    account: Rounds


@torch.no_grad()
def decode_parallel(
    target: Target,
    drafter: DraftChannel,
    *,
    max_new_tokens: int,
    sampling: SamplingConfig,
    streams: RandomStreams,
    draft_length: int,
    prompt: Any = None,
    stop_token: int | Sequence[int] | None = None,
    on_step: Callable[[int, DecodeState], None] | None = None,
    trace: DecodeTrace | None = None,
) -> ParallelResult:
    """Decode one row while a drafter works ahead.

    In `trace` the draft tokens of a step are those judged in it, and the first token counts as the target's own, so
    that its numbers compare with those of other methods.

    Args:
        target: The model, before its prefill, of batch size 1. It needs room for max_new_tokens - 1 tokens.
        drafter: A channel to a drafter. It may serve many rows, one after another.
        max_new_tokens: Tokens of the row, >= 1.
        sampling: How tokens are drawn.
        streams: One random stream.
        draft_length: Tokens of a window, >= 1: about as many as are drafted during one pass of the target, see
            `measure_draft_length`. No token depends on it.
        prompt: For the drafter's `DraftSource`.
        stop_token: The row ends after this token, or any of these.
        on_step: Called as `on_step(step, state)` after every round; step 0 is the prefill. It must not change `state`.
            The drafter works meanwhile.
        trace: Where to record; None: a new one. Phases "prefill" and "decode" are timed.

    Raises:
        ValueError: More than one row, a number out of range, or a trace of another batch size.
        LogitsError: Logits were not finite; found when all is decoded.
    """
    if target.batch_size != 1 or streams.batch_size != 1:
        raise ValueError(
            "target and streams must hold one row, since rows that disagree with their drafts at different times would "
            f"wait for each other; got {target.batch_size} and {streams.batch_size}"
        )
    check_counts(max_new_tokens=max_new_tokens, draft_length=draft_length)
    stops = stop_tokens(stop_token, target.vocab_size, target.device)
    trace = DecodeTrace(1, target.device) if trace is None else trace
    if trace.batch_size != 1:
        raise ValueError(f"trace must be of batch size 1, got one of {trace.batch_size}")

    listed = [] if stops is None else stops.tolist()
    state = DecodeState(
        torch.full((1, max_new_tokens), listed[0] if listed else 0, dtype=torch.int64, device=target.device),
        torch.zeros(1, dtype=torch.int64, device=target.device),
        torch.ones(1, dtype=torch.bool, device=target.device),
        max_new_tokens,
        sampling,
        streams,
    )
    row = _Row(drafter, Rounds(max_new_tokens, draft_length, listed), state)
    with trace.phase("prefill"):
        row.begin(DraftRequest(prompt, target.vocab_size, sampling, int(streams.keys[0])))
        row.judge(target.prefill().logits[:, -1:])
        trace.record_prefill()
    if on_step is not None:
        on_step(0, state)
    step = 0
    with trace.phase("decode"):
        while not row.rounds.finished:
            step += 1
            fed = torch.tensor([row.rounds.fed], device=target.device)
            places, mask = chain_layout(fed)
            settled = row.judge(target.forward(fed, mask, places).logits)
            target.commit(None, torch.tensor([settled.emitted], device=target.device))
            trace.record_step(_step(settled))
            if on_step is not None:
                on_step(step, state)
    row.watch.check()
    return ParallelResult(state.tokens, state.lengths, trace, row.rounds)


class _Row:
    """The row that is being decoded. The drafter gets its next order as soon as a round is settled."""

    def __init__(self, drafter: DraftChannel, rounds: Rounds, state: DecodeState) -> None:
        self.rounds = rounds
        self._drafter = drafter
        self._state = state
        self.watch = FiniteWatch(1, state.tokens.device)

    def begin(self, request: DraftRequest) -> None:
        """Let the drafter begin. The first round is the target's prefill."""
        self._drafting = True
        self._drafter.begin(request, self.rounds.order.count)

    def judge(self, logits: Tensor) -> Round:
        """Draw after every row of `logits` [1, n, V], settle the round, and order the next window."""
        state, rounds = self._state, self.rounds
        every_node = torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device)
        self.watch.note(logits, every_node)
        counters = state.lengths[:, None] + torch.arange(logits.shape[1], device=logits.device)
        chosen = draw_tokens(logits, state.sampling, state.streams, counters, Tag.TARGET)
        on_host = chosen[0].tolist()
        settled = rounds.settle(on_host, self._drafter.collect().tokens if self._drafting else [])
        self._drafting = not rounds.finished and rounds.order.count > 0
        if self._drafting:
            self._drafter.order(rounds.order)
        state.tokens[:, len(rounds.tokens) - settled.emitted : len(rounds.tokens)] = chosen[:, : settled.emitted]
        state.lengths = state.lengths + settled.emitted
        state.active = torch.full_like(state.active, not rounds.finished)
        return settled


def chain_layout(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Depths [1, n] and mask [1, n, n] of a chain of tokens [1, n]."""
    count = tokens.shape[1]
    mask = torch.ones(1, count, count, dtype=torch.bool, device=tokens.device).tril()
    return torch.arange(count, device=tokens.device)[None], mask


def _step(settled: Round) -> StepRecord:
    return StepRecord(
        active=torch.tensor([True]),
        drafted=torch.tensor([settled.judged]),
        accepted=torch.tensor([settled.accepted]),
        emitted=torch.tensor([settled.emitted]),
        skipped=torch.tensor([0]),
    )
