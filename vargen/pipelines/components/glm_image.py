"""What GLM-Image offers methods: the target of a batch, and its codebook. The rest is `base.py`."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from vargen.pipelines.components.transformers import TransformersComponents


class GlmImageComponents(TransformersComponents):
    """Plays `vargen.methods.base.Components` for one batch of priors.

    Args:
        model: of the target.
        target: fed with the prompts.
        kept: the pipeline's.
    """

    family: ClassVar[str] = "GLM-Image"

    def codebook(self) -> Tensor:
        """The codes' unit vectors fp32 [V, d], beside the target: so the model compares pictures with them."""
        return F.normalize(self.model.model.vqmodel.quantize.embedding.weight.detach().float(), dim=-1).to(self.device)
