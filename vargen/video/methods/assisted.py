"""transformers' own assisted generation, counted as the project's methods are, for comparison.

Since transformers 5.3 the draft model is never shown the video: it reads the prompt's placeholders as words. The target
verifies, so the answer stays right.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.video.methods.base import OwnLoop, VideoComponents, VideoMethodConfig


@dataclass(frozen=True)
class AssistedConfig(VideoMethodConfig):
    """transformers' own assisted generation with the draft model, for comparison. It is greedy only."""

    name: ClassVar[str] = "assisted"
    summary: ClassVar[str] = "transformers' own assisted generation (its drafter never sees the video)"
    exact: ClassVar[bool] = True
    one_at_a_time: ClassVar[bool] = True

    draft_length: int = option(5, least=1, most=MAX_DRAFT)
    """Tokens of a chain."""

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        self._need_draft_model(paired)

    def _players(self, components: VideoComponents) -> OwnLoop:
        return components.assisted(self.draft_length)
