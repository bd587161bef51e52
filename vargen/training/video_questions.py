"""Numbered questions about rendered videos or a user's own, whose answers a draft head learns from.

Belongs here: sources of videos as protocols, and from a number to the processor's inputs for a video and a question.
Does not belong here: answers (`video_answers.py`), and any renderer or data set.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from vargen.models.video_llms.architectures.base import Architecture
from vargen.models.video_llms.frames import VideoFrames
from vargen.pipelines.video.answering import sized_inputs


@dataclass(frozen=True)
class VideoBatch:
    """Videos and their frames.

    Attributes:
        videos: the truth of each, in the form of their source.
        frames: [B, F, 3, size, size] float in [0, 1].
    """

    videos: Sequence[Any]
    frames: Tensor


class VideoSource(Protocol):
    """Gives the videos of consecutive seeds."""

    def __call__(self, first_seed: int, count: int, split: str) -> VideoBatch: ...


class AskedVideo(Protocol):
    """A question about a video, which is read only when it is needed."""

    @property
    def frames(self) -> VideoFrames:
        """Frames that the model is shown. Raises UserError if they cannot be read."""
        ...

    @property
    def question(self) -> str: ...

    def forget(self) -> None:
        """Free the memory of the frames."""
        ...


@dataclass(frozen=True)
class RenderedVideo:
    """Plays `AskedVideo` with the video of a seed."""

    source: VideoSource
    seed: int
    split: str
    question: str

    @property
    def frames(self) -> VideoFrames:
        """Rendered anew each time."""
        return VideoFrames.from_frames(self.source(self.seed, 1, self.split).frames[0])

    def forget(self) -> None:
        """Nothing is kept."""


@dataclass(frozen=True)
class Questions:
    """Questions about videos of any size and length.

    Args:
        processor, architecture: of the target.
        videos: with their questions.
        described: plain values that decide which questions these are.
        split: "train" or "heldout".
        batch_size: questions that are answered at once.
        max_pixels: the most pixels of a frame; None for the processor's own limit.
    """

    processor: Any
    architecture: Architecture
    videos: Sequence[AskedVideo]
    described: dict[str, Any]
    split: str
    batch_size: int
    max_pixels: int | None = None

    def inputs(self, number: int) -> dict[str, Tensor]:
        """The processor's inputs for a question. Raises UserError for a video that cannot be read or does not fit."""
        asked = self.videos[number]
        try:
            return sized_inputs(self.processor, self.architecture, asked.frames, asked.question, self.max_pixels)
        finally:
            asked.forget()
