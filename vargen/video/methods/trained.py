"""Methods with a trained draft head: EAGLE, MSD, ViSpec, Sparrow, FLASH.

Belongs here: drafting with such a head. Does not belong here: the networks (`vargen.drafters`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError
from vargen.base.options import option
from vargen.base.path_roles import READ_FOLDER
from vargen.methods.base import AUTO, Auto
from vargen.methods.trees import FIXED_TREES, fixed_tree
from vargen.video.methods.base import VideoComponents, VideoMethod, VideoMethodConfig

if TYPE_CHECKING:
    from specdecode.drafters.draft_size import DraftSize, DraftSizer
    from specdecode.drafters.tree_shapes import DynamicTree, StaticTree

_LENGTHS = (1, 2, 3, 5, 8)
"""Of chains of a draft head that guesses one place at a time."""
DYNAMIC_TREES = {"sparrow_30_4_8": (30, 4, 8)}
"""Published sizes of trees grown by confidence, by name: total_tokens, depth, tree_top_k."""


@dataclass(frozen=True)
class TrainedDrafterConfig(VideoMethodConfig):
    """What methods with a trained draft head share; see `vargen.video.drafters.video_head`."""

    exact: ClassVar[bool] = True
    weights: ClassVar[tuple[str, ...]] = ("drafter",)

    drafter: str | None = option(None, path=READ_FOLDER)
    """Folder that `vargen train video-drafter` exported; null for the one that came with the model."""
    tree: str = option("chain", choices=("chain", "dynamic", *DYNAMIC_TREES, *FIXED_TREES))
    """Shape of the draft: "chain"; "dynamic" (EAGLE-2: grown by confidence), which pays where a forward pass over many
    tokens costs as little as over one, as on a GPU; "sparrow_30_4_8", a dynamic tree of Sparrow's published size, which
    ignores the three numbers below; or the name of a published fixed tree."""
    total_tokens: int = option(30, least=2, most=MAX_DRAFT)
    """Nodes of a dynamic tree, its root included."""
    depth: int | Auto | None = option(AUTO, least=1, most=MAX_DRAFT)
    """Levels drafted below the root; null for eight, or, of a draft head that guesses several places at once, as many
    as it guesses; "auto" for as many of those as are fastest on this machine, which changes no answer. Of trees, "auto"
    is null."""
    tree_top_k: int = option(4, least=1, most=MAX_DRAFT)
    """Nodes expanded per level of a dynamic tree, and children of each."""

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        if self.drafter is None and self.name not in trained:
            raise UserError(
                f"{self.name}.drafter must be given: no drafter of the kind {self.name!r} came with the model; train "
                f"one with `vargen train video-drafter --kind {self.name}`"
            )

    def _players(self, components: VideoComponents) -> VideoMethod:
        from specdecode.drafters.draft_size import DraftSize, FixedDraftSize

        network = self._network(components)
        shape, size = self.shape(network.config.draft_length)
        sizer: DraftSizer = FixedDraftSize(size)
        if self.follows_the_clock:
            lengths = [*(length for length in _LENGTHS if length < size.depth), size.depth]
            sizer = components.draft_sizer([DraftSize(length + 1, length) for length in lengths], self.name)
        target = components.target(sizer.largest.total_tokens, capture_layers=network.config.capture_layers)
        head = components.draft_head(network, target)
        return VideoMethod(head.drafter(shape, sizer), target=target, network=head)

    def _network(self, components: VideoComponents) -> Any:
        return components.load_draft_head(self.name, self.drafter)

    @property
    def follows_the_clock(self) -> list[str]:
        return super().follows_the_clock if self.tree == "chain" else []

    def shape(self, guessed_at_once: int) -> tuple[DynamicTree | StaticTree, DraftSize]:
        """The draft of a head that guesses so many places at once: its shape and its largest size.

        Raises:
            UserError: `depth` is more than the head guesses at once.
        """
        from specdecode.drafters.draft_size import DraftSize
        from specdecode.drafters.tree_shapes import DynamicTree

        own = self.depth
        if own is None or own == AUTO:
            own = guessed_at_once if guessed_at_once > 1 else _LENGTHS[-1]
        elif 1 < guessed_at_once < own:
            raise UserError(
                f"{self.name}.depth must be at most {guessed_at_once}, which its drafter guesses at once, got {own}"
            )
        total, depth, top_k = DYNAMIC_TREES.get(self.tree, (self.total_tokens, own, self.tree_top_k))
        if self.tree == "dynamic" or self.tree in DYNAMIC_TREES:
            candidates = 1 + top_k + max(depth - 1, 0) * top_k**2
            return DynamicTree(top_k), DraftSize(min(total, candidates), min(depth, total - 1))
        shape = fixed_tree(self.tree, depth)
        return shape, DraftSize(shape.num_nodes, min(depth, shape.max_depth))


@dataclass(frozen=True)
class EagleHeadConfig(TrainedDrafterConfig):
    """EAGLE (arXiv 2401.15077) as it is: visual tokens are rows like all others."""

    name: ClassVar[str] = "eagle"
    summary: ClassVar[str] = "EAGLE: a trained layer continues the target's features, the video's like the text's"


@dataclass(frozen=True)
class MSDConfig(TrainedDrafterConfig):
    """MSD (arXiv 2505.14260): the draft head reads the video's embeddings."""

    name: ClassVar[str] = "msd"
    summary: ClassVar[str] = "MSD: a trained layer that reads the video's embeddings"


@dataclass(frozen=True)
class ViSpecConfig(TrainedDrafterConfig):
    """ViSpec (arXiv 2509.15235): the draft head reads a learned mean of the video; another is mixed into features."""

    name: ClassVar[str] = "vispec"
    summary: ClassVar[str] = "ViSpec: a trained layer that reads the video compressed into a vector or two"


@dataclass(frozen=True)
class SparrowConfig(TrainedDrafterConfig):
    """Sparrow (arXiv 2602.15318): the draft head keeps text alone, whose features have seen the video."""

    name: ClassVar[str] = "sparrow"
    summary: ClassVar[str] = "Sparrow: a trained layer over text alone, as cheap for an hour as for a second"


@dataclass(frozen=True)
class FlashConfig(TrainedDrafterConfig):
    """FLASH (arXiv 2505.12728): the draft head reads compressed features and guesses several places at once."""

    name: ClassVar[str] = "flash"
    summary: ClassVar[str] = "FLASH: a trained layer that guesses several tokens in one forward pass"

    depth: int | Auto | None = None  # its guesses cost the same, however many are drafted
