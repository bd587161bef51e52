"""Progress of long work: a bar with the time left on a terminal, a quiet line now and then in a log, or nothing.

How work is divided is the caller's business; here a number of units is counted up to a total. The counting is tqdm's.
"""

from __future__ import annotations

import sys

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 30.0


class Progress(tqdm):
    """What `progress` gives: `update(n)` counts, `n` is how many, `disable` says that nobody looks."""

    def skip(self, units: int = 1) -> None:
        """Count units that an earlier run has left: they say nothing of how long the others will take."""
        if not self.disable:
            self.n += units
            self.initial += units
            self.last_print_n += units


class _LogLines(Progress):
    """Whole lines for a log, none at the beginning and none at the end."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None:
            print(self, file=self.fp, flush=True)


def progress(total: int, unit: str, quiet: bool = False) -> Progress:
    """Show on standard error how far work has come, while a `with` block lasts.

    Args:
        total: units of the whole work.
        unit: what is counted, in the plural.
        quiet: show nothing.
    """
    if quiet or sys.stderr.isatty():
        return Progress(total=total, unit=f" {unit}", leave=False, disable=quiet)
    return _LogLines(
        total=total,
        bar_format=f"{{n:,}} of {{total:,}} {unit}, about {{remaining}} left",
        mininterval=SECONDS_BETWEEN_LINES,
        delay=SECONDS_BETWEEN_LINES,
        miniters=1,
        leave=False,
    )
