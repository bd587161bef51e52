"""Many pictures, each given as soon as it is finished, while others take its place in the batch.

Belongs here: a stream of pictures for pipelines of any family, and the same over calls of a pipeline that has none.
Does not belong here: how rows are given to others (`specdecode.continuous`), prompts and pixels of a family, and files
of pictures (`vargen.jobs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from specdecode.kernels.default_torch_mode import default_torch_mode
from specdecode.loop import DecodeRun
from specdecode.roles import DecodeState, Target
from specdecode.runs.continuous import FinishedRow, decode_queue
from specdecode.trace import DecodeTrace
from vargen.base.bounds import MAX_BATCH_SIZE, check_number
from vargen.base.errors import NotFiniteError
from vargen.methods.base import refusals
from vargen.models.components import SINGLE_BATCH, BatchSlot
from vargen.pipelines.arguments import Interrupted, PictureRequest, StepCallback, finite_logits
from vargen.pipelines.call_types import check_evaluating
from vargen.pipelines.compilation import compile_time_apart


@dataclass(frozen=True)
class FinishedPicture:
    """One picture of a stream.

    Args:
        index: its number among those asked for.
        image: as `output_type` asks, of one picture: a PIL image, float32 [H, W, 3] or [3, H, W] in [0, 1], or codes.
        tokens: int64 [N].
        trace: of its row; its forward passes are those that the picture took part in.
        seconds: its share of decoding: from the beginning of its prefill to its last token, over the batch's rows. Time
            spent on finished pictures meanwhile, decoding their pixels included, does not count.
        batch_size: rows of the batch.
    """

    index: int
    image: Any
    tokens: Tensor
    trace: DecodeTrace
    seconds: float
    batch_size: int


@dataclass(frozen=True)
class Arriving:
    """Pictures that join a stream on the way.

    Args:
        asked: pictures that the stream begins with.
        room: tokens that a prompt which joins may have.
        take: asked with the number of free places, it gives a request of at most so many pictures, or None.
    """

    asked: int
    room: int
    take: Callable[[int], PictureRequest | None]


class PictureStream:
    """Pictures in the order in which they are finished; iterate once.

    Attributes:
        trace: of all batches so far: `target_passes`, which include the prefills of rows that join, and
            `phase_seconds`. Its steps are not kept.
    """

    def __init__(
        self, pictures: Callable[[DecodeTrace], Generator[FinishedPicture, None, None]], batch_size: int
    ) -> None:
        self.trace = DecodeTrace(batch_size)
        self._pictures = pictures(self.trace)

    def __iter__(self) -> Iterator[FinishedPicture]:
        # A block around all of it would still hold while the caller has a picture.
        return iter(default_torch_mode()(lambda: next(self._pictures, None)), None)

    def close(self) -> None:
        """End the stream; pictures that are not finished are not given. The pipeline may then draw others."""
        self._pictures.close()


def stream_pictures(
    pipeline: Any, request: PictureRequest, batch_size: int, continuous: bool, arriving: Arriving | None = None
) -> PictureStream:
    """A stream under the pipeline's progress bar, which counts pictures.

    Args:
        pipeline: a `PicturePipeline`.
        request: the pictures. The first batch begins with the first ones; the others take its places later.
        batch_size: pictures drawn at once.
        continuous: False: a batch ends with its slowest picture, and only then the next begins.
        arriving: gives pictures that join on the way. `request` then fills the batch, and those of its pictures that
            were not asked for come last.

    Raises:
        UserError: `batch_size` out of range, or prompts that cannot be read.
        UserError: when a picture is asked for: the pipeline is drawing already, or a module is in training mode.
        ValueError: there too: a player that cannot give a row to another picture, by name.
        NotFiniteError: there too: a picture was drawn from logits that are not finite; `row` is its number.
    """
    check_number("batch_size", batch_size, 1, MAX_BATCH_SIZE)
    with refusals():
        longest_prompt = request.longest_prompt() if arriving is None else arriving.room
    reuse, device = pipeline.reuse, request.streams.keys.device
    count = request.count if arriving is None else arriving.asked
    size = min(batch_size, request.count)
    continuous = continuous and not request.offloaded
    parts = {number: (request, number) for number in range(count)}
    """The request of each picture that is not finished, and its number there, by the picture's number in this batch."""

    def queue(first: int, last: int, total: DecodeTrace) -> Iterator[FinishedRow]:
        """The pictures `first` to `last - 1`, by numbers from 0 on."""
        rows = size if arriving is not None else min(size, last - first)
        trace = DecodeTrace(rows, device)
        step, following, batch = 0, last, list[Target]()

        def start_run(requests: range, joins: bool) -> DecodeRun:
            request, begins = parts[first + requests.start]
            asked = range(begins, begins + (len(requests) if joins else rows))
            own = DecodeTrace(len(asked), device) if joins else trace
            with own.phase("encode_prompt"), refusals():
                place = SINGLE_BATCH if arriving is None and last - first <= size else BatchSlot(longest_prompt, joins)
                target, players = request.start(asked, place)
            if not joins:
                batch[:] = [target]
            elif pipeline.guidance_scale != request.guidance_scale:  # a callback changed it
                guided: Any = target
                guided.change_guidance(pipeline.guidance_scale)
            return request.run(asked, target, players, own)

        def arrived(places: int) -> int:
            nonlocal following
            assert arriving is not None
            if (later := arriving.take(places)) is None:
                return 0
            parts.update({following + number: (later, number) for number in range(later.count)})
            following += later.count
            return later.count

        def on_step(state: DecodeState, requests: Sequence[int | None]) -> None:
            nonlocal step
            pictures = [None if each is None else first + each for each in requests]
            request.report.send(pipeline, step, state, batch[0], pictures)
            step += 1

        try:
            with compile_time_apart(reuse.compiler, trace, "decode"):
                yield from decode_queue(start_run, last - first, size, on_step, None if arriving is None else arrived)
        except Interrupted:
            return  # pictures that are not finished are not given
        finally:
            total.add_passes(trace)

    def pictures(total: DecodeTrace) -> Generator[FinishedPicture, None, None]:
        with pipeline._turn(is_stream=True), pipeline.progress_bar(total=count) as progress:
            check_evaluating(pipeline.components)
            pipeline._start_call(request.guidance_scale)
            step = count if continuous else size
            for first in range(0, count, step):
                with finite_logits(first, "of the stream"):
                    rows = queue(first, min(first + step, count), total)
                    for row in rows if continuous else _together(rows):
                        number = first + row.request
                        with total.phase("decode_images"):
                            own, index = parts.pop(number)
                            image = own.images(row.tokens[None], range(index, index + 1))[0]
                        progress.update(1)
                        together = size if arriving is not None else min(size, count - first)
                        yield FinishedPicture(number, image, row.tokens, row.trace, row.seconds, together)
                if pipeline.interrupt:
                    break
            pipeline.maybe_free_model_hooks()

    return PictureStream(pictures, size)


def _together(rows: Iterator[FinishedRow]) -> list[FinishedRow]:
    """The rows of a fixed batch once it has ended; each has its share of the batch's time, waiting included."""
    began = time.perf_counter()
    ended = list(rows)
    share = (time.perf_counter() - began) / len(ended)
    for row in ended:
        row.trace.phase_seconds = {"decode": share}
    return [replace(row, seconds=share) for row in ended]


def open_stream(pipeline: Any, continuous: bool, **arguments: Any) -> PictureStream:
    """A pipeline's own stream, or one over calls of it where it has none.

    Args:
        pipeline: of any family.
        continuous: as for `stream_pictures`; a family without a stream draws fixed batches.
        **arguments: "prompt" or "class_labels" with an entry for every picture, `batch_size`, `generator` with one for
            every picture, and others of a call.
    """
    if hasattr(pipeline, "stream"):
        return pipeline.stream(**arguments, continuous=continuous)
    return _stream_calls(pipeline, **arguments)


def _stream_calls(
    pipeline: Any,
    *,
    batch_size: int,
    generator: Sequence[torch.Generator],
    callback_on_step_end: StepCallback | None = None,
    **arguments: Any,
) -> PictureStream:
    """A stream over calls of a pipeline that has none, as of GLM-Image: fixed batches, whose pictures come together.
    Raises NotFiniteError as `stream_pictures`."""
    count = len(generator)
    of_each = {name: arguments.pop(name) for name in ("prompt", "class_labels") if name in arguments}

    def pictures(total: DecodeTrace) -> Generator[FinishedPicture, None, None]:
        for first in range(0, count, batch_size):
            numbers = range(first, min(first + batch_size, count))

            def in_stream(
                pipeline: Any, step: int, lengths: Tensor, tensors: dict[str, Any], numbers: range = numbers
            ) -> Any:
                assert callback_on_step_end is not None
                of_stream: dict[str, Any] = {**tensors, "pictures": list(numbers)}
                return callback_on_step_end(pipeline, step, lengths, of_stream)

            try:
                output = pipeline(
                    **{name: list(values[first : numbers.stop]) for name, values in of_each.items()},
                    **arguments,
                    generator=list(generator[first : numbers.stop]),
                    callback_on_step_end=None if callback_on_step_end is None else in_stream,
                )
            except NotFiniteError as error:
                raise NotFiniteError(first + error.row, str(error)) from error
            trace = output.trace
            total.add_passes(trace)
            decoding = sum(trace.phase_seconds.get(name, 0.0) for name in ("encode_prompt", "prefill", "decode"))
            share = decoding / len(numbers)
            for row, number in enumerate(numbers):
                image, tokens = output.images[row], output.tokens[row]
                yield FinishedPicture(number, image, tokens, trace.of_row(row), share, len(numbers))

    return PictureStream(pictures, min(batch_size, count))
