"""Checks of arguments that several modules share. Every message names the argument and the remedy.

Belongs here: numbers, tables and drafts. Does not belong here: checks that one module alone makes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Integral

import torch
from torch import Tensor

from specdecode.roles import Draft

_LONGEST_SHOWN = 60
"""Characters of a value in a message."""


def check_number(name: str, value: object, lowest: float, highest: float = math.inf) -> float:
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
    """Raises ValueError for the first argument that is no integer or is below `least`, by its name."""
    for name, count in counts.items():
        if not is_integer(count):
            raise ValueError(f"{name} must be an integer, at least {least}, got {shown(count)}")
        if count < least:
            raise ValueError(f"{name} must be at least {least}, got {count}")


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
        must: what the message begins with: who must give what.
        given: by a player of the loop.
        dtypes: that it may be of; the message names the first.
        sizes: a name stands for any.

    Raises:
        ValueError: It is of another type or shape.
    """
    own = tuple(size if isinstance(size, int) else there for size, there in zip(sizes, given.shape, strict=False))
    if given.dtype in dtypes and given.shape == own and given.ndim == len(sizes):
        return
    wanted, got = (str(dtype).removeprefix("torch.") for dtype in (dtypes[0], given.dtype))
    shape = ", ".join(map(str, sizes))
    raise ValueError(f"{must} {wanted} of shape [{shape}], got {got} of shape {list(given.shape)}")


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


def check_chain(verifier: str, draft: Draft) -> None:
    """The draft is a chain. Reads only what is known without looking at the tensors.

    Raises:
        ValueError: Its nodes may have several children.
    """
    if not draft.tree.is_chain:
        raise ValueError(
            f"{verifier} judges chains only, but the nodes of this draft have up to {draft.tree.max_children} "
            f"children: draft a chain (tree.max_children 1), or use a verifier of trees"
        )


def shown(value: object) -> str:
    """A wrong value in one line of a message."""
    said = repr(value)
    return said if len(said) <= _LONGEST_SHOWN and "\n" not in said else f"a {type(value).__name__}"
