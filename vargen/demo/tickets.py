"""Which work belongs to which visitor, so that a stop finds it, also while it waits for its turn."""

from __future__ import annotations

import threading
import uuid
from dataclasses import dataclass
from typing import Protocol

_MOST = 1000
"""Tickets that are remembered. Visitors who left never return theirs."""


class Stoppable(Protocol):
    """Work in this process or in another."""

    def stop(self) -> None:
        """End it soon. May be called more than once."""
        ...


@dataclass
class _Ticket:
    work: Stoppable | None = None
    stopped: bool = False
    admitted: bool = False


class Tickets:
    """One ticket for each request, from the click to the end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tickets: dict[str, _Ticket] = {}

    def issue(self) -> str:
        """A new ticket."""
        name = uuid.uuid4().hex
        with self._lock:
            self._get(name)
        return name

    def admit(self, name: str) -> None:
        """Note that the request has come through the queue."""
        with self._lock:
            self._get(name).admitted = True

    def begin(self, name: str, work: Stoppable) -> bool:
        """Begin its work. False if it was stopped before."""
        with self._lock:
            ticket = self._get(name)
            ticket.work = work
            return not ticket.stopped

    def stop(self, name: str) -> None:
        """Stop its work now, or when it would begin."""
        with self._lock:
            ticket = self._get(name)
            ticket.stopped = True
        if ticket.work is not None:
            ticket.work.stop()

    def end(self, name: str) -> bool:
        """Return the ticket. False if the request never came through the queue, because that was full."""
        with self._lock:
            ticket = self._tickets.pop(name, None)
        return ticket is not None and ticket.admitted

    def _get(self, name: str) -> _Ticket:
        """The ticket of this name. Where there is none, a new one: another process may have issued it."""
        ticket = self._tickets.setdefault(name, _Ticket())
        while len(self._tickets) > _MOST:
            del self._tickets[next(iter(self._tickets))]
        return ticket
