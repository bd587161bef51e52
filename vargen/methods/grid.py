"""What methods share that draw rows of the picture's grid side by side: no draft, room for stand-ins, fitting windows.

Belongs here: what does not depend on when a row begins. Does not belong here: a method (one file each), and the orders
themselves (`specdecode.places`, `specdecode.lines_in_flight`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.base.errors import UserError
from vargen.methods.base import Components, ImageMethodConfig, Method

if TYPE_CHECKING:
    from specdecode.draft_size import DraftSize
    from specdecode.places import Lines, Order


@dataclass(frozen=True)
class GridMethodConfig(ImageMethodConfig):
    """Settings of a method that draws tokens of several rows of the grid in one forward pass.

    A token is drawn before all tokens above it are known, which no verifier can repair: the number of objects suffers
    first.

    Attributes:
        opening_setting: which setting says how many tokens the row above has when a row begins.
    """

    exact: ClassVar[bool] = False
    opening_setting: ClassVar[str] = "window"

    def _flag(self, field: str) -> None:
        """Refuse a field that is neither true nor false."""
        if not isinstance(getattr(self, field), bool):
            raise UserError(f"{self.name}.{field} must be true or false, got {getattr(self, field)!r}")

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        """Nothing is drafted beyond the places of the grid."""
        from specdecode.draft_size import NO_DRAFT

        return (NO_DRAFT,)

    def max_draft_nodes(self, num_tokens: int) -> int:
        """Room for a stand-in in every row of a grid up to four times as high as wide; other tokens lie in the slots of
        their places."""
        return 2 * math.isqrt(num_tokens)

    @abstractmethod
    def _order(self, lines: Lines) -> Order:
        """In what order tokens are drawn in a grid with these rows."""

    def _players(self, components: Components) -> Method:
        lines, field = components.grid_lines(), self.opening_setting
        given, columns = getattr(self, field), lines.line_length
        if isinstance(given, int) and given > columns:
            raise UserError(
                f"{self.name}.{field} must be between 1 and {columns}, the tokens of a row of this model's grid, got "
                f"{given}"
            )
        return Method(order=self._order(lines))
