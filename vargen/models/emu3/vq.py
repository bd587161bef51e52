"""Emu3's image tokenizer: its codebook, and pictures from codes.

Belongs here: decoding codes with the model, and its numbers as intensities. Does not belong here: drawing the codes,
their names in the text vocabulary (`vocabulary.py`), and files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Emu3ForConditionalGeneration


def unit_codebook(model: Emu3ForConditionalGeneration) -> Tensor:
    """The codes, and the mark that ends a line, as fp32 unit vectors [C + 1, d + 2].

    The tokenizer does not normalise codes, so codes of one direction differ. They are divided by the greatest length
    and get one more coordinate, their height, which makes them unit vectors. Codes of equal length keep their distances
    up to that factor; others are further apart by their difference in height. The mark is orthogonal to all codes.
    """
    codes = model.model.vqmodel.quantize.embedding.weight.detach().float()
    codes = codes / codes.norm(dim=1).max()
    height = (1 - codes.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
    vectors = F.pad(torch.cat((codes, height), 1), (0, 1, 0, 1))
    vectors[-1, -1] = 1.0
    return vectors


@torch.no_grad()
def decode_codes(model: Emu3ForConditionalGeneration, codes: Tensor) -> Tensor:
    """Pictures from codes [B, h, w], decoded one by one in the model's precision.

    Returns:
        fp32 [B, 3, H, W], nominally in [-1, 1] but not clamped.
    """
    return torch.cat([model.model.vqmodel.decode(row).float() for row in codes.split(1)])


def intensities(pictures: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Intensities from 0 to 255 as in `Emu3Processor.postprocess`, before it rounds them down.

    Args:
        pictures: fp32 [B, 3, H, W] from `decode_codes`.
        mean, std: three each, of the image processor.

    Returns:
        fp32 [B, H, W, 3] in [0, 255].
    """
    # The processor's order of operations, so that rounding cannot move a value across a whole number.
    shift = pictures.new_tensor([-each / spread for each, spread in zip(mean, std, strict=True)])
    scale = pictures.new_tensor([1 / spread for spread in std])
    return ((pictures.permute(0, 2, 3, 1) - shift) / scale * 255.0).clamp(0, 255)
