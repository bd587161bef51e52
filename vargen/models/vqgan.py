"""VQGANs as `diffusers.VQModel`: weights under the names of their authors, and pictures from codes.

Belongs here: the layouts that taming-transformers began, which are those of the picture tokenizers of LlamaGen,
Chameleon (Lumina-mGPT, Anole, Liquid), Emu3.5 (IBQ) and Lumina-mGPT 2.0 (MoVQ). Does not belong here: reading files,
which family rounds its intensities how, and tokenizers that are no VQGAN.

Sources of the names: `taming/modules/diffusionmodules/model.py` of github.com/CompVis/taming-transformers (VQGAN, Esser
et al. 2021, arXiv 2012.09841), `movqgan/modules/vqvae/movq_modules.py` of github.com/ai-forever/MoVQGAN (MoVQ, Zheng et
al. 2022, arXiv 2209.09002), and LlamaGen's `vq_model.py`.
"""

from __future__ import annotations

import os
import re
from typing import Any

import torch
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor

from vargen.base.errors import UserError
from vargen.checkpoints.foreign_weights import StateDict, load_converted

CODEBOOK = "quantize.embedding.weight"
"""The key by which a VQGAN is known."""

# Two spellings each: taming's, and LlamaGen's.
_LEVEL = r"(?:down|up|conv_blocks)"
_RESNET = r"(?:block|res)"
_MIDDLE = {
    "block_1": "resnets.0", "attn_1": "attentions.0", "block_2": "resnets.1",
    "0": "resnets.0", "1": "attentions.0", "2": "resnets.1",
}  # fmt: skip
_ATTENTION = {"q": "to_q", "k": "to_k", "v": "to_v", "proj_out": "to_out.0"}


def infer_vqgan_config(weights: StateDict, argument: str = "checkpoint") -> dict[str, Any]:
    """Arguments of the `VQModel` that the shapes of a published state dict describe.

    Args:
        weights: with the authors' keys; shapes suffice.
        argument: names the file in errors.

    Raises:
        UserError: they are no VQGAN, or some are missing.
    """

    def rows(key: str) -> int:
        if key not in weights or weights[key].ndim < 2:
            raise UserError(f"{argument} lacks {key} of a VQGAN; the file is incomplete or another, download it again.")
        if 0 in weights[key].shape:
            raise UserError(f"{argument} holds {key} of a VQGAN without numbers; download it again.")
        return weights[key].shape[0]

    def numbers(pattern: str) -> list[int]:
        return sorted({int(found[1]) for key in weights if (found := re.match(pattern, key))})

    num_codes = rows(CODEBOOK)
    levels = numbers(rf"encoder\.{_LEVEL}\.(\d+)\.")
    found = (key for key in weights if re.match(rf"encoder\.{_LEVEL}\.0\.{_RESNET}\.0\.conv1\.weight$", key))
    first = next(found, "encoder.down.0.block.0.conv1.weight")
    if not levels:
        raise UserError(f"{argument} holds no levels of an encoder, as a VQGAN has; it is a file of another kind.")
    attended = numbers(rf"encoder\.{_LEVEL}\.(\d+)\.attn\.")
    return {
        "in_channels": 3,
        "out_channels": 3,
        "down_block_types": tuple(f"{'Attn' * (level in attended)}DownEncoderBlock2D" for level in levels),
        "up_block_types": tuple(f"{'Attn' * (level in attended)}UpDecoderBlock2D" for level in reversed(levels)),
        "block_out_channels": tuple(rows(re.sub(r"\.0\.", f".{level}.", first, count=1)) for level in levels),
        "layers_per_block": len(numbers(rf"encoder\.{_LEVEL}\.0\.{_RESNET}\.(\d+)\.")),
        "latent_channels": rows("encoder.conv_out.weight"),
        "num_vq_embeddings": num_codes,
        "vq_embed_dim": weights[CODEBOOK].shape[1],
        "norm_num_groups": 32,
        "scaling_factor": 1.0,
        "lookup_from_codebook": True,
        **({"norm_type": "spatial"} if "decoder.norm_out.conv_y.weight" in weights else {}),  # MoVQ's
    }


def convert_vqgan_state_dict(weights: StateDict) -> StateDict:
    """A published state dict under the names of `VQModel`.

    Attention's 1x1 convolutions become linear layers. taming counts the decoder's levels from the finest, diffusers
    from the coarsest. Unknown keys keep their names, and strict loading refuses them.
    """
    levels = [int(found[1]) for key in weights if (found := re.match(r"decoder\.up\.(\d+)\.", key))]
    converted: StateDict = {}
    for key, tensor in weights.items():
        name = _renamed(key, max(levels, default=0))
        is_matrix = re.search(r"\.attentions\.\d+\.to_\w+(\.0)?\.weight$", name) is not None
        converted[name] = (tensor[:, :, 0, 0] if is_matrix and tensor.ndim == 4 else tensor).contiguous()
    return converted


def _renamed(key: str, coarsest: int) -> str:
    side, _, rest = key.partition(".")
    if side not in ("encoder", "decoder"):
        return key
    blocks = "down_blocks" if side == "encoder" else "up_blocks"
    rest = re.sub(r"^norm_out\.", "conv_norm_out.", rest)
    rest = re.sub(r"^mid\.(\w+)\.", lambda found: f"mid_block.{_MIDDLE.get(found[1], found[1])}.", rest)
    rest = re.sub(r"^up\.(\d+)\.", lambda found: f"{blocks}.{coarsest - int(found[1])}.", rest)
    rest = re.sub(rf"^{_LEVEL}\.(\d+)\.", rf"{blocks}.\1.", rest)
    rest = re.sub(rf"\.{_RESNET}\.(\d+)\.", r".resnets.\1.", rest)
    rest = re.sub(r"\.attn\.(\d+)\.", r".attentions.\1.", rest)
    rest = re.sub(r"\.(down|up)sample\.conv\.", r".\1samplers.0.conv.", rest)
    rest = rest.replace("nin_shortcut", "conv_shortcut")
    if ".attentions." in rest:
        rest = re.sub(r"\.(q|k|v|proj_out)\.", lambda found: f".{_ATTENTION[found[1]]}.", rest)
        rest = re.sub(r"\.norm\.(norm_layer|conv_y|conv_b)\.", r".spatial_norm.\1.", rest)
        rest = re.sub(r"\.norm\.", ".group_norm.", rest)
    return f"{side}.{rest}"


def load_vqgan(weights: StateDict, source: str | os.PathLike[str] = "checkpoint") -> VQModel:
    """A `VQModel` with published weights, in eval mode.

    Args:
        weights: with the authors' keys.
        source: names the file in errors.

    Raises:
        UserError: a tensor is missing, unknown or of another size.
    """
    return load_converted(VQModel, infer_vqgan_config(weights, str(source)), convert_vqgan_state_dict, weights, source)


def decode_codes(vqvae: VQModel, codes: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Pictures of codes.

    Memory grows with pixels and pictures. `VQModel` has no tiles (`enable_tiling` raises): its norms are over a whole
    picture, and tiles would show.

    Args:
        vqvae: a tokenizer with `lookup_from_codebook`.
        codes: integer [B, h, w].
        dtype: of convolutions and products, which leaves the weights as they are; None: the tokenizer's precision.

    Returns:
        fp32 [B, 3, H, W], nominally in [-1, 1] but not clamped.

    Raises:
        ValueError: the tokenizer cannot look codes up.
    """
    if not vqvae.config["lookup_from_codebook"]:
        raise ValueError("vqvae must be configured with lookup_from_codebook=True to decode codes.")
    kernels = vqvae.decoder.conv_in.weight
    if kernels.device.type == "cpu" and not kernels.is_contiguous(memory_format=torch.channels_last):
        vqvae.decoder.to(memory_format=torch.channels_last)  # faster there, and the same picture but for rounding
    # The last entry is the length of a codeword, not latent_channels: the lookup happens before post_quant_conv.
    shape = (*codes.shape, vqvae.quantize.vq_embed_dim)
    with torch.autocast(codes.device.type, dtype, enabled=dtype not in (None, vqvae.dtype)):
        return vqvae.decode(codes, force_not_quantize=True, shape=shape).sample.float()
