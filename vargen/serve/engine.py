"""The thread that draws: a queue with a limit before it, and continuous batches behind.

Belongs here: the queue, which requests are drawn together, and their fate when drawing fails. Does not belong here:
HTTP (`app.py`).

Pictures are drawn in waves, each a stream of the pipeline. A wave has as many places as pictures wait, up to the batch
size, since empty ones cost passes and seconds, too: a picture alone is drawn as by a call. A new request takes a place
that has become free, after any forward pass. A wave takes no more where that lets the next one fit better: be wider, or
less than half as wide. Pictures of one wave share all arguments but prompt and seed, so the first one in the queue that
has others waits for the next wave, and all behind it. A picture is that of its seed, whatever is drawn beside it.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.picture_files import MAX_SIDE

if TYPE_CHECKING:
    from PIL.Image import Image


_COMES_AGAIN = 0.05
"""Seconds after a wave in which those who have a picture now may ask for the next, and be drawn with what waits."""

_MOST_PIXELS = 8 * MAX_SIDE**2
"""Of all pictures, masks included, that wait to be edited: those of the four largest requests, 256 MB."""

_TO_SHOW = ("tokens", "lengths", "decided")
"""Tensors of a step of which partial pictures are made."""


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
        arguments: of the pipeline's call, which override the engine's.
        finished: gives the picture, or the error.
        warnings: what of the prompt is not read; known once it is finished.
    """

    prompt: str
    seed: int
    partial_images: int = 0
    on_partial: Callable[[Image, int], None] | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    finished: Future[Image] = field(default_factory=Future)
    warnings: Sequence[str] = ()
    shown: int = 0


@dataclass
class Totals:
    """Totals so far: pictures, their tokens, the forward passes of all rows, and seconds of drawing."""

    pictures: int = 0
    failures: int = 0
    tokens: int = 0
    row_passes: int = 0
    seconds: float = 0.0


def _pixels(jobs: Iterable[Job]) -> int:
    """Of the pictures that jobs start from. Those of one request share them."""
    given = [job.arguments.get(name) for job in jobs for name in ("image", "mask_image", "reference_images")]
    images = {
        id(image): image for one in given if one is not None for image in (one if isinstance(one, list) else [one])
    }
    return sum(image.width * image.height for image in images.values())


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
        self._drawing: dict[int, Job] = {}  # by number in the wave
        self._changed, self._closing = threading.Condition(), False
        self._ended, self._expected = 0.0, 0  # when the last wave did, and how many may want to be in the next
        self._thread = threading.Thread(target=self._run, name="vargen-engine", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Pictures that wait and are still wanted."""
        with self._changed:
            self._drop_cancelled()
            return len(self._waiting)

    @property
    def drawing(self) -> int:
        """Pictures that are drawn now; a finished one is not, though others of its wave are."""
        return sum(not job.finished.done() for job in [*self._drawing.values()])

    @property
    def alive(self) -> bool:
        """Whether pictures are drawn."""
        return self._thread.is_alive() and self.error is None and not self._closing

    def submit(self, jobs: Sequence[Job]) -> None:
        """Let jobs wait, all or none of them. A job whose future is cancelled while it waits is not drawn.

        Raises:
            UserError: there never is room for so many.
            QueueFull: there is no room for them now.
            EngineStopped: nothing is drawn any more.
        """
        with self._changed:
            if not self.alive:
                raise EngineStopped("nothing is drawn any more; start the server again")
            if len(jobs) > self.limit:
                raise UserError(f"n must be at most {self.limit}, the pictures that may wait here, got {len(jobs)}")
            self._drop_cancelled()
            if len(self._waiting) + len(jobs) > self.limit:
                raise QueueFull(f"{len(self._waiting)} pictures wait, and at most {self.limit} may; try again later")
            if _pixels([*self._waiting, *jobs]) > _MOST_PIXELS:
                raise QueueFull("many large pictures wait to be edited; try again later, or send a smaller one")
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
                self._draw_wave()
        except BaseException as error:  # whatever ends the thread ends its requests, too
            self.error = error
        finally:
            with self._changed:
                self._closing = True
                left, self._waiting = [*self._drawing.values(), *self._waiting], deque()
            reason = EngineStopped(f"drawing has ended ({type(self.error).__name__}); start the server again")
            for job in left:
                if not job.finished.done():
                    job.finished.set_exception(reason)

    def _next_wave(self) -> bool:
        """Wait for jobs, and take as many as there are places. False: there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closing)
            rest = self._ended + _COMES_AGAIN - time.monotonic()
            self._changed.wait_for(lambda: len(self._waiting) >= self._expected or self._closing, rest)
            self._drawing = dict(enumerate(self._taken(self.batch_size)))
            return bool(self._drawing or self._waiting) or not self._closing

    def _drop_cancelled(self) -> None:
        """Let jobs go whose clients have left, so that they take nobody's place. The caller holds the lock."""
        self._waiting = deque(job for job in self._waiting if not job.finished.cancelled())

    def _taken(self, most: int, fits: Callable[[str], bool] = lambda prompt: True) -> list[Job]:
        """The next jobs that are still wanted, up to the first that does not fit or has other arguments."""
        taken: list[Job] = []
        while self._waiting and len(taken) < most:
            job = self._waiting[0]
            try:
                if (taken and job.arguments != taken[0].arguments) or not fits(job.prompt):
                    break
            except UserError:  # it cannot be read: it fails alone, in a wave of its own
                break
            self._waiting.popleft()
            if job.finished.set_running_or_notify_cancel():
                taken.append(job)
        return taken

    def _draw_wave(self) -> None:
        """Draw a wave; where that fails, each job that is left alone, so that the one at fault fails alone."""
        jobs, before = self._drawing, self.totals.pictures
        if not jobs:
            return
        try:
            self._stream(jobs, len(jobs), is_open=True)
        except Exception:
            for number, job in [*jobs.items()]:
                try:
                    self._stream({0: job}, 1, is_open=False)
                except Exception as error:
                    self.totals.failures += 1
                    job.finished.set_exception(error)
                del jobs[number]
        self._ended = time.monotonic()
        self._expected = min(self.totals.pictures - before + self.waiting, self.batch_size)

    def _stream(self, jobs: dict[int, Job], places: int, is_open: bool) -> None:
        """Draw jobs, which leave `jobs` when they are finished, and into an open stream what arrives."""
        import torch

        began, numbers, is_full = time.perf_counter(), itertools.count(len(jobs)), False
        arguments = next(iter(jobs.values())).arguments
        # Of each tensor the callback gets a copy after every pass, so there is none before a job shows pictures on the
        # way. The stream looks into this list after each pass: a job that arrives later fills it, too.
        copied = [*_TO_SHOW] if any(job.partial_images for job in jobs.values()) else []

        def arriving(free: int, fits: Callable[[str], bool]) -> list[tuple[str, torch.Generator]]:
            nonlocal is_full
            if is_full or not self._waiting:
                return []
            with self._changed:
                self._drop_cancelled()
                waiting = len(self._waiting)
                is_full = free == places or 2 * (places - free + waiting) <= places
                is_full |= places < self.batch_size and waiting > free
                is_full |= waiting > 0 and self._waiting[0].arguments != arguments
                taken = [] if is_full else self._taken(free, fits)
            jobs.update({next(numbers): job for job in taken})
            if any(job.partial_images for job in taken):
                copied[:] = _TO_SHOW
            return [(job.prompt, torch.Generator().manual_seed(job.seed)) for job in taken]

        stream = self.pipeline.stream(
            [job.prompt for job in jobs.values()],
            generator=[torch.Generator().manual_seed(job.seed) for job in jobs.values()],
            batch_size=places,
            arriving=arriving if is_open and not {"image", "reference_images"} & {*arguments} else None,
            **{**self.arguments, **arguments},
            callback_on_step_end=lambda *step: self._show(jobs, step[3]),
            callback_on_step_end_tensor_inputs=copied,
        )
        try:
            for picture in stream:
                self.totals.pictures += 1
                self.totals.tokens += picture.tokens.numel()
                self.totals.row_passes += picture.trace.target_passes
                job = jobs[picture.index]
                texts = [text for text in (job.prompt, arguments.get("negative_prompt")) if text]
                job.warnings = self.pipeline.prompt_problems(texts)  # here: a tokenizer is of one thread
                job.finished.set_result(picture.image)
                del jobs[picture.index]
        finally:
            self.totals.seconds += time.perf_counter() - began

    def _show(self, jobs: Mapping[int, Job], tensors: Mapping[str, Any]) -> None:
        """Send partial pictures, evenly spaced over the tokens of each."""
        if not any(job.partial_images > job.shown for job in jobs.values()):
            return
        from vargen.drawing.unfinished import continue_downwards  # imports torch

        tokens, decided = tensors["tokens"], tensors["decided"]
        lengths, side = tensors["lengths"].tolist(), self.pipeline.grid_size
        for row, number in enumerate(tensors["pictures"]):
            job = jobs.get(number)
            if job is None or job.on_partial is None or job.shown >= job.partial_images:
                continue
            due = tokens.shape[1] * (job.shown + 1) / (job.partial_images + 1)
            if max(due, 1) <= lengths[row] < tokens.shape[1]:
                whole = continue_downwards(tokens[row : row + 1], decided[row : row + 1], side)
                job.on_partial(self.pipeline.decode_tokens(whole)[0], job.shown)
                job.shown += 1
