"""Row windows without guesses, whose order is known beforehand, beside a slow, obvious form of it; lines; settings."""

from typing import Any

import pytest
import torch
from place_oracles import staggered
from placed_pictures import COUNT, DRAWN, GREEDY, LINES, SIDE, LlamaGenPasses, condition, make_placed_model, run_of
from refusals import value_error
from synthetic import MarkovTarget, random_table

from specdecode.grid.positions import Lines, Window, fill_forced, or_forced
from specdecode.grid.row_windows import RowWindows
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


def expected_of(model: Any, request: int, window: Window, sampling: SamplingConfig = DRAWN) -> dict[str, Any]:
    return staggered(LlamaGenPasses(model, request, sampling), window)


@pytest.mark.parametrize(
    ("window", "all_of_them", "sampling"), [*((*each, DRAWN) for each in WINDOWS), (*WINDOWS[1], GREEDY)]
)
def test_every_token_is_that_of_full_forward_passes(model, window, all_of_them, sampling):
    rule = RowWindows(LINES, window)
    expected = [expected_of(model, request, window, sampling) for request in range(3)]
    together = run_of(model, range(3), rule, sampling).finish()
    assert together.tokens.tolist() == [each["tokens"] for each in expected]
    assert together.trace.target_passes == expected[0]["passes"] == SIDE + all_of_them == 1 + rule.least_passes
    assert together.trace.rows_fed == [each["fed"] for each in expected]
    assert together.trace.row_tokens == together.lengths.tolist() == [COUNT] * 3
    for request in range(3):
        alone = run_of(model, range(request, request + 1), rule, sampling).finish()
        assert alone.tokens.tolist() == [expected[request]["tokens"]]


def test_a_window_of_a_whole_line_is_plain_decoding(model):
    plain, placed = (run_of(model, range(3), order).finish() for order in (None, RowWindows(LINES, SIDE)))
    assert torch.equal(plain.tokens, placed.tokens)
    assert placed.trace.target_passes == plain.trace.target_passes
    assert placed.trace.rows_fed == plain.trace.rows_fed == [COUNT - 1] * 3


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
    value_error(message, lambda: RowWindows(Lines(*lines), window))


def test_settings_that_do_not_go_with_places_are_named(model):
    target = LlamaGenTarget(model, *condition(model, range(1)))
    settings: dict[str, Any] = {
        "order": RowWindows(LINES, 2),
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
        value_error(message, new_run, target, **{**settings, **changes})
    value_error("num_slots must be at most 25", lambda: new_run(target, **settings).finish())
    other = MarkovTarget(random_table(8, seed=1), torch.zeros(1, 2, dtype=torch.int64), COUNT)
    value_error("MarkovTarget takes no places", new_run, other, **settings)
