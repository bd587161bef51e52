"""PJD: rows of the picture's grid are in flight together, each with guesses that are accepted in its own row.

Source: arXiv 2606.05703 (CVPR 2026). Here guesses are accepted by the rule of `jacobi`: they equal what the model draws
with plain decoding's random number. The paper tests the ratio of two passes' probabilities, and postpones a rejected
token of a lower row without drawing it anew. New guesses are draws from the last distribution of the row; in the paper
they are random tokens. The order of places is `specdecode.grid.row_windows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vargen.methods.base import SearchSpace
from vargen.methods.grid import GuessingRowsConfig


@dataclass(frozen=True)
class PJDConfig(GuessingRowsConfig):
    """Rows of the grid in flight: Jacobi windows in several rows, none of which overtakes the row above (PJD)."""

    name: ClassVar[str] = "pjd"
    summary: ClassVar[str] = "rows of the grid side by side, each with a Jacobi window of its own; no drafter"
    draft_settings: ClassVar[tuple[str, ...]] = (*GuessingRowsConfig.draft_settings, "adaptive")

    adaptive: bool = False
    """A row goes on once two passes in a row draw the same first token, as in `zipar`. Not in the paper."""

    @property
    def _rule(self) -> dict[str, Any]:
        return {"confirm_first": self.adaptive}

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The space of all methods with guesses in rows, and how a row starts."""
        return {**super().search(space), "adaptive": space.choice("adaptive", [False, True])}
