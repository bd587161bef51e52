"""The bookkeeping of parallel decoding against the state machine as the papers tell it, window by window."""

from collections.abc import Callable, Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from specdecode.runs.parallel.rounds import DraftOrder, Round, Rounds

Guess = Callable[[list[int]], int]


def plain(truth: list[int], stops: set[int]) -> list[int]:
    """The target's tokens up to the first stop token."""
    ends = [place for place, token in enumerate(truth) if token in stops]
    return truth[: ends[0] + 1] if ends else truth


def guesses(truth: list[int], matches: list[bool]) -> Guess:
    """A drafter: what it guesses behind these tokens, right where `matches` says so if all of them are right."""

    def guess(before: list[int]) -> int:
        place = len(before)
        right = before == truth[:place] and matches[place]
        return truth[place] if right else 100 + place

    return guess


def run(rounds: Rounds, truth: list[int], guess: Guess) -> Iterator[tuple[list[int], DraftOrder, Round]]:
    """Play both models. Yields what was fed, what was ordered and what came of it."""
    drafted: list[int] = []
    while not rounds.finished:
        fed, order = rounds.fed, rounds.order
        drafted = drafted[: order.kept] + ([] if order.token is None else [order.token])
        first = len(drafted)
        for _ in range(order.count):
            drafted.append(guess(drafted))
        begin = len(rounds.tokens)  # rows behind a wrong token say anything
        chosen = [truth[begin + i] for i in range(max(len(fed), 1))]
        yield fed, order, rounds.settle(chosen, drafted[first:])


def windows(truth: list[int], guess: Guess, gamma: int) -> list[tuple[str, int]]:
    """The papers' machine, literally, up to the end of a long row: mode and tokens newly decided, round by round.

    PRE verifies W[0]; POST the rest of W, and W'[0].
    """
    decided: list[int] = []
    window: list[int] = []
    mode, log = "PRE", []

    def draft(behind: list[int]) -> list[int]:
        result: list[int] = []
        while len(result) < gamma and len(behind) + len(result) < len(truth):
            result.append(guess(behind + result))
        return result

    while len(decided) < len(truth):
        if mode == "PRE":
            new = draft(decided)
            if new[0] == truth[len(decided)]:
                mode, window = "POST", new
                log.append(("PRE", 1))
            else:
                log.append(("PRE", 1))
            decided = [*decided, truth[len(decided)]]
            continue
        prefix = decided[:-1]  # W[0] is the newest decided token
        new = draft(prefix + window)
        to_judge, right = window[1:] + new[:1], 0
        while right < len(to_judge) and to_judge[right] == truth[len(decided) + right]:
            right += 1
        if right == len(to_judge):
            log.append(("POST", right))
            decided, window = decided + to_judge, new
        else:
            log.append(("POST", right + 1))
            decided, mode = decided + truth[len(decided) : len(decided) + right + 1], "PRE"
    return log


ROWS = st.lists(st.booleans(), min_size=1, max_size=40)


@settings(max_examples=150, deadline=None)
@given(ROWS, st.integers(1, 9), st.integers(0, 1000))
def test_tokens_rounds_and_modes_are_the_papers(matches, gamma, seed):
    truth = [(seed * (i + 3)) % 7 for i in range(len(matches))]
    guess = guesses(truth, matches)
    rounds = Rounds(len(truth), gamma)
    log, pending = [], 0
    for fed, order, each in run(rounds, truth, guess):
        assert len(fed) == each.fed and order.count == each.drafted
        assert each.judged == max(1, each.fed), "every row judges a token, and none is left over"
        assert pending <= gamma - 1 and order.count <= gamma, "one window under way, one being judged"
        pending = len(rounds.pending)
        log.append(each.emitted)
    assert rounds.tokens == truth
    assert log == [emitted for _, emitted in windows(truth, guess, gamma)]


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 7), st.sets(st.integers(0, 12), max_size=2), st.integers(2, 13))
def test_a_row_ends_at_its_first_stop_token_or_is_complete(matches, gamma, stops, period):
    truth = [i % period for i in range(len(matches))]
    rounds = Rounds(len(truth), gamma, stops)
    for _, _, each in run(rounds, truth, guesses(truth, matches)):
        assert each.accepted <= each.emitted <= each.accepted + 1 and each.accepted <= each.judged
    assert rounds.tokens == plain(truth, stops)
    assert sum(each.emitted for each in rounds.settled) == len(rounds.tokens)
    assert sum(rounds.run_lengths) + sum(each.rejected for each in rounds.settled) == len(rounds.tokens)


def test_tokens_accepted_past_a_stop_token_are_not_counted():
    """All five guesses are right, the second ends the row."""
    rounds = Rounds(9, 5, {7})
    rounds.settle([1], [1, 2, 7, 4, 5])
    assert rounds.fed == [1, 2, 7, 4, 5]
    last = rounds.settle([2, 7, 4, 5, 6], [6, 8])
    assert (last.judged, last.accepted, last.emitted, last.rejected) == (5, 2, 2, False)
    assert rounds.finished and rounds.tokens == [1, 2, 7]


@settings(max_examples=100, deadline=None)
@given(ROWS, st.integers(1, 7))
def test_runs_between_rejections_do_not_depend_on_the_window(matches, gamma):
    truth = [1] * len(matches)
    rounds = Rounds(len(truth), gamma)
    ordered = sum(order.count for _, order, _ in run(rounds, truth, guesses(truth, matches)))
    assert rounds.draft_passes == ordered
    runs = [0]
    for right in matches:
        runs[-1] += right
        if not right:
            runs.append(0)
    if not matches[-1]:
        runs.pop()
    assert rounds.run_lengths == runs
