"""A drafter in another process of this machine, reached through a pipe.

Belongs here: messages, the worker's loop, and the ends of processes. Does not belong here: the meaning of messages
(`channel.py`), and anything that draws or judges tokens.

The worker makes its own model (`build` is called there), and only token numbers travel. Every order has a number, which
its answer repeats: so an answer to an earlier order, left over after an error, is told from the right one.
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
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.multiprocessing
from torch import Tensor

from specdecode.runs.parallel.channel import DraftRequest, DraftSource, Window
from specdecode.runs.parallel.drafter import WindowDrafter
from specdecode.runs.parallel.rounds import DraftOrder

_SECONDS_TO_STOP = 5.0


class DrafterError(RuntimeError):
    """The drafter failed or died; the message ends with its reason."""


class LinkClosed(Exception):
    """The other end is closed, or nothing came in time."""


@dataclass(frozen=True)
class Begin:
    """A row begins: the pickled `DraftRequest`, and how many tokens to draft."""

    request: bytes
    count: int


@dataclass(frozen=True)
class Hint:
    """The numbers of `DraftChannel.hint`; None: there are none. One follows every `Begin`."""

    numbers: list[int] | None


@dataclass(frozen=True)
class Failure:
    """An order could not be followed, for this reason."""

    reason: str


Content = Begin | Hint | DraftOrder | Window | Failure | None
"""What a message holds; None tells the worker to stop."""


class PipeLink:
    """A pipe between two processes, or two threads.

    Args:
        connection: This side's end.
        timeout: Seconds to wait for a message; None: no limit.
        sentinel: Tells of the other process's end, where known. Its death is then noticed even if another process
            holds its end open.
    """

    def __init__(self, connection: Connection, timeout: float | None = None, sentinel: int | None = None) -> None:
        self.connection = connection
        self.timeout = timeout
        self._sources: list[Any] = [connection] if sentinel is None else [connection, sentinel]

    def send(self, number: int, content: Content) -> None:
        """Send a message of an order. Raises LinkClosed."""
        try:
            self.connection.send((number, content))
        except OSError as error:
            raise LinkClosed(str(error)) from error

    def receive(self) -> tuple[int, Content]:
        """The next message: the number of its order, and the content. Raises LinkClosed."""
        ready = wait(self._sources, self.timeout)
        if not ready:
            raise LinkClosed(f"no answer within {self.timeout:g} seconds")
        try:
            if self.connection in ready:  # first: a process may have answered before it died
                message: tuple[int, Content] = self.connection.recv()
                return message
        except (EOFError, OSError) as error:
            raise LinkClosed(str(error)) from error
        raise LinkClosed("the process ended")


def serve_drafts(link: PipeLink, build: Callable[[], DraftSource]) -> None:
    """The worker's loop: answer orders until told to stop, or until the link closes.

    An exception of `build` or of an order becomes the answer, its traceback goes to standard error, and the loop goes
    on.

    Args:
        link: To the target's process.
        build: Makes the source of models; called once.
    """
    drafter, broken = None, None
    try:
        drafter = WindowDrafter(build())
    except Exception as error:
        broken = error
    try:
        while True:
            number, content = link.receive()
            if content is None:
                return
            if isinstance(content, Hint):
                continue  # for a source that did not ask for it
            answer: Window | Failure
            try:
                if drafter is None:
                    raise broken or RuntimeError("there is no drafter")
                answer = _draft(drafter, content, link)
            except LinkClosed:
                raise
            except Exception as error:
                traceback.print_exception(error)
                answer = Failure(traceback.format_exception_only(error)[-1].strip())
            link.send(number, answer)
    except LinkClosed:
        return


def _draft(drafter: WindowDrafter, content: Content, link: PipeLink) -> Window:
    if isinstance(content, DraftOrder):
        return drafter.draft(content)
    assert isinstance(content, Begin)

    @functools.cache
    def hint() -> Tensor | None:
        _, answer = link.receive()
        assert isinstance(answer, Hint)
        return None if answer.numbers is None else torch.tensor(answer.numbers, dtype=torch.int64)

    return drafter.begin(pickle.loads(content.request), content.count, hint)


class RemoteDrafter(AbstractContextManager):
    """`DraftChannel` over a link.

    Args:
        link: To a worker that runs `serve_drafts`. Its timeout must leave the worker the time to make its model.
    """

    def __init__(self, link: PipeLink) -> None:
        self._link = link
        self._number = 0
        self._was_heard = False
        self._awaits_hint = False
        self._hint: Future[None] | None = None
        self._sender = ThreadPoolExecutor(1, "hint")

    def begin(self, request: DraftRequest, count: int) -> None:
        """See `DraftChannel`. Raises DrafterError."""
        self._no_more_hints()
        self.order(Begin(pickle.dumps(request), count))
        self._awaits_hint = True

    def hint(self, numbers: Tensor) -> None:
        """See `DraftChannel`. Another thread copies the numbers to the host and sends them."""
        on_host = numbers.detach().to("cpu", torch.int64, non_blocking=True)
        copied = None
        if numbers.is_cuda:
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(numbers.device))

        def send() -> None:
            if copied is not None:
                copied.synchronize()
            self._send(Hint(on_host.tolist()))

        self._awaits_hint = False
        self._hint = self._sender.submit(send)

    def order(self, order: Begin | DraftOrder) -> None:
        """See `DraftChannel`. Raises DrafterError."""
        self._number += 1
        self._send(order)

    def collect(self) -> Window:
        """See `DraftChannel`. Raises DrafterError with the worker's reason."""
        self._no_more_hints()
        number, answer = None, None
        while number != self._number:
            number, answer = self._reach(self._link.receive)
        self._was_heard = True
        if isinstance(answer, Failure):
            raise DrafterError(f"the drafter failed: {answer.reason}")
        assert isinstance(answer, Window)
        return answer

    def close(self) -> None:
        """Tell the worker to stop."""
        try:
            self._no_more_hints()
            self._link.send(self._number, None)
        except (LinkClosed, DrafterError):
            pass  # it has stopped
        self._sender.shutdown()

    def _no_more_hints(self) -> None:
        """A worker that still waits for a hint would wait forever."""
        if self._awaits_hint:
            self._awaits_hint = False
            self._send(Hint(None))
        if self._hint is not None:
            sent, self._hint = self._hint, None
            sent.result()

    def _send(self, content: Content) -> None:
        self._reach(self._link.send, self._number, content)

    def _reach(self, act: Callable[..., Any], *given: Any) -> Any:
        """Do something to the link. Raises DrafterError where it has closed."""
        try:
            return act(*given)
        except LinkClosed as error:
            raise DrafterError(self._why(error)) from None

    def _why(self, error: LinkClosed) -> str:
        """The message of an error after the link has closed."""
        return f"the drafter's process cannot be reached: {error}"

    def __exit__(self, *error: object) -> None:
        self.close()


class DraftProcess(RemoteDrafter):
    """A drafter in a process of its own; use it in a `with` statement.

    The process is started anew ("spawn"), so a script that uses it needs `if __name__ == "__main__":`. It ends with
    this object, or when this process ends or dies. It serves any number of rows, one after another.

    Args:
        build: Picklable, called in the new process.
        num_threads: Threads of torch there. On a CPU both sides together should not have more than there are cores.
        timeout: Seconds to wait for a window; the first one includes the start of the process.
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
        """The number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def close(self) -> None:
        """End the process, by force if it does not react."""
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
        # A new process runs the script again. Without the guard it would start one, too, which Python forbids.
        guard = "" if self._was_heard or code < 0 else '; a script that starts it needs if __name__ == "__main__":'
        return f"the drafter's process ended: {how}{guard}"


def _work(connection: Connection, build: Callable[[], DraftSource], num_threads: int) -> None:
    """The main function of `DraftProcess`'s worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; the parent ends this process
    torch.set_num_threads(num_threads)
    serve_drafts(PipeLink(connection), build)
