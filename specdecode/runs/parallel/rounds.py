"""The bookkeeping of parallel decoding for one row, in plain integers.

Belongs here: which tokens the target is fed, which are drafted meanwhile, which stay, and the account. Does not belong
here: models, random numbers, clocks, processes.

In a round the target is fed the newest decided token and the draft tokens behind it, while the drafter drafts the next
window. Each token fed gives a distribution, which judges the token after it: the draft tokens that were fed, and the
first token of the new window. So there is no bonus token.

* If all are right, the first token of the new window is decided, and the target is fed the others next.
* The first wrong one is replaced by the target's own token, and both sides drop what was drafted behind it.

The first round is the prefill: it judges the first draft token. PEARL calls rounds in which no draft token is fed
"pre-verify" and the others "post-verify"; both follow from this rule.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class DraftOrder:
    """An order to the drafter.

    Args:
        kept: How many of its tokens stand; it forgets those behind them.
        token: The target's own token, which comes next in place of a wrong one; None: none was wrong.
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
        judged: Draft tokens that were judged.
        accepted: Those of them that stayed.
        emitted: Tokens decided, with the target's own in place of a wrong one.
    """

    fed: int
    drafted: int
    judged: int
    accepted: int
    emitted: int

    @property
    def rejected(self) -> bool:
        """Whether a draft token was replaced."""
        return self.emitted > self.accepted


class Rounds:
    """One row, from its beginning to its end, and the account of it.

    Args:
        max_new_tokens: Tokens of a complete row, >= 1.
        draft_length: Tokens of a window, >= 1; fewer where the row ends.
        stop_tokens: The row ends after any of these.

    Attributes:
        tokens: Decided tokens.
        pending: Draft tokens behind them that are not judged yet, at most `draft_length` - 1.
        finished: Whether the row has ended.
        settled: The rounds so far, the prefill first.
    """

    def __init__(self, max_new_tokens: int, draft_length: int, stop_tokens: Collection[int] = ()) -> None:
        self.max_new_tokens = max_new_tokens
        self.draft_length = draft_length
        self.stop_tokens = frozenset(stop_tokens)
        self.tokens: list[int] = []
        self.pending: list[int] = []
        self.finished = False
        self.settled: list[Round] = []
        self._corrected = False  # the newest decided token is not the drafter's

    @property
    def fed(self) -> list[int]:
        """The tokens the target is fed in this round. A row's last token is never fed."""
        if not self.tokens:
            return []
        return [self.tokens[-1], *self.pending][: self.max_new_tokens - len(self.tokens)]

    @property
    def order(self) -> DraftOrder:
        """The drafter's order for this round. Its count is 0 once drafts reach the end of the row."""
        stand = len(self.tokens) + len(self.pending)
        count = min(self.draft_length, self.max_new_tokens - stand)
        if self._corrected:
            return DraftOrder(stand - 1, self.tokens[-1], count)
        return DraftOrder(stand, None, count)

    def settle(self, chosen: Sequence[int], window: Sequence[int]) -> Round:
        """End the round.

        Args:
            chosen: The target's own token after each token fed; in the prefill, the one after the prompt.
            window: The tokens drafted meanwhile.
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
        self.settled.append(Round(fed, len(window), len(judged), min(accepted, len(decided)), len(decided)))
        return self.settled[-1]

    @property
    def draft_passes(self) -> int:
        """Forward passes of the drafter, its prompt's included: one for each token drafted, judged or not."""
        return sum(each.drafted for each in self.settled)

    @property
    def run_lengths(self) -> list[int]:
        """Draft tokens accepted from one rejection to the next, or to the end of the row.

        PEARL and ParallelVLM call their mean M, "mean accepted length". A run does not stop at a window: M may exceed
        `draft_length`, and does not compare with the accepted length of a step (`DecodeTrace.mean_accepted_length`).
        PEARL's release leaves out the last run.
        """
        runs = [0]
        for each in self.settled:
            runs[-1] += each.accepted
            if each.rejected:
                runs.append(0)
        return runs[:-1] if self.settled and self.settled[-1].rejected else runs
