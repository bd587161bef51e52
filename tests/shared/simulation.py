"""What overlapping is worth, reckoned: the same rounds with given seconds in place of models.

Belongs here: clocks that are set by hand. Does not belong here: measuring, and drawing conclusions about a machine on
which both sides share a bandwidth.

Whether a guess is right is given position by position, so a run of the simulation is a pure function of its arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from specdecode.runs.parallel.rounds import Rounds, RoundSeconds, RunAccount


@dataclass(frozen=True)
class Costs:
    """Seconds.

    Args:
        target: One pass of the target over one token.
        draft: One drafted token.
        target_prefill: The target's prefill.
        draft_prefill: The drafter's.
        hint: From the beginning of the target's prefill until the drafter's can begin.
        target_token: What each further token of a pass adds. Next to nothing on a GPU, where weights and cache have to
            be read in any case; on a CPU it is the better part.
    """

    target: float
    draft: float
    target_prefill: float = 0.0
    draft_prefill: float = 0.0
    hint: float = 0.0
    target_token: float = 0.0

    def target_pass(self, num_tokens: int) -> float:
        """One pass of the target over so many tokens."""
        return self.target + (num_tokens - 1) * self.target_token


def simulate_parallel(matches: Sequence[bool], costs: Costs, draft_length: int) -> RunAccount:
    """Rounds and seconds of parallel decoding.

    Args:
        matches: for each token of the row, whether the drafter, given the right tokens before it, guesses it.
        costs: of passes.
        draft_length: tokens of a window.
    """
    rounds, account = Rounds(len(matches), draft_length), RunAccount(draft_length)
    # Right tokens are zeros, wrong guesses ones. Behind a wrong guess nothing is read.
    while not rounds.finished:
        order, fed = rounds.order, len(rounds.fed)
        account.draft_passes += order.count
        first = order.kept + (order.token is not None)
        window = [0 if matches[position] else 1 for position in range(first, first + order.count)]
        if fed:
            busy, drafting = costs.target_pass(fed), order.count * costs.draft
            done = drafting
        else:  # the prompt gives the first guess
            busy, drafting = costs.target_prefill, costs.draft_prefill + (order.count - 1) * costs.draft
            done = costs.hint + drafting
        account.rounds.append(rounds.settle([0] * max(fed, 1), window))
        account.seconds.append(RoundSeconds(busy, drafting, max(0.0, done - busy)))
    return account


def simulate_in_turn(matches: Sequence[bool], costs: Costs, draft_length: int) -> float:
    """Seconds of drafting and judging one after the other, with a bonus token after a draft that was all right.

    Args:
        matches, costs, draft_length: as for `simulate_parallel`.
    """
    seconds, decided = costs.target_prefill + costs.draft_prefill, 1
    while decided < len(matches):
        drafted = list(matches[decided : decided + draft_length][: len(matches) - 1 - decided])
        decided += 1 + (drafted.index(False) if False in drafted else len(drafted))
        seconds += draft_length * costs.draft + costs.target_pass(len(drafted) + 1)
    return seconds


def simulate_plain(num_tokens: int, costs: Costs) -> float:
    """Seconds of the target alone."""
    return costs.target_prefill + (num_tokens - 1) * costs.target
