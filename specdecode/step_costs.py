"""What the parts of a speculative step cost on this machine: timing passes and drafting steps.

Belongs here: the clock, for any target. Does not belong here: what is made of the times (`draft_size.py`), how a model
of some kind is made to stand where costs are typical, and where times are kept.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

import torch

from specdecode.draft_size import StepCosts
from specdecode.roles import Target

_REPEATS = 8
_MOST_SECONDS = 5.0
"""After which what has been timed once will do: of gigabytes on a CPU a pass takes seconds."""
_OVERHEAD_SHARE = 0.15
"""Masks, verification and bookkeeping, as a share of a one-token pass; the target of the overhead benchmark."""


@torch.no_grad()
def measure_step_costs(
    target: Target, nodes: Sequence[int], draft_step: Callable[[], object] | None = None
) -> StepCosts:
    """Time passes of a target over some numbers of tokens, and one drafting step.

    Args:
        target: as it stands: prefilled, and as long as is typical, since passes over a longer sequence take longer. It
            is fed and nothing is committed.
        nodes: rising numbers of tokens, 1 the first; costs of others lie between theirs.
        draft_step: makes one drafting step; None where drafting costs nothing.
    """
    batch_size, device = target.batch_size, target.device
    calls: list[Callable[[], object]] = []
    for count in nodes:
        tokens = torch.zeros(batch_size, count, dtype=torch.long, device=device)
        mask = torch.eye(count, dtype=torch.bool, device=device).expand(batch_size, -1, -1)
        calls.append(lambda t=tokens, m=mask: target.forward(t, m, t))  # type: ignore[misc]
    times = _time([*calls, draft_step] if draft_step is not None else calls, device)
    seconds = list(itertools.accumulate(times[: len(nodes)], max))  # more nodes cost no less
    drafting = 0.0 if draft_step is None else times[-1]
    return StepCosts(tuple(nodes), tuple(seconds), drafting, _OVERHEAD_SHARE * seconds[0])


def _time(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """The least seconds of each call after a warm-up.

    The least, and in turns: what else the machine does at the time must not be cached as a cost, least of all as the
    cost of one size alone.
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
