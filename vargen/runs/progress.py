"""Progress of long work: a bar with the time left on a terminal, a quiet line now and then in a log, or nothing.

How work is divided is the caller's business; here a number of units is counted up to a total.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Counts units; made by `progress`."""

    def __init__(self, total: int, unit: str, bar: Any, stream: TextIO | None) -> None:
        self.total = total
        self.unit = unit
        self.count = 0
        self._bar = bar
        self._stream = stream
        self._began = self._said = time.perf_counter()

    @property
    def silent(self) -> bool:
        """Whether nobody looks, so that a count need not be worked out."""
        return self._bar is None and self._stream is None

    def advance_to(self, count: int) -> None:
        """So many units are done."""
        if self._bar is not None:
            self._bar.update(count - self.count)
        self.count = count
        now = time.perf_counter()
        if self._stream is not None and now - self._said >= SECONDS_BETWEEN_LINES:
            self._said = now
            left = (now - self._began) * (self.total - count) / max(count, 1)
            clock = tqdm.format_interval(left)
            print(f"{count:,} of {self.total:,} {self.unit}, about {clock} left", file=self._stream, flush=True)

    def advance(self, count: int = 1) -> None:
        """So many more units are done."""
        self.advance_to(self.count + count)


@contextmanager
def progress(total: int, unit: str, quiet: bool = False) -> Iterator[Progress]:
    """Show on standard error how far work has come.

    Args:
        total: units of the whole work.
        unit: what is counted, in the plural.
        quiet: show nothing.
    """
    if quiet:
        yield Progress(total, unit, None, None)
    elif sys.stderr.isatty():
        with tqdm(total=total, unit=f" {unit}", file=sys.stderr, leave=False) as bar:
            yield Progress(total, unit, bar, None)
    else:
        yield Progress(total, unit, None, sys.stderr)
