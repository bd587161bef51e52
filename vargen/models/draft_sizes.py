"""Draft sizes chosen by measured seconds: costs of steps on this machine, and acceptance in earlier batches.

Belongs here: the memory that a pipeline keeps of both, and the file behind the costs. Does not belong here: the clock
(`specdecode.drafters.draft_size`), the choice (there, too), and a target in the middle of a picture, on which costs are
measured (the caller makes it).

Costs depend on the machine, the kernels, torch, the model's geometry and precision and the rows of a batch, but not on
weights or prompts. These make the key. Where a file is damaged or cannot be written, costs are measured again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from metrics.provenance import describe_hardware
from specdecode.drafters.draft_size import (
    AdaptiveDraftSize,
    DraftSize,
    DraftSizer,
    FixedDraftSize,
    StepCosts,
    measure_step_costs,
)
from specdecode.kernels.build import build_name
from specdecode.roles import Target
from vargen.base.errors import UserError
from vargen.base.reading import parse_json
from vargen.base.resources import cache_folder
from vargen.runs.files import write_atomic
from vargen.runs.identity import digest


class MeasuredDraftSizes:
    """Sizers for the batches of one pipeline."""

    def __init__(self) -> None:
        self._costs: dict[str, StepCosts] = {}
        self._learned: dict[tuple[object, ...], AdaptiveDraftSize] = {}

    def sizer(
        self,
        sizes: Sequence[DraftSize],
        geometry: Mapping[str, Any],
        probe: Callable[[int], Target],
        draft_step: Callable[[], object] | None,
        expected: float | Sequence[float],
        most_sizes: int | None = None,
    ) -> DraftSizer:
        """A sizer that chooses among sizes; see `vargen.methods.base.Components.draft_sizer`.

        Args:
            geometry: all that costs depend on beside the machine, such as the model's sizes and the rows of a batch.
            probe: gives a target of this geometry in the middle of a picture, with room for so many nodes.
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
            costs = self._step_costs(
                identity,
                lambda: measure_step_costs(probe(nodes[-1]), nodes, draft_step),
                geometry.get("processes", 1) > 1,
            )
            rate = min(max(expected, 0.05), 0.95) if isinstance(expected, float) else 0.5  # lengths need no rate
            self._learned[key] = AdaptiveDraftSize(sizes, costs, prior_rate=rate, expected_lengths=lengths)
        # The next picture uses what this one taught. No picture depends on it, and learning again costs time.
        self._learned[key].start()
        return self._learned[key]

    def _step_costs(self, identity: str, measure: Callable[[], StepCosts], split: bool) -> StepCosts:
        """Costs from memory, from the file, or measured now (a second or two). The processes of a split model take
        those of the first, so that they draft as much."""
        if identity not in self._costs:
            costs = None if split else _read(identity)
            if costs is None:
                costs = measure()
                if split:
                    shared = [costs]
                    torch.distributed.broadcast_object_list(shared)
                    (costs,) = shared
                else:
                    _write(identity, costs)
            self._costs[identity] = costs
        return self._costs[identity]


def _spread(count: int, most: int) -> list[int]:
    """Numbers below `count`, the first and the last among them, at equal distances; of one number the middle."""
    return [count // 2] if most == 1 else [round(each * (count - 1) / (most - 1)) for each in range(most)]


def _timed_nodes(sizes: Sequence[DraftSize]) -> tuple[int, ...]:
    """Numbers of tokens whose passes are timed: those of the sizes, or powers of two where there are many sizes."""
    own = {1, *(size.total_tokens for size in sizes)}
    most = max(own)
    return tuple(sorted(own)) if len(own) <= len(_POWERS) else (*(each for each in _POWERS if each < most), most)


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


def _read(identity: str) -> StepCosts | None:
    try:
        values = parse_json(_path(identity).read_bytes())
        return StepCosts(
            tuple(int(count) for count in values["nodes"]),
            tuple(float(seconds) for seconds in values["target_seconds"]),
            float(values["drafting_step_seconds"]),
            float(values["overhead_seconds"]),
        )
    except (UserError, OSError, ValueError, KeyError, TypeError):
        return None


def _write(identity: str, costs: StepCosts) -> None:
    try:
        path = _path(identity)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(vars(costs)) + "\n")
    except (UserError, OSError):
        pass  # where nothing can be written, every start measures anew
