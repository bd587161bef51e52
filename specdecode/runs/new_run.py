"""The door to every run: one that drafts, one that skips verification, or one that draws by places in an order.

Does not belong here: the runs themselves, and batches that go on for ever (`continuous.py`).
"""

from __future__ import annotations

from typing import Any

from specdecode.drafters.forced_tokens import KnownRuns
from specdecode.grid.positions import Order, StaggeredLines
from specdecode.grid.row_windows import RowWindows
from specdecode.loop import DecodeRun
from specdecode.roles import Schedule, Target
from specdecode.runs.skipping import SkippingRun


def new_run(
    target: Target, *, schedule: Schedule | None = None, order: Order | None = None, **settings: Any
) -> DecodeRun:
    """A run that is not yet started: one that skips where there is a schedule, or draws by places in an order.

    Args:
        target, settings: Arguments of `DecodeRun`.
        schedule: See `SkippingRun`; None: every token is verified.
        order: See `positions.Order`; None: one place is drawn after another.

    Raises:
        ValueError: As `DecodeRun`, `SkippingRun` and `Order.run`; or both a schedule and an order.
    """
    if order is not None:
        if schedule is not None:
            raise ValueError("schedule must be None where places are drawn in an order of their own")
        if isinstance(order, StaggeredLines) and settings.get("forced_tokens") is not None:
            order = RowWindows(order.lines, order.window)  # each row begins behind its own tokens
        return order.run(target, **settings)
    forced_tokens = settings.get("forced_tokens")
    if settings.get("drafter") is None and forced_tokens is not None:
        settings["drafter"] = KnownRuns(forced_tokens, getattr(target, "max_draft_nodes", 1) - 1)
    return DecodeRun(target, **settings) if schedule is None else SkippingRun(target, schedule=schedule, **settings)
