"""Plain decoding of an answer about a video."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.methods.video.base import VideoMethodConfig

if TYPE_CHECKING:
    from vargen.pipelines.video.players import Players
    from vargen.pipelines.video.prompt import Prompt


@dataclass(frozen=True)
class PlainConfig(VideoMethodConfig):
    """One target pass for every token. What every other method is compared with."""

    name: ClassVar[str] = "ar"
    summary: ClassVar[str] = "plain decoding, one target pass per token"
    exact: ClassVar[bool] = True

    def build(self, prompt: Prompt) -> Players:
        """The target alone."""
        from vargen.pipelines.video.players import Players

        return Players(prompt.target(1))
