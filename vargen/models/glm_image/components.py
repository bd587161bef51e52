"""What GLM-Image offers methods: the target of a batch, and its codebook. The rest is `vargen.models.components`."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor
from transformers import GlmImageForConditionalGeneration

from vargen.models.components import KeptBetweenBatches, ModelComponents
from vargen.models.glm_image.target import GlmImageTarget


class GlmImageComponents(ModelComponents):
    """Plays `vargen.methods.base.Components` for one batch of priors.

    Args:
        model: of the target.
        target: fed with the prompts.
        kept: the pipeline's.
    """

    family: ClassVar[str] = "GLM-Image"

    def __init__(
        self, model: GlmImageForConditionalGeneration, target: GlmImageTarget, kept: KeptBetweenBatches
    ) -> None:
        super().__init__(target.device, kept)
        self.model = model
        self.target = target

    @property
    def num_tokens(self) -> int:
        """Tokens that are drawn a row, the preview's too."""
        return self.target.max_new_tokens

    def codebook(self) -> Tensor:
        """The codes' unit vectors fp32 [V, d], beside the target: so the model compares pictures with them."""
        return F.normalize(self.model.model.vqmodel.quantize.embedding.weight.detach().float(), dim=-1).to(self.device)
