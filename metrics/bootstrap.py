"""How far a figure over pictures would stray if other pictures had been drawn: the bootstrap (Efron, 1979).

Pictures are drawn again, with replacement, from those there are. A mean has the interval of the studentised bootstrap
(`mean_interval`). A difference of shares has Student's, by the spread of such draws (`student_interval`). A share has
Wilson's interval (`metrics.proportion`). A Frechet distance of pictures drawn twice is biased upwards, and its spread
much less so: its interval is the figure plus and minus 1.96 standard errors (`spread_interval`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import torch
from scipy.stats import t
from torch import Tensor

from metrics.errors import DataError
from metrics.proportion import Proportion

Interval = tuple[float, float]

_FEWEST = 6
"""Of fewer numbers even least to greatest covers less than 95 %, so nothing narrower does."""


def spread_interval(
    value: float, count: int, figure: Callable[[Tensor], float], draws: int = 200, seed: int = 0
) -> Interval | None:
    """A 95 % interval around `value`, for figures that drawing again biases.

    Args:
        value: the figure over all pictures.
        count, figure, draws, seed: as for `student_interval`.
    """
    values = _known(_drawn_again(count, figure, draws, seed))
    if values is None:
        return None
    margin = 1.96 * statistics.stdev(values)
    return value - margin, value + margin


def student_interval(count: int, figure: Callable[[Tensor], float], draws: int = 200, seed: int = 0) -> Interval | None:
    """A 95 % interval of a difference or a ratio of shares: Student's, with the standard error of the bootstrap.

    Drawing again makes the spread of few pictures too small by the square root of (n - 1) / n, which is made good. In
    percent of 1,500 samples of claims that hang together by picture, a true difference of -3 points lay in this one
    (in the middle 95 % of the draws) 93 (78) times with 8 pictures, 95 (90) with 16 and 95 (93) with 32.

    Args:
        count: how many pictures there are.
        figure: the figure over the pictures with these numbers, int64 `[count]`.
        draws: how often pictures are drawn again; below 2 there is no interval.
        seed: of the draws; the same seed draws the same pictures for every method.
    """
    values = _known(_drawn_again(count, figure, draws, seed))
    value = figure(torch.arange(count))
    if values is None or math.isnan(value):
        return None
    margin = float(t.ppf(0.975, count - 1)) * math.sqrt(count / (count - 1)) * statistics.stdev(values)
    return value - margin, value + margin


def mean_interval(values: Tensor, draws: int = 200, seed: int = 0) -> Interval | None:
    """A 95 % interval of the mean of one number a picture; it promises less for fewer than six numbers.

    Where the numbers are bool the mean is a share of independent cases, and the interval Wilson's. Else it is the
    studentised bootstrap's (Efron and Tibshirani, "An Introduction to the Bootstrap", 1993, section 12.5), cut at the
    least and the greatest number. Where few numbers lean to one side, it holds the truth more often than the middle of
    the resampled means does.

    Of fewer than six numbers, and where all draws lie equally far from the mean, the interval is least to greatest. In
    percent of 4,000 samples of normal (log-normal) numbers, with 200 draws each, the truth lay in

    | numbers | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 16 |
    |---|---|---|---|---|---|---|---|---|
    | least to greatest | 51 (43) | 75 (62) | 88 (77) | 94 (84) | 97 (89) | 99 (93) | 99 (96) | 100 (100) |
    | studentised bootstrap | 0 (0) | 75 (61) | 88 (76) | 93 (83) | 94 (87) | 93 (89) | 95 (89) | 94 (91) |

    Args:
        values: `[N]`, bool or any real dtype; NaN marks a picture that has no number.
        draws: how often pictures are drawn again.
        seed: of the draws.

    Returns:
        Lower and upper bound; None for fewer than two draws or numbers.

    Raises:
        DataError: an infinite number.
    """
    if values.dtype == torch.bool:
        enough = draws >= 2 and len(values) >= 2
        return Proportion(int(values.sum()), len(values)).interval() if enough else None
    values = values.double()
    known = values[~values.isnan()]
    if known.isinf().any():
        raise DataError("figures of pictures hold infinite numbers, which have no mean; look for a damaged picture")
    if draws < 2 or len(known) < 2:
        return None
    mean, error = _mean_and_error(known)
    least, greatest = float(known.min()), float(known.max())
    if error == 0:
        return mean, mean
    if len(known) < _FEWEST:
        return least, greatest

    def distance(chosen: Tensor) -> float:
        drawn = values[chosen]
        drawn = drawn[~drawn.isnan()]
        again, spread = _mean_and_error(drawn) if len(drawn) > 1 else (mean, 0.0)
        return (again - mean) / spread if spread > 0 else math.nan

    distances = torch.tensor(_drawn_again(len(values), distance, draws, seed), dtype=torch.float64)
    distances = distances[~distances.isnan()]
    if len(distances) < 2 or float(distances.max() - distances.min()) < 1e-9:  # alike but for rounding
        return least, greatest
    low, high = distances.quantile(torch.tensor([0.975, 0.025], dtype=torch.float64))
    return max(mean - float(low) * error, least), min(mean - float(high) * error, greatest)


def _mean_and_error(numbers: Tensor) -> tuple[float, float]:
    """The mean of two numbers or more, and its standard error."""
    return float(numbers.mean()), float(numbers.std()) / math.sqrt(len(numbers))


def _known(values: list[float] | None) -> list[float] | None:
    """Without draws that have no figure; None where fewer than two are left."""
    known = [value for value in values or () if not math.isnan(value)]
    return known if len(known) > 1 else None


def _drawn_again(count: int, figure: Callable[[Tensor], float], draws: int, seed: int) -> list[float] | None:
    if draws < 2 or count < 2:
        return None
    generator = torch.Generator().manual_seed(seed)
    values = [figure(torch.randint(count, (count,), generator=generator)) for _ in range(draws)]
    if any(map(math.isinf, values)):
        raise DataError("a figure of pictures is infinite, and has no interval; look for a damaged picture")
    return values
