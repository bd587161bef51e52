"""The processes of one job: their number, the rank of this one, and waiting for the others.

A job is one process unless `accelerate launch` or `torchrun` started several, which say so in environment variables.
Nothing here knows what the job does. Importing this imports no torch.
"""

from __future__ import annotations

import datetime
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from vargen.base.errors import UserError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_PATIENCE = datetime.timedelta(days=7)
"""How long processes wait for each other. In a large job they differ by more than torch's half hour."""

_SILENT_SECONDS = 8.0
"""After which a wait says that it is one."""

_MOST = 1_000_000
_RANKS = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_WORLD_SIZE"}
_NUMBERS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", *_RANKS, "MASTER_PORT")


@contextmanager
def _told(what: str, is_shared: bool) -> Iterator[None]:
    """Say on standard error, once, whom this process waits for, if the block lasts."""
    if not is_shared:
        yield
        return
    words = f"vargen: waiting for {what}; Ctrl+C ends it"
    timer = threading.Timer(_SILENT_SECONDS, lambda: print(words, file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True)
class Processes:
    """All processes of a job, seen from one of them.

    Args:
        rank: number of this process.
        count: number of processes.
        device: where this process computes.
    """

    rank: int
    count: int
    device: torch.device
    _state: Any

    @classmethod
    def start(cls, device: str = "auto") -> Processes:
        """Find the other processes and connect to them.

        Args:
            device: "cpu"; "cuda" or "auto" for this process's own GPU ("auto": if there is one).

        Raises:
            UserError: a GPU is asked for and there is none.
        """
        import torch
        from accelerate import PartialState

        wants_gpu = device.split(":")[0] == "cuda"
        if wants_gpu and not torch.cuda.is_available():
            raise UserError(f"device {device!r} is not available on this machine; use --device cpu")
        on_cpu = not (wants_gpu or (device == "auto" and torch.cuda.is_available()))
        count = launched_processes()
        with _told(f"the other {count - 1} of {count} processes to come", count > 1):
            state = PartialState(cpu=on_cpu, timeout=_PATIENCE)
        alone = state.num_processes == 1
        place = torch.device(device) if alone and ":" in device else torch.device("cpu") if on_cpu else state.device
        return cls(state.process_index, state.num_processes, place, state)

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files that exist once."""
        return self.rank == 0

    def wait(self) -> None:
        """Wait until every process has come here."""
        with _told("the other processes of this job", self.count > 1):
            self._state.wait_for_everyone()

    def gather(self, value: T) -> list[T]:
        """The values of all processes by rank; small ones that can be pickled. Every process must call this."""
        from accelerate.utils import gather_object

        return list(gather_object([value]))

    def average(self, values: Sequence[torch.Tensor]) -> None:
        """Replace tensors by their means over all processes, in place. Every process must call this."""
        if self.count == 1:
            return
        import torch
        from accelerate.utils import reduce

        mean: Any = reduce(torch.cat([each.flatten() for each in values]), "mean")
        for each, own in zip(values, mean.split([each.numel() for each in values]), strict=True):
            each.copy_(own.view_as(each))

    def leave(self) -> None:
        """Leave the group at the end of the job."""
        if self.count > 1:
            self._state.destroy_process_group()


def launched_processes() -> int:
    """The number of processes of this job; 1 where nobody launched several.

    Raises:
        UserError: a variable is no number, a rank lies beyond their number, or several processes have no address.
    """
    numbers = {name: _number(name) for name in _NUMBERS if os.environ.get(name)}
    for rank, size in _RANKS.items():
        if rank in numbers and size in numbers and numbers[rank] >= numbers[size]:
            told = f"{rank} is {numbers[rank]}, but {size} is {numbers[size]}"
            raise UserError(f"{told}; start with torchrun, or unset both")
    count = max(numbers.get("WORLD_SIZE", 1), 1)
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if count > 1 else ():
        if not os.environ.get(name):
            raise UserError(f"WORLD_SIZE is {count}, but {name} is not set; start with torchrun, or unset WORLD_SIZE")
    return count


def is_first_process() -> bool:
    """Whether this process is the job's first, without connecting to the others. Raises as `launched_processes`."""
    return launched_processes() == 1 or _number("RANK") == 0


def _number(name: str) -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and int(text[:9]) < _MOST and len(text) < 9):
        raise UserError(f"{name} must be a whole number that a launcher sets, got {text[:40]!r}; unset it")
    return int(text)
