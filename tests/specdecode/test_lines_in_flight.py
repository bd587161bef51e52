"""Lines in flight: every token equals that of a slow, obvious form of the rule, in every batch; faults are seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from placed_pictures import COUNT, DRAWN, GREEDY, LENGTHS, SIDE, Fed, FullPasses, make_placed_model, run_of
from torch import Tensor

from specdecode.continuous import decode_queue
from specdecode.lines_in_flight import FlightRun, LinesInFlight, _Pass
from specdecode.loop import DecodeRun
from specdecode.places import StaggeredLines
from specdecode.sampling import SamplingConfig

RULES = {
    "an adaptive start": LinesInFlight(COUNT, SIDE, 2, first_holds=True),
    "guesses": LinesInFlight(COUNT, SIDE, 3, guesses=2),
    "more guesses than tokens ahead": LinesInFlight(COUNT, SIDE, 1, guesses=4),
    "both": LinesInFlight(COUNT, SIDE, 2, guesses=3, first_holds=True),
    "two looks": LinesInFlight(COUNT, SIDE, 3, guesses=4, looks=2),
    "three looks at whole lines": LinesInFlight(COUNT, SIDE, SIDE, guesses=SIDE - 1, looks=3),
    "one look, and a start that may hold": LinesInFlight(COUNT, SIDE, 1, guesses=1, first_holds=True, looks=1),
}


@pytest.fixture(scope="module")
def model() -> Any:
    return make_placed_model()


def oracle(model: Any, request: int, sampling: SamplingConfig, rule: LinesInFlight) -> dict[str, Any]:
    """What the rule makes of one request, by full forward passes without a cache.

    The rule in words. A line opens once the line above has `window` decided tokens. Each pass feeds decided tokens that
    were not fed, and the guesses of every line. A first token is drawn behind the token before it, or behind a stand-in
    where that is not decided. The next tokens of a line are right as long as each guess is what the pass draws for its
    place; these are decided, and one more. What else was drawn are guesses; a line that has fewer than it may have gets
    more from its last distribution. A token may be seen by others once it is decided and fed; guesses by their line.
    """
    passes = FullPasses(model, request, sampling)
    decided: list[list[int]] = [[] for _ in range(SIDE)]
    guesses: list[list[int]] = [[] for _ in range(SIDE)]
    looks: dict[int, int] = {}
    fed: list[Fed] = []
    newest: dict[int, int] = {}  # by place, the number of what was fed there last
    stand_ins: dict[int, int] = {}  # by line
    told = {"passes": 1, "drafted": 0, "accepted": 0, "unverified": 0}
    decided[0] += passes.draw([], [(-1, 0)])

    while any(len(line) < SIDE for line in decided):
        told["passes"] += 1
        known = {line * SIDE + column: token for line in range(SIDE) for column, token in enumerate(decided[line])}
        is_open = [
            len(decided[line]) < SIDE and (line == 0 or len(decided[line - 1]) >= rule.window) for line in range(SIDE)
        ]
        new: list[Fed] = []
        for line in range(SIDE):
            first = line * SIDE
            for place in range(first, first + len(decided[line])):
                is_fed = place in newest and fed[newest[place]].token == known[place]
                opens_below = line + 1 < SIDE and is_open[line + 1] and not decided[line + 1] and place == first + SIDE - 1
                if place < COUNT - 1 and (not is_fed or opens_below):
                    new.append(Fed(known[place], place, line))
            if is_open[line] and not decided[line] and first - 1 not in known:
                copied = max(line - 2, 0)
                new.append(Fed(decided[copied][-1], first - 1, line, is_stand_in=True))
            new += [Fed(token, first + len(decided[line]) + i, line) for i, token in enumerate(guesses[line])]
            told["drafted"] += len(guesses[line])
        start = len(fed)
        fed += new
        for number, each in enumerate(new, start):
            if each.is_stand_in:
                stand_ins[each.line] = number
            else:
                newest[each.place] = number
        for each in new:
            for place, number in newest.items():
                is_known = known.get(place) == fed[number].token
                is_own_guess = place not in known and place // SIDE == each.line and number >= start
                if place <= each.place and (is_known or is_own_guess):
                    each.sees.add(number)
            before = each.line * SIDE - 1
            is_there = before in newest and before in known and fed[newest[before]].token == known[before]
            if each.line in stand_ins and not is_there:
                each.sees.add(stand_ins[each.line])

        old, last_of = [len(line) for line in decided], {}
        for line in range(SIDE):
            if not is_open[line]:
                continue
            first, count = line * SIDE, old[line]
            waits = count == 0 and first - 1 not in known
            behind = [stand_ins[line] if waits else newest[first + count - 1]]
            behind += [newest[first + count + i] for i in range(len(guesses[line]))]
            places = [first + count + i for i in range(len(behind))]
            drawn = passes.draw(fed, list(zip(behind, places, strict=True)))
            for place in places:
                looks[place] = looks.get(place, 0) + 1
            right = 0
            while right < len(guesses[line]) and guesses[line][right] == drawn[right]:
                right += 1
            told["accepted"] += right
            gained = 0 if rule.first_holds and waits and right == 0 else right + 1
            verified = gained
            while rule.looks is not None and gained < len(drawn) and looks[places[gained]] >= rule.looks:
                gained += 1
            told["unverified"] += gained - verified
            decided[line] += drawn[:gained]
            guesses[line], last_of[line] = drawn[gained:], behind[-1]
        for line in range(SIDE):
            if not is_open[line]:
                continue
            most = max(rule.guesses, 1) if rule.first_holds and not decided[line] else rule.guesses
            if line > 0 and len(decided[line - 1]) < SIDE:
                most = min(most, len(decided[line - 1]) - len(decided[line]))
            most = max(min(most, SIDE - 1 - len(decided[line])), 0)
            more = range(len(guesses[line]), most)
            begin = line * SIDE + len(decided[line])
            guesses[line] = guesses[line][:most] + [
                passes.draw(fed, [(last_of[line], begin + number)])[0] for number in more
            ]
    return {"tokens": [token for line in decided for token in line], "fed": len(fed), **told}


@pytest.mark.parametrize("sampling", [DRAWN, GREEDY], ids=["drawn", "greedy"])
@pytest.mark.parametrize("name", RULES)
def test_every_token_is_that_of_full_forward_passes(model: Any, name: str, sampling: SamplingConfig) -> None:
    rule = RULES[name]
    expected = [oracle(model, request, sampling, rule) for request in range(3)]
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


@pytest.mark.parametrize("window", range(1, SIDE + 1))
def test_without_guesses_it_is_the_order_known_beforehand(model: Any, window: int) -> None:
    known, flying = (
        run_of(model, range(3), order).finish()
        for order in (StaggeredLines(COUNT, SIDE, window), LinesInFlight(COUNT, SIDE, window))
    )
    assert torch.equal(known.tokens, flying.tokens)
    assert flying.trace.row_passes == known.trace.row_passes and flying.trace.rows_fed == known.trace.rows_fed


def check_against_plain(model: Any, rule: LinesInFlight) -> None:
    plain, flying = (run_of(model, range(3), order).finish() for order in (None, rule))
    assert torch.equal(plain.tokens, flying.tokens)


WHOLE = LinesInFlight(COUNT, SIDE, SIDE, guesses=3)


@pytest.mark.parametrize("rule", [WHOLE, replace(WHOLE, guesses=0), replace(WHOLE, first_holds=True)])
def test_a_window_of_a_whole_line_is_plain_decoding(model: Any, rule: LinesInFlight) -> None:
    check_against_plain(model, rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_kernels_take_guesses_with_the_bits_of_plain_decoding(own_kernels: None, dtype: torch.dtype) -> None:
    model = make_placed_model().to(dtype)
    check_against_plain(model, WHOLE)
    if dtype == torch.float32:
        rule = RULES["both"]
        assert run_of(model, range(1), rule).finish().tokens.tolist() == [oracle(model, 0, DRAWN, rule)["tokens"]]


@settings(deadline=None, max_examples=25)
@given(
    window=st.integers(1, SIDE),
    guesses=st.integers(0, SIDE),
    first_holds=st.booleans(),
    looks=st.one_of(st.none(), st.integers(1, 3)),
    request=st.integers(0, len(LENGTHS) - 1),
)
def test_lines_keep_their_order(
    model: Any, window: int, guesses: int, first_holds: bool, looks: int | None, request: int
) -> None:
    rule = LinesInFlight(COUNT, SIDE, window, guesses, first_holds, looks)
    run = run_of(model, range(request, request + 1), rule)
    run.start()
    assert isinstance(run, FlightRun)
    before, opened, number = run._counts[0].tolist(), {0: 0}, 0
    kept = run.state.tokens[0].view(SIDE, SIDE).clone()
    while run.step():
        number += 1
        counts = run._counts[0].tolist()
        assert all(new >= old for new, old in zip(counts, before, strict=True))
        assert all(line >= below for line, below in zip(counts, counts[1:], strict=False))  # none overtakes
        assert all(above >= window for above, line in zip(before, counts[1:], strict=False) if line)
        tokens = run.state.tokens[0].view(SIDE, SIDE)
        for line, count in enumerate(before):
            assert torch.equal(tokens[line, :count], kept[line, :count])  # what is decided stays
        opened.update({line: number for line, count in enumerate(counts) if count and line not in opened})
        before, kept = counts, tokens.clone()
        full = next((line for line, count in enumerate(counts) if count < SIDE), SIDE)
        assert run.state.lengths.tolist() == [full * SIDE + (counts[full] if full < SIDE else 0)]
    assert before == [SIDE] * SIDE and not run.state.active.any()
    gaps = [opened[line] - opened[line - 1] for line in range(2, SIDE)]
    assert all(gap >= rule.passes_between_lines for gap in gaps)
    assert number >= (SIDE - 1) * rule.passes_between_lines


def differs(model: Any, rule: LinesInFlight) -> bool:
    """Whether any of three requests has other tokens or costs than the oracle's."""
    result = run_of(model, range(3), rule).finish()
    expected = [oracle(model, request, DRAWN, rule) for request in range(3)]
    return [(*tokens,) for tokens in result.tokens.tolist()] != [(*each["tokens"],) for each in expected]


VISIBLE, FEED = FlightRun._visible, FlightRun._what_to_feed


def stand_in_seen_below(run: FlightRun, what: _Pass, slots: Tensor) -> Tensor:
    visible = VISIBLE(run, what, slots)
    seen = run._line_of[slots][..., None] > run._lines[1:]
    visible[..., COUNT:] |= seen
    return visible


def undecided_seen(run: FlightRun, what: _Pass, slots: Tensor) -> Tensor:
    visible = VISIBLE(run, what, slots)
    visible[..., :COUNT] = run._places <= run._position_of[slots][..., None]
    return visible


def guesses_seen_below(run: FlightRun, what: _Pass, slots: Tensor) -> Tensor:
    visible = VISIBLE(run, what, slots)
    visible[..., :COUNT] |= what.guessed.flatten(1)[:, None] & (run._places <= run._position_of[slots][..., None])
    return visible


def last_token_not_fed(run: FlightRun) -> _Pass:
    run._fed[..., -1] = True  # so it is said
    return FEED(run)


def overtaking(run: FlightRun) -> _Pass:
    what = FEED(run)
    columns, counts = run._columns, run._counts[..., None]
    run._guesses = run._guesses.where(~what.opened, (SIDE - 1 - run._counts).clamp(max=run.rule.guesses))
    guessed = (columns >= counts) & (columns < counts + run._guesses[..., None])
    looked = what.opened[..., None] & (columns >= counts) & (columns <= counts + run._guesses[..., None])
    feeding = what.feeding.clone()
    feeding[:, :COUNT] |= guessed.flatten(1)
    return replace(what, guessed=guessed, looked=looked, feeding=feeding)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("_visible", stand_in_seen_below),
        ("_visible", undecided_seen),
        ("_visible", guesses_seen_below),
        ("_what_to_feed", last_token_not_fed),
        ("_what_to_feed", overtaking),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_faults_change_tokens(model: Any, monkeypatch: pytest.MonkeyPatch, name: str, fault: Any) -> None:
    rule = RULES["guesses"]
    assert not differs(model, rule)
    monkeypatch.setattr(FlightRun, name, fault)
    assert differs(model, rule)


@pytest.mark.parametrize("name", ["an adaptive start", "both", "two looks"])
def test_other_requests_take_rows_half_way(model: Any, name: str) -> None:
    rule = RULES[name]

    def start(requests: range, joins: bool) -> DecodeRun:
        return run_of(model, requests, rule, prompt_only=joins)

    rows = {each.request: each for each in decode_queue(start, len(LENGTHS), 3)}
    for request in range(len(LENGTHS)):
        alone = run_of(model, range(request, request + 1), rule).finish()
        assert torch.equal(rows[request].tokens, alone.tokens[0])
        for figure in ("row_passes", "rows_fed", "row_tokens", "drafted", "skipped_tokens", "token_origins"):
            assert getattr(rows[request].trace, figure) == getattr(alone.trace, figure)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window must be"),
        ({"window": SIDE + 1}, r"window must be at most line_length \(5\), got 6"),
        ({"line_length": 4, "window": 1}, r"num_places must be a multiple of line_length \(4\), got 25"),
        ({"guesses": -1}, "guesses must be at least 0, got -1"),
        ({"looks": 0}, "looks must be"),
    ],
)
def test_rules_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(WHOLE, **changes)
