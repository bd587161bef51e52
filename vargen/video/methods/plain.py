"""Plain decoding of an answer about a video: the method that every other one is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vargen.video.methods.base import VideoComponents, VideoMethod, VideoMethodConfig


@dataclass(frozen=True)
class PlainConfig(VideoMethodConfig):
    """Plain decoding: one forward pass of the target for every token."""

    name: ClassVar[str] = "ar"
    summary: ClassVar[str] = "plain decoding, one forward pass of the target per token"
    exact: ClassVar[bool] = True

    def _players(self, components: VideoComponents) -> VideoMethod:
        return VideoMethod(target=components.target(1))
