"""Which work belongs to which visitor, so that a stop finds it, even while it still waits for its turn."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import Protocol

_MOST = 1000
"""Tickets that are remembered; those of visitors who left are never handed back."""


class Stoppable(Protocol):
    """Work, wherever it is done."""

    def stop(self) -> None:
        """Have it end soon; may be called more than once."""
        ...


@dataclass
class _Ticket:
    work: Stoppable | None = None
    stopped: bool = False
    admitted: bool = False


class Tickets:
    """One a request, from the click to the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}

    def issue(self) -> str:
        """A new one."""
        name = uuid.uuid4().hex
        with self._lock:
            self._get(name)
        return name

    def admit(self, name: str) -> None:
        """It has come through the queue."""
        with self._lock:
            self._get(name).admitted = True

    def begin(self, name: str, work: Stoppable) -> bool:
        """Its work begins; False if it was stopped before."""
        with self._lock:
            ticket = self._get(name)
            ticket.work = work
            return not ticket.stopped

    def stop(self, name: str) -> None:
        """Stop its work, now or when it would begin."""
        with self._lock:
            ticket = self._get(name)
            ticket.stopped = True
        if ticket.work is not None:
            ticket.work.stop()

    def end(self, name: str) -> bool:
        """Hand it back; False if it never came through the queue, which is so where that was full."""
        with self._lock:
            ticket = self._tickets.pop(name, None)
        return ticket is not None and ticket.admitted

    def _get(self, name: str) -> _Ticket:
        """A ticket of this name, a new one where there is none: another process may have issued it."""
        ticket = self._tickets.setdefault(name, _Ticket())
        while len(self._tickets) > _MOST:
            del self._tickets[next(iter(self._tickets))]
        return ticket
