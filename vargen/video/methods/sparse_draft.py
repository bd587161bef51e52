"""STD, "sparse to dense" (arXiv 2505.19155): the target drafts for itself over a sparse part of its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.video.methods.base import VideoComponents, VideoMethod, VideoMethodConfig, likeliest_chain


@dataclass(frozen=True)
class SparseToDenseConfig(VideoMethodConfig):
    """STD (arXiv 2505.19155): the target drafts for itself over a sparse cache.

    Args:
        keep_ratio: share of visual tokens that each layer's sparse cache keeps.
        draft_length: tokens of a chain.
    """

    name: ClassVar[str] = "std"
    summary: ClassVar[str] = "STD: the target drafts for itself with the part of its cache that it attends to"
    exact: ClassVar[bool] = True

    keep_ratio: float = 0.25
    draft_length: int = 9

    def __post_init__(self) -> None:
        self._share("keep_ratio")
        self._number("draft_length", 1, MAX_DRAFT, whole=True)

    def _players(self, components: VideoComponents) -> VideoMethod:
        target = components.target(self.draft_length + 1, capture_attention=True)
        draft = components.sparse_draft(target, self.keep_ratio, self.draft_length + 1)
        return VideoMethod(likeliest_chain(draft, self.draft_length), target=target, network=draft)
