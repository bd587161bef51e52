"""How much to draft: a fixed size, or the one with the most tokens per second.

Belongs here: sizes, costs of the parts of a step, and the choice. Does not belong here: drafting, and where costs are
stored.

A step that drafts a tree of n nodes and d levels takes target(n) + d * drafting step + overhead, and adds 1 + E tokens,
where E is the expected accepted length. E comes from lengths measured for every size, where they are known, scaled to
the lengths that were really accepted. Else it comes level by level from the share of drafts that survived each level,
and the last known share counts for levels not tried.

Costs are assumed, measured, or kept from another run. With a clock, for passes that the host waits for (on a CPU), they
are corrected by steps of the decoding itself: now and then a few steps draft the next smaller or larger size, and the
median seconds of both sizes are compared. Steps that follow each other see the same machine, busy or not, so only
ratios of costs are learned. No pass is made that adds no tokens.
"""

from __future__ import annotations

import itertools
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

import torch
from torch import Tensor

from specdecode.checks import is_integer
from specdecode.roles import Target


@dataclass(frozen=True)
class DraftSize:
    """Size of a draft.

    Args:
        total_tokens: nodes of the tree, its root included; a chain of length L has L + 1.
        depth: levels below the root, which is how many drafting steps it takes.

    Raises:
        ValueError: there are fewer nodes than levels, or they are no integers.
    """

    total_tokens: int
    depth: int

    def __post_init__(self) -> None:
        if not (is_integer(self.total_tokens) and is_integer(self.depth)):
            raise ValueError(f"total_tokens and depth must be integers, got {self.total_tokens!r} and {self.depth!r}")
        if self.depth < 0 or self.total_tokens < self.depth + 1:
            raise ValueError(
                f"total_tokens must be at least depth + 1 (every level needs a node), got {self.total_tokens} with "
                f"depth {self.depth}"
            )


NO_DRAFT = DraftSize(1, 0)


class DraftSizer(Protocol):
    """Chooses the size of every draft."""

    @property
    def largest(self) -> DraftSize:
        """The most nodes and levels of any choice; caches must have room for them."""

    def choose(self) -> DraftSize:
        """The size of the next draft. Never waits for the device."""

    def observe(self, size: DraftSize, accepted: Tensor, active: Tensor) -> None:
        """Learn from a step.

        Args:
            size: of the draft.
            accepted: [B] int64, draft tokens accepted.
            active: [B] bool, rows that took part.
        """


@dataclass(frozen=True)
class FixedDraftSize:
    """Always the same size."""

    size: DraftSize

    @property
    def largest(self) -> DraftSize:
        """The size itself."""
        return self.size

    def choose(self) -> DraftSize:
        """The size itself."""
        return self.size

    def observe(self, size: DraftSize, accepted: Tensor, active: Tensor) -> None:
        """Nothing to learn."""


@dataclass(frozen=True)
class StepCosts:
    """The costs of the parts of a step, in seconds.

    Args:
        nodes: the numbers of nodes for which a target pass was timed, rising.
        target_seconds: of those passes.
        drafting_step_seconds: one level of drafting.
        overhead_seconds: a step's costs beside passes: masks, verification, bookkeeping.

    Raises:
        ValueError: the lists do not belong together.
    """

    nodes: tuple[int, ...]
    target_seconds: tuple[float, ...]
    drafting_step_seconds: float = 0.0
    overhead_seconds: float = 0.0

    def __post_init__(self) -> None:
        if len(self.nodes) != len(self.target_seconds) or not self.nodes or list(self.nodes) != sorted(set(self.nodes)):
            raise ValueError("nodes must rise, with one time in target_seconds for each")

    def target(self, nodes: int) -> float:
        """Seconds of a target pass, interpolated linearly, and extrapolated beyond the last two points."""
        if len(self.nodes) == 1 or nodes <= self.nodes[0]:
            return self.target_seconds[0]
        right = min(max(1, bisect_left(self.nodes, nodes)), len(self.nodes) - 1)
        left = right - 1
        slope = (self.target_seconds[right] - self.target_seconds[left]) / (self.nodes[right] - self.nodes[left])
        if nodes > self.nodes[-1]:
            slope = max(slope, 0.0)  # timing noise must not make large trees free
        return self.target_seconds[left] + slope * (nodes - self.nodes[left])

    def step(self, size: DraftSize) -> float:
        """Seconds of a whole step."""
        if size.depth == 0:
            return self.target(1)
        return self.target(size.total_tokens) + size.depth * self.drafting_step_seconds + self.overhead_seconds


class AcceptanceRates:
    """Acceptance rates by level, from decayed counts of the draft tokens that came to a level and of those that passed.

    Args:
        count: how many levels.
        decay: what a later count leaves of an earlier one, below 1.
        weight: how many draft tokens a rate counts as that is assumed before anything is known.
    """

    def __init__(self, count: int, decay: float, weight: float) -> None:
        self.decay, self.weight = decay, weight
        self._came, self._passed = [0.0] * count, [0.0] * count

    def rate(self, level: int, assumed: float) -> float:
        """The rate of a level, between what is assumed and what was counted."""
        return (self._passed[level] + self.weight * assumed) / (self._came[level] + self.weight)

    def learn(self, level: int, came: float, passed: float) -> None:
        """Count draft tokens of a level, and those of them that were accepted."""
        self._came[level] = self.decay * self._came[level] + came
        self._passed[level] = self.decay * self._passed[level] + passed

    def forget(self, share: float) -> None:
        """Keep this share of all counts."""
        self._came = [share * count for count in self._came]
        self._passed = [share * count for count in self._passed]


LEAST_GAIN = 1.03
"""How many times as fast as plain decoding a draft must be, since costs and lengths are estimates."""


class AdaptiveDraftSize:
    """The size with the most expected tokens per second, from what is accepted.

    Only where no token depends on the size of drafts: the choice depends on all rows of a batch and on the machine.

    Args:
        candidates: sizes to choose from. With `NO_DRAFT` among them nothing is drafted where drafting does not pay.
        costs: of this machine and model.
        prior_rate: the assumed acceptance rate of one draft token before anything is known.
        expected_lengths: the measured accepted length of every candidate; None: not measured. For drafts whose levels
            do not predict each other, as with Jacobi windows of different lengths.
        interval: steps between two looks at what was accepted. Only then the host waits for the device.
        clock: seconds, of passes that the host waits for; None: costs are right.
        factors: corrections of costs that an earlier run has learned.
        keep: called with all corrections when they have changed.
        least_gain: how many times as fast as plain decoding a draft must be to be made.

    Attributes:
        factors: the seconds of steps of a size, divided by their costs, on a scale of their own. A size without has
            that of the next one that has.

    Raises:
        ValueError: no candidate drafts, `prior_rate` outside (0, 1), or not one expected length for each candidate.
    """

    def __init__(
        self,
        candidates: Sequence[DraftSize],
        costs: StepCosts,
        *,
        prior_rate: float = 0.4,
        expected_lengths: Sequence[float] | None = None,
        interval: int = 8,
        clock: Callable[[], float] | None = None,
        factors: Mapping[DraftSize, float] | None = None,
        keep: Callable[[Mapping[DraftSize, float]], None] | None = None,
        least_gain: float = LEAST_GAIN,
    ) -> None:
        if not any(size.depth for size in candidates):
            raise ValueError("candidates must hold at least one size that drafts")
        if not 0 < prior_rate < 1:
            raise ValueError(f"prior_rate must lie between 0 and 1, got {prior_rate}")
        if expected_lengths is not None and len(expected_lengths) != len(candidates):
            raise ValueError(
                f"expected_lengths must be one for each of {len(candidates)} candidates, got {len(expected_lengths)}"
            )
        self.candidates = tuple(dict.fromkeys(candidates))
        self.costs = costs
        self.prior_rate = prior_rate
        self.interval = interval
        self._rates = AcceptanceRates(self.largest.depth + 1, _DECAY, _PRIOR_WEIGHT)
        measured = {} if expected_lengths is None else dict(zip(candidates, expected_lengths, strict=True))
        self._measured = [float(measured[size]) for size in self.candidates] if measured else None
        self._scale = (_MEASURED_WEIGHT, _MEASURED_WEIGHT)  # decayed sums: accepted, and measured for the size used
        self._pending: list[tuple[DraftSize, Tensor, Tensor]] = []
        # Measured lengths are more reliable than guesses, and trying drafts that do not pay costs steps.
        self._first_patience = _FIRST_PATIENCE if self._measured is None else _MEASURED_PATIENCE
        self._until_trial = self._patience = self._first_patience
        self._clock, self._keep, self._least_gain = clock, keep, least_gain
        self._by_nodes = sorted(self.candidates, key=lambda size: (size.total_tokens, size.depth))
        self.factors = {size: factor for size, factor in (factors or {}).items() if size in self.candidates}
        self._comparisons = Counter(dict.fromkeys(self.factors, 1))  # of each size, one of them by an earlier run
        self._timed: set[DraftSize] = set()  # sizes whose steps were compared with those of their neighbours, by now
        self._began: float | None = None
        self._seconds = deque[float](maxlen=interval)  # of the last steps, which had one size
        self._before: tuple[DraftSize, float] | None = None  # while another size is tried: the usual one, its seconds
        self._current = self._best()
        if self._current != NO_DRAFT:
            self._until_trial = 0

    def start(self) -> None:
        """Begin a new batch. What was learned is kept; steps that were not yet read are dropped."""
        self._pending = []
        self._take(self._current if self._before is None else self._before[0])

    @property
    def largest(self) -> DraftSize:
        """The most nodes and the most levels of any candidate."""
        return DraftSize(max(c.total_tokens for c in self.candidates), max(c.depth for c in self.candidates))

    def choose(self) -> DraftSize:
        """The size of the next draft."""
        self._until_trial -= 1
        if self._until_trial <= 0 and self._before is None:
            self._try_another()
        if self._clock is not None:
            self._began = self._clock()
        return self._current

    def observe(self, size: DraftSize, accepted: Tensor, active: Tensor) -> None:
        """Keep the step; every `interval` steps, learn from those kept."""
        if self._clock is not None and self._began is not None:
            self._seconds.append(self._clock() - self._began)
            self._began = None
        if size != NO_DRAFT:
            self._pending.append((size, accepted, active))
        is_timing = self._before is not None and self._clock is not None
        if len(self._seconds) >= _COMPARED_STEPS if is_timing else len(self._pending) >= self.interval:
            self._learn()

    def forget(self, share: float) -> None:
        """Keep this share of the rates' counts, so that sizes that are not tried are tried again."""
        self._rates.forget(share)
        self._current = self._best()

    def expected_accepted(self, size: DraftSize) -> float:
        """The expected accepted length at this size, without bonus token."""
        if size.depth == 0:
            return 0.0
        if self._measured is not None and size in self.candidates:
            return self._measured[self.candidates.index(size)] * self._scale[0] / self._scale[1]
        # The wider a level, the likelier it contains the right token. A guess, which the first steps correct.
        width = (size.total_tokens - 1) / size.depth
        prior = 1 - (1 - self.prior_rate) ** (width**0.5)
        expected, survival, rate = 0.0, 1.0, prior
        for level in range(1, size.depth + 1):
            rate = self._rates.rate(level, rate)
            survival *= rate
            expected += survival
        return expected

    def seconds(self, size: DraftSize) -> float:
        """Of a step, up to a factor that is the same for all sizes."""
        place = self._by_nodes.index
        nearest = min(self.factors, key=lambda known: abs(place(known) - place(size)), default=size)
        return self.costs.step(size) * self.factors.get(nearest, 1.0)

    def tokens_per_second(self, size: DraftSize) -> float:
        """The expected tokens per second and row, up to a factor."""
        return (1 + self.expected_accepted(size)) / self.seconds(size)

    def _best(self, drafting: bool = False) -> DraftSize:
        def value(size: DraftSize) -> float:
            return self.tokens_per_second(size) * (self._least_gain if size == NO_DRAFT else 1.0)

        return max((c for c in self.candidates if c.depth > 0 or not drafting), key=value)

    def _take(self, size: DraftSize) -> None:
        """From now on drafts have this size."""
        self._current, self._before, self._began = size, None, None
        self._seconds.clear()

    def _try_another(self) -> None:
        """For some steps draft another size: where nothing is drafted, the best that is something, since nothing is
        learned without drafts; else a neighbour whose steps were not timed lately."""
        if self._clock is not None and len(self._seconds) < _COMPARED_STEPS:
            return
        place = self._by_nodes.index(self._current)
        others = [size for size in self._by_nodes[max(place - 1, 0) : place + 2] if size not in self._timed]
        if self._current == NO_DRAFT:
            others = [self._best(drafting=True)]
        elif self._clock is None or not (others := [size for size in others if size != self._current]):
            self._until_trial = _MOST_PATIENCE
            self._timed.clear()
            return
        before = self._current, median(self._seconds or [0.0])
        self._take(others[0])
        self._before = before

    def _compare(self, usual: DraftSize, seconds: float) -> None:
        """Correct the costs of the size that was tried and of the usual one, less where they were compared before."""
        tried, counts = self._current, self._comparisons
        surprise = median(self._seconds) / self.seconds(tried) * self.seconds(usual) / seconds
        if tried in self.factors and 1 / _CLEAR < surprise < _CLEAR:
            surprise **= 0.5  # as likely chance
        share = (counts[usual] + 1) / (counts[usual] + counts[tried] + 2) if counts[tried] else 1.0
        factors = self.seconds(usual) / self.costs.step(usual), self.seconds(tried) / self.costs.step(tried)
        self.factors[usual], self.factors[tried] = factors[0] / surprise ** (1 - share), factors[1] * surprise**share
        for size in (usual, tried):
            counts[size] = min(counts[size] + 1, _MOST_COMPARISONS)
            self._timed.add(size)
        if self._keep is not None:
            self._keep(self.factors)

    def _learn(self) -> None:
        """Read all kept steps at once, and choose again."""
        pending, self._pending = self._pending, []
        self._learn_lengths(pending)
        before = self._before
        if before is not None and self._seconds:
            self._compare(*before)
        best = self._best()
        if best == self._current and before is None:
            return
        failed = before is not None and before[0] == best == NO_DRAFT
        self._patience = min(2 * self._patience, _FAILED_PATIENCE) if failed else self._first_patience
        self._until_trial = self._patience if best == NO_DRAFT else 0
        self._take(best)

    def _learn_lengths(self, pending: Sequence[tuple[DraftSize, Tensor, Tensor]]) -> None:
        """Learn what was accepted."""
        if not pending:
            return
        accepted = torch.stack([step[1] for step in pending]).tolist()
        active = torch.stack([step[2] for step in pending]).tolist()
        for number, (size, *_) in enumerate(pending):
            lengths = [length for length, took_part in zip(accepted[number], active[number], strict=True) if took_part]
            if not lengths:
                continue
            for level in range(1, size.depth + 1):
                came = sum(length >= level - 1 for length in lengths) / len(lengths)
                passed = sum(length >= level for length in lengths) / len(lengths)
                self._rates.learn(level, came, passed)
            if self._measured is not None and size in self.candidates:
                self._scale = (
                    _DECAY * self._scale[0] + sum(lengths) / len(lengths),
                    _DECAY * self._scale[1] + self._measured[self.candidates.index(size)],
                )


def assumed_step_costs(rows: int, drafts_by_steps: bool) -> StepCosts:
    """Costs on a CPU before any step was timed, in passes over one token.

    Args:
        rows: of a pass over one token, guidance included.
        drafts_by_steps: whether drafting takes forward passes of another network.
    """
    return StepCosts((1, 2), (1.0, 1.0 + rows / (rows + _ROWS_OF_WEIGHTS)), _DRAFTING_SHARE * drafts_by_steps)


@torch.no_grad()
def measure_step_costs(
    target: Target, nodes: Sequence[int], draft_step: Callable[[], object] | None = None
) -> StepCosts:
    """Time passes of a target over some numbers of tokens, and one drafting step.

    Args:
        target: prefilled, with rows of typical length, since longer rows take longer. Nothing is committed.
        nodes: rising numbers of tokens, 1 the first; other costs are interpolated.
        draft_step: makes one drafting step; None where drafting costs nothing.
    """
    batch_size, device = target.batch_size, target.device
    calls: list[Callable[[], object]] = []
    for count in nodes:
        tokens = torch.zeros(batch_size, count, dtype=torch.long, device=device)
        mask = torch.eye(count, dtype=torch.bool, device=device).expand(batch_size, -1, -1)
        calls.append(lambda t=tokens, m=mask: target.forward(t, m, t))  # type: ignore[misc]
    times = _least_seconds([*calls, draft_step] if draft_step is not None else calls, device)
    seconds = list(itertools.accumulate(times[: len(nodes)], max))  # more nodes cost no less
    drafting = 0.0 if draft_step is None else times[-1]
    return StepCosts(tuple(nodes), tuple(seconds), drafting, _OVERHEAD_SHARE * seconds[0])


def _least_seconds(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """The least seconds of each call after a warm-up.

    The least, in turns: other work on the machine must not count as a cost, least of all as the cost of one size.
    """
    times: list[list[float]] = [[] for _ in calls]
    for repeat in range(_REPEATS + 2):
        if repeat > 1 and sum(map(sum, times)) > _MOST_SECONDS:
            break
        for call, seconds in zip(calls, times, strict=True):
            started = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            seconds.append(time.perf_counter() - started)
    return [min(seconds[2:] or seconds[1:]) for seconds in times]


_DECAY = 0.95
_COMPARED_STEPS = 3
"""Steps of either size whose seconds are compared."""
_CLEAR, _MOST_COMPARISONS = 1.2, 4
_ROWS_OF_WEIGHTS, _DRAFTING_SHARE = 16, 0.1
"""Assumed: reading a model's weights takes as long as computing so many rows, and a drafting step this share of it."""
_PRIOR_WEIGHT, _MEASURED_WEIGHT = 2.0, 16.0
"""How many draft tokens an assumed rate counts as, and accepted ones measured lengths: at a start there are few."""
_FIRST_PATIENCE, _MEASURED_PATIENCE, _MOST_PATIENCE = 16, 64, 256
_FAILED_PATIENCE = 1024  # a trial costs as much as some five steps
_REPEATS = 8
_MOST_SECONDS = 5.0
"""Timing ends after so long: a pass over gigabytes of weights on a CPU takes seconds."""
_OVERHEAD_SHARE = 0.15
"""The assumed cost of masks, verification and bookkeeping, as a share of a one-token pass."""
