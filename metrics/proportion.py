"""The share of what was right, with what chance leaves open of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from scipy.stats import binomtest


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

        The cases of one picture hang together, so over many claims a picture it is somewhat too narrow.
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
