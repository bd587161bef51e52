"""Reckoned times against closed forms and against two workers moved tick by tick."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulation import Costs, simulate_in_turn, simulate_parallel, simulate_plain


def by_ticks(matches: list[bool], costs: Costs, gamma: int) -> tuple[int, int, int]:
    """Two workers with mailboxes; all times are whole ticks. Total, target's busy and drafter's busy ticks.

    The target judges what is fed and the first of the window that arrives, or corrects and starts anew.
    """
    length, now = len(matches), 0
    decided, behind = 0, 0  # tokens decided, and drafted behind them without having been judged
    behind_right = 0  # how many of those are right, before the first wrong one
    target_busy = drafter_busy = 0
    prefilling = True
    while decided < length:
        count = min(gamma, length - decided - behind)
        target_left = int(costs.target_prefill if prefilling else costs.target)
        if prefilling:
            pause, drafter_left = int(costs.hint), int(costs.draft_prefill + (count - 1) * costs.draft)
        else:
            pause, drafter_left = 0, int(count * costs.draft)
        while target_left or drafter_left:
            now += 1
            if target_left:
                target_left -= 1
                target_busy += 1
            if pause:
                pause -= 1
            elif drafter_left:
                drafter_left -= 1
                drafter_busy += 1
        window = matches[decided + behind : decided + behind + count]
        # The window stands behind drafted tokens; where one of those is wrong, it is worth nothing.
        clean = behind_right == behind
        rows = 1 if prefilling else min(1 + behind, length - decided)
        prefilling = False
        right = behind_right + (clean and behind < rows and bool(window) and window[0])
        if right >= rows:
            decided += rows
            left = window[rows - behind :]
            behind = len(left)
            behind_right = left.index(False) if False in left else behind
        else:
            decided += right + 1
            behind = behind_right = 0
    return now, target_busy, drafter_busy


TICKS = st.integers(1, 6)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.builds(
        Costs, TICKS, TICKS, target_prefill=st.integers(1, 40), draft_prefill=st.integers(1, 9), hint=st.integers(0, 9)
    ),
    st.integers(1, 6),
)
def test_simulated_seconds_are_those_of_two_workers_moved_by_hand(
    matches: list[bool], costs: Costs, gamma: int
) -> None:
    account = simulate_parallel(matches, costs, gamma)
    assert (account.total_seconds, account.target_seconds, account.drafter_seconds) == by_ticks(matches, costs, gamma)


@pytest.mark.parametrize(("target", "draft"), [(9.0, 1.0), (9.0, 2.0), (9.0, 4.0), (1.0, 1.0)])
@pytest.mark.parametrize("gamma", [1, 3, 9])
def test_a_full_round_takes_the_slower_sides_time(target: float, draft: float, gamma: int) -> None:
    num_rounds = 10
    matches = [True] * (1 + gamma * num_rounds + 2 * gamma)
    account = simulate_parallel(matches, Costs(target, draft, target_prefill=100), gamma)
    full = [
        each.target + each.waiting
        for each, what in zip(account.seconds, account.rounds, strict=True)
        if what.fed == what.drafted == gamma
    ]
    assert len(full) >= num_rounds and set(full) == {max(gamma * draft, target)}
    if gamma * draft == target:  # the paper's choice of the window: nobody waits, c times as fast as plain decoding
        assert account.waiting_seconds == 0
        assert (len(matches) - 1) * target / (account.total_seconds - 100) == pytest.approx(target / draft, rel=0.1)


def test_known_totals_of_decoding_in_turn_and_plainly() -> None:
    costs = Costs(target=10, draft=2, target_prefill=100, draft_prefill=20)
    assert simulate_plain(5, costs) == 140
    # One token of the prefill; two right and a bonus; a wrong one replaced; the last token is the target's own.
    matches = [True, True, True, True, False, True, True]
    assert simulate_in_turn(matches, costs, 2) == 120 + 3 * 14
    assert simulate_in_turn([True], costs, 2) == 120


def test_every_further_token_of_a_pass_is_paid_for() -> None:
    costs = Costs(target=10, draft=2, target_prefill=100, draft_prefill=20, target_token=3)
    assert [costs.target_pass(count) for count in (1, 2, 4)] == [10, 13, 19]
    # The first of the prefill; passes over 3 tokens (two right, a bonus), 3 (a wrong one), and 2, where one is left.
    assert simulate_in_turn([True, True, True, True, False, True, True], costs, 2) == 120 + 3 * 4 + 16 + 16 + 13
    account = simulate_parallel([True] * 8, costs, 3)
    assert [each.fed for each in account.rounds] == [0, 3, 3, 1]
    assert [each.target for each in account.seconds] == [100, 16, 16, 10]
    assert simulate_plain(5, costs) == 140


@settings(max_examples=100, deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 6))
def test_overlapping_a_free_drafter_still_costs_no_more_than_plain_decoding(matches: list[bool], gamma: int) -> None:
    costs = Costs(target=5, draft=0, target_prefill=7)
    assert simulate_parallel(matches, costs, gamma).total_seconds <= simulate_plain(len(matches), costs)
