"""Sources of videos to learn from: the protocols of a renderer and of a data set."""

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
