"""Many pictures, each given as soon as it is finished, while others take its place in the batch.

Belongs here: a stream of pictures for pipelines of any family, and the same over calls of a pipeline that has none.
Does not belong here: how rows are given to others (`specdecode.continuous`), prompts and pixels of a family, and files
of pictures (`vargen.jobs`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from torch import Tensor

from specdecode.continuous import FinishedRow, decode_queue
from specdecode.finite import NotFiniteError as LogitsError
from specdecode.loop import DecodeRun
from specdecode.roles import DecodeState, Target
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.skipping import new_run
from specdecode.trace import DecodeTrace
from vargen.base.bounds import MAX_BATCH_SIZE, check_number
from vargen.base.errors import NotFiniteError
from vargen.methods.base import Method
from vargen.pipelines.common import StepCallback, StepReport, not_finite
from vargen.pipelines.compilation import compile_time_apart
from vargen.pipelines.components.base import ONLY, Place

StartBatch = Callable[[range, Place], tuple[Target, Method]]
"""Target and players of the pictures of these numbers, before the prefill."""


@dataclass(frozen=True)
class FinishedPicture:
    """One picture of a stream.

    Args:
        index: its number among those asked for.
        image: as `output_type` asks, of one picture: a PIL image, float32 [H, W, 3] or [3, H, W] in [0, 1], or codes.
        tokens: int64 [N].
        trace: what happened, of one row; its passes are those that the picture took part in.
        seconds: its share of decoding: from the beginning of its prefill to its last token, over the batch's rows. What
            is done with pictures meanwhile, decoding their pixels included, does not count.
        batch_size: rows of the batch.
    """

    index: int
    image: Any
    tokens: Tensor
    trace: DecodeTrace
    seconds: float
    batch_size: int


class PictureStream:
    """Pictures in the order in which they are finished; iterate once.

    Attributes:
        trace: of all batches, as far as it has come: `target_passes`, those of rows that join included, and
            `phase_seconds`. Its steps are not kept.
    """

    def __init__(self, pictures: Callable[[DecodeTrace], Iterator[FinishedPicture]], batch_size: int) -> None:
        self.trace = DecodeTrace(batch_size)
        self._pictures = pictures(self.trace)

    def __iter__(self) -> Iterator[FinishedPicture]:
        return self._pictures


def stream_pictures(
    pipeline: DiffusionPipeline,
    start: StartBatch,
    decode_image: Callable[[Tensor], Any],
    *,
    batch_size: int,
    longest_prompt: int,
    num_tokens: int,
    sampling: SamplingConfig,
    streams: RandomStreams,
    report: StepReport,
    continuous: bool,
) -> PictureStream:
    """A stream under the pipeline's progress bar, which counts pictures.

    Args:
        pipeline: whose stream it is.
        start: begins a batch. Of the first batch every later one takes places.
        decode_image: an image from tokens int64 [1, N].
        batch_size: pictures made at once.
        longest_prompt: tokens of the longest prompt of all.
        num_tokens: N.
        sampling: how tokens are drawn.
        streams: one for every picture.
        report: who is told after every target pass.
        continuous: False: a batch ends with its slowest picture, and only then the next begins.

    Raises:
        UserError: `batch_size` out of range.
        ValueError: when the first picture is asked for: a player that cannot give a row to another picture, by name.
        NotFiniteError: there too: a picture was drawn from logits that are no numbers; `row` is its number.
    """
    check_number("batch_size", batch_size, 1, MAX_BATCH_SIZE)
    pipeline._kept.compile_draws(streams)
    count = streams.batch_size
    size = min(batch_size, count)

    def queue(first: int, last: int, total: DecodeTrace) -> Iterator[FinishedRow]:
        """The pictures `first` to `last - 1`, by numbers from 0 on."""
        trace, stack = DecodeTrace(min(size, last - first), streams.keys.device), ExitStack()
        step = 0

        def start_run(requests: range, joins: bool) -> DecodeRun:
            asked = range(first + requests.start, first + requests.stop)
            own = DecodeTrace(len(asked), streams.keys.device) if joins else trace
            with own.phase("encode_prompt"):
                target, players = start(asked, Place(longest_prompt, joins) if last - first > size else ONLY)
            if not joins:  # who joins has no memory of the pipeline's
                stack.enter_context(pipeline._kept.in_use())
            return new_run(
                target,
                max_new_tokens=num_tokens,
                sampling=sampling,
                streams=streams.part(asked.start, asked.stop),
                drafter=players.drafter,
                verifier=players.verifier,
                schedule=players.schedule,
                trace=own,
            )

        def on_step(state: DecodeState, requests: Sequence[int | None]) -> None:
            nonlocal step
            pictures = [None if request is None else first + request for request in requests]
            report.send(pipeline, step, state, pictures)
            step += 1

        try:
            with stack, compile_time_apart(pipeline._kept, trace, "decode"):
                yield from decode_queue(start_run, last - first, size, on_step)
        finally:
            total.add_passes(trace)

    @torch.no_grad()  # not a block within: that would hold for whoever is given a picture, too
    def pictures(total: DecodeTrace) -> Iterator[FinishedPicture]:
        with pipeline.progress_bar(total=count) as progress:
            step = count if continuous else size
            for first in range(0, count, step):
                try:
                    rows = queue(first, min(first + step, count), total)
                    for row in rows if continuous else _together(rows):
                        with total.phase("decode_images"):
                            image = decode_image(row.tokens[None])[0]
                        progress.update(1)
                        yield FinishedPicture(
                            first + row.request, image, row.tokens, row.trace, row.seconds, min(size, count - first)
                        )
                except LogitsError as error:
                    raise not_finite(error, first + error.row, "of the stream") from error
        pipeline.maybe_free_model_hooks()

    return PictureStream(pictures, size)


def _together(rows: Iterator[FinishedRow]) -> list[FinishedRow]:
    """The rows of a fixed batch once it has ended; each has its share of the whole, waiting for the slowest and all."""
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
        continuous: as for `stream_pictures`, where the family can; else batches are fixed anyway.
        **arguments: prompts or labels, `batch_size`, `generator`, and others of a call.
    """
    if hasattr(pipeline, "stream"):
        return pipeline.stream(**arguments, continuous=continuous)
    names = [name for name in ("prompt", "class_labels") if name in arguments]
    condition: dict[str, Sequence[Any]] = {name: arguments.pop(name) for name in names}
    return stream_calls(pipeline, condition, **arguments)


def stream_calls(
    pipeline: Any,
    condition: dict[str, Sequence[Any]],
    *,
    batch_size: int,
    generator: Sequence[torch.Generator],
    callback_on_step_end: StepCallback | None = None,
    **arguments: Any,
) -> PictureStream:
    """A stream over calls of a pipeline that has none, as of GLM-Image: fixed batches, whose pictures come together.

    Args:
        pipeline: of any family.
        condition: one argument of its call, with an entry for every picture.
        batch_size: pictures made at once.
        generator: one for every picture.
        callback_on_step_end: as for the pipeline's `stream`.
        **arguments: others of its call.

    Raises:
        NotFiniteError: as `stream_pictures`.
    """
    count = len(generator)

    def pictures(total: DecodeTrace) -> Iterator[FinishedPicture]:
        for first in range(0, count, batch_size):
            numbers = range(first, min(first + batch_size, count))
            own = {name: list(values[first : numbers.stop]) for name, values in condition.items()}

            def told(
                pipeline: Any, step: int, lengths: Tensor, tensors: dict[str, Any], numbers: range = numbers
            ) -> None:
                assert callback_on_step_end is not None
                of_stream: dict[str, Any] = {**tensors, "pictures": list(numbers)}
                callback_on_step_end(pipeline, step, lengths, of_stream)

            try:
                output = pipeline(
                    **own,
                    **arguments,
                    generator=list(generator[first : numbers.stop]),
                    callback_on_step_end=None if callback_on_step_end is None else told,
                )
            except NotFiniteError as error:
                raise NotFiniteError(first + error.row, str(error)) from error
            trace = output.trace
            total.add_passes(trace)
            decoding = sum(trace.phase_seconds.get(name, 0.0) for name in ("encode_prompt", "prefill", "decode"))
            for row, number in enumerate(numbers):
                yield FinishedPicture(
                    number,
                    output.images[row],
                    output.tokens[row],
                    trace.of_row(row),
                    decoding / len(numbers),
                    len(numbers),
                )

    return PictureStream(pictures, min(batch_size, count))
