"""What Emu3 offers methods: the target of a batch, and its codebook. The rest is `vargen.pipelines.components.base`."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from vargen.models.emu3.vq import unit_codebook
from vargen.pipelines.components.transformers import TransformersComponents


class Emu3Components(TransformersComponents):
    """Plays `vargen.methods.base.Components` for one batch of pictures.

    Args:
        model: of the target.
        target: fed with the prompts.
        kept: the pipeline's.
        joins: the batch's rows take places in another one as soon as they have begun.
    """

    family: ClassVar[str] = "Emu3"

    def codebook(self) -> Tensor:
        """The tokens' unit vectors [V, d], the mark's last, beside the target."""
        return unit_codebook(self.model).to(self.device)
