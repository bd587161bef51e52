"""STD, "sparse to dense": the target drafts for itself, with a cache that forgets most of the video.

Source: Sparse-to-Dense (arXiv 2505.19155). Every layer keeps all text of the prompt, and those visual tokens to which
    the text after the video pays most attention in this very layer. Heads that share keys choose together. The choice
    is made once, from the target's own prefill, so drafting costs no prefill. What is generated is kept in full.

Keys carry their positions already. They are kept in order all the same, and new tokens stand at the positions they
have in the whole sequence, not at the length of the sparse cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from specdecode.drafters.draft_model import DraftModelDrafter
from specdecode.drafters.draft_size import DraftSize, FixedDraftSize
from specdecode.roles import TargetOutput
from vargen.base.bounds import MAX_DRAFT
from vargen.base.options import option
from vargen.video.methods.base import VideoMethod, VideoMethodConfig
from vargen.video.models.pruning import token_budget
from vargen.video.models.request import keep_visual
from vargen.video.models.target import VideoTarget
from vargen.video.pipelines.components import VideoLLMComponents


class SparseDraft(VideoTarget):
    """`specdecode.drafters.draft_model.DraftModel` of a target's own weights over a part of its cache.

    Args:
        target: made with `capture_attention=True`. It has to be prefilled before this is.
        budgets: visual tokens that each layer and key head keeps of each request; see
            `vargen.video.models.pruning.token_budget`.
        options: see `VideoTarget`.

    Attributes:
        kept: by row, for every layer [kv_heads, budget] int64, numbers of visual tokens, ascending; after the prefill.

    Raises:
        ValueError: a target that captures no attention, or a budget outside 1 to m.
    """

    def __init__(self, target: VideoTarget, budgets: Sequence[int], **options: Any) -> None:
        super().__init__(target.model, target.requests, **{"vocab_size": target.vocab_size, **options})
        if not target.capture_attention:
            raise ValueError("target must be made with capture_attention=True: the sparse cache is chosen by attention")
        for budget, request in zip(budgets, target.requests, strict=True):
            if not 1 <= budget <= request.num_visual:
                raise ValueError(f"budget must lie between 1 and the {request.num_visual} visual tokens, got {budget}")
        self.target = target
        self.budgets = budgets
        self.kept: list[list[Tensor]] = []

    @torch.no_grad()
    def prefill(self) -> TargetOutput:
        """Take over a part of the target's cache; no forward. Returns the target's own logits [B, 1, V].

        Raises:
            ValueError: the target has not been prefilled.
        """
        seen = self.target.prompts
        scores = [prompt.attention_by_layer() for prompt in seen]
        self.kept = [
            [layer.topk(budget, dim=-1).indices.sort(-1).values for layer in layers]
            for layers, budget in zip(scores, self.budgets, strict=True)
        ]
        # As long as these; which tokens they are differs from head to head.
        self.requests = tuple(
            keep_visual(request, torch.arange(budget, device=self.device))
            for request, budget in zip(self.target.requests, self.budgets, strict=True)
        )
        self.start_prompts()
        for row, kept_by_layer in enumerate(self.kept):
            self._cache.row = row
            is_visual = self.target.requests[row].is_visual
            visual, text = is_visual.nonzero()[:, 0], (~is_visual).nonzero()[:, 0]
            pairs = zip(kept_by_layer, prompt_cache(self.target, row), strict=True)
            for number, (kept, (keys, values)) in enumerate(pairs):
                places = (
                    torch.cat((text.expand(len(kept), -1), visual[kept]), dim=1).sort(-1).values
                )  # [kv_heads, t + k]
                self._cache.update(_take(keys, places), _take(values, places), number)
        self.finish_prompts()
        return TargetOutput(torch.stack([prompt.logits for prompt in seen]))


def prompt_cache(target: VideoTarget, row: int) -> list[tuple[Tensor, Tensor]]:
    """Keys and values [1, kv_heads, T, head_dim] of a prompt of T tokens, for every layer; after the prefill."""
    static, end = target._cache.allocated(), target.prompt_length
    start = end - target.requests[row].length
    pairs = zip(static.keys, static.values, strict=True)
    return [(keys[row, None, :, start:end], values[row, None, :, start:end]) for keys, values in pairs]


def _take(entries: Tensor, places: Tensor) -> Tensor:
    """[1, kv_heads, k, head_dim]: of [1, kv_heads, T, head_dim] the places [kv_heads, k] of each head."""
    return entries.gather(2, places[None, ..., None].expand(-1, -1, -1, entries.shape[-1]))


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

    def _players(self, components: VideoLLMComponents) -> VideoMethod:
        target = components.target(self.draft_length + 1, capture_attention=True)
        budgets = [token_budget(request.num_visual, self.keep_ratio) for request in components.requests]
        draft = SparseDraft(target, budgets, **components.sizes(self.draft_length + 1))
        size = FixedDraftSize(DraftSize(self.draft_length + 1, self.draft_length))
        return VideoMethod(DraftModelDrafter(draft, size), target=target, network=draft)
