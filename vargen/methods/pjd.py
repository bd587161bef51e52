"""PJD: rows of the picture's grid are in flight together, each with guesses that are accepted in its own row.

Source: arXiv 2606.05703 (CVPR 2026). Here guesses are accepted by the rule of `jacobi`: they equal what the model draws
with plain decoding's random number. The paper tests the ratio of two passes' probabilities, and postpones a rejected
token of a lower row without drawing it anew. New guesses are draws from the last distribution of the row; in the paper
they are random tokens. The order of places is `specdecode.lines_in_flight`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vargen.base.bounds import MAX_DRAFT
from vargen.methods.base import AUTO, Auto, Suggestions
from vargen.methods.grid import GridMethodConfig

if TYPE_CHECKING:
    from specdecode.places import Lines, Order

_USUAL = 8
"""What "auto" stands for, where a row has so many tokens."""


@dataclass(frozen=True)
class PJDConfig(GridMethodConfig):
    """Rows of the grid in flight: Jacobi windows in several rows, none of which overtakes the row above (PJD).

    Args:
        opens_after: tokens that the row above has when a row opens, at most those of a row; "auto" is 8.
        guesses: tokens guessed ahead in every row. A row guesses no further than the row above is known.
        adaptive: a row goes on once two passes in a row draw the same first token, as in `zipar`. Not in the paper.
    """

    name: ClassVar[str] = "pjd"
    summary: ClassVar[str] = "rows of the grid side by side, each with a Jacobi window of its own; no drafter"
    draft_settings: ClassVar[tuple[str, ...]] = ("opens_after", "guesses", "adaptive")
    opening_setting: ClassVar[str] = "opens_after"

    opens_after: int | Auto = AUTO
    guesses: int = 8
    adaptive: bool = False

    def __post_init__(self) -> None:
        self._size("opens_after")
        self._number("guesses", 1, MAX_DRAFT, whole=True)
        self._flag("adaptive")

    def _order(self, lines: Lines) -> Order:
        from specdecode.lines_in_flight import LinesInFlight

        columns = lines.line_length
        opens_after = min(_USUAL, columns) if self.opens_after == AUTO else self.opens_after
        return LinesInFlight(lines, opens_after, min(self.guesses, columns - 1), self.adaptive)

    def resolved(self, num_tokens: int) -> Self:
        """See `ImageMethodConfig.resolved`."""
        return self if self.opens_after != AUTO else replace(self, opens_after=min(_USUAL, math.isqrt(num_tokens)))

    @classmethod
    def search(cls, suggest: Suggestions) -> dict[str, Any]:
        """When rows open, and how far they guess."""
        return {
            "opens_after": suggest.integer("opens_after", 1, 16, log=True),
            "guesses": suggest.integer("guesses", 1, 16, log=True),
            "adaptive": suggest.choice("adaptive", [False, True]),
        }
