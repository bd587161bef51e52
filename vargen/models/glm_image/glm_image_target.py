"""GLM-Image's autoregressive part as the Target of the speculative loop.

Belongs here: how codes become a pass of `GlmImageForConditionalGeneration`, and the tokens that it may give. Does not
belong here: prompts and positions (`request.py`), the cache and masks (`specdecode.targets.transformers`), sampling.

The model's output head has a few tokens more than there are codes. One of them ends a picture, which would cut it
short: they are masked, and pictures end by count.
"""

from __future__ import annotations

from torch import Tensor
from transformers import GlmImageForConditionalGeneration

from specdecode.targets.transformers import TransformersTarget
from vargen.models.glm_image.prior_request import PriorRequest


class GlmImageTarget(TransformersTarget):
    """The Target role for one batch of priors. There is no guidance: the model was trained without.

    Args:
        model: in evaluation mode.
        request: prompts and grids to draw.
        max_draft_nodes: nodes of the largest tree `forward` will be given, the root included.

    Raises:
        ValueError: the model cannot be served; see `TransformersTarget`.
    """

    graph_state = (*TransformersTarget.graph_state, "_drawn_positions")

    def __init__(
        self, model: GlmImageForConditionalGeneration, request: PriorRequest, *, max_draft_nodes: int = 1
    ) -> None:
        embed = model.get_input_embeddings()
        self._drawn_positions = request.drawn_positions  # [3, B, N]
        super().__init__(
            model,
            attention_mask=request.attention_mask,
            inputs_embeds=embed(request.input_ids).detach(),
            max_new_tokens=request.num_tokens,
            max_draft_nodes=max_draft_nodes,
            position_ids=request.position_ids,
            positions=self._positions_at,
            vocab_size=num_codes(model),
            decoder=model.model.language_model,
            output_head=model.lm_head,
            embed=embed,
        )

    def _positions_at(self, places: Tensor) -> Tensor:
        """Positions [3, B, n] of places [B, n] among drawn tokens."""
        table = self._drawn_positions
        return table.gather(2, places.clamp(max=table.shape[2] - 1).expand(3, -1, -1))


def num_codes(model: GlmImageForConditionalGeneration) -> int:
    """Number of tokens that are codes, from 0 on."""
    return int(model.model.vqmodel.quantize.embedding.num_embeddings)
