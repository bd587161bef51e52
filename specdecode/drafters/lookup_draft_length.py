"""How many tokens to copy from earlier in a text: by how many matched, how many were accepted, and the costs of passes.

Belongs here: the choice. Does not belong here: finding matches (`drafters/prompt_lookup.py`), and sizes of other drafts
(`draft_size.py`).

The more of the newest tokens occurred before in the same order, the likelier they go on as they did then. So each
number of matching tokens has an acceptance rate of its own, learned while decoding. All rows of a batch draft one
length, since columns are computed for all of them: the one with the most expected tokens a second.

The cost of a column is learned from the time between two drafts. So the choice depends on the machine, and no token may
depend on the length of a draft: copies behind an exact verifier are such drafts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from torch import Tensor

from specdecode.checks import check_counts
from specdecode.drafters.draft_size import AcceptanceRates, DraftSize

LENGTHS = (0, 1, 2, 3, 4, 6, 8, 12, 16)
"""Lengths to choose from, beside the longest allowed."""
_RATES = (0.0, 0.25, 0.55, 0.7, 0.75, 0.8, 0.8, 0.85, 0.95)
"""Acceptance rates of one token before anything is known, by the number of tokens that matched: those of SmolLM2 on the
sixty texts of `benchmarks/real_text.py`."""
_RATE_WEIGHT, _RATE_DECAY = 2.0, 0.9
_ROW_COST = 0.05
"""The assumed cost of a column as a share of a pass over one."""
_ROW_COST_WEIGHT, _COST_DECAY = 32.0, 0.95
_BOUNDS = 0.005, 1.0
_OUTLIER = 3.0
"""A step that takes so many times as long as reckoned was interrupted."""


class LookupDraftLength:
    """Chooses the length of a copy.

    Args:
        longest: the greatest length.
        row_cost: the assumed cost of another column, as a share of a pass over one.
        clock: seconds; None: `row_cost` is right.

    Raises:
        ValueError: a length below 1.
    """

    def __init__(
        self, longest: int = 16, row_cost: float = _ROW_COST, clock: Callable[[], float] | None = time.perf_counter
    ) -> None:
        check_counts(longest=longest)
        self.longest = longest
        self._lengths = sorted({min(length, longest) for length in LENGTHS} | {longest})
        self._assumed, self._clock = row_cost, clock
        self._rates = AcceptanceRates(len(_RATES), _RATE_DECAY, _RATE_WEIGHT)
        # Decayed sums over steps: weight, columns, squared columns, seconds, columns times seconds.
        self._sums = [0.0] * 5
        self._began: tuple[float, int] | None = None  # when the step began, and its columns

    @property
    def largest(self) -> DraftSize:
        """Room for the longest copy."""
        return DraftSize(self.longest + 1, self.longest)

    @property
    def matched(self) -> int:
        """The most matching tokens that make a difference."""
        return len(_RATES) - 1

    def start(self) -> None:
        """Begin a new batch; what was learned is kept."""
        self._began = None

    def rate(self, matched: int) -> float:
        """The acceptance rate of a copied token behind so many matching ones."""
        matched = min(matched, self.matched)
        return self._rates.rate(matched, _RATES[matched])

    def row_cost(self) -> float:
        """What another column costs, as a share of a pass over one."""
        weight, columns, squares, seconds, products = self._sums
        if not weight:
            return self._assumed
        # The line through what was measured, drawn towards the assumed slope; its start and slope in turns.
        cost = self._assumed
        for _ in range(4):
            start = seconds / (weight + cost * columns)
            slope = products - start * columns + _ROW_COST_WEIGHT * self._assumed * start
            cost = min(max(slope / ((squares + _ROW_COST_WEIGHT) * start), _BOUNDS[0]), _BOUNDS[1])
        return cost

    def choose(self, matched: Sequence[int]) -> int:
        """The length for rows with so many matching tokens each, 0 where there is none; finished rows left out."""
        return self.best(matched)[0]

    def best(self, matched: Sequence[int]) -> tuple[int, float]:
        """What `choose` gives, and the expected tokens of all rows per cost of a pass over one column."""
        rates, cost = [self.rate(count) for count in matched if count], self.row_cost()

        def tokens_per_cost(length: int) -> float:
            expected = sum(rate * (1 - rate**length) / (1 - rate) if rate < 1 else length for rate in rates)
            return (len(matched) + expected) / (1 + cost * length)

        length = max(self._lengths, key=tokens_per_cost) if rates else 0
        return length, tokens_per_cost(length)

    def begin(self, columns: int) -> None:
        """A step begins that adds so many columns to the newest token's."""
        if self._clock is None:
            return
        now = self._clock()
        if self._began is not None:
            self._time(now - self._began[0], self._began[1])
        self._began = now, columns

    def leave_out(self, seconds: float) -> None:
        """So much of the time since the last step began was spent on something else."""
        if self._began is not None:
            self._began = self._began[0] + seconds, self._began[1]

    def pass_seconds(self) -> float | None:
        """What a step without columns takes; None where nothing was timed."""
        weight, columns, _, seconds, _ = self._sums
        return seconds / (weight + self.row_cost() * columns) if weight else None

    def observe(self, matched: Tensor, drafted: Tensor, accepted: Tensor) -> None:
        """Learn from a step. All [B] int64: matching tokens, tokens drafted behind them, and those accepted."""
        for count, length, good in zip(matched.tolist(), drafted.tolist(), accepted.tolist(), strict=True):
            if count and length:
                self._rates.learn(min(count, self.matched), good + (good < length), good)

    def _time(self, seconds: float, columns: int) -> None:
        """Learn what a step took."""
        weight, in_all = self._sums[0], self._sums[3]
        cost = self.row_cost()
        if weight:
            reckoned = in_all / (weight + cost * self._sums[1]) * (1 + cost * columns)
            seconds = min(seconds, _OUTLIER * reckoned)
        new = (1.0, columns, columns**2, seconds, columns * seconds)
        self._sums = [_COST_DECAY * before + now for before, now in zip(self._sums, new, strict=True)]
