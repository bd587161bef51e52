"""`pipeline.quantize()`: decoder layers in int8, for every family, on a CPU.

Belongs here: when that may be done. Does not belong here: the layers (`vargen.kernels.int8`), and quantization by
libraries, which do it while they load (`vargen.models.quantization`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import nn

from vargen.errors import UserError
from vargen.kernels.build import why_not
from vargen.kernels.int8 import quantize_linears
from vargen.models.components import KeptBetweenBatches
from vargen.models.options import INT8, INT8_DYNAMIC, OWN_QUANTIZATION

DECODER, DRAFTS = PARTS = ("decoder", "drafts")
"""Of a pipeline, that can be quantized."""


class QuantizablePipeline:
    """What makes a pipeline one that can be quantized. It keeps things between batches in `_kept`."""

    _kept: KeptBetweenBatches

    @property
    def _decoder_layers(self) -> nn.Module:
        """The layers that every token passes."""
        raise NotImplementedError

    def quantize(self, quantization: str = INT8, parts: Sequence[str] = (DECODER,)) -> Self:
        """From now on linear layers have weights in int8, with a scale for each output.

        With "int8-dynamic" each row that is fed to such a layer is rounded too, on a scale of its own. Then a pass over
        many tokens takes half the arithmetic, at some more cost to what is drawn.

        Embeddings, norms and the output head stay as they are. What is quantized cannot be saved, trained or put on a
        GPU afterwards.

        Args:
            quantization: "int8" or "int8-dynamic".
            parts: "decoder", and then tokens become those of the rounded model, of which exact methods draw plain
                decoding's as ever; and "drafts", what drafts for it, with which exact methods draw what they drew of
                the decoder as it is.

        Returns:
            The pipeline.

        Raises:
            UserError: nothing would be gained here, or a name is another.
        """
        if unknown := [part for part in parts if part not in PARTS]:
            raise UserError(f"parts must be among {', '.join(PARTS)}, got {unknown[0]!r}")
        if quantization not in OWN_QUANTIZATION:
            known = " or ".join(OWN_QUANTIZATION)
            raise UserError(f"quantization must be {known}, got {quantization!r}; others are done by from_pretrained")
        layers = self._decoder_layers
        parameter = next(each for each in layers.parameters() if each.is_floating_point())
        check_int8(parameter.device, str(parameter.dtype).removeprefix("torch."))
        if DECODER in parts:
            quantize_linears(layers, quantization == INT8_DYNAMIC)
        if DRAFTS in parts:
            self._kept.draft_quantization = quantization
        return self


def check_int8(device: torch.device, dtype: str) -> None:
    """Refuse int8 where it would be slower than what it replaces.

    Args:
        device: where the model lies.
        dtype: of the model, by its name in torch.

    Raises:
        UserError: it would be.
    """
    if device.type != "cpu":
        raise UserError(
            f"quantization {INT8} is computed by vargen's own kernels, on a CPU alone, not on {device}; models of "
            f"transformers take bitsandbytes-8bit or torchao-int8 there"
        )
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"quantization {INT8} goes with dtype float32 or bfloat16, got {dtype}")
    if (reason := why_not()) is not None:
        raise UserError(f"quantization {INT8} needs vargen's kernels, without which it is slower ({reason})")
