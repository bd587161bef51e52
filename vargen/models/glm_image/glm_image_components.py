"""GLM-Image's side of methods: its codebook. Families of transformers share the rest (`transformers.py`)."""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from vargen.models.transformers_components import TransformersComponents


class GlmImageComponents(TransformersComponents):
    """See `TransformersComponents`."""

    family: ClassVar[str] = "GLM-Image"

    def codebook(self) -> Tensor:
        """Unit vectors fp32 [V, d] of the codes, on the target's device; the model's own tokenizer compares these."""
        return F.normalize(self.model.model.vqmodel.quantize.embedding.weight.detach().float(), dim=-1).to(self.device)
