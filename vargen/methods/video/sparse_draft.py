"""STD, "sparse to dense": settings and players; its cache is `vargen.models.video_llms.sparse_cache`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.methods.video.base import VideoMethodConfig

if TYPE_CHECKING:
    from vargen.pipelines.video.players import Players
    from vargen.pipelines.video.prompt import Prompt


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

    def build(self, prompt: Prompt) -> Players:
        """The target, and itself with a sparse cache."""
        from vargen.models.video_llms.pruning import token_budget
        from vargen.models.video_llms.sparse_cache import SparseDraft
        from vargen.pipelines.video.players import Players, likeliest_chain

        target = prompt.target(self.draft_length + 1, capture_attention=True)
        budgets = [token_budget(request.num_visual, self.keep_ratio) for request in prompt.requests]
        draft = SparseDraft(target, budgets, **prompt.sizes(self.draft_length + 1))
        return Players(target, likeliest_chain(draft, self.draft_length))
