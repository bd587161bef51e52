"""The thread that draws: a queue with a limit before it, and continuous batches behind.

Belongs here: what waits, what is drawn together, and what becomes of requests when drawing fails. Does not belong here:
HTTP (`app.py`).

All pictures that wait when a wave begins are one stream of the pipeline: the place of a finished one goes to the next
at once. What arrives meanwhile is the next wave. A picture is that of its seed, whatever is drawn beside it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError

if TYPE_CHECKING:
    from PIL.Image import Image


class QueueFull(UserError):
    """More pictures wait than may."""


class EngineStopped(RuntimeError):
    """Nothing is drawn any more."""


@dataclass
class Job:
    """One picture.

    Args:
        prompt: what to draw.
        seed: of its generator.
        partial_images: how many unfinished pictures to show on the way.
        on_partial: called with an unfinished picture and its number, in the engine's thread.
        finished: gives the picture, or the error.
    """

    prompt: str
    seed: int
    partial_images: int = 0
    on_partial: Callable[[Image, int], None] | None = None
    finished: Future[Image] = field(default_factory=Future)
    shown: int = 0


@dataclass
class Totals:
    """What was drawn so far: pictures, their tokens, the forward passes of all rows, and seconds of drawing."""

    pictures: int = 0
    failures: int = 0
    tokens: int = 0
    row_passes: int = 0
    seconds: float = 0.0


class Engine:
    """Draws jobs in a thread of its own.

    Args:
        pipeline: of any family.
        arguments: of its call, for every picture, such as `method` and `guidance_scale`.
        batch_size: pictures that are drawn at once.
        queue: pictures that may wait.

    Attributes:
        totals: so far.
        error: that ended the thread; None: it lives.
    """

    def __init__(
        self, pipeline: Any, arguments: Mapping[str, Any] | None = None, batch_size: int = 8, queue: int = 64
    ) -> None:
        self.pipeline, self.arguments = pipeline, dict(arguments or {})
        self.batch_size, self.limit = batch_size, queue
        self.totals = Totals()
        self.error: BaseException | None = None
        self._waiting: deque[Job] = deque()
        self._drawing: list[Job] = []
        self._changed, self._closing = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="vargen-engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Pictures that wait."""
        return len(self._waiting)

    @property
    def drawing(self) -> int:
        """Pictures that are drawn now; a finished one is not, though others of its wave are."""
        return sum(not job.finished.done() for job in self._drawing)

    @property
    def alive(self) -> bool:
        """Whether pictures are drawn."""
        return self._thread.is_alive() and self.error is None and not self._closing

    def submit(self, jobs: Sequence[Job]) -> None:
        """Let jobs wait, all or none of them.

        Raises:
            QueueFull: there is no room for them.
            EngineStopped: nothing is drawn any more.
        """
        with self._changed:
            if not self.alive:
                raise EngineStopped("nothing is drawn any more; start the server again")
            if len(self._waiting) + len(jobs) > self.limit:
                raise QueueFull(f"{len(self._waiting)} pictures wait, and at most {self.limit} may; try again later")
            self._waiting += jobs
            self._changed.notify()

    def close(self) -> None:
        """Draw what waits, then end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._next_wave():
                self._draw(self._drawing)
                self._drawing = []
        except BaseException as error:  # whatever ends the thread ends its requests, too
            self.error = error
        finally:
            with self._changed:
                self._closing = True
                left, self._waiting = [*self._drawing, *self._waiting], deque()
            reason = EngineStopped(f"drawing has ended ({type(self.error).__name__}); start the server again")
            for job in left:
                if not job.finished.done():
                    job.finished.set_exception(reason)

    def _next_wave(self) -> bool:
        """Wait for jobs, and take all that wait and are still wanted. False: there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            wanted = [job for job in self._waiting if job.finished.set_running_or_notify_cancel()]
            self._waiting.clear()
            self._drawing = wanted
            return bool(wanted) or not self._closing

    def _draw(self, jobs: list[Job]) -> None:
        """Draw jobs together; where that fails, each alone, so that the one at fault fails alone."""
        if not jobs:
            return
        try:
            self._stream(jobs)
        except Exception as error:
            left = [job for job in jobs if not job.finished.done()]
            if len(jobs) == 1:
                self.totals.failures += 1
                jobs[0].finished.set_exception(error)
                return
            for job in left:
                self._draw([job])

    def _stream(self, jobs: list[Job]) -> None:
        import torch

        began = time.perf_counter()
        options: dict[str, Any] = {}
        if any(job.partial_images > job.shown for job in jobs):
            options = {
                "callback_on_step_end": lambda *step: self._show(jobs, step[3]),
                "callback_on_step_end_tensor_inputs": ["tokens", "lengths", "decided"],
            }
        stream = self.pipeline.stream(
            [job.prompt for job in jobs],
            generator=[torch.Generator().manual_seed(job.seed) for job in jobs],
            batch_size=min(self.batch_size, len(jobs)),
            **self.arguments,
            **options,
        )
        try:
            for picture in stream:
                self.totals.pictures += 1
                self.totals.tokens += picture.tokens.numel()
                self.totals.row_passes += picture.trace.target_passes
                jobs[picture.index].finished.set_result(picture.image)
        finally:
            self.totals.seconds += time.perf_counter() - began

    def _show(self, jobs: list[Job], tensors: Mapping[str, Any]) -> None:
        """Send partial pictures, evenly spaced over the tokens of each."""
        from vargen.drawing.unfinished import continue_downwards  # imports torch

        tokens, decided = tensors["tokens"], tensors["decided"]
        lengths, side = tensors["lengths"].tolist(), self.pipeline.grid_size
        for row, number in enumerate(tensors["pictures"]):
            job = None if number is None else jobs[number]
            if job is None or job.on_partial is None or job.shown >= job.partial_images:
                continue
            due = tokens.shape[1] * (job.shown + 1) / (job.partial_images + 1)
            if max(due, 1) <= lengths[row] < tokens.shape[1]:
                whole = continue_downwards(tokens[row : row + 1], decided[row : row + 1], side)
                job.on_partial(self.pipeline.decode_tokens(whole)[0], job.shown)
                job.shown += 1
