"""Work that goes on in threads while a page looks at it, and that can be stopped between two steps.

Belongs here: threads, turns and stopping. Does not belong here: what is worked on, and any page.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from vargen.base.errors import UserError

Snapshot = TypeVar("Snapshot")

_BETWEEN_LOOKS = 0.1
"""Seconds: a page is told no more often."""


class Stopped(Exception):
    """The visitor has stopped this work."""


def failure(error: Exception) -> str:
    """The line that is shown instead of a result. It names the kind of an error that the visitor cannot mend."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


class Work:
    """Threads that a page watches. They stop when the page stops watching.

    Attributes:
        error: why there is no result; None where nothing went wrong.
    """

    def __init__(self) -> None:
        self.error: str | None = None
        self._condition = threading.Condition()
        self._stopped = False
        self._news = 0

    def stop(self) -> None:
        """End every thread at its next `check`. May be called before there is one, and more than once."""
        with self._condition:
            self._stopped = True
            self._condition.notify_all()

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def attempt(self, task: Callable[[], None]) -> None:
        """Do a task. A stop ends it, and any other error is kept in `error`."""
        try:
            task()
        except Stopped:
            pass
        except Exception as error:  # the page shows it where the result would be
            self.error = failure(error)

    def check(self) -> None:
        """Call this between two steps. Raises Stopped."""
        if self._stopped:
            raise Stopped

    def tell(self) -> None:
        """Say that there is something new to look at."""
        with self._condition:
            self._news += 1
            self._condition.notify_all()

    def watch(self, tasks: Sequence[Callable[[], None]], look: Callable[[], Snapshot]) -> Iterator[Snapshot]:
        """Do each task in a thread of its own. Look whenever there is news, and once after the end.

        Args:
            tasks: must not raise, and must call `check` often.
            look: gives what is seen now.
        """
        threads = [threading.Thread(target=self._do, args=(task,), daemon=True) for task in tasks]
        for thread in threads:
            thread.start()
        try:
            seen = -1
            while any(thread.is_alive() for thread in threads):
                with self._condition:
                    self._condition.wait_for(lambda seen=seen: self._news != seen, timeout=_BETWEEN_LOOKS)  # type: ignore[misc]
                    seen = self._news
                yield look()
                time.sleep(_BETWEEN_LOOKS / 2)
            yield look()
        finally:
            self.stop()
            for thread in threads:
                thread.join()

    def _do(self, task: Callable[[], None]) -> None:
        try:
            task()
        finally:
            self.tell()


class Turns:
    """Several threads that work one at a time, so that each has all cores and its seconds are its own.

    The turn goes to the thread that has worked least, in slices of time, as if all ran at once. Threads of numerical
    libraries spin for a moment when a thread waits, so a turn lasts longer than a step.

    Args:
        count: number of threads, which are known by their numbers.
        slice_seconds: least duration of a turn.
    """

    def __init__(self, count: int, work: Work, slice_seconds: float = 0.05) -> None:
        self.seconds = [0.0] * count
        self._work = work
        self._slice_seconds = slice_seconds
        self._condition = work._condition
        self._waiting = set(range(count))
        self._began = [0.0] * count
        self._turn: int | None = None
        self._turn_began = 0.0

    def take(self, number: int) -> None:
        """Wait for the first turn. Raises Stopped."""
        with self._condition:
            if self._turn is None:
                self._turn = number
        self._wait(number)

    def offer(self, number: int) -> None:
        """Let another thread go on, if the slice is over and it has worked less. Raises Stopped."""
        self._work.check()
        now = self._book(number)
        if now - self._turn_began >= self._slice_seconds:
            with self._condition:
                self._turn = min(self._waiting, key=lambda each: (self.seconds[each], each))
                self._condition.notify_all()
            self._wait(number)

    def leave(self, number: int) -> None:
        """End this thread's part."""
        if self._turn == number:
            self._book(number)
        with self._condition:
            self._waiting.discard(number)
            if self._turn == number:
                self._turn = min(self._waiting, key=lambda each: (self.seconds[each], each), default=None)
            self._condition.notify_all()

    @contextmanager
    def uncounted(self, number: int) -> Iterator[None]:
        """The seconds inside belong to no thread, such as those for showing progress."""
        self._book(number)
        yield
        self._began[number] = time.perf_counter()

    def _book(self, number: int) -> float:
        now = time.perf_counter()
        self.seconds[number] += now - self._began[number]
        self._began[number] = now
        return now

    def _wait(self, number: int) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._turn == number or self._work.stopped)
        self._began[number] = self._turn_began = time.perf_counter()
        self._work.check()
