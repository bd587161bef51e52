"""`pipeline.quantize()`: decoder layers with rounded weights, for every family, on a CPU.

Belongs here: when that may be done. Does not belong here: the layers (`specdecode.kernels`), and quantization by
libraries while they load a model (`vargen.checkpoints.quantization`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import nn

from specdecode.kernels.build import wanted, why_not
from specdecode.kernels.quantized import quantization_of
from vargen.base.errors import UserError
from vargen.checkpoints.options import OWN_QUANTIZATION
from vargen.checkpoints.quantization import quantize_layers
from vargen.models.reuse import Reuse
from vargen.pipelines.lora import LoraPipeline

DECODER, DRAFTS = PARTS = ("decoder", "drafts")
"""The parts of a pipeline that can be quantized."""


class QuantizablePipeline(LoraPipeline):
    """A pipeline whose layers can be quantized."""

    reuse: Reuse

    @property
    def _decoder_layers(self) -> nn.Module:
        """The layers that every token goes through."""
        raise NotImplementedError

    @property
    def weights_a_pass(self) -> tuple[int, int]:
        """Bytes and number of the weights in the linear layers that every token goes through."""
        return linear_weights(self._decoder_layers)

    def quantize(self, quantization: str = "int8", parts: Sequence[str] = (DECODER,)) -> Self:
        """Round the weights of linear layers, from now on, to integers with a scale for each output.

        "int8" rounds weights to eight bits. "int8-dynamic" also rounds each row that is fed to such a layer, on a scale
        of its own: a forward pass over many tokens then takes half the arithmetic, and pictures change a little more.
        "int4" rounds weights to four bits, with a scale for every 64 of an output: a pass over one token reads half of
        what it reads in int8, and pictures change more too.

        Embeddings, norms and the output head stay as they are. A quantized pipeline cannot be saved, trained or moved
        to a GPU.

        Args:
            quantization: "int8", "int8-dynamic" or "int4".
            parts: "decoder" rounds the model: exact methods then draw what plain decoding draws of the rounded model.
                "drafts" rounds what drafts for it: exact methods draw the same tokens as without.

        Returns:
            The pipeline.

        Raises:
            UserError: nothing would be gained here, an unknown name, an adapter is loaded, or the part is rounded
                otherwise already.
        """
        if unknown := [part for part in parts if part not in PARTS]:
            raise UserError(f"parts must be among {', '.join(PARTS)}, got {unknown[0]!r}")
        if quantization not in OWN_QUANTIZATION:
            known = ", ".join(OWN_QUANTIZATION)
            raise UserError(f"quantization must be one of {known}, got {quantization!r}; from_pretrained does others")
        layers = self._decoder_layers
        present = {DECODER: quantization_of(layers), DRAFTS: self.reuse.draft_quantization}
        for part in parts:
            if present[part] not in (None, quantization):
                raise UserError(
                    f"quantization {quantization} cannot follow {present[part]}, whose rounded weights are all there "
                    f"is; load the pipeline again"
                )
        if DECODER in parts and self.get_list_adapters():
            raise UserError(
                "quantize cannot round a model beside adapters; call fuse_lora and unload_lora_weights first, or "
                "unload_lora_weights alone"
            )
        parameter = next(each for each in layers.parameters() if each.is_floating_point())
        check_quantization(quantization, parameter.device, str(parameter.dtype).removeprefix("torch."))
        if DECODER in parts and present[DECODER] is None:
            quantize_layers(layers, quantization)
        if DRAFTS in parts:
            self.reuse.draft_quantization = quantization
        return self


def check_kernels() -> bool:
    """Whether the environment leaves the project's kernels on. Raises UserError for an unknown `VARGEN_KERNELS`."""
    try:
        return wanted()
    except ValueError as error:
        raise UserError(str(error)) from error


def check_quantization(quantization: str, device: torch.device, dtype: str) -> None:
    """Refuse rounded weights where they would be slower than the weights they replace.

    Args:
        quantization: of `OWN_QUANTIZATION`.
        device: of the model.
        dtype: of the model, by its name in torch.

    Raises:
        UserError: they would be slower.
    """
    check_kernels()
    if device.type != "cpu":
        raise UserError(
            f"quantization {quantization} runs in vargen's own kernels, which need a CPU, not {device}; models "
            f"of transformers take bitsandbytes-8bit, bitsandbytes-4bit, torchao-int8 or torchao-int4 there"
        )
    if dtype not in ("float32", "bfloat16"):
        raise UserError(f"quantization {quantization} goes with dtype float32 or bfloat16, got {dtype}")
    if (reason := why_not()) is not None:
        raise UserError(f"quantization {quantization} needs vargen's kernels, without which it is slower ({reason})")


def linear_weights(layers: nn.Module) -> tuple[int, int]:
    """Bytes of the linear layers among these, quantized ones included, and how many weights they have."""
    found: list[Any] = [each for each in layers.modules() if hasattr(each, "in_features")]
    read = sum(tensor.nbytes for each in found for tensor in (*each.parameters(False), *each.buffers(False)))
    return read, sum(each.in_features * each.out_features for each in found)
