"""Jacobi decoding: guesses for a window, redrawn from the target's opinions of the last ones. No training.

SJD: Teng et al., arXiv 2410.01699; coupled guesses: SCD, arXiv 2510.24211; branches at the front: SJD-PAC (CVPR 2026);
the target's own random numbers: Wiggers and Hoogeboom, arXiv 2002.09928. The drafters are `specdecode.drafters.jacobi`
and `jacobi_front`. The pictures of `sjd` and `scd` depend on the window; those of `jacobi` are plain decoding's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.methods.base import AUTO, Auto, ChainMethodConfig, Components, Method, SearchSpace

if TYPE_CHECKING:
    from specdecode.drafters.draft_size import DraftSize, DraftSizer
    from specdecode.drafters.jacobi import JacobiDrafter

SCD_COUPLINGS = ("gumbel", "maximal")
INITIAL_GUESSES = ("random", "repeat")
ACCEPTED_BY_WINDOW = {2: 0.75, 4: 1.26, 8: 2.00, 16: 3.08, 32: 4.09}
"""Guesses that the shipped picture model accepts in a forward pass of `jacobi`, by window; over 32 held-out prompts.
What "auto" expects at first, scaled by what happens."""


@dataclass(frozen=True)
class WindowConfig(ChainMethodConfig):
    """What every method with a Jacobi window shares."""

    draft_settings: ClassVar[tuple[str, ...]] = ("window", "initial_guess")
    length_setting: ClassVar[str] = "window"
    usual_length: ClassVar[int] = 16

    window: int | Auto = option(AUTO, least=1, most=MAX_DRAFT)
    """Tokens guessed ahead."""
    initial_guess: str = option("random", choices=INITIAL_GUESSES)
    """New guesses are "random" tokens, or "repeat" draws from the last known distribution."""

    def _players(self, components: Components) -> Method:
        drafter = self._drafter(components.target.vocab_size, self._sizer(components), **self._asked_of(components))
        return Method(drafter, self._verifier(components), self._schedule(components))

    def _asked_of(self, components: Components) -> dict[str, Any]:
        """Options of the drafter, those that a model provides included."""
        return self._drafting

    def _sizer(self, components: Components) -> DraftSizer:
        """Chooses the window."""
        from specdecode.drafters.draft_size import FixedDraftSize

        (size,) = self.sizes(components.num_tokens)
        return FixedDraftSize(size)

    def _drafter(self, vocab_size: int, sizer: DraftSizer, **options: Any) -> JacobiDrafter:
        from specdecode.drafters.jacobi import JacobiDrafter

        return JacobiDrafter(vocab_size, sizer, **options)

    @property
    def _drafting(self) -> dict[str, Any]:
        """Options of the drafter."""
        return {"initial_guess": self.initial_guess}

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The window."""
        return {"window": space.integer("window", 1, 64, log=True)}

    @classmethod
    def search_starts(cls) -> Sequence[Mapping[str, Any]]:
        """Windows from short to long: a longer one settles its guesses earlier, and costs more."""
        return [{"window": window} for window in (4, 8, 16, 32, 64)]


@dataclass(frozen=True)
class CorrectedWindowConfig(WindowConfig):
    """A window whose stale opinions a small network may correct."""

    corrected_by: str | None = option(None, choices=("head", "draft_model"))
    """Correct the target's stale opinions by the change of mind of the model's draft head, "head", or of its
    "draft_model"; null does not. Not with fresh random numbers, as those of "sjd"."""

    def _asked_of(self, components: Components) -> dict[str, Any]:
        if self.corrected_by is None:
            return super()._asked_of(components)
        from specdecode.drafters.jacobi_correction import CorrectedJacobiDrafter

        load = components.load_draft_head if self.corrected_by == "head" else components.load_draft_model
        room = CorrectedJacobiDrafter.most_new_pairs(self.max_draft_nodes(components.num_tokens))
        return {**super()._asked_of(components), "network": load(None, room).network}

    def _drafter(self, vocab_size: int, sizer: DraftSizer, **options: Any) -> JacobiDrafter:
        if self.corrected_by is None:
            return super()._drafter(vocab_size, sizer, **options)
        from specdecode.drafters.jacobi_correction import CorrectedJacobiDrafter

        return CorrectedJacobiDrafter(vocab_size, sizer, **options)


@dataclass(frozen=True)
class BranchingWindowConfig(CorrectedWindowConfig):
    """A window that may have branches at its front."""

    draft_settings: ClassVar[tuple[str, ...]] = (*WindowConfig.draft_settings, "branches", "branch_depth")

    branches: int = option(1, least=1, most=MAX_DRAFT)
    """Guesses for the first place of the window, where about half of all drafts end; 1 for a chain."""
    branch_depth: int = option(3, least=1, most=MAX_DRAFT)
    """Tokens of each branch beside the first."""

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        chains = super().sizes(num_tokens)
        if self.branches == 1:
            return chains
        from specdecode.drafters.draft_size import DraftSize
        from specdecode.drafters.jacobi_front import branch_nodes

        beside = [branch_nodes(size.depth, self.branches, self.branch_depth) for size in chains]
        return tuple(DraftSize(size.total_tokens + more, size.depth) for size, more in zip(chains, beside, strict=True))

    def _drafter(self, vocab_size: int, sizer: DraftSizer, **options: Any) -> JacobiDrafter:
        if self.branches == 1:
            return super()._drafter(vocab_size, sizer, **options)
        from specdecode.drafters import jacobi_correction, jacobi_front

        kind = jacobi_front.BranchingJacobiDrafter
        if self.corrected_by is not None:
            kind = jacobi_correction.CorrectedBranchingJacobiDrafter
        return kind(vocab_size, sizer, self.branches, self.branch_depth, **options)

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The window, and its branches."""
        settings = super().search(space)
        settings["branches"] = space.choice("branches", [1, 2, 4, 8])
        if settings["branches"] != 1:
            settings["branch_depth"] = space.choice("branch_depth", [1, 3, 8])
        return settings

    @classmethod
    def search_starts(cls) -> Sequence[Mapping[str, Any]]:
        """Windows, and two with branches."""
        branches = {"branches": 4, "branch_depth": 8}
        return [*super().search_starts(), *({"window": window, **branches} for window in (16, 32))]


@dataclass(frozen=True)
class FixedNoiseJacobiConfig(BranchingWindowConfig):
    """Jacobi decoding with the random numbers of plain decoding: the same pictures in fewer forward passes."""

    name: ClassVar[str] = "jacobi"
    summary: ClassVar[str] = "Jacobi decoding with plain decoding's random numbers: its very pictures; no drafter"
    exact: ClassVar[bool] = True

    window: int | Auto = AUTO
    """Tokens guessed ahead. "auto" chooses among windows from 2 to 32 the one with the most expected tokens a second on
    this machine, or none where plain decoding is the fastest, which changes no picture. With branches it is 16."""
    initial_guess: str = "repeat"

    def resolved(self, num_tokens: int) -> Self:
        """See `ImageMethodConfig.resolved`: a chain's window changes no picture."""
        return super().resolved(num_tokens) if self._is_fixed else self

    @property
    def _is_fixed(self) -> bool:
        """Whether "auto" is one window, since the costs of others are not known."""
        return self.branches > 1 or self.corrected_by is not None

    def sizes(self, num_tokens: int) -> tuple[DraftSize, ...]:
        if self.window != AUTO:
            return super().sizes(num_tokens)
        fitting = [window for window in ACCEPTED_BY_WINDOW if window < num_tokens]
        if not self._is_fixed and fitting:
            return self._chains(fitting, num_tokens)
        return super().resolved(num_tokens).sizes(num_tokens)

    def kept_with_model(self) -> Self:
        """See `ImageMethodConfig.kept_with_model`: the fastest window belongs to one machine."""
        return self if self._is_fixed else replace(self, window=AUTO)

    @property
    def _drafting(self) -> dict[str, Any]:
        return {**super()._drafting, "coupling": "target"}

    def _sizer(self, components: Components) -> DraftSizer:
        sizes = self.sizes(components.num_tokens)
        if len(sizes) == 1:
            return super()._sizer(components)
        expected = [ACCEPTED_BY_WINDOW[size.depth] for size in sizes]
        return components.draft_sizer(sizes, "jacobi", None, expected)


@dataclass(frozen=True)
class JacobiConfig(BranchingWindowConfig):
    """Speculative Jacobi decoding: guesses for a window, redrawn after every forward pass; no training."""

    name: ClassVar[str] = "sjd"
    summary: ClassVar[str] = "speculative Jacobi decoding: a window of guesses, redrawn at every pass; no drafter"
    exact: ClassVar[bool] = True
    draft_settings: ClassVar[tuple[str, ...]] = (*BranchingWindowConfig.draft_settings, "keep_overlap")

    keep_overlap: float | None = option(None, least=0.0, most=1.0)
    """A guess behind a rejection is kept if the distribution it was drawn from and the target's new one overlap at
    least so much, 0 to 1; null: all are drawn anew."""

    @property
    def _drafting(self) -> dict[str, Any]:
        return {**super()._drafting, "keep_overlap": self.keep_overlap}


@dataclass(frozen=True)
class CoupledJacobiConfig(JacobiConfig):
    """Jacobi decoding whose guesses change as little as they can from pass to pass (SCD, also MC-SJD)."""

    name: ClassVar[str] = "scd"
    summary: ClassVar[str] = "Jacobi decoding with coupled guesses, which stay put unless the target changes its mind"

    initial_guess: str = "repeat"
    coupling: str = option("gumbel", choices=SCD_COUPLINGS)
    """How guesses of two passes agree: "gumbel" (the same noise at every pass) or "maximal"."""

    @property
    def _drafting(self) -> dict[str, Any]:
        return {**super()._drafting, "coupling": self.coupling}
