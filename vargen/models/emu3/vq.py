"""Emu3's image tokenizer, as the model has it: its codebook, and pictures from codes.

Belongs here: what `Emu3ForConditionalGeneration` does with codes, and how its numbers become intensities. Does not
belong here: who chose the codes, what they are called in the vocabulary of text (`vocabulary.py`), and files.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Emu3ForConditionalGeneration


def unit_codebook(model: Emu3ForConditionalGeneration) -> Tensor:
    """The codes, and the mark that ends a line, as fp32 unit vectors [C + 1, d + 2].

    The tokenizer looks codes up without normalising them, so codes of one direction are not alike. They are lifted
    onto a sphere: divided by the greatest length, and given the height that makes them unit vectors. Codes of one
    length keep their distances, up to that factor, and others are further apart by their difference in height. The mark
    stands at right angles to all.
    """
    codes = model.model.vqmodel.quantize.embedding.weight.detach().float()
    codes = codes / codes.norm(dim=1).max()
    height = (1 - codes.square().sum(1, keepdim=True)).clamp(min=0).sqrt()
    vectors = F.pad(torch.cat((codes, height), 1), (0, 1, 0, 1))
    vectors[-1, -1] = 1.0
    return vectors


@torch.no_grad()
def decode_codes(model: Emu3ForConditionalGeneration, codes: Tensor) -> Tensor:
    """Pictures from codes [B, h, w], each decoded on its own and in the model's precision.

    Returns:
        fp32 [B, 3, H, W], nominally in [-1, 1] but not clamped.
    """
    return torch.cat([model.model.vqmodel.decode(row).float() for row in codes.split(1)])


def intensities(pictures: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """The 255ths of full intensity that `Emu3Processor.postprocess` sees, before it drops what follows the point.

    Args:
        pictures: fp32 [B, 3, H, W] from `decode_codes`.
        mean, std: three each, of the image processor.

    Returns:
        fp32 [B, H, W, 3] in [0, 255].
    """
    # Normalised backwards in the same order of operations, so that no rounding crosses a whole number.
    shift = pictures.new_tensor([-each / spread for each, spread in zip(mean, std, strict=True)])
    scale = pictures.new_tensor([1 / spread for spread in std])
    return ((pictures.permute(0, 2, 3, 1) - shift) / scale * 255.0).clamp(0, 255)
