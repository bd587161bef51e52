"""VVS (arXiv 2511.13587): LANTERN's draft and acceptance, with verification skipped at some steps.

Belongs here: the settings, and how schedule, selector and feature cache beside this file come together. Bare `vvs`
means the windows of `windows.py`: they need no draft head, and nothing was measured to be faster at so small a loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.bounds import MAX_DRAFT, check_number
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.methods.base import Components, SearchSpace
from vargen.methods.lantern import LanternConfig
from vargen.methods.vvs import CHOICES, SCHEDULES, search_skips

if TYPE_CHECKING:
    from specdecode.drafters.eagle import EagleDrafter
    from specdecode.roles import Schedule
    from vargen.methods.vvs.feature_cache import FeatureCache


@dataclass(frozen=True)
class VVSConfig(LanternConfig):
    """LANTERN's draft and acceptance, with verification skipped at some steps; see docs/methods.md."""

    name: ClassVar[str] = "vvs"
    summary: ClassVar[str] = "VVS on windows, as vvs-jacobi; with a tree or other settings of a head, on its tree"
    draft_settings: ClassVar[tuple[str, ...]] = (*LanternConfig.draft_settings, "depth_behind_skip")
    stand_in: ClassVar[str | None] = "vvs-jacobi"

    schedule: str = option("uniform", choices=SCHEDULES)
    """When steps are skipped: "uniform" (VVS-U: every so many steps), "dynamic" (VVS-D: where the tree's paths look
    alike) or "likeness" (this project's own: as far as what could be drawn instead looks like the token taken)."""
    interval: int = option(3, least=2)
    """VVS-U: one of so many iterations is skipped, 2 or more."""
    threshold: float = option(0.65, least=-1.0, most=1.0)
    """VVS-D: likeness of paths above which a step is skipped, -1 to 1; "likeness": the least likeness of a token that
    is taken, 0 to 1."""
    choice: str = option("sample", choices=CHOICES)
    """The path that a skip takes: "sample" (uniformly), "central" (most like the others), "confidence" (the likeliest;
    needs a dynamic tree) or "drafter" (drawn as the drafter would). "drafter" and the schedule "likeness" need a
    dynamic tree or sampled children."""
    truncate: bool = True
    """Cut the path at the paths' mean length."""
    refresh: bool = False
    """Let the drafter read skipped tokens again once their own features are known."""
    depth_behind_skip: int | None = option(None, least=1, most=MAX_DRAFT)
    """Levels drafted behind skipped tokens; null for `depth`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.schedule == "likeness":
            check_number(f"{self.name}.threshold", self.threshold, 0.0, 1.0)
        if self.choice == "confidence" and self.tree != "dynamic":
            raise UserError(f'{self.name}.choice: "confidence" needs tree "dynamic", whose nodes have confidences')
        if self.tree != "dynamic" and self.children == "top":
            for field, value in (("choice", "drafter"), ("schedule", "likeness")):
                if getattr(self, field) == value:
                    raise UserError(
                        f'{self.name}.{field}: "{value}" needs tree "dynamic" or children "sampled": it reads how '
                        f"probable the drafter finds each token"
                    )

    def max_draft_nodes(self, num_tokens: int) -> int:
        """Skipped tokens are fed together with the next tree."""
        return super().max_draft_nodes(num_tokens) + max(size.depth for size in self.sizes(num_tokens))

    def _drafter(self, components: Components, **reuse: Any) -> EagleDrafter:
        features = self._feature_cache(components.num_tokens)
        behind = {"refresh": self.refresh, "depth_behind_skip": self.depth_behind_skip}
        return super()._drafter(components, feature_reuse=features, **behind, **reuse)

    def _feature_cache(self, num_tokens: int) -> FeatureCache:
        from vargen.methods.vvs.feature_cache import FeatureCache

        return FeatureCache(num_tokens)

    def _schedule(self, components: Components) -> Schedule:
        from vargen.methods.vvs.schedule import DynamicSchedule, LikenessSchedule, UniformSchedule
        from vargen.methods.vvs.selector import PathSelector

        codebook = components.codebook()
        selector = PathSelector(self.choice, self.truncate, codebook)  # type: ignore[arg-type]
        if self.schedule == "uniform":
            return UniformSchedule(self.interval, selector)
        if self.schedule == "likeness":
            return LikenessSchedule(self.threshold, selector, codebook)
        return DynamicSchedule(self.threshold, selector, codebook)

    @classmethod
    def search(cls, space: SearchSpace) -> dict[str, Any]:
        """LANTERN's settings, and what is skipped."""
        settings = {
            **super().search(space),
            "schedule": space.choice("schedule", SCHEDULES),
            "choice": space.choice("choice", CHOICES),
            "truncate": space.choice("truncate", [True, False]),
            "refresh": space.choice("refresh", [True, False]),
            "depth_behind_skip": space.choice("depth_behind_skip", [None, 1, 2]),
        }
        return settings | search_skips(space, settings["schedule"])
