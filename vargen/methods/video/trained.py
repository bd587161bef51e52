"""Methods with a trained drafter: EAGLE, MSD, ViSpec, Sparrow, FLASH. Settings and players.

Belongs here: what is drafted with such a network, and which. Does not belong here: the networks
(`vargen.drafters`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError
from vargen.methods.video.base import VideoMethodConfig
from vargen.methods.video.speculative import TREES

if TYPE_CHECKING:
    from collections.abc import Collection

    from specdecode.draft_size import DraftSizer
    from specdecode.drafters.tree_shapes import DynamicTree, StaticTree
    from vargen.drafters.video_head import VideoHead
    from vargen.pipelines.video.players import Players
    from vargen.pipelines.video.prompt import Prompt

_DRAFT_LENGTH = 8  # of drafters that guess one place at a time
DYNAMIC_TREES = {"sparrow_30_4_8": (30, 4, 8)}
"""Published sizes of trees grown by confidence, by name: total_tokens, depth, tree_top_k."""


@dataclass(frozen=True)
class TrainedDrafterConfig(VideoMethodConfig):
    """What methods with a trained drafter share; see `vargen.drafters.video_head`.

    Args:
        drafter: folder that `vargen train video-drafter` exported; null for the one that came with the model.
        tree: "chain"; "dynamic" (EAGLE-2: grown by confidence), which pays where a pass over many tokens costs no more
            than over one, as on a GPU; "sparrow_30_4_8", the same in Sparrow's published size, which leaves the three
            numbers below aside; or the name of a published fixed tree.
        total_tokens: nodes of a dynamic tree, its root included.
        depth: levels drafted below the root; null for eight, or, of a drafter that guesses several places at once, as
            many as it guesses.
        tree_top_k: nodes expanded per level of a dynamic tree, and children of each.
    """

    exact: ClassVar[bool] = True
    weights: ClassVar[tuple[str, ...]] = ("drafter",)

    drafter: str | None = None
    tree: str = "chain"
    total_tokens: int = 30
    depth: int | None = None
    tree_top_k: int = 4

    def __post_init__(self) -> None:
        self._one_of("tree", ("dynamic", *DYNAMIC_TREES, *TREES))
        self._number("total_tokens", 2, MAX_DRAFT, whole=True)
        self._number("tree_top_k", 1, MAX_DRAFT, whole=True)
        if self.depth is not None:
            self._number("depth", 1, MAX_DRAFT, whole=True)

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        """Refuse it where no such drafter came with the model and none is named. Raises UserError."""
        if self.drafter is None and self.name not in trained:
            raise UserError(
                f"{self.name}.drafter must be given: no drafter of the kind {self.name!r} came with the model; train "
                f"one with `vargen train video-drafter --kind {self.name}`"
            )

    def build(self, prompt: Prompt) -> Players:
        """The target, and the network beside it."""
        from vargen.drafters.video_draft_head import VideoDraftHead
        from vargen.pipelines.video.players import Players

        network = self._network(prompt)
        shape, sizer = self.shape(network.config.draft_length)
        target = prompt.target(sizer.largest.total_tokens, capture_layers=network.config.capture_layers)
        head = VideoDraftHead(network, target)
        return Players(target, head.drafter(shape, sizer), network=head)

    def _network(self, prompt: Prompt) -> VideoHead:
        return prompt.trained_drafter(self.name, self.drafter)

    def shape(self, guessed_at_once: int) -> tuple[DynamicTree | StaticTree, DraftSizer]:
        """What is drafted by a network that guesses so many places at once: its shape, and how much of it."""
        from specdecode.draft_size import DraftSize, FixedDraftSize
        from specdecode.drafters.tree_shapes import DynamicTree, StaticTree

        own = self.depth
        if own is None:
            own = guessed_at_once if guessed_at_once > 1 else _DRAFT_LENGTH
        elif 1 < guessed_at_once < own:
            raise UserError(
                f"{self.name}.depth must be at most {guessed_at_once}, which its drafter guesses at once, got {own}"
            )
        total, depth, top_k = DYNAMIC_TREES.get(self.tree, (self.total_tokens, own, self.tree_top_k))
        if self.tree == "dynamic" or self.tree in DYNAMIC_TREES:
            most = 1 + top_k + max(depth - 1, 0) * top_k**2  # candidates that there are at all
            return DynamicTree(top_k), FixedDraftSize(DraftSize(min(total, most), min(depth, total - 1)))
        shape = StaticTree.chain(depth) if self.tree == "chain" else StaticTree.published(self.tree)
        return shape, FixedDraftSize(DraftSize(shape.num_nodes, min(depth, shape.max_depth)))


@dataclass(frozen=True)
class EagleHeadConfig(TrainedDrafterConfig):
    """EAGLE (arXiv 2401.15077) as it is: visual tokens are rows like all others."""

    name: ClassVar[str] = "eagle"
    summary: ClassVar[str] = "EAGLE: a trained layer continues the target's features, the video's like the text's"


@dataclass(frozen=True)
class MSDConfig(TrainedDrafterConfig):
    """MSD (arXiv 2505.14260): the drafter reads the video's embeddings."""

    name: ClassVar[str] = "msd"
    summary: ClassVar[str] = "MSD: a trained layer that reads the video's embeddings"


@dataclass(frozen=True)
class ViSpecConfig(TrainedDrafterConfig):
    """ViSpec (arXiv 2509.15235): the drafter reads one learned mean of the video; another is mixed into features."""

    name: ClassVar[str] = "vispec"
    summary: ClassVar[str] = "ViSpec: a trained layer that reads the video compressed into a vector or two"


@dataclass(frozen=True)
class SparrowConfig(TrainedDrafterConfig):
    """Sparrow (arXiv 2602.15318): the drafter keeps text alone, whose features have seen the video.

    Args:
        text_only: the video has no rows when drafting; null: as the drafter was trained to; for ablations.
    """

    name: ClassVar[str] = "sparrow"
    summary: ClassVar[str] = "Sparrow: a trained layer over text alone, as cheap for an hour as for a second"

    text_only: bool | None = None

    def _network(self, prompt: Prompt) -> VideoHead:
        return prompt.trained_drafter(self.name, self.drafter, self.text_only)


@dataclass(frozen=True)
class FlashConfig(TrainedDrafterConfig):
    """FLASH (arXiv 2505.12728): the drafter reads compressed features and guesses several places in one forward."""

    name: ClassVar[str] = "flash"
    summary: ClassVar[str] = "FLASH: a trained layer that guesses several tokens in one forward"
