"""ZipAR: rows of the picture's grid are drawn side by side, each a few tokens behind the row above. No training.

Source: He et al., arXiv 2412.04062 (ICML 2025). The order of places and the run are `specdecode.places`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.errors import UserError
from vargen.methods.base import Components, ImageMethodConfig, Method, Suggestions

if TYPE_CHECKING:
    from specdecode.draft_size import DraftSize


@dataclass(frozen=True)
class ZipARConfig(ImageMethodConfig):
    """A row of the grid begins as soon as the row above has some tokens; every open row adds one token a pass (ZipAR).

    A token is drawn before all tokens above it are known, which no verifier can repair: the number of objects suffers
    first. A picture takes `columns + (rows - 1) * window` forward passes.

    Args:
        window: tokens that the row above has when a row begins, at most those of a row; that many are plain decoding.
    """

    name: ClassVar[str] = "zipar"
    summary: ClassVar[str] = "rows of the grid side by side, each a window of tokens behind the row above; no drafter"
    exact: ClassVar[bool] = False
    draft_settings: ClassVar[tuple[str, ...]] = ("window",)

    window: int = 4

    def __post_init__(self) -> None:
        self._number("window", 1, whole=True)

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        """Nothing is drafted."""
        from specdecode.draft_size import NO_DRAFT

        return (NO_DRAFT,)

    def max_draft_nodes(self, num_tokens: int) -> int:
        """Room for a stand-in in every row of a square grid; no pass feeds more tokens than there are rows."""
        return math.isqrt(num_tokens)

    def _players(self, components: Components) -> Method:
        from specdecode.places import StaggeredLines

        columns = components.grid_columns()
        if self.window > columns:
            raise UserError(
                f"{self.name}.window must be between 1 and {columns}, the tokens of a row of this model's grid, got "
                f"{self.window}"
            )
        return Method(order=StaggeredLines(components.num_tokens, columns, self.window))

    @classmethod
    def search(cls, suggest: Suggestions) -> dict[str, Any]:
        """The window."""
        return {"window": suggest.integer("window", 1, 16, log=True)}
