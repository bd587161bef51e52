"""Progress of long work: a bar with the time left on a terminal, a line now and then in a log, or nothing.

It counts units up to a total, by tqdm. The caller divides the work.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 30.0
SECONDS_TO_FIRST_LINE = 8.0
"""A log gets its first line after so long even if nothing has been counted, so that a reader knows what it waits
for."""


class Progress(tqdm):
    """A counter: `update(n)` counts, `n` is the count, `disable` is true where nothing is shown."""

    def skip(self, units: int = 1) -> None:
        """Count units of an earlier run, which do not enter the estimate of the time left."""
        if not self.disable:
            self.n += units
            self.initial += units
            self.last_print_n += units

    def begin(self, units: int) -> None:
        """Count the first units, which do not enter the estimate either, nor do their seconds: kernels were built."""
        self.skip(units)
        self.start_t = self.last_print_t = self._time()  # type: ignore[attr-defined]  # as tqdm reads it


class _LogLines(Progress):
    """Whole lines for a log, none at the beginning and none at the end."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._first_line = threading.Timer(SECONDS_TO_FIRST_LINE, self.refresh)
        self._first_line.daemon = True
        self._first_line.start()

    def close(self) -> None:
        self._first_line.cancel()
        super().close()

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        if msg is None:
            print(self, file=self.fp, flush=True)


def progress(total: int, unit: str, quiet: bool = False) -> Progress:
    """Show progress on standard error while a `with` block lasts.

    Args:
        total: units of the whole work.
        unit: name of the units, in the plural.
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
