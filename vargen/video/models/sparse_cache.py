"""STD, "sparse to dense": the target drafts for itself, with a cache that forgets most of the video.

Belongs here: the sparse cache. Does not belong here: how attention is read (`attention.py`), forwards and positions
(`target.py`), drafting (`specdecode.drafters`).

Source: Sparse-to-Dense (arXiv 2505.19155). Every layer keeps all text of the prompt, and those visual tokens to which
    the text after the video pays most attention in this very layer. Heads that share keys choose together. The choice
    is made once, from the target's own prefill, so drafting costs no prefill. What is generated is kept in full.

Keys carry their positions already. They are kept in order all the same, and new tokens stand at the positions they
have in the whole sequence, not at the length of the sparse cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdecode.roles import TargetOutput
from vargen.video.models.request import keep_visual
from vargen.video.models.target import VideoTarget


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
            pairs = zip(kept_by_layer, self.target.prompt_cache(row), strict=True)
            for number, (kept, (keys, values)) in enumerate(pairs):
                places = (
                    torch.cat((text.expand(len(kept), -1), visual[kept]), dim=1).sort(-1).values
                )  # [kv_heads, t + k]
                self._cache.update(_take(keys, places), _take(values, places), number)
        self.finish_prompts()
        return TargetOutput(torch.stack([prompt.logits for prompt in seen]))


def _take(entries: Tensor, places: Tensor) -> Tensor:
    """[1, kv_heads, k, head_dim]: of [1, kv_heads, T, head_dim] the places [kv_heads, k] of each head."""
    return entries.gather(2, places[None, ..., None].expand(-1, -1, -1, entries.shape[-1]))
