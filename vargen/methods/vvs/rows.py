"""VVS on rows of the grid: tokens are drawn at a small lead, looked at again, and stand after some looks.

This project's own. VVS (arXiv 2511.13587) takes drafted tokens unverified to save forward passes. Here a row's tokens
are guesses until they are drawn behind true tokens, or until so many passes have drawn them; what a later look changes
is replaced. Looks are part of passes that are made anyway, because each pass feeds all rows in flight. The order of
places is `specdecode.lines_in_flight`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.methods.base import Suggestions
from vargen.methods.grid import GridMethodConfig

if TYPE_CHECKING:
    from specdecode.places import Lines, Order


@dataclass(frozen=True)
class RowSkippingConfig(GridMethodConfig):
    """Rows of the grid whose tokens stand after some looks, verified or not.

    Args:
        opens_after: tokens that the row above has when a row opens, at most those of a row; null: all of them.
        guesses: tokens of a row that are looked at together, beside the one that is certain.
        looks: so many passes draw a token before it stands unverified.
    """

    name: ClassVar[str] = "vvs-rows"
    summary: ClassVar[str] = "VVS on rows of the grid: tokens stand after some looks, verified or not; no drafter"
    draft_settings: ClassVar[tuple[str, ...]] = ("opens_after", "guesses", "looks")
    opening_setting: ClassVar[str] = "opens_after"

    opens_after: int | None = None
    guesses: int = 15
    looks: int = 3

    def __post_init__(self) -> None:
        if self.opens_after is not None:
            self._number("opens_after", 1, whole=True)
        self._number("guesses", 1, MAX_DRAFT, whole=True)
        self._number("looks", 1, whole=True)

    def _order(self, lines: Lines) -> Order:
        from specdecode.lines_in_flight import LinesInFlight

        columns = lines.line_length
        return LinesInFlight(
            lines,
            columns if self.opens_after is None else self.opens_after,
            min(self.guesses, columns - 1),
            looks=self.looks,
            copies=True,
        )

    @classmethod
    def search(cls, suggest: Suggestions) -> dict[str, Any]:
        """When rows open, how much of a row is looked at together, and how often."""
        return {
            "opens_after": suggest.integer("opens_after", 1, 16, log=True),
            "guesses": suggest.integer("guesses", 1, 16, log=True),
            "looks": suggest.integer("looks", 1, 4),
        }
