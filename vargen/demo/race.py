"""The same prompt drawn by several methods side by side, in turns, with the progress of each.

Belongs here: the drawing and its previews. Does not belong here: how a picture is drawn (`vargen.pipelines`), threads
(`work.py`), a page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from specdecode.trace import DecodeTrace
from vargen.demo.work import BETWEEN_LOOKS, failure, follow
from vargen.drawing.unfinished import continue_downwards, hide_undecided
from vargen.methods.base import ImageMethodConfig
from vargen.pipelines.base import beside

if TYPE_CHECKING:
    from vargen.pipelines.loading import ImagePipeline

PREVIEWS = 5
"""Number of times that a picture is shown while it is drawn."""

TURN = 0.05
"""Least seconds of a turn."""


@dataclass(eq=False)
class Lane:
    """One method and its progress.

    Attributes:
        passes: forward passes of the target, over all pictures at once.
        lengths: decided tokens of each picture.
        seconds: of its own work. Previews and the turns of others are left out.
        unfinished: tokens int64 [B, grid * grid] after the last pass, and which of them are decided, bool of the same
            shape; None before the first.
        images: the pictures, transparent where no token is decided.
        tokens: of the finished pictures, int64 [B, grid * grid]; None before.
        trace: of the finished pictures; None before.
        error: why there are no pictures.
    """

    label: str
    method: ImageMethodConfig
    passes: int = 0
    lengths: list[int] = field(default_factory=list)
    seconds: float = 0.0
    unfinished: tuple[Tensor, Tensor] | None = None
    images: list[Image.Image] = field(default_factory=list)
    tokens: Tensor | None = None
    trace: DecodeTrace | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Whether all its pictures are there."""
        return self.trace is not None


def race(
    pipeline: ImagePipeline,
    methods: Mapping[str, ImageMethodConfig],
    prompt: str | int,
    seeds: Sequence[int],
    turn: float = TURN,
    **sampling: Any,
) -> Iterator[list[Lane]]:
    """Draw the same pictures by several methods. Yields their lanes now and then, and at the end.

    The next turn goes to the method that has worked least, as if all drew at once. So each has all cores, its seconds
    are its own, and its pictures are those that it draws alone.

    Args:
        pipeline: the model. Its memory from one batch to the next stays untouched.
        methods: by label.
        prompt: a sentence, or the class label for a class-conditional model.
        seeds: of the pictures, one each.
        turn: least seconds of a turn.
        **sampling: further arguments of the pipeline's call.
    """
    lanes = [Lane(label, method) for label, method in methods.items()]
    condition = {"class_labels" if isinstance(prompt, int) else "prompt": prompt}
    asked: dict[str, Any] = {**condition, "num_images_per_prompt": len(seeds), **sampling}
    with ExitStack() as stack:
        drawings = []
        for lane in lanes:
            generators = [torch.Generator().manual_seed(seed) for seed in seeds]
            draw = partial(_draw, lane, beside(pipeline), generator=generators, **asked)
            drawings.append((lane, stack.enter_context(closing(follow(draw, lambda: True, turn, pauses=True)))))
        shown = time.perf_counter()
        while drawings:
            lane, drawing = min(drawings, key=lambda each: each[0].seconds)
            began = time.perf_counter()
            try:
                goes_on = next(drawing, False)
            except Exception as error:  # the page shows it where the picture would be
                lane.error, goes_on = failure(error), False
            lane.seconds += time.perf_counter() - began
            if not goes_on:
                drawings.remove((lane, drawing))
            elif lane.unfinished is not None:
                _look(pipeline, lane, *lane.unfinished)
            if not drawings or time.perf_counter() - shown >= BETWEEN_LOOKS:
                yield lanes
                shown = time.perf_counter()


def _draw(lane: Lane, pipeline: ImagePipeline, check: Callable[[], None], **asked: Any) -> None:
    def step(_pipeline: Any, step: int, lengths: Tensor, tensors: Mapping[str, Tensor]) -> None:
        if lengths.is_cuda:
            torch.cuda.synchronize(lengths.device)  # work that was queued on the device is this lane's
        lane.passes, lane.unfinished = step + 1, (tensors["tokens"], tensors["decided"])
        check()

    asked |= {"callback_on_step_end": step, "callback_on_step_end_tensor_inputs": ("tokens", "decided")}
    output = pipeline(**asked, method=lane.method)
    lane.images, lane.tokens, lane.trace = list(output.images), output.tokens, output.trace
    lane.passes, lane.lengths = output.trace.target_passes, output.trace.row_tokens


def _look(pipeline: ImagePipeline, lane: Lane, tokens: Tensor, decided: Tensor) -> None:
    """Count a lane's tokens, and show its pictures where a fifth of them has come since the last time."""
    before, lane.lengths = sum(lane.lengths), decided.sum(1).tolist()
    tokens_a_preview = decided.numel() / PREVIEWS
    if sum(lane.lengths) // tokens_a_preview > before // tokens_a_preview:
        size = pipeline.grid_size
        whole = pipeline.decode_tokens(continue_downwards(tokens, decided, size))
        lane.images = [hide_undecided(image, each, size) for image, each in zip(whole, decided, strict=True)]
