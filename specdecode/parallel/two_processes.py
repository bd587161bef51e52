"""Channels to a drafter in another process.

Belongs here: what travels, the links it travels by, the worker's loop, and the ends of processes. Does not belong here:
what the messages mean (`channel.py`), and anything that draws or judges tokens.

Two ways to get there:

* `DraftProcess(build)` starts a worker on this machine and talks to it through a pipe.
* Under torchrun, or in any process group with a CPU backend (gloo), the drafter's rank calls
  `serve_drafts(GroupLink(group, peer=0), build)` and the target's `RemoteDrafter(GroupLink(group, peer=1))`. Only token
  numbers travel, so gloo serves models on GPUs as well.

The worker makes its own model (`build` is called there) and hears token numbers. Prompts travel as pickled bytes, once
per row; all else is one message of a few hundred bytes each way per round. Every order has a number, which its answer
repeats: an answer nobody waits for any more, because the target's side failed meanwhile, is told from the right one.
"""

from __future__ import annotations

import functools
import pickle
import signal
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch
import torch.multiprocessing
from torch import Tensor

from specdecode.parallel.channel import DraftRequest, DraftSource, Window
from specdecode.parallel.drafter import WindowDrafter
from specdecode.parallel.rounds import DraftOrder

MOST_TOKENS = 250
"""Of a window; messages have a fixed size."""

_NO_TOKEN = -1
_SECONDS_TO_STOP = 5.0


class DrafterError(RuntimeError):
    """The drafter failed or died; the message ends with its reason."""


class LinkClosed(Exception):
    """Nobody is at the other end, or nothing came in time."""


class Kind(IntEnum):
    """Of a message."""

    BEGIN = 0
    HINT = 1
    ORDER = 2
    STOP = 3
    WINDOW = 4
    FAILURE = 5


@dataclass(frozen=True)
class Message:
    """What travels.

    Args:
        kind: Which message of `DraftChannel`, or which answer.
        number: Of the order, counted from 1.
        values: At most MOST_TOKENS + 1 integers. BEGIN: count. HINT: 1 if there is one. ORDER: kept, token or -1,
            count. WINDOW: nanoseconds, then the tokens.
        payload: BEGIN: the pickled request. HINT: int64 numbers. FAILURE: the reason.
    """

    kind: Kind
    number: int
    values: tuple[int, ...] = ()
    payload: bytes = b""


class Link(Protocol):
    """A way to one other process."""

    def send(self, message: Message) -> None:
        """Raises LinkClosed."""
        ...

    def receive(self) -> Message:
        """The next message. Raises LinkClosed."""
        ...


class PipeLink:
    """A pipe between two processes of one machine.

    Args:
        connection: This process's end.
        timeout: Seconds to wait for a message; None: no limit.
        sentinel: Of the process at the other end, where known: its death is then noticed even if somebody else holds
            its end open.
    """

    def __init__(self, connection: Connection, timeout: float | None = None, sentinel: int | None = None) -> None:
        self.connection = connection
        self.timeout = timeout
        self._sources: list[Any] = [connection] if sentinel is None else [connection, sentinel]

    def send(self, message: Message) -> None:
        """See `Link`."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def receive(self) -> Message:
        """See `Link`."""
        ready = wait(self._sources, self.timeout)
        if not ready:
            raise LinkClosed(f"no answer within {self.timeout:g} seconds")
        try:
            # A process that has answered and died is heard first.
            if self.connection in ready:
                message: Message = self.connection.recv()
                return message
        except (EOFError, OSError) as error:
            raise LinkClosed(str(error)) from error
        raise LinkClosed("the process ended")


class GroupLink:
    """Point-to-point messages of a `torch.distributed` process group, of one fixed shape (and a payload where one is).

    Args:
        group: With a CPU backend, e.g. `torch.distributed.group.WORLD` after `init_process_group("gloo")`.
        peer: Rank of the other process in it.
        timeout: Seconds to wait for a message, and for one to be taken; None: no limit.
    """

    def __init__(self, group: Any, peer: int, timeout: float | None = None) -> None:
        self.group = group
        self.peer = peer
        self._limit = timedelta(days=365) if timeout is None else timedelta(seconds=timeout)
        self._under_way: list[tuple[Any, Tensor]] = []

    def send(self, message: Message) -> None:
        """See `Link`."""
        fixed = torch.zeros(4 + 1 + MOST_TOKENS, dtype=torch.int64)
        head = (message.kind, message.number, len(message.values), len(message.payload), *message.values)
        fixed[: len(head)] = torch.tensor(head)
        parts = [fixed]
        if message.payload:
            parts.append(torch.frombuffer(bytearray(message.payload), dtype=torch.uint8))
        try:
            # A message has gone once the other side asks for it, and both may send at once: so only the one before
            # is waited for.
            self._wait_for_last(self._limit)
            self._under_way = [(self.group.send([part], self.peer, 0), part) for part in parts]
            if message.kind == Kind.STOP:
                self._wait_for_last(timedelta(seconds=_SECONDS_TO_STOP))
        except RuntimeError as error:
            raise LinkClosed(_first_line(error)) from error

    def _wait_for_last(self, limit: timedelta) -> None:
        for work, _ in self._under_way:
            work.wait(limit)
        self._under_way = []

    def receive(self) -> Message:
        """See `Link`."""
        fixed = torch.zeros(4 + 1 + MOST_TOKENS, dtype=torch.int64)
        try:
            self.group.recv([fixed], self.peer, 0).wait(self._limit)
            kind, number, num_values, num_bytes, *values = fixed.tolist()
            payload = torch.zeros(num_bytes, dtype=torch.uint8)
            if num_bytes:
                self.group.recv([payload], self.peer, 0).wait(self._limit)
        except RuntimeError as error:
            raise LinkClosed(_first_line(error)) from error
        return Message(Kind(kind), number, tuple(values[:num_values]), payload.numpy().tobytes())


def serve_drafts(link: Link, build: Callable[[], DraftSource]) -> None:
    """The drafter's process: answer orders until told to stop, or until nobody is left to draft for.

    What `build` or an order raises is the answer to the order, its traceback goes to standard error, and the next order
    is awaited.

    Args:
        link: To the target's process.
        build: Makes what makes models of requests; called once.
    """
    drafter, broken = None, None
    try:
        drafter = WindowDrafter(build())
    except Exception as error:
        broken = error
    try:
        while True:
            message = link.receive()
            if message.kind == Kind.STOP:
                return
            if message.kind == Kind.HINT:
                continue  # of a source that asked for none
            try:
                if drafter is None:
                    raise broken or RuntimeError("there is no drafter")
                window = _draft(drafter, message, link)
                answer = Message(Kind.WINDOW, message.number, (round(1e9 * window.seconds), *window.tokens))
            except LinkClosed:
                raise
            except Exception as error:
                traceback.print_exception(error)
                reason = traceback.format_exception_only(error)[-1].strip()
                answer = Message(Kind.FAILURE, message.number, payload=reason.encode())
            link.send(answer)
    except LinkClosed:
        return


def _draft(drafter: WindowDrafter, message: Message, link: Link) -> Window:
    if message.kind == Kind.ORDER:
        kept, token, count = message.values
        return drafter.draft(DraftOrder(kept, None if token == _NO_TOKEN else token, count))

    @functools.cache
    def hint() -> Tensor | None:
        # Behind every BEGIN there comes one, before anything else.
        answer = link.receive()
        return torch.frombuffer(bytearray(answer.payload), dtype=torch.int64) if answer.values[0] else None

    return drafter.begin(pickle.loads(message.payload), message.values[0], hint)


class RemoteDrafter(AbstractContextManager):
    """The target's end of a link.

    Args:
        link: To a process that runs `serve_drafts`. Its timeout must leave the worker the time to make its model.
    """

    def __init__(self, link: Link) -> None:
        self._link = link
        self._number = 0
        self._awaits_hint = False
        self._hint: Future[None] | None = None
        self._sender = ThreadPoolExecutor(1, "hint")

    def begin(self, request: DraftRequest, count: int) -> None:
        """See `DraftChannel`. Raises DrafterError, and ValueError for a window that is too long."""
        self._no_more_hints()
        self._order(Kind.BEGIN, (count,), count, pickle.dumps(request))
        self._awaits_hint = True

    def hint(self, numbers: Tensor) -> None:
        """See `DraftChannel`. The copy to the host and the message are made by another thread."""
        on_host = numbers.detach().to("cpu", torch.int64, non_blocking=True)
        copied = None
        if numbers.is_cuda:
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(numbers.device))

        def send() -> None:
            if copied is not None:
                copied.synchronize()
            self._send(Message(Kind.HINT, self._number, (1,), on_host.numpy().tobytes()))

        self._awaits_hint = False
        self._hint = self._sender.submit(send)

    def order(self, order: DraftOrder) -> None:
        """See `DraftChannel`. Raises DrafterError, and ValueError for a window that is too long."""
        token = _NO_TOKEN if order.token is None else order.token
        self._order(Kind.ORDER, (order.kept, token, order.count), order.count)

    def collect(self) -> Window:
        """See `DraftChannel`. Raises DrafterError with the worker's reason."""
        self._no_more_hints()
        answer = self._receive()
        while answer.number != self._number:
            answer = self._receive()
        if answer.kind == Kind.FAILURE:
            raise DrafterError(f"the drafter failed: {answer.payload.decode()}")
        nanoseconds, *tokens = answer.values
        return Window(tokens, 1e-9 * nanoseconds)

    def close(self) -> None:
        """Tell the worker to stop."""
        try:
            self._no_more_hints()
            self._link.send(Message(Kind.STOP, self._number))
        except (LinkClosed, DrafterError):
            pass  # it has stopped
        self._sender.shutdown()

    def _order(self, kind: Kind, values: tuple[int, ...], count: int, payload: bytes = b"") -> None:
        if count > MOST_TOKENS:
            raise ValueError(f"draft_length must be at most {MOST_TOKENS} between processes, got {count}")
        self._number += 1
        self._send(Message(kind, self._number, values, payload))

    def _no_more_hints(self) -> None:
        """A worker that still waits for one would wait forever."""
        if self._awaits_hint:
            self._awaits_hint = False
            self._send(Message(Kind.HINT, self._number, (0,)))
        if self._hint is not None:
            sent, self._hint = self._hint, None
            sent.result()

    def _send(self, message: Message) -> None:
        try:
            self._link.send(message)
        except LinkClosed as error:
            raise DrafterError(self._why(error)) from None

    def _receive(self) -> Message:
        try:
            return self._link.receive()
        except LinkClosed as error:
            raise DrafterError(self._why(error)) from None

    def _why(self, error: LinkClosed) -> str:
        """What to say when the link has closed."""
        return f"the drafter's process cannot be reached: {error}"

    def __exit__(self, *error: object) -> None:
        self.close()


class DraftProcess(RemoteDrafter):
    """A drafter in a process of its own on this machine; use it in a `with` statement.

    It is started anew ("spawn"), so a script that uses it needs `if __name__ == "__main__":`. It ends with this object,
    with this process, or when this process dies. One process serves any number of rows, one after another.

    Args:
        build: Picklable, called in the new process.
        num_threads: Of torch there; on a CPU both sides together should not have more than there are cores.
        timeout: Seconds to wait for a window; the first one also takes as long as the process needs to begin.
    """

    def __init__(self, build: Callable[[], DraftSource], *, num_threads: int = 1, timeout: float = 600.0) -> None:
        context = torch.multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, build, num_threads), name="drafter", daemon=True)
        try:
            self._process.start()
        finally:
            theirs.close()
        super().__init__(PipeLink(self._connection, timeout, self._process.sentinel))

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        """End the process; by force if it does not listen."""
        super().close()
        self._process.join(_SECONDS_TO_STOP)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()

    def _why(self, error: LinkClosed) -> str:
        self._process.join(_SECONDS_TO_STOP)
        code = self._process.exitcode
        if code is None:
            return super()._why(error)
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"the drafter's process ended: {how}"


def _work(connection: Connection, build: Callable[[], DraftSource], num_threads: int) -> None:
    """What the process of `DraftProcess` does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent ends this process
    torch.set_num_threads(num_threads)
    serve_drafts(PipeLink(connection), build)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
