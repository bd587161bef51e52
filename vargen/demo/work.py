"""Work that goes on in threads while a page looks at it, and that its visitor can stop.

Belongs here: threads, turns, and the tickets by which a stop finds its work. Does not belong here: what is worked on,
and any page.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from vargen.base.errors import UserError

Snapshot = TypeVar("Snapshot")

_BETWEEN_LOOKS = 0.1
"""Least seconds between two looks at the work."""

_MOST_TICKETS = 1000
"""Tickets that are kept. Visitors who have left never return theirs."""


class Stopped(Exception):
    """The visitor has stopped this work."""


def failure(error: Exception) -> str:
    """The line that is shown instead of a result. It names the kind of an error that the visitor cannot mend."""
    return str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"


class Work:
    """Threads that a page watches. They stop when the page stops watching.

    Attributes:
        stopped: whether `stop` was called.
        error: why there is no result; None where nothing went wrong.
    """

    def __init__(self) -> None:
        self.stopped = False
        self.error: str | None = None
        self._condition = threading.Condition()
        self._news = 0

    def stop(self) -> None:
        """End every thread at its next `check`. May be called before there is one, and more than once."""
        with self._condition:
            self.stopped = True
            self._condition.notify_all()

    def check(self) -> None:
        """Call this between two steps. Raises Stopped."""
        if self.stopped:
            raise Stopped

    def tell(self) -> None:
        """Say that there is something new to look at."""
        with self._condition:
            self._news += 1
            self._condition.notify_all()

    def watch(self, tasks: Sequence[Callable[[], None]], look: Callable[[], Snapshot]) -> Iterator[Snapshot]:
        """Do each task in a thread of its own. Look whenever there is news, and once after the end.

        Args:
            tasks: must call `check` often. A stop ends them, and any other error is kept in `error`.
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
        except Stopped:
            pass
        except Exception as error:  # the page shows it where the result would be
            self.error = failure(error)
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
        if self._book(number) - self._turn_began >= self._slice_seconds:
            with self._condition:
                self._pass_on()
            self._wait(number)

    def leave(self, number: int) -> None:
        """End this thread's part."""
        if self._turn == number:
            self._book(number)
        with self._condition:
            self._waiting.discard(number)
            if self._turn == number:
                self._pass_on()

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

    def _pass_on(self) -> None:
        self._turn = min(self._waiting, key=lambda each: (self.seconds[each], each), default=None)
        self._condition.notify_all()

    def _wait(self, number: int) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._turn == number or self._work.stopped)
        self._began[number] = self._turn_began = time.perf_counter()
        self._work.check()


@dataclass
class _Ticket:
    stop: Callable[[], None] | None = None
    stopped: bool = False
    admitted: bool = False


class Tickets:
    """One ticket for each request, from the click to the end. A stop finds a request that still waits for its turn."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}

    def issue(self) -> str:
        """A new ticket."""
        name = uuid.uuid4().hex
        self._get(name)
        return name

    def admit(self, name: str) -> None:
        """Note that the request has come through the queue."""
        self._get(name).admitted = True

    def begin(self, name: str, stop: Callable[[], None]) -> bool:
        """Begin its work, which `stop` ends, also if called more than once. False if it was stopped before."""
        ticket = self._get(name)
        with self._lock:
            ticket.stop = stop
            return not ticket.stopped

    def stop(self, name: str) -> None:
        """Stop its work now, or when it would begin."""
        ticket = self._get(name)
        with self._lock:
            ticket.stopped = True
        if ticket.stop is not None:
            ticket.stop()

    def end(self, name: str) -> bool:
        """Return the ticket. False if the request never came through the queue, because that was full."""
        with self._lock:
            return self._tickets.pop(name, _Ticket()).admitted

    def _get(self, name: str) -> _Ticket:
        """The ticket of this name. Where there is none, a new one: another process may have issued it."""
        with self._lock:
            ticket = self._tickets.setdefault(name, _Ticket())
            while len(self._tickets) > _MOST_TICKETS:
                del self._tickets[next(iter(self._tickets))]
            return ticket
