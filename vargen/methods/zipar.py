"""ZipAR: rows of the picture's grid are drawn side by side, each a few tokens behind the row above. No training.

Source: He et al., arXiv 2412.04062 (ICML 2025). The order of places is `specdecode.grid.row_windows`, without guesses.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.methods.base import SearchSpace
from vargen.methods.grid import RowMethodConfig

if TYPE_CHECKING:
    from specdecode.grid.mixed_grids import MixedGrids
    from specdecode.grid.positions import Lines
    from specdecode.grid.row_windows import RowWindows


@dataclass(frozen=True)
class ZipARConfig(RowMethodConfig):
    """A row of the grid begins as soon as the row above has some tokens; every open row adds one token a pass (ZipAR).

    A picture takes `columns + (rows - 1) * window` forward passes, with an adaptive start more.
    """

    name: ClassVar[str] = "zipar"
    summary: ClassVar[str] = "rows of the grid side by side, each a window of tokens behind the row above; no drafter"
    draft_settings: ClassVar[tuple[str, ...]] = ("columns", "window", "adaptive")
    opening_setting: ClassVar[str] = "window"

    window: int | tuple[int, ...] = option(4, least=1, most=MAX_DRAFT)
    """Tokens that the row above has when a row begins, at most those of a row; that many are plain decoding. A list is
    spread evenly over the rows, from top to bottom: wide where objects begin, narrow elsewhere."""
    adaptive: bool = False
    """A row's first token is drawn again at every pass with the same random number, and the row goes on once two passes
    in a row draw the same token. The paper tests the ratio of the two probabilities instead."""

    def _order(self, lines: Lines | MixedGrids) -> RowWindows:
        from specdecode.grid.row_windows import RowWindows

        return RowWindows(lines, self.window, confirm_first=self.adaptive, of_length=self.columns)

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The window, and how a row starts."""
        return {"window": space.integer("window", 1, 16, log=True), "adaptive": space.choice("adaptive", [False, True])}
