"""Cool-SD: an EAGLE chain under an acceptance ratio that is relaxed most at its start.

The rule is `specdecode.verifiers.annealed`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.base.path_roles import READ_FOLDER
from vargen.methods.base import AUTO, Auto, ChainMethodConfig, Components, Method, SearchSpace
from vargen.methods.eagle import eagle_drafter


@dataclass(frozen=True)
class CoolSDConfig(ChainMethodConfig):
    """An EAGLE chain, accepted by a ratio that is relaxed most for the first draft tokens (Cool-SD)."""

    name: ClassVar[str] = "coolsd"
    summary: ClassVar[str] = "an EAGLE chain with Cool-SD's relaxed acceptance, cooling along the draft"
    exact: ClassVar[bool] = False
    weights: ClassVar[tuple[str, ...]] = ("drafter",)
    draft_settings: ClassVar[tuple[str, ...]] = ("draft_length",)

    drafter: str | None = option(None, path=READ_FOLDER)
    """As for "eagle"."""
    draft_length: int | Auto = option(AUTO, least=1, most=MAX_DRAFT)
    """Draft tokens of a step."""
    delta: float = option(1.1, least=1.0)
    """Mean factor on the acceptance ratio; 1 with decay 0 is exact."""
    decay: float = option(0.7, least=0.0)
    """How quickly the relaxation cools along the draft (the paper's nu)."""

    def _players(self, components: Components) -> Method:
        from specdecode.drafters.tree_shapes import StaticTree
        from specdecode.verifiers.annealed import AnnealedVerifier

        sizes = self.sizes(components.num_tokens)
        drafter = eagle_drafter(components, self.drafter, StaticTree.chain(sizes[0].depth), sizes, "sampled")
        return Method(drafter, AnnealedVerifier(self.delta, self.decay))

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The chain's length, and the relaxation."""
        return {
            "draft_length": space.integer("draft_length", 1, 8, log=True),
            "delta": space.number("delta", 1.0, 2.0),
            "decay": space.number("decay", 0.0, 2.0),
        }
