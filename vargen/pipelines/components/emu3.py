"""What Emu3 alone offers methods: its codebook. Families of transformers share the rest (`transformers.py`)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from vargen.models.emu3.vq import unit_codebook
from vargen.pipelines.components.transformers import TransformersComponents


class Emu3Components(TransformersComponents):
    """See `TransformersComponents`."""

    family: ClassVar[str] = "Emu3"

    def codebook(self) -> Tensor:
        """Unit vectors fp32 [V, d] of the tokens, on the target's device; the last is the mark that ends a line."""
        return unit_codebook(self.model).to(self.device)
