"""What Janus offers methods: the target of a batch, and its codebook. The rest is `vargen.models.components`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from transformers import JanusForConditionalGeneration

from vargen.models.components import KeptBetweenBatches, ModelComponents
from vargen.models.janus.target import JanusTarget, num_image_tokens
from vargen.models.janus.vq import unit_codebook


class JanusComponents(ModelComponents):
    """Plays `vargen.methods.base.Components` for one batch of pictures.

    Args:
        model: of the target.
        target: fed with the prompts.
        kept: the pipeline's.
    """

    family: ClassVar[str] = "Janus"

    def __init__(self, model: JanusForConditionalGeneration, target: JanusTarget, kept: KeptBetweenBatches) -> None:
        super().__init__(target.device, kept)
        self.model = model
        self.target = target

    @property
    def num_tokens(self) -> int:
        """Tokens of a picture."""
        return num_image_tokens(self.model)

    def codebook(self) -> Tensor:
        """The tokens' unit vectors [V, d], beside the target."""
        return unit_codebook(self.model).to(self.device)
