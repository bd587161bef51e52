"""Parallel decoding, the target's side: feed, judge, order the next window, for one row.

Belongs here: the order of calls to target and channel, the acceptance of tokens. Does not belong here:
the bookkeeping (`rounds.py`), how messages travel, and how the drafter drafts.

Exactness. The token at each output position is drawn from the target with the random number of that position, as in
plain decoding; a draft token is accepted if it is the one drawn. So the tokens are those of plain decoding, whatever is
drafted, however long windows are, and whichever side is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from specdecode.checks import check_counts
from specdecode.loop import DecodeResult, DecodeRun, OnStep
from specdecode.roles import Target
from specdecode.runs.parallel.channel import DraftChannel, DraftRequest
from specdecode.runs.parallel.rounds import Round, Rounds
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, draw_tokens
from specdecode.trace import DecodeTrace, StepRecord
from specdecode.tree import chain_layout


@dataclass
class ParallelResult(DecodeResult):
    """The result of decoding, with an account of the overlap.

    Args:
        account: Its rounds, and runs between rejections.
    """

    account: Rounds


def decode_parallel(
    target: Target, drafter: DraftChannel, *, on_step: OnStep | None = None, **settings: Any
) -> ParallelResult:
    """Decode one row while a drafter works ahead.

    Args:
        target, drafter, settings: Arguments of `ParallelRun`.
        on_step: See `DecodeRun.finish`. The drafter works meanwhile.

    Raises:
        ValueError, LogitsError: As `ParallelRun` and `DecodeRun.finish`.
    """
    run = ParallelRun(target, drafter, **settings)
    result = run.finish(on_step)
    return ParallelResult(result.tokens, result.lengths, result.trace, run.account)


class ParallelRun(DecodeRun):
    """A run of one row, whose drafter gets its next order as soon as a round is settled.

    In the trace the draft tokens of a step are those judged in it, and the first token counts as the target's own, so
    that its numbers compare with those of other methods.

    Args:
        target: The model, before its prefill, of batch size 1. It needs room for max_new_tokens - 1 tokens.
        channel: To a drafter. It may serve many rows, one after another.
        draft_length: Tokens of a window, >= 1: about as many as are drafted during one pass of the target, see
            `measure_draft_length`. No token depends on it.
        prompt: For the drafter's `DraftSource`.
        max_new_tokens, sampling, streams, stop_token, trace: See `DecodeRun`.

    Raises:
        ValueError: As `DecodeRun`; more than one row, or a number out of range.
    """

    def __init__(
        self,
        target: Target,
        channel: DraftChannel,
        *,
        draft_length: int,
        prompt: Any = None,
        max_new_tokens: int,
        sampling: SamplingConfig,
        streams: RandomStreams,
        stop_token: int | Sequence[int] | None = None,
        trace: DecodeTrace | None = None,
    ) -> None:
        if target.batch_size != 1:
            raise ValueError(
                "target must hold one row, since rows that disagree with their drafts at different times would wait "
                f"for each other; got {target.batch_size}"
            )
        check_counts(draft_length=draft_length)
        settings: Any = {"max_new_tokens": max_new_tokens, "sampling": sampling, "streams": streams}
        super().__init__(target, stop_token=stop_token, trace=trace, **settings)
        self.account = Rounds(max_new_tokens, draft_length, () if self.stops is None else self.stops.tolist())
        self._channel, self._prompt, self._drafting = channel, prompt, False

    @torch.no_grad()
    def start(self) -> None:
        """See `DecodeRun.start`. The drafter begins before the target's prefill, which is the first round."""
        with self.trace.phase("prefill"):
            sampling, key = self.state.sampling, int(self.state.streams.keys[0])
            self._channel.begin(
                DraftRequest(self._prompt, self.target.vocab_size, sampling, key), self.account.order.count
            )
            self._drafting = True
            self._judge(self.target.prefill().logits[:, -1:])
            self.trace.record_prefill()

    def perform(self) -> int:
        """A round. Returns how many tokens the row has gained."""
        fed = torch.tensor([self.account.fed], device=self.target.device)
        layout = chain_layout(*fed.shape, fed.device)
        settled = self._judge(self.target.forward(fed, layout.mask, layout.depth).logits)
        self.target.commit(None, torch.tensor([settled.emitted], device=fed.device))
        counts = [1, settled.judged, settled.accepted, settled.emitted, 0]  # see `StepRecord`
        self.trace.record(StepRecord(torch.tensor(counts)[:, None]))
        return settled.emitted

    def _judge(self, logits: Tensor) -> Round:
        """Draw after every row of `logits` [1, n, V], settle the round, and order the next window."""
        state, rounds = self.state, self.account
        self.watch.note(logits, torch.ones(logits.shape[:2], dtype=torch.bool, device=logits.device))
        counters = state.lengths[:, None] + torch.arange(logits.shape[1], device=logits.device)
        chosen = draw_tokens(logits, state.sampling, state.streams, counters, Tag.TARGET)
        settled = rounds.settle(chosen[0].tolist(), self._channel.collect().tokens if self._drafting else [])
        self._drafting = not rounds.finished and rounds.order.count > 0
        if self._drafting:
            self._channel.order(rounds.order)
        state.tokens[:, len(rounds.tokens) - settled.emitted : len(rounds.tokens)] = chosen[:, : settled.emitted]
        state.lengths = state.lengths + settled.emitted
        state.active = torch.full_like(state.active, not rounds.finished)
        return settled
