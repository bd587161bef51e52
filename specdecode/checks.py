"""Checks that several modules share: arguments, whose messages name the remedy, and whether logits are finite.

Does not belong here: checks that one module alone makes, and why logits are not finite, which the caller can know.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral

import torch
from torch import Tensor

from specdecode.kernels import fused_ops

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
_LONGEST_SHOWN = 60
"""Characters of a value in a message."""


def check_bounds(name: str, value: object, lowest: float, highest: float = math.inf) -> float:
    """`value` as a float.

    Raises:
        ValueError: It is not a finite number in [lowest, highest].
    """
    is_real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if is_real and lowest <= value <= highest:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    bounds = f">= {lowest:g}" if math.isinf(highest) else f"in [{lowest:g}, {highest:g}]"
    raise ValueError(f"{name} must be a finite number {bounds}, got {shown(value)}")


def is_integer(value: object) -> bool:
    """Whether a value is an integer, truth values apart."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def check_counts(least: int = 1, **counts: int) -> None:
    """Raises ValueError for the first argument that is no integer, below `least` or beyond any count, by its name."""
    for name, count in counts.items():
        if not is_integer(count):
            raise ValueError(f"{name} must be an integer, at least {least}, got {shown(count)}")
        if count < least:
            raise ValueError(f"{name} must be at least {least}, got {count}")
        if count >= 1 << 31:
            raise ValueError(f"{name} must be below 2**31, got {count}")


def check_room(what: str, num_bytes: int, sizes: Mapping[str, int], device: torch.device | str | None) -> None:
    """Raises MemoryError where a device is too small: on a CPU, the system would kill processes instead.

    Args:
        what: needs the room, in the plural.
        num_bytes: it needs.
        sizes: what that follows from, by name.
        device: None: the CPU.
    """
    place = torch.device("cpu" if device is None else device)
    if place.type == "cuda":
        memory = torch.cuda.get_device_properties(place).total_memory
    elif place.type == "cpu" and hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    else:
        return
    if num_bytes > memory:
        of = ", ".join(f"{name} {size:,}" for name, size in sizes.items())
        raise MemoryError(f"{what} need {num_bytes / 2**30:,.1f} GiB ({of}), {place} has {memory / 2**30:,.1f} GiB")


def check_tensor(must: str, given: Tensor, dtypes: tuple[torch.dtype, ...], sizes: tuple[int | str, ...]) -> None:
    """Kernels read as many numbers as there should be, of the type that they take them for.

    Args:
        must: the beginning of the message: who must give which tensor.
        given: by a player of the loop.
        dtypes: that it may be of; the message names the first.
        sizes: of each dimension; a name, such as "B", stands for any size.

    Raises:
        ValueError: It is of another type or shape.
    """
    if isinstance(given, Tensor):
        own = tuple(size if isinstance(size, int) else there for size, there in zip(sizes, given.shape, strict=False))
        if given.dtype in dtypes and given.shape == own and given.ndim == len(sizes):
            return
        got = f"{str(given.dtype).removeprefix('torch.')} of shape {list(given.shape)}"
    else:
        got = shown(given)
    wanted, shape = str(dtypes[0]).removeprefix("torch."), ", ".join(map(str, sizes))
    raise ValueError(f"{must} {wanted} of shape [{shape}], got {got}")


def check_vocabulary(name: str, table: Tensor, logits: Tensor) -> None:
    """The table has a row for every token of the target.

    Raises:
        ValueError: It has not.
    """
    if table.shape[0] != logits.shape[-1]:
        raise ValueError(
            f"{name} must have a row for each of the target's {logits.shape[-1]} tokens, got {table.shape[0]} rows; "
            f"make it from the target's own codebook"
        )


def shown(value: object) -> str:
    """A wrong value in one line of a message."""
    said = repr(value)
    return said if len(said) <= _LONGEST_SHOWN and "\n" not in said else f"a {type(value).__name__}"


class LogitsError(ArithmeticError):
    """Logits of a row are NaN or infinite, so tokens drawn from them mean nothing.

    Attributes:
        row: The first such row.
        step: The row's first such step; 0 is the prefill.
    """

    def __init__(self, row: int, step: int) -> None:
        super().__init__(f"logits of row {row} are not finite at step {step}; check the weights and their precision")
        self.row = row
        self.step = step


class FiniteWatch:
    """Notes the first step at which a row's logits were not finite. Nothing waits for the device before `check`.

    A target forbids a token by minus infinity, which is fine while another token is left.

    Args:
        batch_size: rows.
        device: of the logits.
    """

    graph_state = ("step", "_first")

    def __init__(self, batch_size: int, device: torch.device) -> None:
        self._never = torch.iinfo(torch.int64).max
        self._first = torch.full((batch_size,), self._never, dtype=torch.int64, device=device)
        self.step: int | Tensor = -1  # of the last note; int64 [] where the host does not count

    def note(self, logits: Tensor, nodes: Tensor, rows: Tensor | None = None) -> None:
        """Note rows whose logits [B, n, V] of the next step are not finite at nodes that count: `nodes` [B or 1, n]
        bool, of `rows` [B] bool (None: all)."""
        self.step += 1
        if fused_ops.all_finite(logits):
            return  # as nearly always
        largest = logits.amax(-1)  # NaN wins, then +inf; -inf only where nothing is left to draw
        wrong = (~largest.isfinite() & nodes).any(1)
        wrong = wrong if rows is None else wrong & rows
        self._first = torch.where(wrong, self._first.clamp(max=self.step), self._first)

    def replace_rows(self, rows: Tensor, other: FiniteWatch) -> None:
        """Take over another watch's notes of k rows for `rows` [k]."""
        self._first = self._first.index_copy(0, rows, other._first)

    def first_steps(self) -> list[int | None]:
        """The first step with logits that were not finite, or None, for every row. Waits for the device."""
        return [None if step == self._never else step for step in self._first.tolist()]

    def check(self) -> None:
        """Wait for the device. Raises LogitsError for the first row with a note."""
        for row, step in enumerate(self.first_steps()):
            if step is not None:
                raise LogitsError(row, step)
