"""How far a figure over pictures would stray if other pictures had been drawn: the bootstrap (Efron, 1979).

Pictures are drawn again, with replacement, from those there are; the spread of the figure over such draws is its
standard error. The interval is the figure plus and minus 1.96 of these, not the draws' own quantiles: a Frechet
distance of pictures drawn twice is biased upwards, its spread much less so.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from torch import Tensor

Interval = tuple[float, float]


def bootstrap_interval(
    value: float, count: int, figure: Callable[[Tensor], float], draws: int = 200, seed: int = 0
) -> Interval | None:
    """A 95 % interval around `value`.

    Args:
        value: the figure over all pictures.
        count: how many pictures there are.
        figure: the figure over the pictures with these numbers, int64 `[count]`.
        draws: how often pictures are drawn again; below 2 there is no interval.
        seed: of the draws; the same seed draws the same pictures for every method.
    """
    if draws < 2 or count < 2:
        return None
    generator = torch.Generator().manual_seed(seed)
    values = [figure(torch.randint(count, (count,), generator=generator)) for _ in range(draws)]
    margin = 1.96 * statistics.stdev(values)
    return value - margin, value + margin


def mean_interval(values: Tensor, draws: int = 200, seed: int = 0) -> Interval | None:
    """The same for the mean of one number a picture, `[N]`; NaN marks a picture that has none."""
    values = values.double()
    return bootstrap_interval(
        float(values.nanmean()), len(values), lambda chosen: float(values[chosen].nanmean()), draws, seed
    )
