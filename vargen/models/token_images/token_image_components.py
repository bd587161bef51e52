"""The side of methods of families that draw token by token: their codebook. `transformers.py` has the rest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor

from specdecode.grid.mixed_grids import MixedGrids
from specdecode.grid.positions import Lines
from specdecode.targets.transformers import TransformersTarget
from vargen.models.reuse import Reuse
from vargen.models.token_images.codebook import unit_codebook
from vargen.models.transformers_components import TransformersComponents


class TokenImageComponents(TransformersComponents):
    """See `TransformersComponents`.

    Args:
        code_vectors: gives the vectors [C, d] of codes; None: the pipeline has no picture tokenizer.
        family: its title, for errors.
    """

    family: ClassVar[str] = "this family"

    def __init__(
        self,
        model: Any,
        target: TransformersTarget,
        reuse: Reuse,
        joins: bool = False,
        code_vectors: Callable[[], Tensor] | None = None,
        family: str = "this family",
    ) -> None:
        super().__init__(model, target, reuse, joins)
        self.family = family  # type: ignore[misc]
        self._code_vectors = code_vectors

    def _lines(self) -> Lines | MixedGrids:
        target: Any = self.target
        lines: Lines | MixedGrids = target.lines
        return lines

    def codebook(self) -> Tensor:
        """Unit vectors fp32 [V, d] of the tokens, on the target's device; the end-of-row token is the last."""
        if self._code_vectors is None:
            return super().codebook()
        vectors = self._code_vectors()
        return unit_codebook(vectors, self.target.vocab_size > len(vectors)).to(self.device)
