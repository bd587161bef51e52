"""Weights for a transformer that changes its tokenizer: rows of new codes made from rows of the old ones.

Belongs here: which codes of two tokenizers occur at the same positions. Does not belong here: training.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor

from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.models.llamagen.vq import encode_images


@torch.no_grad()
def code_shares(before: VQModel, now: VQModel, images: Iterable[Tensor]) -> Tensor:
    """Which codes of one tokenizer occur where another one has a given code.

    Args:
        before, now: tokenizers of grids of one size, of K and L codes.
        images: batches [B, 3, H, W] fp32 in [-1, 1].

    Returns:
        [L, K] fp32: for each code of `now`, the frequencies of the codes that `before` has at the same positions; for a
        code that no picture shows, the frequencies over all positions.
    """
    counts = torch.zeros(now.quantize.n_e, before.quantize.n_e)
    for batch in images:
        places = encode_images(now, batch).flatten().cpu(), encode_images(before, batch).flatten().cpu()
        counts.index_put_(places, torch.ones(len(places[0])), accumulate=True)
    everywhere = counts.sum(0, keepdim=True)
    counts = torch.where(counts.sum(1, keepdim=True) > 0, counts, everywhere)
    return counts / counts.sum(1, keepdim=True)


@torch.no_grad()
def translate(transformer: LlamaGenTransformer, shares: Tensor) -> None:
    """Set every code's rows of `token_embedding` and `lm_head` to the mean of the rows that it replaces."""
    for rows in (transformer.token_embedding.weight, transformer.lm_head.weight):
        rows.copy_((shares.to(rows.device) @ rows.float()).to(rows.dtype))
