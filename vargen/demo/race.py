"""The same prompt drawn by several methods side by side, in turns, with the progress of each.

Belongs here: the drawing and its previews. Does not belong here: how a picture is drawn (`vargen.pipelines`), taking
turns (`work.py`), a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image
from torch import Tensor

from specdecode.trace import DecodeTrace
from vargen.demo.work import Stopped, Turns, Work, failure
from vargen.drawing.unfinished import continue_downwards, hide_undecided
from vargen.methods.base import ImageMethodConfig
from vargen.pipelines.base import beside

if TYPE_CHECKING:
    from vargen.pipelines.loading import ImagePipeline

PREVIEWS = 5
"""Number of times that a picture is shown while it is drawn."""


@dataclass(frozen=True)
class Commission:
    """The pictures to draw.

    Args:
        prompt: a sentence, or the class label for a class-conditional model.
        seeds: of the pictures, one each.
        guidance_scale: None for the model's own.
    """

    prompt: str | int
    seeds: tuple[int, ...]
    guidance_scale: float | None = None

    def arguments(self) -> dict[str, Any]:
        """Arguments of a pipeline's call."""
        return {
            "class_labels" if isinstance(self.prompt, int) else "prompt": self.prompt,
            "num_images_per_prompt": len(self.seeds),
            "guidance_scale": self.guidance_scale,
            "generator": [torch.Generator().manual_seed(seed) for seed in self.seeds],
        }


@dataclass
class Lane:
    """One method and its progress.

    Attributes:
        passes: forward passes of the target, over all pictures at once.
        lengths: decided tokens of each picture.
        seconds: of its own work. Previews and the turns of others are left out.
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
    images: list[Image.Image] = field(default_factory=list)
    tokens: Tensor | None = None
    trace: DecodeTrace | None = None
    error: str | None = None

    @property
    def finished(self) -> bool:
        """Whether all its pictures are there."""
        return self.trace is not None


class Race(Work):
    """Several methods that draw the same prompt. Each draws the pictures that it would draw alone.

    Args:
        pipeline: the model. What one batch leaves in it for the next is not touched.
        commission: the pictures to draw.
        methods: by label.
    """

    def __init__(self, pipeline: ImagePipeline, commission: Commission, methods: Mapping[str, ImageMethodConfig]):
        super().__init__()
        self.lanes = [Lane(label, method) for label, method in methods.items()]
        self.grid_size = pipeline.grid_size
        self.commission = commission
        self._pipelines = [beside(pipeline) for _ in self.lanes]
        self._turns = Turns(len(self.lanes), self)

    def run(self) -> Iterator[list[Lane]]:
        """Draw, and yield the lanes whenever there is news, and at the end."""
        return self.watch([partial(self._draw, number) for number in range(len(self.lanes))], self._look)

    def _look(self) -> list[Lane]:
        for lane, seconds in zip(self.lanes, self._turns.seconds, strict=True):
            lane.seconds = seconds
        return [replace(lane) for lane in self.lanes]

    def _draw(self, number: int) -> None:
        lane, pipeline = self.lanes[number], self._pipelines[number]
        try:
            self._turns.take(number)
            output = pipeline(
                **self.commission.arguments(),
                method=lane.method,
                callback_on_step_end=partial(self._step, number),
                callback_on_step_end_tensor_inputs=("tokens", "decided"),
            )
            lane.images, lane.tokens, lane.trace = list(output.images), output.tokens, output.trace
            lane.passes, lane.lengths = output.trace.target_passes, output.trace.row_tokens
        except Stopped:
            pass
        except Exception as error:  # the page shows it where the picture would be
            lane.error = failure(error)
        finally:
            self._turns.leave(number)

    def _step(self, number: int, pipeline: Any, step: int, lengths: Tensor, tensors: Mapping[str, Tensor]) -> None:
        lane = self.lanes[number]
        if lengths.is_cuda:
            torch.cuda.synchronize(lengths.device)  # work that was queued on the device is this lane's
        with self._turns.uncounted(number):
            lane.passes = step + 1
            before, lane.lengths = sum(lane.lengths), tensors["decided"].sum(1).tolist()
            tokens_a_preview = self.grid_size**2 * len(lane.lengths) / PREVIEWS
            if sum(lane.lengths) // tokens_a_preview > before // tokens_a_preview:
                lane.images = self._preview(pipeline, tensors["tokens"], tensors["decided"])
                self.tell()
        self._turns.offer(number)

    def _preview(self, pipeline: ImagePipeline, tokens: Tensor, decided: Tensor) -> list[Image.Image]:
        size = self.grid_size
        whole = pipeline.decode_tokens(continue_downwards(tokens, decided, size))
        return [hide_undecided(image, each, size) for image, each in zip(whole, decided, strict=True)]
