"""STD, "sparse to dense" (arXiv 2505.19155): the target drafts for itself over a sparse part of its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.video.methods.base import VideoComponents, VideoMethod, VideoMethodConfig, likeliest_chain


@dataclass(frozen=True)
class SparseToDenseConfig(VideoMethodConfig):
    """STD (arXiv 2505.19155): the target drafts for itself over a sparse cache."""

    name: ClassVar[str] = "std"
    summary: ClassVar[str] = "STD: the target drafts for itself with the part of its cache that it attends to"
    exact: ClassVar[bool] = True

    keep_ratio: float = option(0.25, above=0.0, most=1.0)
    """Share of visual tokens that each layer's sparse cache keeps."""
    draft_length: int = option(9, least=1, most=MAX_DRAFT)
    """Tokens of a chain."""

    def _players(self, components: VideoComponents) -> VideoMethod:
        target = components.target(self.draft_length + 1, capture_attention=True)
        draft = components.sparse_draft(target, self.keep_ratio, self.draft_length + 1)
        return VideoMethod(likeliest_chain(draft, self.draft_length), target=target, network=draft)
