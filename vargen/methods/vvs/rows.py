"""VVS on rows of the grid: tokens are drawn at a small lead, visited again, and stand after some visits.

This project's own. VVS (arXiv 2511.13587) takes drafted tokens unverified to save forward passes. Here a row's tokens
are guesses until they are drawn behind true tokens, or until so many passes have drawn them. A later visit may replace
a guess. Visits are part of passes that are made anyway, because each pass feeds all open rows. A row that opens
is guessed by the tokens above it. The order of places is `specdecode.grid.row_windows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.methods.base import SearchSpace
from vargen.methods.grid import GuessingRowsConfig


@dataclass(frozen=True)
class RowSkippingConfig(GuessingRowsConfig):
    """Rows of the grid whose tokens stand after some visits, verified or not."""

    name: ClassVar[str] = "vvs-rows"
    summary: ClassVar[str] = "VVS on rows of the grid: tokens stand after some visits, verified or not; no drafter"
    draft_settings: ClassVar[tuple[str, ...]] = (*GuessingRowsConfig.draft_settings, "max_visits", "guessed_columns")

    max_visits: int = option(2, least=1, most=MAX_DRAFT)
    """So many passes draw a token before it stands unverified."""
    guessed_columns: int | None = option(None, least=1)
    """Tokens are guessed among so many first ones of a row; null: in the whole row. Less is fed, and the row below
    comes closer."""

    @property
    def _rule(self) -> dict[str, Any]:
        own = {"max_visits": self.max_visits, "guessed_columns": self.guessed_columns}
        return {**own, "start_from_row_above": True}

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The space of all methods with guesses in rows, and the number of visits."""
        return {**super().search(space), "max_visits": space.integer("max_visits", 1, 4)}
