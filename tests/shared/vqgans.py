"""Arguments of picture tokenizers laid out as published ones are."""

from __future__ import annotations

from typing import Any


def vq_config(
    block_out_channels: tuple[int, ...],
    *,
    layers_per_block: int = 2,
    latent_channels: int = 256,
    num_vq_embeddings: int = 16384,
    vq_embed_dim: int = 8,
    norm_num_groups: int = 32,
) -> dict[str, Any]:
    """Arguments of a `diffusers.VQModel` laid out as LlamaGen's: attention in the coarsest level and the middle only.

    Every level but the last halves the side, so n levels downsample by `2 ** (n - 1)`.
    """
    plain = len(block_out_channels) - 1
    return {
        "in_channels": 3,
        "out_channels": 3,
        "down_block_types": ("DownEncoderBlock2D",) * plain + ("AttnDownEncoderBlock2D",),
        "up_block_types": ("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * plain,
        "block_out_channels": tuple(block_out_channels),
        "layers_per_block": layers_per_block,
        "latent_channels": latent_channels,
        "num_vq_embeddings": num_vq_embeddings,
        "vq_embed_dim": vq_embed_dim,
        "norm_num_groups": norm_num_groups,
        "scaling_factor": 1.0,
        "lookup_from_codebook": True,
    }
