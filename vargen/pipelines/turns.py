"""Whose turn it is to draw on one pipeline, and what callbacks see of a drawing.

Belongs here: the order in which calls and streams draw. Does not belong here: the memory that they write to
(`reuse.py`), and drawing.

One batch at a time writes to a pipeline's memory. A call of another thread waits for the running one. A stream stays
open for as long as its caller holds a picture, so nobody waits for it: another thread is refused. In its own thread
others may draw meanwhile, in a callback or between two pictures.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from vargen.base.errors import UserError


@dataclass(eq=False)
class Drawing:
    """One call or one stream, as a callback may read and change it.

    Args:
        guidance_scale: of the next passes.
        interrupt: whether it ends after the running pass.
        num_timesteps: forward passes so far.
    """

    guidance_scale: float = 1.0
    interrupt: bool = False
    num_timesteps: int = 0


class Turns:
    """The drawings of one pipeline. A copy, pickled or not, has none of them: it has memory of its own.

    Attributes:
        lock: of the thread that draws.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._running: Drawing | None = None
        self._last = Drawing()
        self._streams: dict[Drawing, int] = {}
        """Open streams in the order in which they last drew, and the threads they did it in."""

    def __reduce__(self) -> tuple[type[Turns], tuple[()]]:
        return Turns, ()

    @property
    def current(self) -> Drawing:
        """The drawing that runs, else the open stream that drew last, else the last drawing."""
        return self._running or next(reversed(self._streams), self._last)

    @contextmanager
    def taken(self, own: Drawing, is_stream: bool = False) -> Iterator[None]:
        """Within the block this thread draws. Afterwards an outer drawing, or an open stream, is `current` again.

        Args:
            own: what is drawn.
            is_stream: keep it open after the block, until `close`.

        Raises:
            UserError: a stream is open in another thread.
        """
        self._refuse_beside_streams(own)
        with self.lock:
            self._refuse_beside_streams(own)  # which may have been opened while this one waited
            if is_stream:
                self._streams.pop(own, None)
                self._streams[own] = threading.get_ident()
            outer, self._running = self._running, own
            try:
                yield
            finally:
                self._running, self._last = outer, own

    def close(self, stream: Drawing) -> None:
        """Forget a stream that has ended."""
        self._streams.pop(stream, None)

    def _refuse_beside_streams(self, own: Drawing) -> None:
        here = threading.get_ident()
        if any(stream is not own and thread != here for stream, thread in [*self._streams.items()]):
            raise UserError("pipeline is drawing in another thread; give each thread `beside(pipeline)`")
