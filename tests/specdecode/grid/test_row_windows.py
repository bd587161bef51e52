"""Lines in flight: every token equals that of a slow, obvious form of the rule, in every batch."""

from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from counted_graphs import CountedGraphs
from hypothesis import given, settings
from hypothesis import strategies as st
from place_oracles import in_flight
from placed_pictures import COUNT, DRAWN, GREEDY, LENGTHS, LINES, SIDE, LlamaGenPasses, make_placed_model, run_of
from refusals import value_error
from torch import Tensor

from specdecode.graphs.static_step import StepCompiler
from specdecode.grid.mixed_grids import GridLayout
from specdecode.grid.positions import Lines
from specdecode.grid.row_windows import RowWindowRun, RowWindows
from specdecode.loop import DecodeRun
from specdecode.roles import Positions, TargetOutput
from specdecode.runs.continuous import decode_queue
from vargen.models.llamagen.llamagen_target import LlamaGenTarget

RULES = {
    "no guesses": RowWindows(LINES, 2),
    "an adaptive start": RowWindows(LINES, 2, confirm_first=True),
    "guesses": RowWindows(LINES, 3, guesses=2),
    "more guesses than tokens ahead": RowWindows(LINES, 1, guesses=4),
    "both": RowWindows(LINES, 2, guesses=3, confirm_first=True),
    "two visits": RowWindows(LINES, 3, guesses=4, max_visits=2),
    "three visits of whole lines": RowWindows(LINES, SIDE, guesses=SIDE - 1, max_visits=3, start_from_row_above=True),
    "two visits of copies": RowWindows(LINES, 2, guesses=2, max_visits=2, start_from_row_above=True),
    "one visit, guesses in the first columns": RowWindows(
        LINES, 2, guesses=1, max_visits=1, start_from_row_above=True, guessed_columns=3
    ),
    "two visits, guesses in the first columns": RowWindows(LINES, 3, guesses=3, max_visits=2, guessed_columns=2),
    "windows by line": RowWindows(LINES, (2, 4, 1), guesses=2, max_visits=2, start_from_row_above=True),
    "in proportion to the lines": RowWindows(
        LINES, (8, 3, 5), guesses=3, max_visits=1, start_from_row_above=True, guessed_columns=4, of_length=8
    ),
    "one visit, and a start that may hold": RowWindows(LINES, 1, guesses=1, confirm_first=True, max_visits=1),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return make_placed_model()


@pytest.mark.parametrize(
    ("name", "sampling"), [*((name, DRAWN) for name in RULES), ("guesses", GREEDY), ("both", GREEDY)]
)
def test_every_token_is_that_of_full_forward_passes(model, name, sampling):
    rule = RULES[name]
    expected = [in_flight(LlamaGenPasses(model, request, sampling), rule) for request in range(3)]
    together = run_of(model, range(3), rule, sampling).finish()
    assert together.tokens.tolist() == [each["tokens"] for each in expected]
    trace = together.trace
    assert trace.row_passes == [each["passes"] for each in expected]
    assert trace.rows_fed == [each["fed"] for each in expected]
    assert trace.drafted == sum(each["drafted"] for each in expected)
    assert sum(map(sum, trace.accepted_lengths)) == sum(each["accepted"] for each in expected)
    assert trace.skipped_tokens == sum(each["unverified"] for each in expected)
    assert trace.row_tokens == together.lengths.tolist() == [COUNT] * 3
    for request in range(3):
        alone = run_of(model, range(request, request + 1), rule, sampling).finish()
        assert alone.tokens.tolist() == [expected[request]["tokens"]]
        assert alone.trace.rows_fed == [expected[request]["fed"]]


def check_against_plain(model: Any, rule: RowWindows) -> None:
    plain, flying = (run_of(model, range(3), order).finish() for order in (None, rule))
    assert torch.equal(plain.tokens, flying.tokens)


WHOLE = RowWindows(LINES, SIDE, guesses=3)


@pytest.mark.parametrize("rule", [WHOLE, replace(WHOLE, confirm_first=True)])
def test_a_window_of_a_whole_line_is_plain_decoding(model, rule):
    check_against_plain(model, rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_take_guesses_with_the_bits_of_plain_decoding(own_kernels, dtype):
    model = make_placed_model().to(dtype)
    check_against_plain(model, WHOLE)
    if dtype == torch.float32:
        rule = RULES["both"]
        assert run_of(model, range(1), rule).finish().tokens.tolist() == [
            in_flight(LlamaGenPasses(model, 0, DRAWN), rule)["tokens"]
        ]


def one_at_a_time(target: LlamaGenTarget, tokens: Tensor, placed: Positions) -> TargetOutput:
    """A pass over places as passes over one token each, those of lower places first."""
    logits = []
    order = placed.positions.argsort(dim=1, stable=True)
    for index in order.T[..., None]:
        one = [each.gather(1, index) for each in (placed.positions, placed.slots)]
        seen = placed.visible.gather(1, index[..., None].expand(-1, -1, placed.visible.shape[2]))
        logits.append(FORWARD(target, tokens.gather(1, index.expand(len(tokens), -1)), Positions(*one, seen)).logits)
    back = order.argsort(1)[..., None].expand(len(tokens), -1, logits[0].shape[2])
    return TargetOutput(torch.cat(logits, 1).gather(1, back))


FORWARD = LlamaGenTarget.forward_places


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["no guesses", "both", "two visits of copies"])
def test_in_the_kernels_bits_do_not_depend_on_how_tokens_are_fed(own_kernels, monkeypatch, name, dtype):
    """In a batch, alone, and one token after another."""
    model, order = make_placed_model().to(dtype), RULES[name]
    together = run_of(model, range(3), order).finish().tokens
    alone = [run_of(model, range(request, request + 1), order).finish().tokens for request in range(3)]
    assert torch.equal(torch.cat(alone), together)
    monkeypatch.setattr(LlamaGenTarget, "forward_places", one_at_a_time)
    assert torch.equal(run_of(model, range(3), order).finish().tokens, together)


@settings(deadline=None, max_examples=15)
@given(
    window=st.integers(1, SIDE),
    guesses=st.integers(0, SIDE),
    confirm_first=st.booleans(),
    max_visits=st.one_of(st.none(), st.integers(1, 3)),
    start_from_row_above=st.booleans(),
    request=st.integers(0, len(LENGTHS) - 1),
)
def test_lines_keep_their_order(model, window, guesses, confirm_first, max_visits, start_from_row_above, request):
    rule = RowWindows(LINES, window, guesses, confirm_first, max_visits, start_from_row_above and not confirm_first)
    run = run_of(model, range(request, request + 1), rule)
    run.start()
    assert isinstance(run, RowWindowRun)
    before, opened, number = run._counts[0].tolist(), {0: 0}, 0
    kept = run.state.tokens[0].view(SIDE, SIDE).clone()
    while run.step():
        number += 1
        counts = run._counts[0].tolist()
        assert all(new >= old for new, old in zip(counts, before, strict=True))
        assert all(line >= below for line, below in pairwise(counts))  # none overtakes
        assert all(above >= window for above, line in zip(before, counts[1:], strict=False) if line)
        tokens = run.state.tokens[0].view(SIDE, SIDE)
        for line, count in enumerate(before):
            assert torch.equal(tokens[line, :count], kept[line, :count])  # a decided token stays
        opening = [line for line in range(1, SIDE) if line not in opened and before[line - 1] >= window]
        opened.update(dict.fromkeys(opening, number))
        before, kept = counts, tokens.clone()
        full = next((line for line, count in enumerate(counts) if count < SIDE), SIDE)
        assert run.state.lengths.tolist() == [full * SIDE + (counts[full] if full < SIDE else 0)]
    assert before == [SIDE] * SIDE and not run.state.active.any()
    gaps = [opened[line] - opened[line - 1] for line in range(1, SIDE)]
    assert all(gap >= rule.passes_between_lines for gap in gaps)
    assert number >= (SIDE - 1) * rule.passes_between_lines


def test_a_target_without_room_is_refused_before_its_first_pass(model):
    run = run_of(model, range(1), RULES["guesses"], prompt_only=True)
    value_error("num_slots must be at most", run.step)


def test_an_end_of_row_token_is_decided_with_the_first_token_behind_it():
    rule = RowWindows(Lines(3 * 4 - 1, 3, row_end=9), 2)
    counts = torch.tensor([[3, 2, 0], [3, 0, 0], [3, 3, 1]])
    layout = GridLayout(rule.lines, torch.device("cpu"))
    run = Mock(rule=rule, _columns=torch.arange(4), _counts=counts, _layout=layout)
    decided = RowWindowRun._decided_places(run)
    assert decided.sum(1).tolist() == [3 + 1 + 2, 3, 3 + 1 + 3 + 1 + 1]
    assert decided[:, 3].tolist() == [True, False, True] and decided[:, 7].tolist() == [False, False, True]


@pytest.mark.parametrize(
    ("name", "graphs"),
    [(name, False) for name in ("no guesses", "an adaptive start", "both", "two visits")]
    + [("an adaptive start", True)],
)
def test_other_requests_take_rows_half_way(model, name, graphs):
    rule = RULES[name]
    torch._dynamo.reset()
    compiler = StepCompiler(counted := CountedGraphs(), 64) if graphs else None

    def start(requests: range, joins: bool) -> DecodeRun:
        return run_of(model, requests, rule, prompt_only=joins, compiler=None if joins else compiler)

    rows = {each.request: each for each in decode_queue(start, len(LENGTHS), 3)}
    for request in range(len(LENGTHS)):
        alone = run_of(model, range(request, request + 1), rule).finish()
        assert torch.equal(rows[request].tokens, alone.tokens[0])
        for figure in ("row_passes", "rows_fed", "row_tokens", "drafted", "skipped_tokens", "token_origins"):
            assert getattr(rows[request].trace, figure) == getattr(alone.trace, figure)
    if graphs:
        assert 1 <= counted.graphs <= 2 and not counted.faults


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window must be"),
        ({"window": SIDE + 1}, r"window must be at most line_length \(5\), got 6"),
        ({"window": 8, "of_length": 7}, r"window must be at most of_length \(7\), got 8"),
        ({"of_length": 0}, "of_length must be"),
        ({"guesses": -1}, "guesses must be at least 0, got -1"),
        ({"max_visits": 0}, "max_visits must be"),
        ({"guessed_columns": 0}, "guessed_columns must be"),
        (
            {"start_from_row_above": True, "confirm_first": True},
            "start_from_row_above must be off where confirm_first is on",
        ),
    ],
)
def test_rules_that_do_not_fit_are_named(changes, message):
    value_error(message, replace, WHOLE, **changes)


@pytest.mark.parametrize("name", ["both", "two visits of copies", "no guesses"])
def test_steps_are_one_graph(model, name):
    """Of the tokens, passes and origins of eager steps; and again in the next batch, which needs no other graph."""
    torch._dynamo.reset()
    compiler = StepCompiler(counted := CountedGraphs(), 64)
    order = RULES[name]
    for requests in (range(3), range(3, 6)):
        eager, compiled = (run_of(model, requests, order, compiler=each) for each in (None, compiler))
        before = len(counted.faults)
        one, other = eager.finish(), compiled.finish()
        assert torch.equal(one.tokens, other.tokens) and torch.equal(one.lengths, other.lengths)
        for figure in ("target_passes", "rows_fed", "row_passes", "drafted", "token_origins", "token_passes"):
            assert getattr(one.trace, figure) == getattr(other.trace, figure), figure
        assert all("lie elsewhere" in fault for fault in counted.faults[before:]) and counted.graphs == 1
        assert requests.start or not counted.faults
