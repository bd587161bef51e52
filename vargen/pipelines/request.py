"""The pictures that one call or one stream draws: what a family hands to the steps that all families share.

Belongs here: the request, and the error for logits that are not finite. Does not belong here: how a request is made
from a user's arguments (a family's file), and how it is drawn (`base.py`, `streaming.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from specdecode.finite import NotFiniteError as LogitsError
from specdecode.loop import DecodeRun, MakesGraphs
from specdecode.roles import Target
from specdecode.runs.skipping import new_run
from specdecode.sampling import RandomStreams, SamplingConfig
from specdecode.trace import DecodeTrace
from vargen.base.errors import NotFiniteError
from vargen.methods.base import Method
from vargen.pipelines.arguments import StepReport
from vargen.pipelines.components.base import Place


class PictureTarget(Target, Protocol):
    """A target that a pipeline may compile."""

    @property
    def compiler(self) -> MakesGraphs | None:
        """Makes its steps into graphs; None: they run eagerly."""
        ...


@dataclass(frozen=True)
class PictureRequest:
    """Pictures to draw, all arguments checked.

    Args:
        start: starts a batch: encodes the prompts of the pictures of these numbers, and gives the target and the other
            players before the prefill.
        images: makes pictures of tokens int64 [B, num_tokens] of the pictures of these numbers, as `output_type` asks.
        num_tokens: tokens of each picture, at most.
        longest_prompt: gives the number of tokens of the longest prompt. A stream asks once, before it begins.
        sampling: how tokens are drawn.
        streams: one random stream for each picture.
        report: the callback after every forward pass of the target.
        guidance_scale: with which the target begins.
        row_tokens: int64 [count], tokens of each picture; None: all have `num_tokens`.
        offloaded: the model comes to its device only when it is called, so a stream draws fixed batches.
    """

    start: Callable[[range, Place], tuple[PictureTarget, Method]]
    images: Callable[[Tensor, range], Any]
    num_tokens: int
    longest_prompt: Callable[[], int]
    sampling: SamplingConfig
    streams: RandomStreams
    report: StepReport
    guidance_scale: float = 1.0
    row_tokens: Tensor | None = None
    offloaded: bool = False

    @property
    def count(self) -> int:
        """The number of pictures."""
        return self.streams.batch_size

    def run(self, pictures: range, target: PictureTarget, players: Method, trace: DecodeTrace) -> DecodeRun:
        """A run over the pictures of these numbers that is not yet started; arguments as `start` gave them."""
        part = slice(pictures.start, pictures.stop)
        return new_run(
            target,
            max_new_tokens=self.num_tokens,
            sampling=self.sampling,
            streams=self.streams.part(part.start, part.stop),
            row_tokens=None if self.row_tokens is None else self.row_tokens[part],
            trace=trace,
            compiler=target.compiler,
            drafter=players.drafter,
            verifier=players.verifier,
            schedule=players.schedule,
            order=players.order,
        )


@contextmanager
def finite_logits(first: int, of_what: str) -> Iterator[None]:
    """Turn the core's error about logits into a user's, which counts pictures from `first`."""
    try:
        yield
    except LogitsError as error:
        picture = first + error.row
        raise NotFiniteError(
            picture,
            f"picture {picture + 1} {of_what}: the model's logits are not finite at step {error.step}: numbers too "
            f"large for its precision or for guidance_scale; give dtype float32 or a smaller scale",
        ) from error
