"""Checks of arguments that several modules share. Every message names the argument and the remedy.

Belongs here: numbers, tables and drafts. Does not belong here: checks that one module alone makes.
"""

from __future__ import annotations

import math

from torch import Tensor

from specdecode.roles import Draft


def check_number(name: str, value: object, lowest: float, highest: float = math.inf) -> float:
    """`value` as a float.

    Raises:
        ValueError: It is not a finite number in [lowest, highest].
    """
    is_real = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if is_real and lowest <= value <= highest:  # type: ignore[operator]
        return float(value)  # type: ignore[arg-type]
    bounds = f">= {lowest:g}" if math.isinf(highest) else f"in [{lowest:g}, {highest:g}]"
    raise ValueError(f"{name} must be a finite number {bounds}, got {value!r}")


def check_counts(least: int = 1, **counts: int) -> None:
    """Raises ValueError for the first argument below `least`, by its name."""
    for name, count in counts.items():
        if count < least:
            raise ValueError(f"{name} must be at least {least}, got {count}")


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
