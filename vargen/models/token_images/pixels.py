"""Codes to pixels for families that draw token by token: a network from a path, pictures, intensities, vectors.

Belongs here: the five functions that the pipeline asks for. Does not belong here: the networks themselves
(`vargen.models.vqgan`, `cosmos.py`), other projects' files (`convert.py`), and which family has which network (its
description).

Every family but SimpleAR has a VQGAN, which runs in float32 as its authors run it; give a `VQModel` in another
precision to the pipeline to have it otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from diffusers.models.autoencoders.vq_model import VQModel
from torch import Tensor, nn

from vargen.base.errors import UserError
from vargen.base.reading import reading
from vargen.checkpoints.finite import check_weights
from vargen.checkpoints.model_folder import check_component_folder
from vargen.models import vqgan
from vargen.models.token_images.convert_token_images import read_vqgan
from vargen.models.token_images.cosmos import CosmosDecoder, load_cosmos_decoder
from vargen.models.token_images.description import TokenImageFamily


def load_pixels(path: str | os.PathLike[str], family: TokenImageFamily, dtype: torch.dtype | None = None) -> nn.Module:
    """The network that makes pictures of a family's codes, in eval mode.

    Args:
        path: a folder of `diffusers.VQModel`, or a .safetensors file with its authors' names; for SimpleAR the file
            decoder.jit of Cosmos, which is run.
        family: whose codes.
        dtype: of the language model, which does not matter: see the head of this module.

    Raises:
        UserError: there is no such file, it holds another network, or it would have to be unpickled.
    """
    path = Path(path)
    if family.pixels.network == "torchscript":
        return load_cosmos_decoder(path)
    if family.pixels.network != "vqvae":
        raise UserError(f"vqvae cannot be given for {family.title}, whose model makes its own pixels; leave it out")
    if path.is_dir() and (path / "config.json").is_file():
        check_component_folder(path, VQModel)
        with reading(path):
            network = VQModel.from_pretrained(path, torch_dtype=torch.float32)
        if not network.config["lookup_from_codebook"]:
            raise UserError(f"{path / 'config.json'} must say lookup_from_codebook: true; convert the tokenizer again")
    elif path.suffix == ".safetensors" and path.is_file():
        network = vqgan.load_vqgan(read_vqgan(path, "vqvae"), path).float()
    else:
        ships = f" ({family.pixels.published})" if family.pixels.published else ""
        raise UserError(
            f"vqvae must be a folder that `vargen convert vqgan` wrote, or a .safetensors file, but {path} is neither; "
            f"convert what {family.title} ships{ships}"
        )
    check_weights(network, path)
    return network.eval()


@torch.no_grad()
def decode_codes(network: nn.Module, codes: Tensor) -> Tensor:
    """Pictures fp32 [B, 3, H, W], nominally in [-1, 1] but not clamped, of codes [B, h, w].

    They are decoded one by one, so that memory is that of one, and no picture depends on another.
    """
    if isinstance(network, CosmosDecoder):
        return torch.cat([network(each) for each in codes.split(1)])
    assert isinstance(network, VQModel)
    return torch.cat([vqgan.decode_codes(network, each) for each in codes.split(1)])


@torch.no_grad()
def encode_pictures(network: nn.Module, pictures: Tensor, nearest: str = "distance") -> Tensor:
    """Codes int64 [B, h, w] of pictures [B, 3, H, W] in [-1, 1]; `nearest` as of `Pixels`."""
    if isinstance(network, CosmosDecoder):
        return torch.cat([network.encode(each) for each in pictures.split(1)])
    assert isinstance(network, VQModel)
    latents = network.encode(pictures.to(network.dtype)).latents.permute(0, 2, 3, 1).float()  # [B, h, w, d]
    vectors = code_vectors(network)
    if nearest == "product":
        return (latents @ vectors.T).argmax(-1)
    return torch.cdist(latents.flatten(0, 2)[None], vectors[None])[0].argmin(-1).view(latents.shape[:3])


def intensities(pictures: Tensor, rounded: bool) -> Tensor:
    """Intensities from 0 to 255 before they are cut to whole numbers.

    Args:
        pictures: fp32 [B, 3, H, W] from `decode_codes`.
        rounded: the family rounds them: they are whole already, and a cut moves none.

    Returns:
        fp32 [B, H, W, 3].
    """
    levels = (pictures.permute(0, 2, 3, 1).clamp(-1, 1) + 1) * 127.5
    return levels.round() if rounded else levels


def code_vectors(network: nn.Module) -> Tensor:
    """Vectors that codes are compared by: fp32 [C, d], entries of the codebook, or coordinates of finite scalars."""
    if isinstance(network, CosmosDecoder):
        return network.code_vectors()
    assert isinstance(network, VQModel)
    return network.quantize.embedding.weight.detach().float()
