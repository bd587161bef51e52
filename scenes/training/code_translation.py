"""Codes of one tokenizer in words of another's, for a transformer that goes on with a new tokenizer.

Belongs here: which codes of two tokenizers stand for the same things, and rows of weights made from that. Does not
belong here: training either.
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
    """What another tokenizer says where a code stands.

    Args:
        before, now: tokenizers of grids of one size, of K and L codes.
        images: batches [B, 3, H, W] fp32 in [-1, 1].

    Returns:
        [L, K] fp32: of the places of each of `now`'s codes the share at which `before` has each of its own; of a code
        that no picture shows, that of all places.
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
    """Make every code's rows of `token_embedding` and `lm_head` the mean of those of the codes that it replaces."""
    for rows in (transformer.token_embedding.weight, transformer.lm_head.weight):
        rows.copy_((shares.to(rows.device) @ rows.float()).to(rows.dtype))
