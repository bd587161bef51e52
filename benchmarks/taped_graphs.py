"""Captured graphs on a machine without a GPU: the operations of a step are kept on a tape with the tensors they had.

Like a CUDA graph, a tape reads and writes the addresses of the step that it was taken from, whatever the host has done
since. So what replayed steps draw shows whether captured graphs would draw it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from counted_graphs import CountedGraphs
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from specdecode.graphs.static_step import Slot, StepCompiler
from specdecode.loop import DecodeRun


class Tape(TorchDispatchMode):
    """Operations that run within it, to be replayed.

    Attributes:
        replays: how often they were. The first time does nothing: to take a tape is a step, to capture a graph is none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.replays = 0
        self._operations: list[tuple[Any, Any, Any, list[Tensor]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        named = named or {}
        made = function(*given, **named)
        self._operations.append((function, given, named, _new(made, (given, named))))
        return made

    def replay(self) -> None:
        """Run what is on the tape."""
        self.replays += 1
        if self.replays == 1:
            return
        with _disable_current_modes():
            for function, given, named, homes in self._operations:
                made = function(*given, **named)
                for home, each in zip(homes, _new(made, (given, named)) if homes else (), strict=True):
                    home.copy_(each)

    def forget(self) -> list[StorageWeakRef]:
        """Forget the operations. Returns the memory that they read and that none of them made."""
        made = {each.untyped_storage().data_ptr() for *_, homes in self._operations for each in homes}
        read = [each for _, *given, _ in self._operations for each in tree_leaves(given) if isinstance(each, Tensor)]
        memory = {each.untyped_storage().data_ptr(): StorageWeakRef(each.untyped_storage()) for each in read}
        self._operations.clear()
        return [each for place, each in memory.items() if place and place not in made]


class Launches(TorchDispatchMode):
    """Counts what the host launches within it, but for what a tape runs. Views and new memory are no launches.

    Attributes:
        count: so far.
    """

    count = 0

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Within any other mode `torch.compile` compiles nothing."""
        return True

    def __torch_dispatch__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        self.count += not (function.is_view or function.overloadpacket.__name__.startswith("empty"))
        return function(*given, **(named or {}))


def _new(made: Any, given: Any) -> list[Tensor]:
    """The tensors that an operation made and that do not lie in those it was given."""
    lie = {each.untyped_storage().data_ptr() for each in tree_leaves(given) if isinstance(each, Tensor)}
    tensors = [each for each in tree_leaves(made) if isinstance(each, Tensor)]
    return [each for each in tensors if each.untyped_storage().data_ptr() not in lie]


class TapingCompiler(StepCompiler):
    """Captures on tapes what a GPU would capture, by graphs that run as they are.

    Args:
        bucket: as of `StepCompiler`.

    Attributes:
        counted: the graphs, and what no captured graph can do.
        tapes: all that were taken.
        launches: within it are counted: the replay, and what the host launches up to the next step.
        by_step: these, of every step that was a replay.
    """

    def __init__(self, bucket: int = 128) -> None:
        super().__init__(self._graph, bucket)
        self.counted = CountedGraphs()
        self.tapes: list[Tape] = []
        self.launches = Launches()
        self.by_step: list[int] = []
        self._recording: AbstractContextManager[Any] = nullcontext()

    def _graph(self, graph: torch.fx.GraphModule, given: Any) -> Callable[..., Any]:
        """The backend. What compiles cannot work within a tape, so the graph alone does."""
        counted = self.counted(graph, given)

        def run(*inputs: Any) -> Any:
            with self._recording:
                return counted(*inputs)

        return run

    def step_of(self, run: DecodeRun) -> Any:
        """The steps of a run, counted."""
        step, at = super().step_of(run), None  # what was launched when the last step began, where it was a replay

        def counted() -> int:
            nonlocal at
            if at is not None:
                self.by_step.append(self.replays + self.launches.count - at)
            replays, began = self.replays, self.replays + self.launches.count
            gained = step()
            at = began if self.replays > replays else None
            return gained

        return counted

    def captures(self, device: torch.device) -> bool:
        """Always."""
        return True

    def captured(self, run: DecodeRun, slots: list[Slot]) -> Any:
        """A step on a tape."""
        self._recording = tape = Tape()
        self.tapes.append(tape)
        try:
            self._compiled(run, slots)
        finally:
            self._recording = nullcontext()
        return tape

    def freed(self) -> int:
        """How many pieces of memory that tapes read are held by nobody else: a captured graph would read whatever lies
        there by then. The tapes are of no use afterwards."""
        memory = [each for tape in self.tapes for each in tape.forget()]
        return sum(each.expired() for each in memory)

    @property
    def replays(self) -> int:
        """Steps that tapes have made."""
        return sum(tape.replays for tape in self.tapes)
