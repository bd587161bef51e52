"""Parallel decoding gives plain decoding's tokens whoever is faster; drafts follow what stands; accounts are true."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import raised, value_error
from served_drafters import reckoned_rounds, served
from synthetic import GREEDY, MarkovTarget, decoded, random_table
from torch import Tensor

from specdecode.roles import DecodeState, TargetOutput
from specdecode.runs.parallel.channel import DraftChannel, DraftRequest, Window
from specdecode.runs.parallel.draft_length import DraftLength, draft_length_of, measure_draft_length
from specdecode.runs.parallel.drafter import InTurnChannel, WindowDrafter
from specdecode.runs.parallel.loop import ParallelResult, decode_parallel
from specdecode.runs.parallel.rounds import DraftOrder
from specdecode.runs.parallel.two_processes import DrafterError
from specdecode.sampling import RandomStreams, SamplingConfig, Tag, draw_tokens
from specdecode.trace import DecodeTrace

VOCAB, LENGTH = 30, 40
TABLE = random_table(VOCAB, seed=7, scale=2.0)
CLOSE_TABLE = TABLE + random_table(VOCAB, seed=8, scale=1.0)
PROMPT = torch.tensor([[1, 3]])
SAMPLED = SamplingConfig(temperature=1.0)
SAMPLINGS = [GREEDY, SAMPLED, SamplingConfig(1.3, 12, 0.9)]
SEED = 3


def target_of(length: int = LENGTH) -> MarkovTarget:
    return MarkovTarget(TABLE, PROMPT, max(length - 1, 1))


def source_of(table: Tensor = CLOSE_TABLE, length: int = LENGTH) -> Callable[..., MarkovTarget]:
    return lambda prompt, hint: MarkovTarget(table, PROMPT, max(length - 1, 1))


def plain(sampling: SamplingConfig, length: int = LENGTH) -> Tensor:
    return decoded(target_of(length), length, sampling, [SEED]).tokens


def parallel(channel: DraftChannel, sampling: SamplingConfig = GREEDY, **options: Any) -> ParallelResult:
    streams = RandomStreams.from_seeds([SEED])
    settings: dict[str, Any] = {"max_new_tokens": LENGTH, "draft_length": 4, "streams": streams, **options}
    target = settings.pop("target", None) or target_of(settings["max_new_tokens"])
    return decode_parallel(target, channel, sampling=sampling, **settings)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=["greedy", "sampled", "filtered"])
@pytest.mark.parametrize("table", [TABLE, CLOSE_TABLE, random_table(VOCAB, 9)], ids=["same", "close", "strange"])
@pytest.mark.parametrize("draft_length", [1, 3, 8, 60])
def test_tokens_are_those_of_plain_decoding(sampling, table, draft_length):
    result = parallel(InTurnChannel(source_of(table)), sampling, draft_length=draft_length)
    assert torch.equal(result.tokens, plain(sampling))
    if table is TABLE:  # all guesses are right: windows come one behind the other
        assert result.trace.target_passes == 1 + -(-(LENGTH - 1) // draft_length)
        assert result.account.run_lengths == [LENGTH]


@pytest.mark.parametrize("length", [1, 2, 3, 5, 6, 7, 13])
@pytest.mark.parametrize("table", [TABLE, CLOSE_TABLE], ids=["same", "close"])
def test_rows_have_exactly_as_many_tokens_as_asked(length, table):
    for draft_length in range(1, 8):
        channel = InTurnChannel(source_of(table, length))
        result = parallel(channel, SAMPLED, max_new_tokens=length, draft_length=draft_length)
        assert torch.equal(result.tokens, plain(SAMPLED, length)) and result.lengths.tolist() == [length]


@pytest.mark.parametrize("table", [TABLE, CLOSE_TABLE], ids=["same", "close"])
@pytest.mark.parametrize("draft_length", [1, 3, 4])
def test_rows_end_at_the_stop_token_wherever_in_a_window_it_is(table, draft_length):
    whole = plain(SAMPLED)[0].tolist()
    for offset in range(15):
        stop = whole[offset]
        channel = InTurnChannel(source_of(table))
        result = parallel(channel, SAMPLED, draft_length=draft_length, stop_token=stop)
        wanted = decoded(target_of(), LENGTH, SAMPLED, [SEED], stop_token=stop)
        assert torch.equal(result.tokens, wanted.tokens) and torch.equal(result.lengths, wanted.lengths)
        assert result.trace.row_tokens == result.lengths.tolist()
        assert sum(each.emitted for each in result.account.settled) == int(result.lengths[0])


def test_any_of_several_stop_tokens_ends_a_row_and_steps_are_told():
    whole = plain(SAMPLED)[0].tolist()
    stops = [whole[20], whole[11]]
    told: list[tuple[int, list[int], bool]] = []

    def on_step(step: int, state: DecodeState) -> None:
        told.append((step, state.tokens[0, : int(state.lengths[0])].tolist(), bool(state.active[0])))

    wanted = decoded(target_of(), LENGTH, SAMPLED, [SEED], stop_token=stops)
    result = parallel(InTurnChannel(source_of()), SAMPLED, stop_token=stops, on_step=on_step)
    assert torch.equal(result.tokens, wanted.tokens) and torch.equal(result.lengths, wanted.lengths)
    assert [step for step, _, _ in told] == list(range(result.trace.target_passes))
    decided = [sum(each.emitted for each in result.account.settled[: step + 1]) for step, _, _ in told]
    assert [len(tokens) for _, tokens, _ in told] == decided
    assert all(tokens == whole[: len(tokens)] for _, tokens, _ in told)
    assert [active for _, _, active in told] == [True] * (len(told) - 1) + [False]


def right_guesses(sampling: SamplingConfig) -> list[bool]:
    """At every position, whether the drafter, given the right tokens, draws what the target draws."""
    tokens, streams = plain(sampling)[0].tolist(), RandomStreams.from_seeds([SEED])
    before, result = PROMPT[0].tolist() + tokens, []
    for position, token in enumerate(tokens):
        logits = CLOSE_TABLE[before[position], before[position + 1]][None, None]
        guess = draw_tokens(logits, sampling, streams, torch.tensor([[position]]), Tag.TARGET)
        result.append(int(guess) == token)
    return result


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft_length", [1, 3, 5])
def test_rounds_are_those_that_right_and_wrong_guesses_make(sampling, draft_length):
    result = parallel(InTurnChannel(source_of()), sampling, draft_length=draft_length)
    assert result.account.settled == reckoned_rounds(right_guesses(sampling), draft_length)
    matches = right_guesses(sampling)
    assert 0.2 < sum(matches) / len(matches) < 0.9, "both outcomes must occur"
    trace, rounds = result.trace, result.account.settled
    assert trace.target_passes == len(rounds) and trace.row_tokens == [LENGTH]
    assert trace.accepted_lengths == [[each.accepted for each in rounds[1:]]]
    assert trace.drafted == sum(each.judged for each in rounds[1:])


class Watched:
    """A channel that keeps a drafter's sequence of its own, the slow way, and compares every window with it."""

    def __init__(self, channel: DraftChannel, table: Tensor, sampling: SamplingConfig) -> None:
        self.channel, self.table, self.sampling = channel, table, sampling
        self.streams = RandomStreams.from_seeds([SEED])
        self.orders: list[DraftOrder] = []
        self.under_way = 0
        self.sequence: list[int] = []

    def begin(self, request: DraftRequest, count: int) -> None:
        self.sequence, self.count = [], count
        self.under_way += 1
        self.channel.begin(request, count)

    def hint(self, numbers: Tensor) -> None:
        self.channel.hint(numbers)

    def order(self, order: DraftOrder) -> None:
        self.sequence = self.sequence[: order.kept] + ([] if order.token is None else [order.token])
        self.count = order.count
        self.orders.append(order)
        self.under_way += 1
        self.channel.order(order)

    def collect(self) -> Window:
        assert self.under_way == 1, "one window under way at a time"
        self.under_way = 0
        window = self.channel.collect()
        before = PROMPT[0].tolist() + self.sequence
        for number in range(self.count):
            position = torch.tensor([[len(self.sequence) + number]])
            logits = self.table[before[-2], before[-1]][None, None]
            before.append(int(draw_tokens(logits, self.sampling, self.streams, position, Tag.TARGET)))
        self.sequence = before[2:]
        assert window.tokens == self.sequence[len(self.sequence) - self.count :], "not what stands was drafted behind"
        return window


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft_length", [1, 2, 5])
def test_windows_follow_what_stands_and_never_pass_the_end(sampling, draft_length):
    watched = Watched(InTurnChannel(source_of()), CLOSE_TABLE, sampling)
    result = parallel(watched, sampling, draft_length=draft_length)
    assert torch.equal(result.tokens, plain(sampling))
    decided = result.tokens[0].tolist()
    for order in watched.orders:
        stand = order.kept + (order.token is not None)
        assert 1 <= order.count <= draft_length and stand + order.count <= LENGTH
        if order.token is not None:
            assert order.token == decided[order.kept]
    assert len(watched.sequence) <= LENGTH


class Working(MarkovTarget):
    """Does something before every pass, by how many tokens it is fed, which are none for its prompt."""

    def __init__(self, table: Tensor, work: Callable[[int], object], length: int = LENGTH) -> None:
        super().__init__(table, PROMPT, length)
        self.work = work

    def prefill(self) -> TargetOutput:
        self.work(0)
        return super().prefill()

    def forward(self, tokens: Tensor, mask: Tensor, depths: Tensor) -> TargetOutput:
        self.work(tokens.shape[1])
        return super().forward(tokens, mask, depths)


class Clock:
    """Moves by work alone."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def work(self, seconds: float) -> None:
        self.seconds += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Both sides read this clock."""
    clock = Clock()
    for module in ("drafter", "draft_length"):
        monkeypatch.setattr(f"specdecode.runs.parallel.{module}.time", SimpleNamespace(perf_counter=clock.now))
    return clock


def test_a_hundred_timings_give_one_result():
    length = 12
    wanted = parallel(InTurnChannel(source_of(length=length)), SAMPLED, max_new_tokens=length, draft_length=3)
    assert torch.equal(wanted.tokens, plain(SAMPLED, length))
    dice = random.Random(0)
    scale = [1e-3, 1e-3]

    def source(prompt: Any, hint: Any) -> MarkovTarget:
        return Working(CLOSE_TABLE, lambda fed: time.sleep(scale[0] * dice.random()), length)

    with served(lambda: source) as channel:
        for _ in range(100):
            scale[:] = dice.choice([(1e-3, 0), (0, 2e-3), (5e-4, 1e-3)])
            target = Working(TABLE, lambda fed: time.sleep(scale[1] * dice.random()), length)
            result = parallel(channel, SAMPLED, target=target, max_new_tokens=length, draft_length=3)
            assert torch.equal(result.tokens, wanted.tokens)
            assert result.account.settled == wanted.account.settled


def test_the_draft_length_is_the_ratio_of_measured_times(clock):
    lengths = [draft_length_of(*each) for each in ((0.420, 0.078), (0.420, 0.0466), (5.9, 1.0), (1.0, 3.0))]
    assert lengths == [5, 9, 6, 1]
    for seconds in ((0.0, 1.0), (1.0, -1.0)):
        value_error("seconds must be positive", draft_length_of, *seconds)

    def growing(more: float) -> Working:
        return Working(TABLE, lambda fed: clock.work(6 + more * fed if fed else 0))

    target = Working(TABLE, lambda fed: clock.work(6.0))
    channel = InTurnChannel(lambda prompt, hint: Working(CLOSE_TABLE, lambda fed: clock.work(1.5), 5))
    assert measure_draft_length(target, channel, repeats=2) == DraftLength(4, 6.0, 1.5, 1 + 2 * 3, 1 + 3 * 4)
    # 6 + 0.9 a token against 1.5: 5 tokens during a pass over one, then 7, 8, 9, and 9 during one over nine.
    found = measure_draft_length(growing(0.9), channel, repeats=2)
    assert found == DraftLength(9, pytest.approx(6 + 9 * 0.9), 1.5, 1 + 5 * 3, 1 + 3 * 4)
    # Where a token more costs the target more than the drafter, growth has an end.
    for longest, tokens in (({}, 10), ({"longest": 7}, 7), ({"longest": 1}, 5)):
        assert measure_draft_length(growing(2.0), channel, repeats=2, **longest).tokens == tokens
    value_error("longest must be", measure_draft_length, target, channel, longest=0)
    # Both can be used as if nothing had been.
    assert torch.equal(parallel(InTurnChannel(source_of()), target=target, draft_length=4).tokens, plain(GREEDY))


def early(give: Callable[[Tensor], None]) -> Working:
    """Gives a hint in the middle of its prefill."""
    return Working(TABLE, lambda fed: fed or give(torch.tensor([4, 2])))


def test_the_hint_reaches_the_drafter_of_its_row():
    seen: list[Any] = []

    def source(prompt: Any, hint: Callable[[], Tensor | None]) -> MarkovTarget:
        numbers = hint()
        seen.append((prompt, None if numbers is None else numbers.tolist()))
        return MarkovTarget(CLOSE_TABLE, PROMPT, LENGTH)

    channel = InTurnChannel(source)
    result = parallel(channel, target=early(channel.hint), prompt="a video")
    assert seen == [("a video", [4, 2])] and torch.equal(result.tokens, plain(GREEDY))
    parallel(channel, prompt="another")
    assert seen[-1] == ("another", None), "no hint was given"


def test_waiting_for_the_hint_is_not_the_drafters_work(clock):
    drafter = WindowDrafter(lambda prompt, hint: Working(CLOSE_TABLE, lambda fed: clock.work(2 + 0 * bool(hint()))))
    assert drafter.begin(DraftRequest(None, VOCAB, GREEDY, 0), 1, lambda: clock.work(20)).seconds == 2


def breaks(fed: int) -> None:
    if fed:
        raise ArithmeticError("this model is broken")


def test_what_fails_on_either_side_is_raised_and_the_next_row_is_not_harmed():
    def source(prompt: Any, hint: Callable[[], Tensor | None]) -> MarkovTarget:
        if prompt == "waits":
            hint()
        return Working(CLOSE_TABLE, breaks if prompt == "broken" else lambda fed: None)

    def refuse(numbers: Tensor) -> None:
        raise ArithmeticError("the target broke in its prefill")

    with served(lambda: source) as channel:
        raised(DrafterError, "ArithmeticError: this model is broken", parallel, channel, prompt="broken")
        raised(ArithmeticError, "this model is broken", parallel, channel, target=Working(TABLE, breaks))
        raised(ArithmeticError, "in its prefill", parallel, channel, target=early(refuse), prompt="waits")
        assert torch.equal(parallel(channel).tokens, plain(GREEDY))
        raised(ArithmeticError, "in its prefill", parallel, channel, target=early(refuse), prompt="waits")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1"),
        ({"draft_length": 0}, "draft_length must be at least 1"),
        ({"stop_token": VOCAB}, "stop_token must lie in"),
        ({"streams": RandomStreams.from_seeds([1, 2])}, "streams must hold one stream per row"),
        ({"target": MarkovTarget(TABLE, PROMPT.expand(2, 2), 5)}, "target must hold one row"),
        ({"trace": DecodeTrace(2)}, "trace must be of the target's batch size 1"),
    ],
)
def test_what_cannot_be_used_is_named(options, message):
    value_error(message, parallel, InTurnChannel(source_of()), **options)


def test_drafters_that_do_not_fit_are_named():
    value_error("vocabulary of 30 tokens, it has 31", parallel, InTurnChannel(source_of(random_table(31, 0))))
    with pytest.raises(ValueError, match="must have one row, it has 2"):
        parallel(InTurnChannel(lambda prompt, hint: MarkovTarget(TABLE, PROMPT.expand(2, 2), 9)))


def test_a_drafter_feeds_its_newest_token_again_when_nothing_else_waits():
    drafter = WindowDrafter(source_of())
    first = drafter.begin(DraftRequest(None, VOCAB, GREEDY, 0), 5, lambda: None).tokens
    for kept in (4, 2, 2):
        assert drafter.draft(DraftOrder(kept, None, 5 - kept)).tokens == first[kept:]
    assert drafter.draft(DraftOrder(0, first[0], 4)).tokens == first[1:]
