"""Speculative decoding of answers about videos, naive and as SpecVLM does it.

Belongs here: methods whose drafter is a model that watches the video, whole or in part. Does not belong here: such
methods with a verifier (`fly.py`, `lvspec.py`) or a loop (`parallelvlm.py`) of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.methods.trees import FIXED_TREES, fixed_tree
from vargen.video.methods.base import (
    SPREADS,
    OwnLoop,
    Pruning,
    VideoComponents,
    VideoMethod,
    VideoMethodConfig,
)

if TYPE_CHECKING:
    from specdecode.drafters.tree_shapes import StaticTree
    from specdecode.roles import Target, Verifier


@dataclass(frozen=True)
class SpeculativeConfig(VideoMethodConfig):
    """A draft model, or the target's own weights, watches the same video and drafts a chain."""

    name: ClassVar[str] = "sd"
    summary: ClassVar[str] = "naive speculative decoding: the drafter watches the whole video"
    exact: ClassVar[bool] = True

    drafter: str = option("pair", choices=("pair", "self"))
    """What drafts: "pair" for the draft model, "self" for the target's own weights."""
    draft_length: int = option(4, least=1, most=MAX_DRAFT)
    """Tokens of a chain; by default as many as decode fastest on the shipped pair with a tenth of the video."""
    keep_ratio: float = option(1.0, above=0.0, most=1.0)
    """Share of visual tokens that the drafter is shown."""
    pruning: str = option("uniform", choices=(*SPREADS, "attention", "visual_gain"))
    """Which ones: "uniform", evenly spread; "random"; "jittered", one at random of each of equal parts;
    "low_discrepancy", even over time, height and width; "attention" (SpecVLM); "visual_gain" (ParallelVLM's
    UV-Prune)."""
    pruning_seed: int = option(0, least=0)
    """Of what is drawn at random for "random", "jittered" and "low_discrepancy"."""

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        if self.drafter == "pair":
            self._need_draft_model(paired, '; or set drafter "self"')

    def _players(self, components: VideoComponents) -> VideoMethod | OwnLoop:
        from specdecode.drafters.draft_model import DraftModelDrafter
        from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
        from specdecode.drafters.draft_size import DraftSize, FixedDraftSize

        pruning, tree = self._pruning(components.num_layers), self._tree()
        target = components.target(self.num_nodes, **pruning.captured, **self.target_options(components.num_layers))
        draft = components.pruned_draft(target, self.drafter, pruning, self.num_nodes)
        size = FixedDraftSize(DraftSize(self.num_nodes, self.draft_length))
        drafter = DraftModelDrafter(draft, size) if tree is None else DraftModelTreeDrafter(draft, tree)
        return VideoMethod(drafter, self._verifier(components, target), target=target, network=draft)

    @property
    def num_nodes(self) -> int:
        """Nodes of a draft, its root included."""
        return self.draft_length + 1

    def _tree(self) -> StaticTree | None:
        """The draft's shape; None: a chain."""
        return None

    def target_options(self, num_layers: int) -> dict[str, Any]:
        """Further options of a target of so many layers: what a verifier needs to see of it."""
        return {}

    def _verifier(self, components: VideoComponents, target: Target) -> Verifier | None:
        return None

    def _pruning(self, num_layers: int) -> Pruning:
        """What the drafter is shown. UV-Prune's paper names no layer; a quarter of them is this project's choice."""
        return Pruning(self.keep_ratio, self.pruning, max(1, num_layers // 4), self.pruning_seed)


@dataclass(frozen=True)
class SpecVLMConfig(SpeculativeConfig):
    """SpecVLM (arXiv 2508.16201): a drafter that is shown the tenth of the video that the target attends to."""

    name: ClassVar[str] = "specvlm"
    summary: ClassVar[str] = "SpecVLM: the drafter sees what the target attends to, and drafts a tree"

    draft_length: int = 5
    keep_ratio: float = 0.1
    pruning: str = "attention"
    tree: str = option("mc_sim_7b_63", choices=("chain", *FIXED_TREES))
    """Shape of the draft: "chain", or a published tree's name."""

    @property
    def num_nodes(self) -> int:
        """Nodes of a draft, its root included."""
        return fixed_tree(self.tree, self.draft_length).num_nodes

    def _tree(self) -> StaticTree | None:
        return None if self.tree == "chain" else fixed_tree(self.tree)
