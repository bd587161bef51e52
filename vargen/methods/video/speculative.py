"""Speculative decoding of answers about videos, naive and as SpecVLM does it.

Belongs here: settings and players of methods whose drafter is a model that watches the video, whole or in part. Does
not belong here: choosing by scores (`pruning.py`), drafting (`specdecode.drafters`), and such methods with a
verifier (`fly.py`, `lvspec.py`) or a loop (`parallelvlm.py`) of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from vargen.base.bounds import MAX_DRAFT
from vargen.base.errors import UserError
from vargen.methods.eagle import TREE_NAMES
from vargen.methods.video.base import VideoMethodConfig

if TYPE_CHECKING:
    from collections.abc import Collection

    from torch import Tensor

    from specdecode.drafters.draft_model import DraftModel
    from specdecode.roles import Drafter, Verifier
    from vargen.models.video_llms.target import VideoTarget
    from vargen.pipelines.video.players import VideoDecoder
    from vargen.pipelines.video.prompt import Prompt

DRAFTERS = ("pair", "self")
PRUNINGS = ("uniform", "attention", "visual_gain")
TREES = ("chain", *(name for name in TREE_NAMES if name != "dynamic"))


@dataclass(frozen=True)
class SpeculativeConfig(VideoMethodConfig):
    """A smaller model, or the target itself, watches the same video and drafts a chain.

    Args:
        drafter: "pair" for the smaller model, "self" for the target's own weights.
        draft_length: tokens of a chain.
        keep_ratio: share of visual tokens that the drafter is shown.
        pruning: which ones: "uniform"; "attention" (SpecVLM); "visual_gain" (ParallelVLM's UV-Prune).
        pruning_layer: of "visual_gain": the layer that is compared with the embeddings; null for a quarter of them.
        compact: give what is left consecutive positions instead of its own.
    """

    name: ClassVar[str] = "sd"
    summary: ClassVar[str] = "naive speculative decoding: the drafter watches the whole video"
    exact: ClassVar[bool] = True

    drafter: str = "pair"
    draft_length: int = 5
    keep_ratio: float = 1.0
    pruning: str = "uniform"
    pruning_layer: int | None = None
    compact: bool = False

    def __post_init__(self) -> None:
        self._one_of("drafter", DRAFTERS)
        self._number("draft_length", 1, MAX_DRAFT, whole=True)
        self._share("keep_ratio")
        self._one_of("pruning", PRUNINGS)
        if self.pruning_layer is not None:
            self._number("pruning_layer", 1, whole=True)

    def check_drafter(self, trained: Collection[str], paired: bool) -> None:
        """Refuse a pair of which the smaller model is missing. Raises UserError."""
        if self.drafter == "pair":
            self._need_smaller_model(paired, '; or set drafter "self"')

    def build(self, prompt: Prompt) -> VideoDecoder:
        """The target, a model that is shown what this method keeps of the video, and who judges it."""
        from vargen.models.video_llms.pruned_draft import PrunedDraft
        from vargen.pipelines.video.players import Players

        prunes_by = self.pruning if self.keep_ratio < 1 else "nothing"
        layer = self.compared_layer(prompt.model)
        target = prompt.target(
            self.num_nodes,
            capture_attention=prunes_by == "attention",
            capture_layers=(0, layer) if prunes_by == "visual_gain" else (),
        )
        model, requests = prompt.draft_requests(self.drafter)
        choose = partial(self._choose, target, layer)
        sizes = prompt.sizes(self.num_nodes)
        draft = PrunedDraft(model, requests, choose, compact=self.compact, home=target.device, **sizes)
        return Players(target, self._drafter(draft), self._verifier(prompt, target), draft)

    @property
    def num_nodes(self) -> int:
        """Of a draft, its root included."""
        return self.draft_length + 1

    def _drafter(self, draft: DraftModel) -> Drafter:
        from vargen.pipelines.video.players import likeliest_chain

        return likeliest_chain(draft, self.draft_length)

    def _verifier(self, prompt: Prompt, target: VideoTarget) -> Verifier | None:
        """Who judges; None: the exact one."""
        return None

    def compared_layer(self, model: Any) -> int:
        """The layer that UV-Prune compares with the embeddings. The paper gives no rule; a quarter of them is ours.

        Raises:
            UserError: a layer that the model has not.
        """
        num_layers = int(model.config.get_text_config().num_hidden_layers)
        if self.pruning_layer is None:
            return max(1, num_layers // 4)
        if self.pruning_layer > num_layers:
            raise UserError(f"{self.name}.pruning_layer must be at most the model's {num_layers}")
        return self.pruning_layer

    def _choose(self, target: VideoTarget, layer: int, row: int) -> Tensor:
        """What of a row's video the drafter is shown, when the target has seen everything."""
        from vargen.models.video_llms.pruning import keep_highest, keep_uniform
        from vargen.models.video_llms.request import keep_share, visual_gain_scorer

        seen = target.prompts[row]

        def chosen(shown: int, budget: int) -> Tensor:
            if self.pruning == "uniform" or budget == shown:
                return keep_uniform(shown, budget)
            if self.pruning == "attention":
                return self._by_attention(target.video_attention(row)[:shown], budget)
            gain = visual_gain_scorer(seen.request)(seen.captured[0], seen.captured[layer])
            return keep_highest(gain[:shown], budget)

        return keep_share(seen.request, self.keep_ratio, chosen)

    def _by_attention(self, scores: Tensor, budget: int) -> Tensor:
        from vargen.models.video_llms.pruning import keep_by_attention

        return keep_by_attention(scores, budget)


@dataclass(frozen=True)
class SpecVLMConfig(SpeculativeConfig):
    """SpecVLM (arXiv 2508.16201): a drafter that is shown the tenth of the video that the target attends to.

    Args:
        tree: shape of the draft: "chain", or a published tree's name.
        attention_share: of the first stage of pruning; the rest of the budget is spread evenly.
    """

    name: ClassVar[str] = "specvlm"
    summary: ClassVar[str] = "SpecVLM: the drafter sees what the target attends to, and drafts a tree"
    exact: ClassVar[bool] = True

    keep_ratio: float = 0.1
    pruning: str = "attention"
    tree: str = "mc_sim_7b_63"
    attention_share: float = 0.4

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("tree", TREES)
        self._number("attention_share", 0, 1)

    @property
    def num_nodes(self) -> int:
        """Of a draft, its root included."""
        if self.tree == "chain":
            return super().num_nodes
        from specdecode.drafters.tree_shapes import StaticTree

        return StaticTree.published(self.tree).num_nodes

    def _drafter(self, draft: DraftModel) -> Drafter:
        if self.tree == "chain":
            return super()._drafter(draft)
        from specdecode.drafters.draft_model_tree import DraftModelTreeDrafter
        from specdecode.drafters.tree_shapes import StaticTree

        return DraftModelTreeDrafter(draft, StaticTree.published(self.tree))

    def _by_attention(self, scores: Tensor, budget: int) -> Tensor:
        from vargen.models.video_llms.pruning import keep_by_attention

        return keep_by_attention(scores, budget, self.attention_share)
