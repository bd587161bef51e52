"""Jacobi decoding: guesses for a window, redrawn from what the target says about the last ones. No drafter is trained.

SJD: Teng et al., arXiv 2410.01699; coupled guesses: SCD, arXiv 2510.24211; branches at the front: SJD-PAC (CVPR 2026);
the target's own random numbers: Wiggers and Hoogeboom, arXiv 2002.09928. The guesses are
`specdecode.drafters.jacobi` and `jacobi_front`. Those of `sjd` and `scd` are drawn, so a seed's picture depends on the
window; that of `jacobi` is plain decoding's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.methods.base import AUTO, Auto, ChainMethodConfig, Components, Method, Suggestions

if TYPE_CHECKING:
    from specdecode.draft_size import DraftSize, DraftSizer
    from specdecode.drafters.jacobi import JacobiDrafter

COUPLINGS = ("gumbel", "maximal")
INITIAL_GUESSES = ("random", "repeat")


@dataclass(frozen=True)
class WindowConfig(ChainMethodConfig):
    """What every method with a Jacobi window shares.

    Args:
        window: tokens guessed ahead.
        initial_guess: where nothing is known yet: "random" tokens, or "repeat" draws from the last known distribution.
    """

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

        (size,) = self.sizes(components.num_tokens)
        drafter = self._drafter(components.target.vocab_size, FixedDraftSize(size), **self._drafting)
        return Method(drafter, self._verifier(components), self._schedule(components))

    def _drafter(self, vocab_size: int, sizer: DraftSizer, **options: Any) -> JacobiDrafter:
        from specdecode.drafters.jacobi import JacobiDrafter

        return JacobiDrafter(vocab_size, sizer, **options)

    @property
    def _drafting(self) -> dict[str, Any]:
        """Options of the drafter."""
        return {"initial_guess": self.initial_guess}

    @classmethod
    def search(cls, suggest: Suggestions) -> dict[str, Any]:
        """The window."""
        return {"window": suggest.integer("window", 1, 64, log=True)}

    @classmethod
    def search_starts(cls) -> Sequence[Mapping[str, Any]]:
        """Windows of every order: a longer one settles its guesses before they are asked for, and costs more."""
        return [{"window": window} for window in (4, 8, 16, 32, 64)]


@dataclass(frozen=True)
class BranchingWindowConfig(WindowConfig):
    """A window that may have branches at its front.

    Args:
        branches: guesses for the first place of the window, where about half of all passes end; 1 for a chain.
        branch_depth: tokens of each branch beside the first.
    """

    draft_settings: ClassVar[tuple[str, ...]] = (*WindowConfig.draft_settings, "branches", "branch_depth")

    branches: int = 1
    branch_depth: int = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("branches", 1, whole=True)
        self._number("branch_depth", 1, whole=True)

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        """See `ImageMethodConfig.sizes`."""
        chains = super().sizes(num_tokens)
        if self.branches == 1:
            return chains
        from specdecode.draft_size import DraftSize
        from specdecode.drafters.jacobi_front import branch_nodes

        beside = [branch_nodes(size.depth, self.branches, self.branch_depth) for size in chains]
        return tuple(DraftSize(size.total_tokens + more, size.depth) for size, more in zip(chains, beside, strict=True))

    def _drafter(self, vocab_size: int, sizer: DraftSizer, **options: Any) -> JacobiDrafter:
        if self.branches == 1:
            return super()._drafter(vocab_size, sizer, **options)
        from specdecode.drafters.jacobi_front import BranchingJacobiDrafter

        return BranchingJacobiDrafter(vocab_size, sizer, self.branches, self.branch_depth, **options)

    @classmethod
    def search(cls, suggest: Suggestions) -> dict[str, Any]:
        """The window, and its branches."""
        settings = super().search(suggest)
        settings["branches"] = suggest.choice("branches", [1, 2, 4, 8])
        if settings["branches"] != 1:
            settings["branch_depth"] = suggest.choice("branch_depth", [1, 3, 8])
        return settings

    @classmethod
    def search_starts(cls) -> Sequence[Mapping[str, Any]]:
        """Windows, and two with branches."""
        branches = {"branches": 4, "branch_depth": 8}
        return [*super().search_starts(), *({"window": window, **branches} for window in (16, 32))]


@dataclass(frozen=True)
class FixedNoiseJacobiConfig(BranchingWindowConfig):
    """Jacobi decoding with the random numbers of plain decoding: its very pictures, in fewer passes; no drafter."""

    name: ClassVar[str] = "jacobi"
    summary: ClassVar[str] = "Jacobi decoding with plain decoding's random numbers: its very pictures; no drafter"
    exact: ClassVar[bool] = True

    initial_guess: str = "repeat"

    @property
    def _drafting(self) -> dict[str, Any]:
        return {**super()._drafting, "coupling": "target"}


@dataclass(frozen=True)
class JacobiConfig(BranchingWindowConfig):
    """Speculative Jacobi decoding: guesses for a window, redrawn from every pass; no training, no drafter.

    Args:
        keep_overlap: guesses behind a rejection stay, with what they were drawn from, where that and the target's new
            opinion overlap so much, 0 to 1; null: all are drawn anew.
    """

    name: ClassVar[str] = "sjd"
    summary: ClassVar[str] = "speculative Jacobi decoding: a window of guesses, redrawn at every pass; no drafter"
    exact: ClassVar[bool] = True
    draft_settings: ClassVar[tuple[str, ...]] = (*BranchingWindowConfig.draft_settings, "keep_overlap")

    keep_overlap: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_overlap is not None:
            self._number("keep_overlap", 0, 1)

    @property
    def _drafting(self) -> dict[str, Any]:
        return {**super()._drafting, "keep_overlap": self.keep_overlap}


@dataclass(frozen=True)
class CoupledJacobiConfig(JacobiConfig):
    """Jacobi decoding whose guesses change as little as they can from pass to pass (SCD, also MC-SJD).

    Args:
        coupling: "gumbel" (the same noise at every pass) or "maximal".
    """

    name: ClassVar[str] = "scd"
    summary: ClassVar[str] = "Jacobi decoding with coupled guesses, which stay put unless the target changes its mind"

    initial_guess: str = "repeat"
    coupling: str = "gumbel"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("coupling", COUPLINGS)

    @property
    def _drafting(self) -> dict[str, Any]:
        return {**super()._drafting, "coupling": self.coupling}
