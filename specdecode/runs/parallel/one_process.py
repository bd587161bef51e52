"""Channels to a drafter in the same process: in turn, or in another thread.

Belongs here: carrying messages without a copy. Does not belong here: what they mean (`channel.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from specdecode.runs.parallel.channel import DraftRequest, DraftSource, Window
from specdecode.runs.parallel.drafter import WindowDrafter
from specdecode.runs.parallel.rounds import DraftOrder


class InTurnChannel:
    """No overlap: a window is drafted when it is collected. Every other channel must give the same tokens.

    Args:
        source: Makes the drafter's model for a request.
    """

    def __init__(self, source: DraftSource) -> None:
        self._drafter = WindowDrafter(source)
        self._hint: Tensor | None = None
        self._work: Callable[[], Window]

    def begin(self, request: DraftRequest, count: int) -> None:
        """See `DraftChannel`."""
        self._hint = None
        self._work = lambda: self._drafter.begin(request, count, lambda: self._hint)

    def hint(self, numbers: Tensor) -> None:
        """See `DraftChannel`."""
        self._hint = numbers

    def order(self, order: DraftOrder) -> None:
        """See `DraftChannel`."""
        self._work = lambda: self._drafter.draft(order)

    def collect(self) -> Window:
        """See `DraftChannel`."""
        return self._work()

    def close(self) -> None:
        """See `DraftChannel`; there is no thread to end."""


class ThreadChannel(AbstractContextManager):
    """The drafter works in a thread of its own, on a GPU in a stream of its own.

    On one device both sides share the bandwidth, so the gain depends on how much of it one side leaves idle.

    Args:
        source: Makes the drafter's model of a request. It is called in the thread.
        device: The device of the drafter's model. On a GPU, `begin` waits for all of the caller's work there.
    """

    def __init__(self, source: DraftSource, device: torch.device | str = "cpu") -> None:
        self._drafter = WindowDrafter(source)
        device = torch.device(device)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        on_stream = (torch.cuda.set_stream, (self._stream,)) if self._stream is not None else (None, ())
        self._thread = ThreadPoolExecutor(1, "drafter", *on_stream)
        self._hint: Future[_Numbers | None] = Future()
        self._window: Future[Window]

    def begin(self, request: DraftRequest, count: int) -> None:
        """See `DraftChannel`."""
        self._no_more_hints()
        if self._stream is not None:
            torch.cuda.synchronize(self._stream.device)
        hint = self._hint = Future()

        def wait_for_hint() -> Tensor | None:
            numbers = hint.result()
            return None if numbers is None else numbers.here()

        self._window = self._thread.submit(self._drafter.begin, request, count, wait_for_hint)

    def hint(self, numbers: Tensor) -> None:
        """See `DraftChannel`."""
        self._hint.set_result(_Numbers(numbers))

    def order(self, order: DraftOrder) -> None:
        """See `DraftChannel`."""
        self._window = self._thread.submit(self._drafter.draft, order)

    def collect(self) -> Window:
        """See `DraftChannel`. Raises what the drafter raised."""
        self._no_more_hints()
        return self._window.result()

    def close(self) -> None:
        """End the thread after its current work."""
        self._no_more_hints()
        self._thread.shutdown(cancel_futures=True)

    def _no_more_hints(self) -> None:
        """A drafter that still waits for a hint would wait forever."""
        if not self._hint.done():
            self._hint.set_result(None)

    def __exit__(self, *error: object) -> None:
        self.close()


class _Numbers:
    """A tensor that travels from the caller's stream to another one."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = numbers
        self._computed: torch.cuda.Event | None = None
        if numbers.is_cuda:
            self._computed = torch.cuda.Event()
            self._computed.record(torch.cuda.current_stream(numbers.device))

    def here(self) -> Tensor:
        """The tensor, for work on the current stream, which waits for it; the host does not."""
        if self._computed is not None:
            stream = torch.cuda.current_stream()
            stream.wait_event(self._computed)
            self._numbers.record_stream(stream)
        return self._numbers
