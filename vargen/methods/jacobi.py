"""Jacobi decoding: guesses for a window, redrawn from what the target says about the last ones. No drafter.

SJD: Teng et al., arXiv 2410.01699; coupled guesses: SCD, arXiv 2510.24211. The guesses are
`specdecode.drafters.jacobi`; they are drawn, so a seed's picture depends on the window.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.methods.base import AUTO, Auto, ChainMethodConfig, Components, Method, Suggestions

if TYPE_CHECKING:
    from specdecode.roles import Verifier

COUPLINGS = ("gumbel", "maximal")
INITIAL_GUESSES = ("random", "repeat")


@dataclass(frozen=True)
class JacobiConfig(ChainMethodConfig):
    """Speculative Jacobi decoding: guesses for a window, redrawn from every pass; no training, no drafter.

    Args:
        window: tokens guessed ahead.
        initial_guess: where nothing is known yet: "random" tokens, or "repeat" draws from the last known distribution.
    """

    name: ClassVar[str] = "sjd"
    summary: ClassVar[str] = "speculative Jacobi decoding: a window of guesses, redrawn at every pass; no drafter"
    exact: ClassVar[bool] = True
    draft_settings: ClassVar[tuple[str, ...]] = ("window", "initial_guess")
    length_setting: ClassVar[str] = "window"
    usual_length: ClassVar[int] = 16

    window: int | Auto = AUTO
    initial_guess: str = "random"

    def __post_init__(self) -> None:
        self._size("window")
        self._one_of("initial_guess", INITIAL_GUESSES)

    def _players(self, components: Components) -> Method:
        from specdecode.draft_size import FixedDraftSize
        from specdecode.drafters.jacobi import JacobiDrafter

        (size,) = self.sizes(components.num_tokens)
        vocab_size = components.target.vocab_size
        drafter = JacobiDrafter(vocab_size, FixedDraftSize(size), self.initial_guess, self._coupling)
        return Method(drafter, self._verifier(components))

    @property
    def _coupling(self) -> str:
        return "independent"

    def _verifier(self, components: Components) -> Verifier:
        from specdecode.verifiers import ExactVerifier

        return ExactVerifier()

    @classmethod
    def search(cls, suggest: Suggestions) -> dict[str, Any]:
        """The window."""
        return {"window": suggest.integer("window", 1, 32, log=True)}


@dataclass(frozen=True)
class CoupledJacobiConfig(JacobiConfig):
    """Jacobi decoding whose guesses change as little as they can from pass to pass (SCD, also MC-SJD).

    Args:
        coupling: "gumbel" (the same noise at every pass) or "maximal".
    """

    name: ClassVar[str] = "scd"
    summary: ClassVar[str] = "Jacobi decoding with coupled guesses, which stay put unless the target changes its mind"

    coupling: str = "gumbel"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("coupling", COUPLINGS)

    @property
    def _coupling(self) -> str:
        return self.coupling
