"""Places: every token equals that of a slow, obvious form of the rule, in every batch."""

from typing import Any

import pytest
import torch
from counted_graphs import CountedGraphs
from place_oracles import staggered
from placed_pictures import (
    COUNT,
    DRAWN,
    GREEDY,
    LENGTHS,
    LINES,
    SIDE,
    LlamaGenPasses,
    condition,
    make_placed_model,
    run_of,
)
from synthetic import MarkovTarget, random_table

from specdecode.graphs.static_step import StepCompiler
from specdecode.grid.positions import Lines, OrderedRun, StaggeredLines, Window, _Tables, fill_forced, or_forced
from specdecode.loop import DecodeRun
from specdecode.runs.continuous import decode_queue
from specdecode.runs.new_run import new_run
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.verifiers.exact import ExactVerifier
from vargen.models.llamagen.llamagen_target import LlamaGenTarget

WINDOWS: list[tuple[Window, int]] = [
    *((window, (SIDE - 1) * window) for window in range(1, SIDE + 1)),
    ((2, 4), 2 + 2 + 4 + 4),
    ((4, 1, 5, 2, 3), 1 + 5 + 2 + 3),
]
"""Windows, and the sum of those of all lines but the first."""


@pytest.fixture(scope="module")
def model() -> Any:
    return make_placed_model()


def run_with(
    model: Any, requests: range, window: Window | None, sampling: SamplingConfig = DRAWN, **given: Any
) -> DecodeRun:
    """A run that is not started; window None: plain decoding."""
    return run_of(model, requests, None if window is None else StaggeredLines(LINES, window), sampling, **given)


def expected_of(model: Any, request: int, window: Window, sampling: SamplingConfig = DRAWN) -> dict[str, Any]:
    return staggered(LlamaGenPasses(model, request, sampling), window)


@pytest.mark.parametrize(
    ("window", "all_of_them", "sampling"), [*((*each, DRAWN) for each in WINDOWS), (*WINDOWS[1], GREEDY)]
)
def test_every_token_is_that_of_full_forward_passes(model, window, all_of_them, sampling):
    expected = [expected_of(model, request, window, sampling) for request in range(3)]
    together = run_with(model, range(3), window, sampling).finish()
    assert together.tokens.tolist() == [each["tokens"] for each in expected]
    assert together.trace.target_passes == expected[0]["passes"] == SIDE + all_of_them
    assert together.trace.rows_fed == [each["fed"] for each in expected]
    assert together.trace.row_tokens == together.lengths.tolist() == [COUNT] * 3
    for request in range(3):
        alone = run_with(model, range(request, request + 1), window, sampling).finish()
        assert alone.tokens.tolist() == [expected[request]["tokens"]]


def check_against_plain(model: Any) -> None:
    plain, placed = (run_with(model, range(3), window).finish() for window in (None, SIDE))
    assert torch.equal(plain.tokens, placed.tokens)
    assert placed.trace.target_passes == plain.trace.target_passes
    assert placed.trace.rows_fed == plain.trace.rows_fed == [COUNT - 1] * 3


def test_a_window_of_a_whole_line_is_plain_decoding(model):
    check_against_plain(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_take_places_with_the_bits_of_plain_decoding(own_kernels, dtype):
    model = make_placed_model().to(dtype)
    check_against_plain(model)
    if dtype == torch.float32:
        assert run_with(model, range(1), 2).finish().tokens.tolist() == [expected_of(model, 0, 2)["tokens"]]


@pytest.mark.parametrize("graphs", [False, True])
def test_other_requests_take_all_rows_together(model, graphs):
    torch._dynamo.reset()
    compiler = StepCompiler(counted := CountedGraphs(), 64) if graphs else None

    def start(requests: range, joins: bool) -> DecodeRun:
        return run_with(model, requests, 2, prompt_only=joins, compiler=None if joins else compiler)

    rows = {each.request: each for each in decode_queue(start, len(LENGTHS), 3)}
    for request in range(len(LENGTHS)):
        alone = run_with(model, range(request, request + 1), 2).finish()
        assert torch.equal(rows[request].tokens, alone.tokens[0])
        assert rows[request].trace.row_passes == alone.trace.row_passes
        assert rows[request].trace.rows_fed == alone.trace.rows_fed
    if graphs:
        assert counted.graphs == 1 and not counted.faults


def test_rows_change_once_all_have_ended(model):
    run, other = run_with(model, range(2), 2), run_with(model, range(2, 4), 2, prompt_only=True)
    run.start()
    run.step()
    other.start()
    with pytest.raises(ValueError, match="must all have ended"):
        run.replace_rows(torch.arange(2), other)
    while run.step():
        pass
    run.replace_rows(torch.arange(2), other)
    assert run.state.decided.sum(1).tolist() == [1, 1], "what the prefill drew"


def test_lengths_count_the_places_without_a_gap(model):
    run, order = run_with(model, range(1), 2), StaggeredLines(LINES, 2)
    run.start()
    for number in range(1, order.num_passes):
        run.step()
        drawn = {place for place in range(COUNT) if order.drawn_in(place) <= number}
        leading = next((place for place in range(COUNT) if place not in drawn), COUNT)
        assert run.state.lengths.tolist() == [leading] == [order.leading(number)]
    assert not run.state.active.any() and run.step() == 0


@pytest.mark.parametrize("window", [1, (2, 5), 5])
def test_an_end_of_row_token_counts_once_it_is_fed(window):
    """In eager passes and, by tables, in graphs."""
    order, added = StaggeredLines(Lines(23, 5, row_end=0), window), {0}
    tables = _Tables(order, torch.device("cpu"))
    for number in range(1, order.num_passes):
        placed = order.tokens_of(number)
        added.update(placed.added.tolist())
        gap = next(place for place in range(24) if place not in added)
        assert order.leading(number) == gap
        assert tables.of(torch.tensor([number]))[1].tolist() == [gap, placed.slots.shape[1], len(placed.added)]


def test_a_known_token_may_be_0():
    buffer, forced = torch.full((2, 4), 7), torch.tensor([[0, -1, 5]] * 2)
    assert or_forced(buffer[:, :3], forced, torch.arange(3).expand(2, 3)).tolist() == [[0, 7, 5]] * 2
    fill_forced(buffer, forced)
    assert buffer.tolist() == [[0, 7, 5, 7]] * 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((25, 5, None, 0), "window must be"),
        ((25, 5, None, ()), "window must be a number, or at least one"),
        ((25, 5, None, (2, 0)), "window must be"),
        ((25, 5, None, (2, 6)), r"window must be at most line_length \(5\), got 6"),
        ((25, 5, None, 6), r"window must be at most line_length \(5\), got 6"),
        ((25, 4, None, 1), r"num_places must be those of whole lines of line_length \(4\), got 25"),
        ((25, 5, 3, 1), r"whole lines of line_length \(5\) with an end-of-row token between two, got 25"),
    ],
)
def test_orders_that_do_not_fit_are_named(arguments, message):
    *lines, window = arguments
    with pytest.raises(ValueError, match=message):
        StaggeredLines(Lines(*lines), window)


def test_settings_that_do_not_go_with_places_are_named(model):
    target = LlamaGenTarget(model, *condition(model, range(1)))
    settings: dict[str, Any] = {
        "order": StaggeredLines(LINES, 2),
        "max_new_tokens": COUNT,
        "sampling": DRAWN,
        "streams": RandomStreams.from_seeds([0]),
    }
    for changes, message in (
        ({"verifier": ExactVerifier()}, "verifier must be None"),
        ({"stop_token": 3}, "stop_token must be None"),
        ({"max_new_tokens": 20}, "order must have max_new_tokens"),
        ({"schedule": object()}, "schedule must be None"),
    ):
        with pytest.raises(ValueError, match=message):
            new_run(target, **{**settings, **changes})
    with pytest.raises(ValueError, match="num_slots must be at most 25"):
        new_run(target, **settings).finish()
    other = MarkovTarget(random_table(8, seed=1), torch.zeros(1, 2, dtype=torch.int64), COUNT)
    with pytest.raises(ValueError, match="MarkovTarget takes no places"):
        OrderedRun(other, **settings)
