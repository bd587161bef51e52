"""LVSpec: settings and players; its rule is `specdecode.verifiers.loose`, measured against the visual tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.methods.video.speculative import SpeculativeConfig

if TYPE_CHECKING:
    from specdecode.drafters.draft_model import DraftModel
    from specdecode.roles import Drafter, Verifier
    from vargen.models.video_llms.target import VideoTarget
    from vargen.pipelines.video.prompt import Prompt


@dataclass(frozen=True)
class LVSpecConfig(SpeculativeConfig):
    """LVSpec (arXiv 2604.05650): the drafted tokens that have least to do with what is seen need not be the target's.

    Args:
        loose_ratio: lambda, share of a window that is loosened; 0 is strict.
        num_nearest: N, visual tokens whose cosines make a token's relevance.
        position_shift: accept what the target says elsewhere in the window.
        relevance_from: "token" or "prediction", see `specdecode.verifiers.loose`.
        branches: chains of `draft_length` below each token, of which the one with most accepted tokens stays; the
            paper's appendix E has 2.
    """

    name: ClassVar[str] = "lvspec"
    summary: ClassVar[str] = "LVSpec: tokens with little visual relevance are accepted as drafted"
    exact: ClassVar[bool] = False

    draft_length: int = 10
    keep_ratio: float = 0.1
    loose_ratio: float = 0.7
    num_nearest: int = 10
    position_shift: bool = True
    relevance_from: str = "token"
    branches: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._number("loose_ratio", 0, 1)
        self._number("num_nearest", 1, whole=True)
        self._one_of("relevance_from", ("token", "prediction"))
        self._number("branches", 1, MAX_DRAFT // self.draft_length, whole=True)

    @property
    def num_nodes(self) -> int:
        """Of a draft, its root included."""
        return 1 + self.branches * self.draft_length

    def _drafter(self, draft: DraftModel) -> Drafter:
        if self.branches == 1:
            return super()._drafter(draft)
        from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
        from specdecode.drafters.tree_shapes import StaticTree

        return DraftModelTreeDrafter(draft, StaticTree.branches(self.branches, self.draft_length))

    def _verifier(self, prompt: Prompt, target: VideoTarget) -> Verifier:
        from specdecode.verifiers.loose import LooseVerifier

        return LooseVerifier(
            lambda: [seen.visual_hidden_states for seen in target.prompts],
            self.loose_ratio,
            self.num_nearest,
            self.position_shift,
            prompt.protected_tokens,
            self.relevance_from,
        )
