"""STD, "sparse to dense": the target drafts for itself, with a cache that forgets most of the video.

Belongs here: the sparse cache. Does not belong here: how attention is read (`attention.py`), forwards and positions
(`target.py`), drafting (`specdecode.drafters`).

Source: Sparse-to-Dense (arXiv 2505.19155). Of the prompt every layer keeps all text, and those visual tokens to which
the text after the video pays most attention in this very layer; heads that share keys choose together. The choice is
made once, from the target's own prefill, so drafting costs no prefill. What is generated is kept in full.

Keys carry their positions already. They are kept in order all the same, and new tokens stand at the positions they
have in the whole sequence, not at the length of the sparse cache.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import DynamicCache

from specdecode.roles import TargetOutput
from vargen.video.target import VideoTarget


class SparseDraft(VideoTarget):
    """`specdecode.drafters.draft_model.DraftModel` of a target's own weights over a part of its cache.

    Args:
        target: made with `capture_attention=True`. It has to be prefilled before this is.
        budget: visual tokens that each layer and key head keeps; see `vargen.video.pruning.token_budget`.

    Attributes:
        kept: for every layer [kv_heads, budget] int64, numbers of visual tokens, ascending; after the prefill.

    Raises:
        ValueError: a target that captures no attention, or a budget outside 1 to m.
    """

    def __init__(self, target: VideoTarget, budget: int) -> None:
        super().__init__(target.model, target.request, vocab_size=target.vocab_size)
        if not target.capture_attention:
            raise ValueError("target must be made with capture_attention=True: the sparse cache is chosen by attention")
        if not 1 <= budget <= target.request.num_visual:
            raise ValueError(
                f"budget must lie between 1 and the {target.request.num_visual} visual tokens, got {budget}"
            )
        self.target = target
        self.budget = budget
        self.kept: tuple[Tensor, ...] = ()

    @torch.no_grad()
    def prefill(self) -> TargetOutput:
        """Take over a part of the target's cache; no forward. Returns the target's own logits [1, 1, V].

        Raises:
            ValueError: the target has not been prefilled.
        """
        scores, prompt = self.target.captured_attention(), self.target.prompt_cache()
        self.kept = tuple(layer.topk(self.budget, dim=-1).indices.sort(-1).values for layer in scores)
        is_visual = self.request.is_visual
        visual, text = is_visual.nonzero()[:, 0], (~is_visual).nonzero()[:, 0]
        self._cache = DynamicCache(config=self.model.config.get_text_config())
        for number, (kept, entries) in enumerate(zip(self.kept, prompt, strict=True)):
            places = torch.cat((text.expand(len(kept), -1), visual[kept]), dim=1).sort(-1).values  # [kv_heads, t + k]
            keys, values = (_take(each, places) for each in entries)
            self._cache.update(keys, values, number)
        self._start_after([len(text) + self.budget] * len(prompt))
        assert self.target.prompt_logits is not None
        return TargetOutput(self.target.prompt_logits)


def _take(entries: Tensor, places: Tensor) -> Tensor:
    """[1, kv_heads, k, head_dim]: of [1, kv_heads, T, head_dim] the places [kv_heads, k] of each head."""
    return entries.gather(2, places[None, ..., None].expand(-1, -1, -1, entries.shape[-1]))
