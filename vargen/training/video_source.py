"""Where videos to learn from come from: what a trainer asks of a renderer or a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from vargen.models.video_llms.frames import VideoFrames


@dataclass(frozen=True)
class VideoBatch:
    """Videos and their frames.

    Attributes:
        videos: what is true of each, as their source tells it.
        frames: [B, F, 3, size, size] float in [0, 1].
    """

    videos: Sequence[Any]
    frames: Tensor


class VideoSource(Protocol):
    """Anything that gives the videos of consecutive seeds."""

    def __call__(self, first_seed: int, count: int, split: str) -> VideoBatch: ...


class AskedVideo(Protocol):
    """A video that is read when its turn comes, and a question about it."""

    @property
    def frames(self) -> VideoFrames:
        """Those that the model is shown. Raises UserError where they cannot be read."""
        ...

    @property
    def question(self) -> str: ...

    def forget(self) -> None:
        """Give the memory of the frames back."""
        ...
