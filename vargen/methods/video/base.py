"""What every method for videos is: checked settings, and the players they ask for.

Belongs here: what all of them share. Does not belong here: any method (one file each, beside this one), what a prompt
offers (`prompt.py`), how any player works. As with the methods for pictures nothing here, nor in any file of
a method, imports torch before players are built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vargen.base.errors import UserError
from vargen.methods.base import MethodConfig

if TYPE_CHECKING:
    from vargen.pipelines.video.players import VideoDecoder
    from vargen.pipelines.video.prompt import Prompt


@dataclass(frozen=True)
class VideoMethodConfig(MethodConfig, ABC):
    """Settings of one way to decode an answer about a video."""

    @abstractmethod
    def build(self, prompt: Prompt) -> VideoDecoder:
        """What decodes the answer to one prompt.

        Raises:
            UserError, ValueError: the settings do not fit the model, or something the method needs is missing.
        """

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        """Refuse a method whose drafter is not there, while nobody has waited for weights yet.

        Args:
            trained: kinds of trained drafters that came with the model.
            paired: whether there is a smaller model.

        Raises:
            UserError: what is missing.
        """

    def _need_smaller_model(self, paired: bool, remedy: str = "") -> None:
        if not paired:
            raise UserError(f"{self.name}: draft_model must be given: this method drafts with a smaller model{remedy}")

    def _share(self, field: str) -> None:
        """Refuse a share that is no number above 0 and at most 1."""
        self._number(field, 0, 1)
        if getattr(self, field) == 0:
            raise UserError(f"{self.name}.{field} must be above 0: something has to be left")
