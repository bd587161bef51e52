"""Image tokenizers as `diffusers.VQModel`: the official geometries, images to codes, codes to images.

Belongs here: how LlamaGen uses a `VQModel`. Does not belong here: training one, and official key names (`convert.py`).

LlamaGen's codebook lies on the unit sphere. `VQModel` never normalises, so conversion and training store unit vectors.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor

from vargen.models import vqgan


def downsampling_factor(vqvae: VQModel) -> int:
    """Pixels along a token's side."""
    return 2 ** (len(vqvae.config["block_out_channels"]) - 1)


def unit_codebook(vqvae: VQModel) -> Tensor:
    """The codebook as fp32 unit vectors `[num_vq_embeddings, vq_embed_dim]`, the space in which codes are compared.

    Use this, not the raw weight, for distances between codes: different norms give different neighbours.
    """
    return F.normalize(vqvae.quantize.embedding.weight.float(), dim=-1)


def encode_images(vqvae: VQModel, images: Tensor) -> Tensor:
    """The codes of images.

    Args:
        vqvae: the tokenizer.
        images: `[B, 3, H, W]` in [-1, 1]; sides divisible by `downsampling_factor(vqvae)`.

    Returns:
        int64 `[B, N]` in raster order, N = H * W / factor ** 2.

    Raises:
        ValueError: a side is not divisible.
    """
    factor = downsampling_factor(vqvae)
    if images.shape[-1] % factor or images.shape[-2] % factor:
        raise ValueError(f"images must have sides divisible by {factor}, got {tuple(images.shape[-2:])}.")
    latents = vqvae.encode(images.to(vqvae.dtype)).latents  # [B, D, h, w]
    # Among unit codewords the nearest to a latent of any length is the one with the largest product. Not in autocast:
    # products of neighbouring codewords are equal in bfloat16.
    with torch.autocast(images.device.type, enabled=False):
        scores = torch.einsum("bdhw,kd->bhwk", latents.float(), unit_codebook(vqvae))
    return scores.argmax(dim=-1).flatten(1)


def decode_codes(
    vqvae: VQModel, codes: Tensor, grid_shape: tuple[int, int] | None = None, dtype: torch.dtype | None = None
) -> Tensor:
    """The images of codes.

    Args:
        vqvae: the tokenizer, configured with `lookup_from_codebook`.
        codes: integer `[B, N]` in raster order.
        grid_shape: rows and columns of tokens; None for a square.
        dtype: see `vqgan.decode_codes`.

    Returns:
        fp32 `[B, 3, H, W]`, nominally in [-1, 1] but not clamped.

    Raises:
        ValueError: the codes do not fill the grid, or the tokenizer cannot look codes up.
    """
    batch_size, num_codes = codes.shape
    rows, columns = grid_shape or (math.isqrt(num_codes),) * 2
    if rows * columns != num_codes:
        raise ValueError(f"codes must fill the grid of tokens, got {num_codes} codes; give grid_shape if not square.")
    return vqgan.decode_codes(vqvae, codes.reshape(batch_size, rows, columns), dtype)
