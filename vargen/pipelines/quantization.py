"""`pipeline.quantize()`: decoder layers of rounded weights, for every family, on a CPU.

Belongs here: when that may be done. Does not belong here: the layers (`specdecode.kernels`), and quantization by
libraries, which do it while they load (`vargen.models.quantization`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import nn

from specdecode.kernels.build import wanted, why_not
from vargen.base.errors import UserError
from vargen.models.options import OWN_QUANTIZATION
from vargen.models.quantization import quantize_layers
from vargen.pipelines.components.base import KeptBetweenBatches

DECODER, DRAFTS = PARTS = ("decoder", "drafts")
"""Of a pipeline, that can be quantized."""


class QuantizablePipeline:
    """What makes a pipeline one that can be quantized. It keeps things between batches in `_kept`."""

    _kept: KeptBetweenBatches

    @property
    def _decoder_layers(self) -> nn.Module:
        """The layers that every token passes."""
        raise NotImplementedError

    def quantize(self, quantization: str = "int8", parts: Sequence[str] = (DECODER,)) -> Self:
        """From now on linear layers have weights in int8, with a scale for each output.

        With "int8-dynamic" each row that is fed to such a layer is rounded too, on a scale of its own. Then a pass over
        many tokens takes half the arithmetic, at some more cost to what is drawn. With "int4" weights have four bits, a
        scale for every 64 of an output: a pass over a token reads half of what it does in int8, at such a cost too.

        Embeddings, norms and the output head stay as they are. What is quantized cannot be saved, trained or put on a
        GPU afterwards.

        Args:
            quantization: "int8", "int8-dynamic" or "int4".
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
            known = ", ".join(OWN_QUANTIZATION)
            raise UserError(
                f"quantization must be one of {known}, got {quantization!r}; others are done by from_pretrained"
            )
        layers = self._decoder_layers
        parameter = next(each for each in layers.parameters() if each.is_floating_point())
        check_quantization(quantization, parameter.device, str(parameter.dtype).removeprefix("torch."))
        if DECODER in parts:
            quantize_layers(layers, quantization)
        if DRAFTS in parts:
            self._kept.draft_quantization = quantization
        return self


def check_kernels() -> bool:
    """Whether the environment leaves the project's kernels on. Raises UserError for an unknown `VARGEN_KERNELS`."""
    try:
        return wanted()
    except ValueError as error:
        raise UserError(str(error)) from error


def check_quantization(quantization: str, device: torch.device, dtype: str) -> None:
    """Refuse rounded weights where they would be slower than what they replace.

    Args:
        quantization: of `OWN_QUANTIZATION`.
        device: where the model lies.
        dtype: of the model, by its name in torch.

    Raises:
        UserError: it would be.
    """
    check_kernels()
    if device.type != "cpu":
        raise UserError(
            f"quantization {quantization} is computed by vargen's own kernels, on a CPU alone, not on {device}; models "
            f"of transformers take bitsandbytes-8bit, bitsandbytes-4bit, torchao-int8 or torchao-int4 there"
        )
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"quantization {quantization} goes with dtype float32 or bfloat16, got {dtype}")
    if (reason := why_not()) is not None:
        raise UserError(f"quantization {quantization} needs vargen's kernels, without which it is slower ({reason})")
