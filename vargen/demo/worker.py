"""The process that computes: the page's own, or another one that starts beside it.

`vargen demo` uses another one. Torch and a model take as long to load as Gradio does, so both load at once, and no
computation makes the page wait. A computation is a generator function of a tab, `function(models, tickets, ticket,
*arguments)`. Its values come back one by one, when the page takes the next.

Belongs here: the two processes, and what happens when one ends. Does not belong here: any computation. Importing this
imports neither torch nor Gradio.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from functools import partial
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.demo.models import Models
from vargen.demo.work import Tickets, failure

Function = Callable[..., Iterator[Any]]

_PATIENCE = 60.0
"""Seconds that a process may take to start, before it imports anything large."""


class LocalWorker:
    """Computes in this process, with these models."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def stream(self, tickets: Tickets, ticket: str, function: Function, *arguments: Any) -> Generator[Any, None, None]:
        """The values that `function(models, tickets, ticket, *arguments)` yields. Closing this iterator ends it.

        Args:
            tickets: the page's.
            ticket: of the request; "" for one that cannot be stopped.
        """
        yield from function(self._models, tickets, ticket, *arguments)


class WorkerProcess:
    """Computes in another process, which starts at once and again after it has ended. It never outlives this one.

    Args:
        folder: for its sockets.
        models: arguments of `Models`, which the process makes for itself.
    """

    def __init__(self, folder: Path, *models: Any) -> None:
        self._folder, self._models = folder, models
        self._lock = threading.Lock()
        self._started = 0
        self._process = self._start()

    def stream(self, tickets: Tickets, ticket: str, function: Function, *arguments: Any) -> Iterator[Any]:
        """As `LocalWorker.stream`. Raises UserError, which the page shows, where the computation failed or its process
        has ended."""
        process, connection = self._connect()
        with connection:
            if ticket:
                tickets.admit(ticket)
                if not tickets.begin(ticket, partial(self.stop, ticket)):
                    self.stop(ticket)
            try:
                connection.send((function, ticket, arguments))
                while (received := connection.recv())[0]:
                    yield received[1]
                    connection.send(None)  # the next one is wanted
            except (EOFError, OSError) as error:
                raise self._lost(process) from error
            if received[1] is not None:
                raise UserError(received[1])

    def stop(self, ticket: str) -> None:
        """Stop the computation of a request, now or when it would begin."""
        with suppress(EOFError, OSError, UserError):
            _, connection = self._connect()
            with connection:
                connection.send((_stop, "", (ticket,)))
                connection.recv()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            with suppress(subprocess.TimeoutExpired):
                self._process.communicate(timeout=5)  # closes its standard input, which ends it
            self._process.kill()
            self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        self._started += 1
        self._address = _address(self._folder / f"worker-{self._started}")
        program = f"from vargen.demo.worker import main; main({self._address!r})"
        process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE)
        assert process.stdin is not None
        with suppress(OSError):  # `_connect` will see that it has ended
            pickle.dump(self._models, process.stdin)
            process.stdin.flush()
        return process

    def _connect(self) -> tuple[subprocess.Popen[bytes], Connection]:
        with self._lock:
            if self._process.poll() is not None:
                self._process = self._start()
            process, address = self._process, self._address
        deadline = time.monotonic() + _PATIENCE
        while process.poll() is None and time.monotonic() < deadline:
            with suppress(OSError):
                return process, Client(address)
            time.sleep(0.02)
        raise self._lost(process)

    @staticmethod
    def _lost(process: subprocess.Popen[bytes]) -> UserError:
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)
        ended = "does not answer" if process.returncode is None else f"has ended ({process.returncode})"
        return UserError(f"The process that computes {ended}, perhaps for want of memory; try again.")


def _address(path: Path, system: str = os.name) -> str:
    """Where a process listens: a socket at a path, or on Windows, which has none, a pipe of the path's names."""
    return "\\\\.\\pipe\\" + "-".join(path.parts[-2:]) if system == "nt" else str(path)


Worker = LocalWorker | WorkerProcess


def _stop(_models: Models, tickets: Tickets, _ticket: str, which: str) -> Iterator[None]:
    tickets.stop(which)
    yield from ()


class _Server:
    """The other end, in the process that computes."""

    def __init__(self, models: Models) -> None:
        self._tickets = Tickets()
        self._models, self._local = models, LocalWorker(models)
        self._loaded = threading.Event()

    def load(self) -> None:
        """Load the first model. An error shows when a visitor uses the model.

        Nothing else runs meanwhile: the libraries' lazy imports are not made for two threads.
        """
        try:
            with suppress(UserError):
                self._models.pipeline(self._models.default)
                import vargen.demo.race
                import vargen.video.models.frames  # noqa: F401
        finally:
            self._loaded.set()
        gc.freeze()  # these objects stay to the end
        gc.enable()

    def listen(self, listener: Listener) -> None:
        """Answer every request in a thread of its own."""
        while True:
            threading.Thread(target=self._answer, args=(listener.accept(),), daemon=True).start()

    def _answer(self, connection: Connection) -> None:
        with connection, suppress(EOFError, OSError):  # the visitor has left
            function, ticket, arguments = connection.recv()
            if function is not _stop:
                self._loaded.wait()
            with closing(self._results(ticket, function, arguments)) as results:
                for result in results:
                    connection.send(result)
                    connection.recv()

    def _results(self, ticket: str, function: Function, arguments: Any) -> Generator[tuple[bool, Any], None, None]:
        """Each value with True, and at the end False with the error, or with None where there is none."""
        error = None
        try:
            with closing(self._local.stream(self._tickets, ticket, function, *arguments)) as values:
                for value in values:
                    yield True, value
        except Exception as raised:  # the page shows it instead of a result
            error = failure(raised)
        finally:
            self._tickets.end(ticket)
        yield False, error


def main(address: str) -> None:
    """Serve requests at this socket until the process that started this one ends or closes the standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the page handles Ctrl+C
    gc.disable()  # importing makes millions of objects that stay
    models = Models(*pickle.load(sys.stdin.buffer))
    server = _Server(models)
    with Listener(address) as listener:
        for task in (server.load, lambda: server.listen(listener)):
            threading.Thread(target=task, daemon=True).start()
        sys.stdin.buffer.read()
    try:
        models.close()
    finally:
        os._exit(0)  # nobody waits for any computation now
