"""Conversion of official official_files: containers, inference from shapes, strictness, and what is refused."""

import argparse
from typing import Any

import pytest
import torch
from diffusers import VQModel
from official_layout import golden, official_transformer_shapes, official_vq_shapes
from refusals import raised, refused
from torch import Tensor
from vqgans import vq_config

from vargen.models.llamagen.convert_llamagen import (
    convert_transformer_state_dict,
    convert_vq_state_dict,
    infer_transformer_config,
    load_transformer,
    load_vq_model,
    read_checkpoint,
)
from vargen.models.llamagen.transformer import LLAMAGEN_SIZES, LlamaGenTransformer, default_intermediate_size
from vargen.models.llamagen.vq import decode_codes, downsampling_factor, encode_images, unit_codebook
from vargen.models.vqgan import infer_vqgan_config


def on_meta(shapes: dict[str, list[int]]) -> dict[str, Tensor]:
    return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}


# Containers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrap",
    [
        lambda weights: {"model": weights, "optimizer": {"lr": 1}, "steps": 7, "args": argparse.Namespace(a=1)},
        lambda weights: {"module": weights},
        lambda weights: {"state_dict": weights},
        lambda weights: weights,
    ],
    ids=["model", "module", "state_dict", "bare"],
)
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_containers(tmp_path, small_class_weights, wrap, zipped):
    path = tmp_path / "weights.pt"
    torch.save(wrap(small_class_weights), path, _use_new_zipfile_serialization=zipped)
    read = read_checkpoint(path, "transformer")
    assert read.keys() == small_class_weights.keys()
    assert all(torch.equal(read[key], value) for key, value in small_class_weights.items())


# Transformer ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", LLAMAGEN_SIZES)
@pytest.mark.parametrize("condition_type", ["class", "text"])
def test_published_sizes_are_recognised(size, condition_type):
    geometry = LLAMAGEN_SIZES[size]
    dim = geometry["dim"]
    condition: dict[str, Any] = {"num_classes": 1000} if condition_type == "class" else {"caption": (120, 2048)}
    shapes = official_transformer_shapes(
        dim, geometry["num_layers"], default_intermediate_size(dim), 16384, **condition
    )
    official = on_meta(shapes)
    assert len(official) == 7 * geometry["num_layers"] + (4 if condition_type == "class" else 6)
    config = infer_transformer_config(official)
    with torch.device("meta"):
        expected = LlamaGenTransformer(**LLAMAGEN_SIZES[size], condition_type=condition_type)
        assert {key: expected.config[key] for key in config} == config
        renamed = convert_transformer_state_dict(official)
    assert {key: value.shape for key, value in renamed.items()} == {
        key: value.shape for key, value in expected.state_dict().items()
    }


def test_grouped_heads_are_recognised():
    shapes = official_transformer_shapes(32, 1, 48, 40, key_value_rows=2 * 2 * 8)
    config = infer_transformer_config(on_meta(shapes), num_attention_heads=4)
    assert config["num_key_value_heads"] == 2


def test_geometry_that_nobody_has_is_refused(small_class_weights):
    rows, layer = "layers.0.attention.wqkv.weight", "layers.99999999.ffn_norm.weight"
    heads = "num_attention_heads must divide the width 32 .* got {}[.]$"
    of_rows = f"{rows} of {{}} rows, .* 4 heads of 8; give another num_attention_heads"
    cases = [
        (None, {}, "num_attention_heads must be given"),
        *((each, {}, heads.format(each)) for each in (0, 5, 16, 32)),
    ]
    for count in (16, 32, 40, 32 + 2 * 3 * 8, 32 + 2 * 8 * 8):
        cases.append((4, {rows: torch.zeros(count, 32)}, of_rows.format(count)))
    cases.append((4, {layer: torch.zeros(32)}, "transformer has a layer 99999999"))
    for num_heads, changed, message in cases:
        refused(message, infer_transformer_config, small_class_weights | changed, num_heads)
    del small_class_weights["cls_embedding.embedding_table.weight"]
    refused("neither class nor caption", infer_transformer_config, small_class_weights, 4)


def test_only_the_rotary_table_may_be_surplus(small_text_weights):
    config = infer_transformer_config(small_text_weights, 4) | {"grid_size": 4}
    model = load_transformer(small_text_weights | {"freqs_cis": torch.zeros(25, 4, 2)}, config)
    assert not model.training and not any(tensor.is_meta for tensor in model.state_dict().values())
    assert torch.equal(model.null_caption_embeds, small_text_weights["cls_embedding.uncond_embedding"])
    surplus = small_text_weights | {"extra": torch.zeros(1)}
    refused("1 weights that LlamaGenTransformer does not have, such as extra", load_transformer, surplus, config)
    for key in small_text_weights:
        incomplete = {name: value for name, value in small_text_weights.items() if name != key}
        refused("lacks", load_transformer, incomplete, config)
    wide = small_text_weights | {"output.weight": torch.zeros(41, 32)}
    refused(r"another size, such as lm_head.weight: \(41, 32\) instead of \(40, 32\)", load_transformer, wide, config)


# Tokenizer ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "channels", "entries", "parameters"),
    [("VQ-16", [128, 128, 256, 256, 512], 344, 71_883_403), ("VQ-8", [128, 256, 256, 512], 300, 70_109_835)],
)
def test_official_tokenizers(kind, channels, entries, parameters):
    shapes = official_vq_shapes(channels)
    assert len(shapes) == entries
    if kind == "VQ-16":
        assert shapes == golden("vq16")[0]["state_dict"]
    with torch.device("meta"):
        model = VQModel(**vq_config(tuple(channels)))
        renamed = convert_vq_state_dict(on_meta(shapes))
        inferred = VQModel(**infer_vqgan_config(on_meta(shapes)))
    expected = {key: value.shape for key, value in model.state_dict().items()}
    assert {key: value.shape for key, value in renamed.items()} == expected
    assert inferred.config == model.config
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert downsampling_factor(model) == int(kind.removeprefix("VQ-"))


def test_codebook_becomes_unit_vectors(small_vq_weights):
    small_vq_weights["quantize.embedding.weight"] *= torch.linspace(0.1, 9, 40)[:, None]
    model = load_vq_model(small_vq_weights)
    assert torch.allclose(model.quantize.embedding.weight.norm(dim=-1), torch.ones(40))
    assert torch.allclose(unit_codebook(model), model.quantize.embedding.weight)


@torch.no_grad()
def test_codes_and_images(small_vq_weights):
    model = load_vq_model(small_vq_weights)
    images = torch.rand(2, 3, 12, 16) * 2 - 1
    codes = encode_images(model, images)
    assert codes.shape == (2, 12) and codes.dtype == torch.int64
    # diffusers' own quantiser finds the same codes, since the codewords are unit vectors
    latents = model.encode(images).latents
    assert torch.equal(model.quantize(latents)[2][2], codes.flatten())
    decoded = decode_codes(model, codes, (3, 4))
    assert decoded.shape == (2, 3, 12, 16)
    torch.testing.assert_close(decoded, model.decode(latents).sample, atol=1e-4, rtol=0)
    rounded = decode_codes(model, codes, (3, 4), torch.bfloat16)
    assert rounded.dtype == model.dtype == torch.float32 and not torch.equal(rounded, decoded)
    torch.testing.assert_close(rounded, decoded, atol=0.2, rtol=0)

    raised(ValueError, "grid_shape", decode_codes, model, codes)
    raised(ValueError, "divisible by 4", encode_images, model, torch.zeros(1, 3, 10, 12))
    model.register_to_config(lookup_from_codebook=False)
    raised(ValueError, "lookup_from_codebook=True", decode_codes, model, codes, (3, 4))
