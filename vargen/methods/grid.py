"""Settings shared by methods that draw rows of the grid side by side: no draft, room for placeholders, windows.

Belongs here: what does not depend on how a row goes on once it has begun. Does not belong here: a method (one file
each), and the order itself (`specdecode.grid.row_windows`).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.methods.base import AUTO, Auto, Components, ImageMethodConfig, Method, SearchSpace

if TYPE_CHECKING:
    from specdecode.grid.mixed_grids import MixedGrids
    from specdecode.grid.positions import Lines, Window
    from specdecode.grid.row_windows import RowWindows


@dataclass(frozen=True)
class RowMethodConfig(ImageMethodConfig):
    """Settings of a method that draws several rows of the grid in one pass: a row opens once the row above has some
    tokens.

    A token is drawn before all tokens above it are known, which no verifier can repair: the number of objects suffers
    first.

    Attributes:
        opening_setting: which setting says how many: a number, or a list that is spread evenly over the rows.
    """

    exact: ClassVar[bool] = False
    opening_setting: ClassVar[str]

    columns: int | None = option(None, least=1)
    """Settings that count tokens of a row are meant for rows of so many tokens, and grow and shrink with the rows of a
    picture, because an object does. null: they are as given in every picture."""

    def __post_init__(self) -> None:
        super().__post_init__()
        field = self.opening_setting
        if getattr(self, field) == ():
            raise UserError(f"{self.name}.{field} must be an integer or a list of some, got an empty list")
        longest = self._longest_opening
        if self.columns is not None and longest > self.columns:
            raise UserError(f"{self.name}.{field} must be at most {self.name}.columns ({self.columns}), got {longest}")

    def max_draft_nodes(self, num_tokens: int) -> int:
        """Room for a placeholder in every row of a grid up to four times as high as wide; other tokens lie in the slots
        of their places."""
        return 2 * math.isqrt(num_tokens)

    @property
    def _longest_opening(self) -> int:
        """The opening, or the longest of several; "auto" fits every row."""
        given = getattr(self, self.opening_setting)
        return 1 if given == AUTO else max(given) if isinstance(given, tuple) else given

    @abstractmethod
    def _order(self, lines: Lines | MixedGrids) -> RowWindows:
        """In what order tokens are drawn in grids with these rows."""

    def _players(self, components: Components) -> Method:
        lines, field = components.grid_lines(), self.opening_setting
        longest, least = self._longest_opening, min(size.line_length for size in lines.sizes)
        if self.columns is None and longest > least:
            grid = "this model's grid" if len(lines.sizes) == 1 else "the narrowest picture"
            raise UserError(
                f"{self.name}.{field} must be between 1 and {least}, the tokens of a row of {grid}, got {longest}"
            )
        return Method(order=self._order(lines))


@dataclass(frozen=True)
class GuessingRowsConfig(RowMethodConfig):
    """Settings of a method whose rows have guesses."""

    draft_settings: ClassVar[tuple[str, ...]] = ("columns", "opens_after", "guesses")
    opening_setting: ClassVar[str] = "opens_after"
    usual_opening: ClassVar[int] = 5

    opens_after: int | tuple[int, ...] | Auto = option(AUTO, least=1, most=MAX_DRAFT)
    """Tokens that the row above has when a row opens, at most those of a row; "auto" is 5. A list is spread evenly over
    the rows, from top to bottom: wide where objects begin, narrow elsewhere."""
    guesses: int = option(2, least=1, most=MAX_DRAFT)
    """Tokens guessed ahead in every row. A row guesses no further than the row above is known."""

    @property
    @abstractmethod
    def _rule(self) -> dict[str, Any]:
        """Options of `RowWindows` that say when a row's tokens stand."""

    def _order(self, lines: Lines | MixedGrids) -> RowWindows:
        from specdecode.grid.row_windows import RowWindows

        columns = lines.line_length
        guesses = min(self.guesses, columns - 1)
        return RowWindows(lines, self._opening(columns), guesses, of_length=self.columns, **self._rule)

    def _opening(self, columns: int) -> Window:
        """After how many tokens of a row the next one opens, of rows of `self.columns`, or else of `columns`."""
        return min(self.usual_opening, self.columns or columns) if self.opens_after == AUTO else self.opens_after

    def resolved(self, num_tokens: int) -> Self:
        """See `ImageMethodConfig.resolved`."""
        return replace(self, opens_after=self._opening(math.isqrt(num_tokens)))

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """When rows open, and how far they guess."""
        return {
            "opens_after": space.integer("opens_after", 1, 16, log=True),
            "guesses": space.integer("guesses", 1, 16, log=True),
        }
