"""What a launcher (torchrun, `accelerate launch`) says of the processes of a job, in environment variables.

Belongs here: reading and checking them. Does not belong here: connecting (`vargen.runs.processes`). Nothing here
imports torch.
"""

from __future__ import annotations

import os

from vargen.base.errors import UserError

_MOST = 1_000_000
_RANKS = {"RANK": "WORLD_SIZE", "LOCAL_RANK": "LOCAL_WORLD_SIZE"}
_NUMBERS = ("WORLD_SIZE", "LOCAL_WORLD_SIZE", *_RANKS, "MASTER_PORT")


def launched_processes() -> int:
    """The number of processes of this job; 1 where nobody launched several.

    Raises:
        UserError: a variable is no number, a rank lies beyond their number, or several processes have no address.
    """
    numbers = {name: _number(name) for name in _NUMBERS if os.environ.get(name)}
    for rank, size in _RANKS.items():
        if rank in numbers and size in numbers and numbers[rank] >= numbers[size]:
            raise UserError(
                f"{rank} is {numbers[rank]}, but {size} is {numbers[size]}; start with torchrun, or unset both"
            )
    count = max(numbers.get("WORLD_SIZE", 1), 1)
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if count > 1 else ():
        if not os.environ.get(name):
            raise UserError(f"WORLD_SIZE is {count}, but {name} is not set; start with torchrun, or unset WORLD_SIZE")
    return count


def _number(name: str) -> int:
    text = os.environ[name]
    if not (text.isascii() and text.isdigit() and int(text[:9]) < _MOST and len(text) < 9):
        raise UserError(f"{name} must be a whole number that a launcher sets, got {text[:40]!r}; unset it")
    return int(text)
