"""Plain decoding: the method that every other one is compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.methods.base import Components, ImageMethodConfig, Method

if TYPE_CHECKING:
    from specdecode.draft_size import DraftSize


@dataclass(frozen=True)
class AutoregressiveConfig(ImageMethodConfig):
    """Plain decoding: one forward pass of the target for every token."""

    name: ClassVar[str] = "ar"
    summary: ClassVar[str] = "plain autoregressive decoding, one forward pass of the target per token"
    exact: ClassVar[bool] = True

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        """Nothing is drafted."""
        from specdecode.draft_size import NO_DRAFT

        return (NO_DRAFT,)

    def _players(self, components: Components) -> Method:
        return Method()
