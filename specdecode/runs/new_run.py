"""The door to every run: one that drafts, one that skips verification, or one that draws by places in an order.

Does not belong here: the runs themselves, and batches that go on for ever (`continuous.py`).
"""

from __future__ import annotations

from typing import Any

from specdecode.drafters.forced_tokens import KnownRuns
from specdecode.grid.row_windows import RowWindowRun, RowWindows
from specdecode.loop import DecodeRun
from specdecode.roles import Schedule, Target
from specdecode.runs.skipping import SkippingRun


def new_run(
    target: Target, *, schedule: Schedule | None = None, order: RowWindows | None = None, **settings: Any
) -> DecodeRun:
    """A run that is not yet started: one that skips where there is a schedule, or draws by places in an order.

    Args:
        target, settings: Arguments of `DecodeRun`.
        schedule: See `SkippingRun`; None: every token is verified.
        order: See `RowWindowRun`; None: one place is drawn after another.

    Raises:
        ValueError: As `DecodeRun`, `SkippingRun` and `RowWindowRun`; or both a schedule and an order.
    """
    if order is not None:
        if schedule is not None:
            raise ValueError("schedule must be None where places are drawn in an order of their own")
        return RowWindowRun(target, rule=order, **settings)
    forced_tokens = settings.get("forced_tokens")
    if settings.get("drafter") is None and forced_tokens is not None:
        settings["drafter"] = KnownRuns(forced_tokens, getattr(target, "max_draft_nodes", 1) - 1)
    return DecodeRun(target, **settings) if schedule is None else SkippingRun(target, schedule=schedule, **settings)
