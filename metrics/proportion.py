"""The share of right cases, with its interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest, t

from metrics.errors import DataError


@dataclass
class Proportion:
    """How many of `total` were `right`."""

    right: int = 0
    total: int = 0

    @property
    def accuracy(self) -> float:
        """The share that was right, nan for none at all."""
        return self.right / self.total if self.total else math.nan

    def interval(self) -> tuple[float, float]:
        """95 % interval of the accuracy (Wilson, 1927): sound near 0 and 1 and for few cases; (0, 1) for none at all.

        It takes the cases as independent; see `clustered_interval` for those that hang together.
        """
        if not self.total:
            return 0.0, 1.0
        interval = binomtest(self.right, self.total).proportion_ci(method="wilson")
        return float(interval.low), float(interval.high)

    def to_dict(self) -> dict[str, Any]:
        """Accuracy, interval and counts as plain JSON-ready values."""
        low, high = self.interval()
        accuracy = round(self.accuracy, 4) if self.total else None
        return {"accuracy": accuracy, "n": self.total, "interval": [round(low, 4), round(high, 4)]}


def clustered_interval(right: Sequence[float], total: Sequence[float]) -> tuple[float, float]:
    """95 % interval of the share of what was right, where cases of one group hang together, as the claims about one
    picture do.

    It is Wilson's for as many independent cases as would have the variance between groups (Korn and Graubard, Survey
    Methodology 24, 1998), with Student's distribution for the number of groups. Where everything or nothing was right
    the groups are the cases. For fewer than two groups it is `Proportion.interval`.

    Args:
        right: in each group, how many were right.
        total: in each group, how many there were.

    Raises:
        DataError: a group in which more, or less than nothing, was right than there was.
    """
    if not all(0 <= one <= all_ < math.inf for one, all_ in zip(right, total, strict=True)):
        raise DataError("each group needs a number of right cases from 0 to that of its cases")
    groups = [(float(one), float(all_)) for one, all_ in zip(right, total, strict=True) if all_ > 0]
    count, whole = len(groups), sum(all_ for _, all_ in groups)
    if count < 2:
        return Proportion(round(sum(one for one, _ in groups)), round(whole)).interval()
    share = sum(one for one, _ in groups) / whole
    if share in (0.0, 1.0):
        return Proportion(count if share else 0, count).interval()
    spread = sum((one - share * all_) ** 2 for one, all_ in groups)
    variance = count / (count - 1) * spread / whole**2
    independent = whole if variance == 0 else min(share * (1 - share) / variance, whole)
    return _wilson(share, independent * (_NORMAL / float(t.ppf(0.975, count - 1))) ** 2)


_NORMAL = 1.959963984540054
"""Standard deviations within which 95 % of a normal distribution lie."""


def _wilson(share: float, cases: float) -> tuple[float, float]:
    square = _NORMAL**2 / cases
    middle = (share + square / 2) / (1 + square)
    margin = math.sqrt(square * share * (1 - share) + square**2 / 4) / (1 + square)
    return max(middle - margin, 0.0), min(middle + margin, 1.0)
