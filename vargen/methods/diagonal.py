"""Diagonals of the picture's grid, with a vertical branch that was trained for it: another model, not a mere method.

Source: FlashAR, arXiv 2605.09430, after NAR, arXiv 2503.10696. The order of places is `specdecode.grid.diagonals`, the
branch of a LlamaGen `vargen.models.llamagen.vertical_branch`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vargen.methods.base import Components, Method
from vargen.methods.grid import GridMethodConfig


@dataclass(frozen=True)
class DiagonalConfig(GridMethodConfig):
    """All tokens of an anti-diagonal in one pass, by the model and a vertical branch that was trained beside it.

    A picture takes `rows + columns - 1` forward passes, whatever is drawn.

    Args:
        vertical_branch: folder of a branch that `vargen train vertical` wrote, or the name of a shipped one; null for
            the one that came with the model.
    """

    name: ClassVar[str] = "diagonal"
    summary: ClassVar[str] = "anti-diagonals of the grid, a whole one in a pass; needs a trained vertical branch"
    weights: ClassVar[tuple[str, ...]] = ("vertical_branch",)

    vertical_branch: str | None = None

    def _players(self, components: Components) -> Method:
        from specdecode.grid.diagonals import Diagonals

        head = components.load_vertical_head(self.vertical_branch)
        lines: Any = components.grid_lines()  # of one size, as in all families that have branches
        return Method(order=Diagonals(lines, head))
