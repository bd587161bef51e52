"""Draft sizes chosen by measured seconds: costs of steps on this machine, and acceptance in earlier batches.

Belongs here: the memory that a pipeline keeps of both, and the file behind the costs. Does not belong here: the clock
(`specdecode.drafters.draft_size`), the choice (there, too), and a target in the middle of a picture, on which costs are
measured (the caller makes it).

On a CPU costs are assumed at first and corrected by the steps of pictures; on other devices, whose passes the host does
not wait for, they are measured once. Each correction replaces the file: where two processes write, the later one's
stands, which its own steps have checked.

Costs depend on the machine, the kernels, torch, the model's geometry and precision and the rows of a batch, but not on
weights or prompts. These make the key. A damaged file, or none, is a first start.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from metrics.provenance import describe_hardware
from specdecode.drafters.draft_size import (
    LEAST_GAIN,
    AdaptiveDraftSize,
    DraftSize,
    DraftSizer,
    FixedDraftSize,
    StepCosts,
    assumed_step_costs,
    measure_step_costs,
)
from specdecode.kernels.build import build_name
from specdecode.roles import Target
from vargen.base.errors import UserError
from vargen.base.reading import parse_json, read_bytes
from vargen.base.resources import cache_folder
from vargen.runs.files import remove_leftovers, write_atomic
from vargen.runs.identity import digest


def own_seconds() -> float:
    """The clock of steps: where one thread computes, its processor's time, in which other work on the machine does not
    count; else the wall's."""
    return time.thread_time() if _FINE and torch.get_num_threads() == 1 else time.perf_counter()


class MeasuredDraftSizes:
    """Sizers for the batches of one pipeline."""

    clock: Callable[[], float] | None = staticmethod(own_seconds)
    """Corrects costs on a CPU; None: they stay."""

    def __init__(self) -> None:
        self._learned: dict[tuple[object, ...], AdaptiveDraftSize] = {}

    def sizer(
        self,
        sizes: Sequence[DraftSize],
        geometry: Mapping[str, Any],
        probe: Callable[[int], Target] | None,
        draft_step: Callable[[], object] | None,
        expected: float | Sequence[float],
        most_sizes: int | None = None,
    ) -> DraftSizer:
        """A sizer that chooses among sizes; see `vargen.methods.base.Components.draft_sizer`.

        Args:
            geometry: all that costs depend on beside the machine, such as the model's sizes and the rows of a batch.
            probe: gives a target of this geometry in the middle of a picture, with room for so many nodes; None where
                passes are not measured, on a CPU.
            most_sizes: how many of the sizes to choose among, since each is a graph of its own where steps are graphs;
                1: the middle one alone. None: all.
        """
        if most_sizes is not None and most_sizes < len(sizes):
            chosen = _spread(len(sizes), most_sizes)
            expected = expected if isinstance(expected, float) else [expected[number] for number in chosen]
            sizes = [sizes[number] for number in chosen]
        if len(sizes) == 1:
            return FixedDraftSize(sizes[0])
        nodes = _timed_nodes(sizes)
        identity = _identity({**geometry, "nodes": nodes})
        lengths = None if isinstance(expected, float) else tuple(expected)
        key = (identity, tuple(sizes), lengths)
        if key not in self._learned:
            on_cpu, split = geometry.get("device") == "cpu", geometry.get("processes", 1) > 1
            known = None if split else _read(identity)
            if known is None and on_cpu:
                known = assumed_step_costs(geometry["rows"], draft_step is not None), {}
            elif known is None:
                assert probe is not None
                shared = [measure_step_costs(probe(nodes[-1]), nodes, draft_step)]
                if split:  # its processes take the costs of the first, so that they draft as much
                    torch.distributed.broadcast_object_list(shared)
                else:
                    _write(identity, shared[0], {})
                known = shared[0], {}
            costs, factors = known
            rate = min(max(expected, 0.05), 0.95) if isinstance(expected, float) else 0.5  # lengths need no rate
            self._learned[key] = AdaptiveDraftSize(
                sizes, costs, prior_rate=rate, expected_lengths=lengths, factors=factors,
                clock=self.clock if on_cpu and not split else None,
                keep=partial(_write, identity, costs),
                least_gain=LEAST_GAIN if geometry.get("rows", 1) <= _ROWS_OF_ONE else _LEAST_GAIN_OF_BATCHES,
            )  # fmt: skip
        # The next picture uses what this one taught. No picture depends on it, and learning again costs time.
        self._learned[key].start()
        return self._learned[key]


def _spread(count: int, most: int) -> list[int]:
    """Numbers below `count`, the first and the last among them, at equal distances; of one number the middle."""
    return [count // 2] if most == 1 else [round(each * (count - 1) / (most - 1)) for each in range(most)]


def _timed_nodes(sizes: Sequence[DraftSize]) -> tuple[int, ...]:
    """Numbers of tokens whose passes are timed: those of the sizes, or powers of two where there are many sizes."""
    own = {1, *(size.total_tokens for size in sizes)}
    most = max(own)
    return tuple(sorted(own)) if len(own) <= len(_POWERS) else (*(each for each in _POWERS if each < most), most)


_ROWS_OF_ONE, _LEAST_GAIN_OF_BATCHES = 2, 1.25
"""Rows of one guided picture. Rows of a batch that end apart wait or begin alone, which no step's seconds show."""
_FINE = time.get_clock_info("thread_time").resolution < 1e-4  # on Windows it is 16 ms
_POWERS = (1, 2, 4, 8, 16, 32, 64)


def _identity(geometry: Mapping[str, Any]) -> str:
    machine = {
        "processor": describe_hardware()["processor"],
        "threads": torch.get_num_threads(),
        "kernels": build_name(),
    }
    return digest({**machine, "torch": torch.__version__, **geometry}, 24)


def _path(identity: str) -> Path:
    return cache_folder() / "step_costs" / f"{identity}.json"


def _read(identity: str) -> tuple[StepCosts, dict[DraftSize, float]] | None:
    """Costs, and the corrections of some sizes."""
    try:
        values = parse_json(read_bytes(_path(identity)))
        costs = StepCosts(
            tuple(int(count) for count in values["nodes"]),
            tuple(float(seconds) for seconds in values["target_seconds"]),
            float(values["drafting_step_seconds"]),
            float(values["overhead_seconds"]),
        )
        factors = {DraftSize(nodes, depth): float(factor) for nodes, depth, factor in values["factors"]}
        seconds = (*costs.target_seconds, costs.drafting_step_seconds, costs.overhead_seconds, *factors.values())
        is_sound = all(0 <= each < float("inf") for each in seconds) and all(costs.target_seconds)
        return (costs, factors) if is_sound and all(factors.values()) else None
    except (UserError, OSError, ValueError, LookupError, TypeError, ArithmeticError):
        return None


_remove_leftovers_once = cache(remove_leftovers)  # of a folder, in a process: factors are written again and again


def _write(identity: str, costs: StepCosts, factors: Mapping[DraftSize, float]) -> None:
    try:
        path = _path(identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers_once(path.parent)
        listed = [[size.total_tokens, size.depth, factor] for size, factor in factors.items()]
        write_atomic(path, json.dumps({**vars(costs), "factors": listed}) + "\n")
    except (UserError, OSError):
        pass  # where nothing can be written, every start measures anew
