"""What Emu3 offers methods: the target of a batch, and its codebook. The rest is `vargen.models.components`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor
from transformers import Emu3ForConditionalGeneration

from vargen.models.components import KeptBetweenBatches, ModelComponents
from vargen.models.emu3.target import Emu3Target
from vargen.models.emu3.vq import unit_codebook


class Emu3Components(ModelComponents):
    """Plays `vargen.methods.base.Components` for one batch of pictures.

    Args:
        model: of the target.
        target: fed with the prompts.
        kept: the pipeline's.
    """

    family: ClassVar[str] = "Emu3"

    def __init__(self, model: Emu3ForConditionalGeneration, target: Emu3Target, kept: KeptBetweenBatches) -> None:
        super().__init__(target.device, kept)
        self.model = model
        self.target = target

    @property
    def num_tokens(self) -> int:
        """Tokens of a picture, ends of lines too, but for the last."""
        return self.target.max_new_tokens

    def codebook(self) -> Tensor:
        """The tokens' unit vectors [V, d], the mark's last, beside the target."""
        return unit_codebook(self.model).to(self.device)
