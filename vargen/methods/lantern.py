"""LANTERN: EAGLE's draft, accepted also where the target prefers a token that looks alike.

Jang et al., "LANTERN: accelerating visual autoregressive models with relaxed speculative decoding", arXiv 2410.03355;
"LANTERN++", arXiv 2502.06352. The rule is `specdecode.verifiers.lantern`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.methods.base import AUTO, LARGEST, Auto, Components, SearchSpace
from vargen.methods.eagle import EagleConfig

if TYPE_CHECKING:
    from specdecode.roles import Verifier

MODES = ("exact_at_zero", "release")


@dataclass(frozen=True)
class LanternConfig(EagleConfig):
    """EAGLE's draft, accepted also where the target prefers a token that looks alike; see `specdecode.verifiers`."""

    name: ClassVar[str] = "lantern"
    summary: ClassVar[str] = "EAGLE with LANTERN's relaxed acceptance: look-alike codes count together"
    exact: ClassVar[bool] = False

    children: str = "top"
    delta: float = option(0.1, least=0.0, most=1.0)
    """LANTERN: the most probability that may move to draft tokens, a total-variation budget, 0 to 1."""
    multiplier: float | None = option(None, least=1.0)
    """LANTERN++ (its lambda), instead of `delta`: a draft token's probability grows at most by this factor, 1 or more;
    null for LANTERN."""
    num_neighbours: int | Auto = option(AUTO, least=1, most=LARGEST)
    """How many nearest codes may lend their probability; "auto" for a sixteenth of the vocabulary (LANTERN has 1000 of
    16384)."""
    mode: str = option("exact_at_zero", choices=MODES)
    """The rule, "exact_at_zero" or "release" (the released code's rule, which is not exact at zero relaxation; with
    `delta` and children "top" alone)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.children == "coupled":
            raise UserError(
                f'{self.name}.children must be "top" or "sampled": the bound of relaxed acceptance holds for '
                f"drafts that do not look at the target's random numbers"
            )
        if self.mode == "release" and (self.multiplier is not None or self.children != "top"):
            raise UserError(f'{self.name}.mode: "release" needs delta and children "top"; leave multiplier out')

    def _verifier(self, components: Components) -> Verifier:
        from specdecode.verifiers.lantern import LanternVerifier

        automatic = max(1, components.target.vocab_size // 16)
        num_neighbours = automatic if self.num_neighbours == AUTO else self.num_neighbours
        # The released code removes one neighbour more than it merges; the verifier finds it at the table's end.
        neighbours = components.neighbours(num_neighbours + (self.mode == "release"))
        relaxed = {"delta": self.delta} if self.multiplier is None else {"multiplier": self.multiplier}
        return LanternVerifier(neighbours, mode=self.mode, **relaxed)  # type: ignore[arg-type]

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """EAGLE's settings, and the relaxation."""
        return {
            **super().search(space),
            "delta": space.number("delta", 0.0, 0.5),
            # A few values, not a range: a model keeps a table [vocabulary, neighbours] for each it was asked for.
            "num_neighbours": space.choice("num_neighbours", [AUTO, 8, 32, 128, 512]),
        }
