"""Text to pictures with Emu3 as transformers has it, with the conventions of diffusers.

Belongs here: code for Emu3's own classes: prompts by its processor, pixels by its own decoder, files. Does not belong
here: code for every family that draws token by token (`vargen.pipelines.token_images`).

It draws what `Emu3ForConditionalGeneration.generate` draws with the arguments that its documentation names: guidance
away from a negative prompt, and only tokens that make a picture of the size in the prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from transformers import Emu3ForConditionalGeneration, Emu3Processor

from vargen.base.errors import UserError
from vargen.methods.base import refusals
from vargen.models.picture_size import Grid
from vargen.models.token_images.emu3 import EMU3
from vargen.models.token_images.grammar import vocabulary_of
from vargen.pipelines.token_images import TokenImages
from vargen.pipelines.transformers import Prompts


class Emu3Pipeline(TokenImages):
    """Pictures from sentences, one token after another, of any size.

    Where a call gives no setting, the model's generation_config.json does, else: guidance 3, with which its authors
    draw, and as in `generate` temperature 1, top_k 50 and top_p 1.

    Args:
        model: of transformers, unmodified, in evaluation mode.
        processor: makes tokens of prompts. Without it, prompts must come as `input_ids`.

    Raises:
        UserError: the model cannot draw.
    """

    model_class = Emu3ForConditionalGeneration
    processor_class = Emu3Processor
    usual_guidance = EMU3.guidance.scale

    def __init__(self, model: Emu3ForConditionalGeneration, processor: Emu3Processor | None = None) -> None:
        super().__init__(model, processor=processor)
        self.vocabulary = vocabulary_of(EMU3, model)
        side = int(model.model.vqmodel.spatial_scale_factor)
        area = getattr(processor, "image_area", EMU3.sizes.pixels_a_code**2 * EMU3.sizes.usual[0] * EMU3.sizes.usual[1])
        usual = replace(EMU3.sizes, pixels_a_code=side).grid(ratio="1:1", area=area)
        self.family = replace(EMU3, sizes=replace(EMU3.sizes, pixels_a_code=side, usual=usual))

    def _written(self, texts: list[str], grid: Grid, null: bool, references: Sequence[Tensor]) -> Prompts:
        # The processor writes all prompts alike. A prompt may be empty.
        if self.processor is None:
            raise UserError("prompt needs a pipeline with a processor; give input_ids and attention_mask instead")
        rows, columns = grid
        with refusals():
            tokens = self.processor(
                text=texts,
                return_for_image_generation=True,
                ratio=f"{columns}:{rows}",
                image_area=rows * columns * self.processor.downsample_ratio**2,
                padding=True,
                padding_side="left",
                return_tensors="pt",
            )
        if [*map(int, tokens["image_sizes"][0])] != [rows, columns]:
            raise UserError(
                f"processor must be of the same model: it makes pictures of {self.processor.downsample_ratio} pixels a "
                f"code, the decoder of {self.family.sizes.pixels_a_code}"
            )
        return tokens["input_ids"], tokens["attention_mask"]

    def _code_vectors(self) -> Tensor:
        weight: Tensor = self.model.model.vqmodel.quantize.embedding.weight
        return weight

    def decode_tokens(self, codes: Tensor, output_type: str = "pil") -> Any:
        """Pictures from codes [B, h, w], as `output_type` asks.

        Images are those of `Emu3Processor.postprocess`, which cuts intensities to whole numbers.
        """
        if output_type == "latent":
            return codes
        return self._images_of(intensities, self._pixels(codes), output_type)

    def _encoder(self) -> Callable[[Tensor], Tensor]:
        vqmodel = self.model.model.vqmodel

        def encode(pixels: Tensor) -> Tensor:
            sizes = torch.tensor([pixels.shape[2:]])
            codes: Tensor = vqmodel.encode(self._normalised(pixels), image_sizes=sizes).image_tokens[0]
            return codes[None]

        return encode

    @torch.no_grad()
    def _pixels(self, codes: Tensor) -> Tensor:
        """fp32 [B, 3, H, W], nominally in [-1, 1] but not clamped, decoded one by one in the model's precision."""
        return torch.cat([self.model.model.vqmodel.decode(row).float() for row in codes.split(1)])


def intensities(pictures: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Intensities from 0 to 255 as in `Emu3Processor.postprocess`, before it rounds them down.

    Args:
        pictures: fp32 [B, 3, H, W], as decoded.
        mean, std: three each, of the image processor.

    Returns:
        fp32 [B, H, W, 3] in [0, 255].
    """
    # The processor's order of operations, so that rounding cannot move a value across a whole number.
    shift = pictures.new_tensor([-each / spread for each, spread in zip(mean, std, strict=True)])
    scale = pictures.new_tensor([1 / spread for spread in std])
    return ((pictures.permute(0, 2, 3, 1) - shift) / scale * 255.0).clamp(0, 255)
