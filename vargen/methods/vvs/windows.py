"""VVS on Jacobi windows: guesses are taken unverified, without a draft head, training or feature cache.

This project's own. VVS (arXiv 2511.13587) skips with a trained draft head, which drafts behind skipped tokens from
stand-ins for the features that were never made. A Jacobi window already has guesses behind unverified guesses: a skip
takes its first ones, keeps the others, and the next forward pass feeds the taken ones before them. So every model can
skip, and a skip costs no draft.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.options import option
from vargen.methods.base import Components, SearchSpace
from vargen.methods.jacobi import SCD_COUPLINGS, CorrectedWindowConfig
from vargen.methods.vvs import SCHEDULES, search_skips

if TYPE_CHECKING:
    from specdecode.roles import Schedule


@dataclass(frozen=True)
class WindowSkippingConfig(CorrectedWindowConfig):
    """Coupled Jacobi windows whose first guesses are taken unverified at some steps; see docs/methods.md."""

    name: ClassVar[str] = "vvs-jacobi"
    summary: ClassVar[str] = "VVS on Jacobi windows: guesses taken unverified at some steps; no drafter"
    exact: ClassVar[bool] = False

    initial_guess: str = "repeat"
    coupling: str = option("gumbel", choices=SCD_COUPLINGS)
    """As for "scd"."""
    schedule: str = option("likeness", choices=SCHEDULES)
    """When steps are skipped: "uniform" (every so many steps), "dynamic" (where the tokens that could be drawn for the
    window's first places look alike on average) or "likeness" (as far as they do token by token)."""
    interval: int = option(3, least=2)
    """For "uniform": one of so many iterations is skipped, 2 or more."""
    threshold: float = option(0.8, least=0.0, most=1.0)
    """For "dynamic" and "likeness": the least likeness, 0 to 1."""
    survival: float = option(0.0, least=0.0, most=1.0)
    """The least share of the distributions up to a taken token that did not change in the last forward pass, 0 to 1; 0
    does not ask."""
    max_skip: int = option(4, least=1)
    """Tokens that a skip takes, at most."""

    def max_draft_nodes(self, num_tokens: int) -> int:
        """Skipped tokens, at most a window's, are fed together with the next window."""
        most_skipped = min(self.max_skip, max(size.depth for size in self.sizes(num_tokens)))
        return super().max_draft_nodes(num_tokens) + most_skipped

    @property
    def _drafting(self) -> dict[str, Any]:
        return {**super()._drafting, "coupling": self.coupling, "confident": self.survival > 0}

    def _schedule(self, components: Components) -> Schedule:
        from vargen.methods.vvs.schedule import DynamicWindowSchedule, LikenessSchedule, UniformSchedule
        from vargen.methods.vvs.selector import WindowSelector

        selector = WindowSelector(self.max_skip, self.survival)
        if self.schedule == "uniform":
            return UniformSchedule(self.interval, selector)
        codebook = components.codebook()
        if self.schedule == "dynamic":
            return DynamicWindowSchedule(self.threshold, selector, codebook, self.max_skip)
        # A skip costs no draft, so one token is worth it.
        return LikenessSchedule(self.threshold, selector, codebook, min_count=1)

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """The window, and what is skipped."""
        settings = {
            **super().search(space),
            "schedule": space.choice("schedule", SCHEDULES),
            "survival": space.number("survival", 0.0, 0.9),
            "max_skip": space.integer("max_skip", 1, 16, log=True),
        }
        return settings | search_skips(space, settings["schedule"])
