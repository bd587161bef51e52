"""Janus's image tokenizer: its codebook, and pictures from codes.

Belongs here: decoding codes with the model, and its numbers as intensities. Does not belong here: drawing the codes,
and files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import JanusForConditionalGeneration


def unit_codebook(model: JanusForConditionalGeneration) -> Tensor:
    """The codes as fp32 unit vectors [V, d], as the decoder looks them up."""
    return F.normalize(model.model.vqmodel.quantize.embedding.weight.detach().float(), dim=-1)


@torch.no_grad()
def decode_codes(model: JanusForConditionalGeneration, codes: Tensor) -> Tensor:
    """Pictures from codes [B, N] in raster order, decoded one by one in the model's precision.

    Returns:
        fp32 [B, H, W, 3], nominally in [-1, 1] but not clamped.
    """
    return torch.cat([model.decode_image_tokens(row).float() for row in codes.split(1)])


def intensities(pictures: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The 255ths of full intensity that `JanusProcessor.postprocess` sees, before it drops what follows the point.

    Args:
        pictures: fp32 [B, H, W, 3] from `decode_codes`.
        mean, std: three each, of the image processor.

    Returns:
        fp32 [B, H, W, 3] in [0, 255].
    """
    # Normalised backwards in the same order of operations, so that no rounding crosses a whole number.
    shift = pictures.new_tensor([-each / spread for each, spread in zip(mean, std, strict=True)])
    scale = pictures.new_tensor([1 / (255 * spread) for spread in std])
    return ((pictures - shift) / scale).clamp(0, 255)
