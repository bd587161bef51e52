"""Pixels of the families that draw token by token: the public code's pictures, what is loaded and what is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import VQModel
from official_layout import fill_by_rule, golden
from refusals import refused
from safetensors.torch import save_file
from torch import Tensor

from vargen.models.token_images.anole import ANOLE
from vargen.models.token_images.cosmos import LEVELS
from vargen.models.token_images.description import Pixels
from vargen.models.token_images.emu3_5 import EMU3_5
from vargen.models.token_images.pixels import code_vectors, decode_codes, encode_pictures, intensities, load_pixels
from vargen.models.vqgan import load_vqgan

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # of writing scripts

GOLDENS = ("emu35_tiny", "lumina_mgpt_tiny", "movq_tiny")


VQGAN = replace(ANOLE, title="Anyone", pixels=Pixels("vqvae", published="vqgan.ckpt"))
COSMOS = replace(ANOLE, title="Anyone", pixels=Pixels("torchscript", published="decoder.jit"))
OWN = replace(ANOLE, title="Anyone", pixels=Pixels("own"))


def published(description: dict[str, Any]) -> dict[str, Tensor]:
    return fill_by_rule(description["tokenizer_state_dict"], f"{description['salt']}/vq")


@pytest.fixture(params=GOLDENS)
def case(request) -> tuple[dict[str, Any], dict[str, Tensor], VQModel]:
    description, tensors = golden(request.param)
    return description, tensors, load_vqgan(published(description), request.param)


def test_pictures_of_the_public_code(case):
    description, tensors, network = case
    names = [f"case{number}." for number in range(len(description["cases"]))] if "cases" in description else [""]
    for name in names:
        codes = tensors[f"{name}codes"].long() % description["tokenizer"]["n_embed"]
        picture = decode_codes(network, codes[None])
        torch.testing.assert_close(picture[0], tensors[f"{name}decoded"].float(), atol=2e-3, rtol=0)


@torch.no_grad()
def test_codes_of_the_public_code():
    description, tensors = golden("movq_tiny")
    network = load_vqgan(published(description))
    assert torch.equal(encode_pictures(network, tensors["image"])[0], tensors["encoded_codes"].long())


@torch.no_grad()
@pytest.mark.parametrize("nearest", ["distance", "product"])
def test_a_code_is_the_nearest_entry_by_the_familys_rule(nearest):
    """IBQ takes the greatest product, all others the least distance; code by code."""
    network = load_vqgan(published(golden("emu35_tiny")[0]))
    picture = torch.rand(1, 3, 32, 48, generator=torch.Generator().manual_seed(0)) * 2 - 1
    latents, entries = network.encode(picture).latents[0], network.quantize.embedding.weight
    codes = encode_pictures(network, picture, nearest)[0]
    for row in range(codes.shape[0]):
        for column in range(codes.shape[1]):
            one = latents[:, row, column]
            scores = entries @ one if nearest == "product" else -(entries - one).square().sum(1)
            assert int(codes[row, column]) == int(scores.argmax())
    assert len(codes.unique()) > 1 and EMU3_5.pixels.nearest == "product"


def test_the_configuration_is_in_the_shapes(case):
    description, _, network = case
    asked, found = description["tokenizer"]["ddconfig"], network.config
    assert found["block_out_channels"] == tuple(asked["ch"] * factor for factor in asked["ch_mult"])
    assert found["layers_per_block"] == asked["num_res_blocks"]
    assert found["latent_channels"] == asked["z_channels"]
    assert found["vq_embed_dim"] == description["tokenizer"]["embed_dim"]
    sides = [asked["resolution"] // 2**level for level in range(len(asked["ch_mult"]))]
    kinds = tuple("Attn" * (side in asked["attn_resolutions"]) + "DownEncoderBlock2D" for side in sides)
    assert found["down_block_types"] == kinds


# Loading --------------------------------------------------------------------------------------------------------------


def test_a_folder_and_a_file_give_the_same_pictures(tmp_path):
    description, tensors = golden("lumina_mgpt_tiny")
    weights = published(description)
    load_vqgan(weights).save_pretrained(tmp_path / "vqvae")
    save_file(weights, tmp_path / "vqgan.safetensors")
    codes = tensors["case1.codes"].long()[None] % description["tokenizer"]["n_embed"]
    folder, file = (load_pixels(tmp_path / name, VQGAN, torch.bfloat16) for name in ("vqvae", "vqgan.safetensors"))
    assert folder.training is file.training is False
    assert torch.equal(decode_codes(folder, codes), decode_codes(file, codes))
    assert torch.equal(code_vectors(folder), weights["quantize.embedding.weight"])


def test_a_picture_does_not_depend_on_others(case):
    description, _, network = case
    codes = torch.randint(description["tokenizer"]["n_embed"], (3, 2, 5))
    assert torch.equal(decode_codes(network, codes), torch.cat([decode_codes(network, each[None]) for each in codes]))


def test_what_is_no_pixel_tokenizer_is_refused(tmp_path):
    weights = published(golden("lumina_mgpt_tiny")[0])
    torch.save({"state_dict": weights}, tmp_path / "vqgan.ckpt")
    for path in (tmp_path, tmp_path / "absent", tmp_path / "absent.safetensors", tmp_path / "vqgan.ckpt"):
        refused(r"vargen convert vqgan.*what Anyone ships \(vqgan.ckpt\)", load_pixels, path, VQGAN)
    (tmp_path / "cut.safetensors").write_bytes(b"\x10")
    refused("truncated or not a safetensors file", load_pixels, tmp_path / "cut.safetensors", VQGAN)
    save_file({"lm_head.weight": torch.zeros(2)}, tmp_path / "other.safetensors")
    refused(r"holds no 'quantize.embedding.weight'", load_pixels, tmp_path / "other.safetensors", VQGAN)
    infinite = {name: torch.full_like(each, torch.inf) for name, each in weights.items() if name.endswith("out.bias")}
    save_file(weights | infinite, tmp_path / "infinite.safetensors")
    refused("are not finite in float32; copy the file again", load_pixels, tmp_path / "infinite.safetensors", VQGAN)
    load_vqgan(weights).save_pretrained(tmp_path / "vqvae")
    config = json.loads((tmp_path / "vqvae" / "config.json").read_text())
    (tmp_path / "vqvae" / "config.json").write_text(json.dumps(config | {"lookup_from_codebook": False}))
    refused("lookup_from_codebook", load_pixels, tmp_path / "vqvae", VQGAN)
    refused("Anyone, whose model makes its own pixels", load_pixels, tmp_path / "vqvae", OWN)


# Intensities ----------------------------------------------------------------------------------------------------------


def test_intensities_are_cut_or_rounded():
    pictures = torch.tensor([-7.0, -1.0, -0.999, 0.0, 0.999, 1.0, 3.0]).view(1, 1, 1, -1).expand(1, 3, 1, -1)
    cut, rounded = (intensities(pictures, each)[0, 0, :, 1].byte().tolist() for each in (False, True))
    assert cut == [0, 0, 0, 127, 254, 255, 255]
    assert rounded == [0, 0, 0, 128, 255, 255, 255]


# Cosmos ---------------------------------------------------------------------------------------------------------------


class Codes(torch.nn.Module):
    """An encoder by Cosmos's contract: codes [1, frames, h, w] of pictures [1, 3, frames, H, W], then vectors."""

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = pictures.shape[3] // 16, pictures.shape[4] // 16
        return torch.arange(rows * columns).view(1, 1, rows, columns), pictures


class Blocks(torch.nn.Module):
    """A picture of codes in squares of 16 pixels, in the place of Cosmos's decoder."""

    def __init__(self, side: int = 16) -> None:
        super().__init__()
        self.side = side

    def forward(self, codes: Tensor) -> Tensor:
        """[B, 3, frames, h, w] of [B, frames, h, w]."""
        grown = codes.repeat_interleave(self.side, 2).repeat_interleave(self.side, 3)
        return (grown.to(torch.bfloat16) / 64_000)[:, None].expand(-1, 3, -1, -1, -1)


def write_script(path: Path, module: torch.nn.Module) -> Path:
    torch.jit.save(torch.jit.script(module), str(path))
    return path


def test_a_script_runs_only_where_it_is_named(tmp_path):
    path = write_script(tmp_path / "decoder.jit", Blocks())
    network = load_pixels(path, COSMOS, torch.bfloat16)
    codes = torch.randint(64_000, (2, 2, 3))
    pictures = decode_codes(network, codes)
    assert pictures.dtype == torch.float32 and pictures.shape == (2, 3, 32, 48)
    torch.testing.assert_close(pictures[:, 1, ::16, ::16], codes / 64_000, atol=4e-3, rtol=0)
    refused(r"decoder.jit of Cosmos, but .* is a folder", load_pixels, tmp_path, COSMOS)
    refused("vargen convert vqgan", load_pixels, path, VQGAN)


def test_other_scripts_and_files_are_refused(tmp_path):
    smaller = load_pixels(write_script(tmp_path / "smaller.jit", Blocks(8)), COSMOS)
    codes = torch.zeros(1, 2, 3, dtype=torch.long)
    refused(r"smaller.jit is not decoder.jit .*gives \[1, 3, 1, 16, 24\]", decode_codes, smaller, codes)
    linear = load_pixels(write_script(tmp_path / "linear.jit", torch.nn.Linear(2, 2)), COSMOS)
    refused(r"linear.jit is not decoder.jit", decode_codes, linear, codes)
    (tmp_path / "page.jit").write_text("<html>")
    refused("cannot be read as TorchScript", load_pixels, tmp_path / "page.jit", COSMOS)


def test_codes_of_cosmos_are_coordinates(tmp_path):
    network = load_pixels(write_script(tmp_path / "decoder.jit", Blocks()), COSMOS)
    picture = torch.zeros(1, 3, 32, 48)
    refused(r"TorchScript file encoder.jit of Cosmos, but .* does not exist", encode_pictures, network, picture)
    write_script(tmp_path / "encoder.jit", Codes())
    assert torch.equal(encode_pictures(network, picture), torch.arange(6).view(1, 2, 3))
    write_script(tmp_path / "encoder.jit", Blocks())
    network = load_pixels(tmp_path / "decoder.jit", COSMOS)
    refused(r"is not encoder.jit of Cosmos", encode_pictures, network, picture)
    vectors = code_vectors(network)
    assert vectors.shape == (64_000, 6) and len(vectors.unique(dim=0)) == 64_000
    assert vectors.amin(0).tolist() == [-1.0] * 6 and vectors.amax(0).tolist() == [0.75] * 3 + [1.0] * 3
    # A code is its coordinates in mixed radix, the first the fastest.
    whole = torch.stack([(vectors[:, axis] + 1) * (levels // 2) for axis, levels in enumerate(LEVELS)], 1)
    radix = torch.tensor([1, *LEVELS[:-1]]).cumprod(0)
    assert torch.equal((whole.round().long() * radix).sum(1), torch.arange(64_000))
