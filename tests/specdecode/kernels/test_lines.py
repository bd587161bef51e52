"""Row windows by the kernels: every pass feeds, sees and decides what it does in operations of torch."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from placed_pictures import COUNT, DRAWN, GREEDY, SIDE, make_placed_model, run_of
from torch import Tensor

from specdecode.grid.mixed_grids import MixedGrids
from specdecode.grid.positions import Lines
from specdecode.grid.row_windows import RowWindowRun, RowWindows
from specdecode.kernels import fused_ops
from specdecode.roles import Positions, TargetOutput
from specdecode.runs.continuous import decode_queue
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import TokenOrigin

VOCABULARY, ROW_END = 3, 2  # few tokens, so that guesses are often right


class Babble:
    """A target whose logits depend on each token, its place and slot, and the slots that it sees."""

    vocab_size, device = VOCABULARY, torch.device("cpu")

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size
        self.passes: list[tuple[Tensor, ...]] = []

    def check_places(self, num_slots: int) -> None:
        """There is always room."""

    def commit(self, path: Tensor, counts: Tensor) -> None:
        """Nothing depends on it."""

    def replace_rows(self, rows: Tensor, other: Babble) -> None:
        """Nothing depends on the row."""

    def prefill(self) -> TargetOutput:
        return TargetOutput(torch.zeros(self.batch_size, 1, VOCABULARY))

    def forward_places(self, tokens: Tensor, placed: Positions) -> TargetOutput:
        self.passes.append((tokens.clone(), placed.positions, placed.slots, placed.visible))
        seen = (placed.visible * torch.arange(1, placed.visible.shape[2] + 1)).sum(2)
        codes = tokens + 7 * placed.positions + 31 * placed.slots + 3 * seen
        return TargetOutput(torch.sin(codes[..., None] * torch.arange(1.0, VOCABULARY + 1)) * 2)


@st.composite
def rules(draw: st.DrawFn) -> tuple[RowWindows, int]:
    """A rule, and how many rows of the batch it is for."""
    row_end, batch_size = draw(st.sampled_from((None, ROW_END))), draw(st.integers(1, 3))

    def some_lines() -> Lines:
        height, length = draw(st.integers(1, 5)), draw(st.integers(1, 5))
        return Lines(height * (length + (row_end is not None)) - (row_end is not None), length, row_end)

    several = draw(st.booleans())
    lines: Lines | MixedGrids = MixedGrids([some_lines() for _ in range(batch_size)]) if several else some_lines()
    holds = draw(st.booleans())
    of_length = draw(st.one_of(st.none(), st.integers(1, 9)))
    most = of_length or lines.line_length
    windows = st.integers(1, most)
    rule = RowWindows(
        lines,
        draw(st.one_of(windows, st.lists(windows, min_size=1, max_size=4).map(tuple))),
        guesses=draw(st.integers(0, most)),
        confirm_first=holds,
        max_visits=draw(st.one_of(st.none(), st.integers(1, 3))),
        start_from_row_above=not holds and draw(st.booleans()),
        guessed_columns=draw(st.one_of(st.none(), st.integers(1, most))),
        of_length=of_length,
    )
    return rule, batch_size


def run_by(rule: RowWindows, target: Babble, sampling: SamplingConfig, requests: range, **more: Any) -> RowWindowRun:
    most, streams = rule.lines.num_places, RandomStreams.from_seeds(requests)
    more |= {"rule": rule, "max_new_tokens": most, "sampling": sampling, "streams": streams}
    return RowWindowRun(target, **more)  # type: ignore[arg-type]


def drawn(rule: RowWindows, batch_size: int, sampling: SamplingConfig, by_kernels: bool) -> tuple[Any, Babble]:
    """The result of a run, and its target."""
    target = Babble(batch_size)
    lines = rule.lines
    rows = torch.tensor([each.num_places for each in lines.rows]) if isinstance(lines, MixedGrids) else None
    run = run_by(rule, target, sampling, range(batch_size), row_tokens=rows)
    with patch.object(fused_ops, "serves", fused_ops.serves if by_kernels else lambda *_: False):
        return run.finish(), target


def check_alike(rule: RowWindows, batch_size: int, sampling: SamplingConfig) -> None:
    (lines, by_lines), (calls, by_calls) = (
        drawn(rule, batch_size, sampling, by_kernels=each) for each in (False, True)
    )
    assert len(by_lines.passes) == len(by_calls.passes)
    for expected, made in zip(by_lines.passes, by_calls.passes, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(expected, made, strict=True))
    assert torch.equal(lines.tokens, calls.tokens) and torch.equal(lines.lengths, calls.lengths)
    figures = ("row_passes", "rows_fed", "row_tokens", "drafted", "skipped_tokens", "accepted_lengths")
    for figure in (*figures, "token_origins", "token_passes"):
        assert getattr(lines.trace, figure) == getattr(calls.trace, figure), figure


@pytest.mark.parametrize("max_visits", [2, 3])
@pytest.mark.parametrize("guesses", [3, 4, 7])
def test_tokens_that_were_taken_by_visits_are_fed_again(own_kernels, max_visits, guesses):
    """A right guess behind a wrong one may be a line's newest token."""
    check_alike(RowWindows(Lines(64, 8), 8, guesses=guesses, max_visits=max_visits), 40, DRAWN)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rule_for=rules(), sampling=st.sampled_from((DRAWN, GREEDY)))
def test_the_kernels_feed_and_decide_what_the_lines_of_torch_do(own_kernels, rule_for, sampling):
    check_alike(*rule_for, sampling)


@pytest.mark.parametrize("max_visits", [None, 2])
def test_the_kernels_serve_eager_steps(own_kernels, monkeypatch, max_visits):
    """Also where other requests take rows half way."""
    model, rule = make_placed_model(), RowWindows(Lines(COUNT, SIDE), 3, guesses=2, max_visits=max_visits)
    monkeypatch.setattr(RowWindowRun, "_perform_in_lines", None)

    def start(requests: range, joins: bool) -> Any:
        return run_of(model, requests, rule, prompt_only=joins)

    for each in decode_queue(start, 5, 2):
        alone = run_of(model, range(each.request, each.request + 1), rule).finish()
        assert torch.equal(each.tokens, alone.tokens[0]) and each.trace.rows_fed == alone.trace.rows_fed


@pytest.mark.parametrize("by_kernels", [False, True])
def test_a_row_that_takes_a_place_has_windows_and_guesses_of_its_own(own_kernels, monkeypatch, by_kernels):
    """The first request is over soon, and its place goes to one with longer lines."""
    sizes = [Lines(4, 2), Lines(32, 4), Lines(18, 6)]
    if not by_kernels:
        monkeypatch.setattr(fused_ops, "serves", lambda *_: False)

    def start(requests: range, joins: bool) -> Any:
        lines = MixedGrids([sizes[request] for request in requests], sizes)
        rule = RowWindows(
            lines, (3, 2), guesses=3, max_visits=1, start_from_row_above=True, guessed_columns=5, of_length=6
        )
        rows = torch.tensor([sizes[request].num_places for request in requests])
        return run_by(rule, Babble(len(requests)), DRAWN, requests, row_tokens=rows)

    told = {each.request: each for each in decode_queue(start, 3, 2)}
    for request, each in told.items():
        alone = start(range(request, request + 1), False).finish()
        assert torch.equal(each.tokens[: sizes[request].num_places], alone.tokens[0, : sizes[request].num_places])
        assert each.trace.rows_fed == alone.trace.rows_fed and each.trace.drafted == alone.trace.drafted


def test_given_tokens_are_fed_once():
    """In the pass before all others."""
    forced, given = torch.full((2, 32), -1), (11, 5)
    for row, count in zip(forced, given, strict=True):
        row[:count] = 1
    rule, target = RowWindows(Lines(32, 8), 3, guesses=2), Babble(2)
    run_by(rule, target, GREEDY, range(2), forced_tokens=forced).finish()
    assert all(int(fed.min()) == count for fed, count in zip(target.passes[1][1], given, strict=True))


@pytest.mark.parametrize("by_kernels", [False, True])
@pytest.mark.parametrize("window", [1, (2, 5), 5])
def test_end_of_row_tokens_are_the_targets(own_kernels, window, by_kernels):
    """They are decided with the first token behind them, and no rule takes them unverified."""
    result, _ = drawn(RowWindows(Lines(23, 5, ROW_END), window), 2, DRAWN, by_kernels)
    ends = torch.arange(5, 23, 6)
    assert result.tokens[:, ends].eq(ROW_END).all()
    assert result.trace.token_origins == [[TokenOrigin.TARGET] * 23] * 2
    passes = torch.tensor(result.trace.token_passes)
    assert torch.equal(passes[:, ends], passes[:, ends + 1])


def test_a_pass_that_feeds_more_than_there_is_room_for_is_seen(own_kernels):
    run = run_of(make_placed_model(), range(1), RowWindows(Lines(COUNT, SIDE), 1, guesses=2))
    run.step()
    assert fused_ops.serves(run.state.tokens)
    with pytest.raises(IndexError):
        fused_ops.plan_lines(run._in_kernels(), 0)
