"""Who is ahead of whom: the bookkeeping of parallel decoding for one row, in plain integers.

Belongs here: which tokens the target is fed, which are drafted meanwhile, what stays, and what is counted. Does not
belong here: models, random numbers, clocks, processes.

In a round the target is fed the newest decided token and the tokens drafted behind it, while the drafter drafts the
next window behind those. Each token fed gives one row, and each row judges the token after it: those that were fed, and
the first of the new window. So there is never a row without a token to judge, and no bonus token.

* All of them right: the first of the new window is decided, the rest of it is what the target is fed next.
* The first wrong one is replaced by the target's own token; what was drafted behind it is dropped on both sides.

PEARL calls a round in which nothing drafted is fed "pre-verify" (its one row judges the first drafted token early) and
any other "post-verify". Both follow from the rule above. The first round is the prefill: nothing is fed but the prompt,
and its last row judges the first of the startup tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class DraftOrder:
    """What the drafter is told.

    Args:
        kept: Decoded and drafted tokens that stand; it forgets what it has behind them.
        token: Comes next, the target's own in place of a wrong one; None: what stands is all.
        count: Tokens to draft behind that, >= 1.
    """

    kept: int
    token: int | None
    count: int


@dataclass(frozen=True)
class Round:
    """What happened in a round.

    Args:
        fed: Tokens the target was fed; 0 in the prefill.
        drafted: Tokens drafted meanwhile.
        judged: Drafted tokens that were judged.
        accepted: Those of them that stayed.
        emitted: Tokens decided, the target's own in place of a wrong one included.
    """

    fed: int
    drafted: int
    judged: int
    accepted: int
    emitted: int

    @property
    def rejected(self) -> bool:
        """Whether a drafted token was replaced."""
        return self.emitted > self.accepted


class Rounds:
    """One row on its way from nothing to its end.

    Args:
        max_new_tokens: Tokens of a complete row, >= 1.
        draft_length: Tokens of a window, >= 1; fewer where the row ends.
        stop_tokens: The row ends after any of these.

    Attributes:
        tokens: Decided.
        pending: Drafted behind them and not judged; at most `draft_length` - 1.
        finished: Nothing is left to decide.
    """

    def __init__(self, max_new_tokens: int, draft_length: int, stop_tokens: Collection[int] = ()) -> None:
        self.max_new_tokens = max_new_tokens
        self.draft_length = draft_length
        self.stop_tokens = frozenset(stop_tokens)
        self.tokens: list[int] = []
        self.pending: list[int] = []
        self.finished = False
        self._corrected = False  # the newest decided token is not the drafter's

    @property
    def fed(self) -> list[int]:
        """What the target is fed in this round. A row's last token is never fed."""
        if not self.tokens:
            return []
        return [self.tokens[-1], *self.pending][: self.max_new_tokens - len(self.tokens)]

    @property
    def order(self) -> DraftOrder:
        """What is drafted in this round. Its count is 0 once drafts reach the end of the row."""
        stand = len(self.tokens) + len(self.pending)
        count = min(self.draft_length, self.max_new_tokens - stand)
        if self._corrected:
            return DraftOrder(stand - 1, self.tokens[-1], count)
        return DraftOrder(stand, None, count)

    def settle(self, chosen: Sequence[int], window: Sequence[int]) -> Round:
        """The round is over.

        Args:
            chosen: The target's own token after each token fed; in the prefill, the one after the prompt.
            window: What was drafted meanwhile.
        """
        fed, candidates = len(self.fed), [*self.pending, *window]
        judged = candidates[: len(chosen)]
        accepted = next((i for i, token in enumerate(judged) if token != chosen[i]), len(judged))
        decided = list(chosen[: accepted + 1])
        end = next((i for i, token in enumerate(decided) if token in self.stop_tokens), None)
        if end is not None:
            decided, self.finished = decided[: end + 1], True
        self.tokens += decided
        self.finished = self.finished or len(self.tokens) == self.max_new_tokens
        self._corrected = accepted < len(judged)
        self.pending = [] if self._corrected else candidates[len(judged) :]
        return Round(fed, len(window), len(judged), min(accepted, len(decided)), len(decided))


@dataclass(frozen=True)
class RoundSeconds:
    """Where the time of a round went. The round takes `target + waiting`.

    Args:
        target: The target was busy.
        drafter: The drafter was busy, at the same time.
        waiting: The target was done and waited for the drafter.
    """

    target: float
    drafter: float
    waiting: float


@dataclass
class RunAccount:
    """All rounds of a row, the prefill first, and their seconds.

    Args:
        draft_length: Tokens of a window.
        rounds: What happened.
        seconds: How long it took, round by round.
    """

    draft_length: int
    rounds: list[Round] = field(default_factory=list)
    seconds: list[RoundSeconds] = field(default_factory=list)

    @property
    def run_lengths(self) -> list[int]:
        """Drafted tokens accepted in a row, from one rejection to the next; the end of the row ends the last run.

        PEARL and ParallelVLM call their mean M, "mean accepted length". It does not stop at a window, so it may exceed
        `draft_length`, and is not comparable with the accepted length of a step (`DecodeTrace.mean_accepted_length`).
        (PEARL's release leaves out the run that the end of the row ends.)
        """
        runs = [0]
        for each in self.rounds:
            runs[-1] += each.accepted
            if each.rejected:
                runs.append(0)
        return runs[:-1] if self.rounds and self.rounds[-1].rejected else runs

    @property
    def mean_run_length(self) -> float:
        """Of `run_lengths`."""
        return sum(self.run_lengths) / len(self.run_lengths)

    @property
    def drafted(self) -> int:
        """Tokens drafted, those dropped unjudged included."""
        return sum(each.drafted for each in self.rounds)

    @property
    def target_seconds(self) -> float:
        """The target was busy."""
        return sum(each.target for each in self.seconds)

    @property
    def drafter_seconds(self) -> float:
        """The drafter was busy."""
        return sum(each.drafter for each in self.seconds)

    @property
    def waiting_seconds(self) -> float:
        """The target waited for the drafter."""
        return sum(each.waiting for each in self.seconds)

    @property
    def total_seconds(self) -> float:
        """From the first to the last round."""
        return self.target_seconds + self.waiting_seconds

    def to_dict(self) -> dict[str, Any]:
        """Everything above but the single rounds, ready for JSON."""
        return {
            "draft_length": self.draft_length,
            "rounds": len(self.rounds),
            "run_lengths": self.run_lengths,
            "mean_run_length": self.mean_run_length,
            "drafted": self.drafted,
            "target_seconds": self.target_seconds,
            "drafter_seconds": self.drafter_seconds,
            "waiting_seconds": self.waiting_seconds,
            "total_seconds": self.total_seconds,
        }
