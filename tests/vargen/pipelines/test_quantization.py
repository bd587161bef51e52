"""`pipeline.quantize()`: every family draws in int8, exact methods draw what plain decoding draws."""

import copy
from typing import Any

import emu3_models
import family_pipelines
import glm_image_models
import janus_models
import pytest
import torch
from refusals import refused
from seeds import seeded
from tiny_pipelines import build_tiny_pipeline
from torch import Tensor, nn

from specdecode.kernels.quantized import Int4Linear, Int8Linear
from vargen.checkpoints.options import ModelOptions
from vargen.methods.catalogue import resolve_method
from vargen.models.description import open_model
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.pipelines.loading import load_pipeline
from vargen.pipelines.quantization import check_quantization

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on sand"]


@pytest.fixture
def copied(own_kernels: None, drafting_pipeline: LlamaGenPipeline) -> LlamaGenPipeline:
    """A LlamaGen of its own, to be quantized."""
    parts = {name: copy.deepcopy(part) for name, part in drafting_pipeline.components.items()}
    return LlamaGenPipeline(**parts, default_guidance_scale=3.0, default_top_k=0)


def draw(pipeline: Any, method: str, temperature: float, count: int = 2, size: Any = (), **options: object) -> Tensor:
    asked = {"generator": seeded(*range(3, 3 + count)), "temperature": temperature, "output_type": "latent"}
    prompts, chosen = [*PROMPTS, "two cones"][:count], resolve_method(method, options)
    return pipeline(prompts, method=chosen, **asked, **dict(size)).tokens


@pytest.mark.parametrize(
    ("dtype", "quantization", "tiles"),
    [
        (torch.float32, "int8", "auto"),
        (torch.bfloat16, "int8-dynamic", "auto"),
        (torch.bfloat16, None, "off"),
        (torch.bfloat16, None, "plain"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_exact_methods_draw_the_tokens_of_plain_decoding(
    copied, served, monkeypatch, dtype, temperature, quantization, tiles
):
    monkeypatch.setenv("VARGEN_TILES", tiles)
    for part in (copied.transformer, copied.drafter, copied.draft_model):
        nn.Module.to(part, dtype)
    if quantization is not None:
        copied.quantize(quantization)
    plain = draw(copied, "ar", temperature)
    assert torch.equal(draw(copied, "jacobi", temperature, window=5), plain)
    if temperature == 0:
        assert torch.equal(draw(copied, "draft-model", 0.0, draft_length=3), plain)
        assert torch.equal(draw(copied, "eagle", 0.0, total_tokens=6, depth=3), plain)
    assert served and all(served)


@pytest.mark.parametrize(("temperature", "quantization"), [(0.0, None), (1.0, None), (1.0, "int8-dynamic")])
def test_by_tiles_windows_of_any_size_draw_the_tokens_of_plain_decoding(
    own_kernels, served, monkeypatch, temperature, quantization
):
    """Up to 396 rows in a pass, in whole tiles and not."""
    monkeypatch.setenv("VARGEN_TILES", "plain")
    pipeline = build_tiny_pipeline(dim=32, intermediate_size=48, grid_size=9)
    nn.Module.to(pipeline.transformer, torch.bfloat16)
    if quantization is not None:
        pipeline.quantize(quantization)
    for count in (1, 3):
        plain = draw(pipeline, "ar", temperature, count=count)
        for window in (1, 16, 33, 65):
            assert torch.equal(draw(pipeline, "jacobi", temperature, count=count, window=window), plain), window
    assert served and all(served)


@pytest.mark.parametrize("family", ["janus", "emu3", "anole", "liquid"])
def test_by_tiles_other_families_draw_the_tokens_of_plain_decoding(own_kernels, monkeypatch, family):
    """In bytes; their attention is torch's, so in float32 alone."""
    monkeypatch.setenv("VARGEN_TILES", "plain")
    pipeline = family_pipelines.build(family)
    pipeline.model.float()
    pipeline.quantize("int8-dynamic")
    size = {"height": 40, "width": 48} if family == "emu3" else family_pipelines.SIZES.get(family, {})
    for count in (1, 3):
        plain = draw(pipeline, "ar", 1.0, count, size)
        for window in {1, 5, plain.shape[1] - 1}:
            assert torch.equal(draw(pipeline, "jacobi", 1.0, count, size, window=window), plain), window


@pytest.mark.parametrize("quantization", ["int8", "int8-dynamic"])
@torch.no_grad()
def test_the_kernels_compute_what_the_modules_do(copied, drafting_pipeline, monkeypatch, quantization):
    quantized = copied.quantize(quantization)
    fast = draw(quantized, "ar", 0.0)
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    assert torch.equal(draw(quantized, "ar", 0.0), fast)
    layer, was = (pipeline.transformer.transformer_blocks[1].attn.to_qkv for pipeline in (quantized, drafting_pipeline))
    assert type(layer) is Int8Linear and type(was) is nn.Linear
    steps = (layer.weight * layer.scale[:, None] - was.weight).abs() / layer.scale[:, None]
    assert 0.4 < steps.max() <= 0.5001 and layer.weight.abs().amax(1).eq(127).all()
    layer.scale *= 1.3  # a planted fault, seen by both
    assert not torch.equal(draw(quantized, "ar", 0.0), fast)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@torch.no_grad()
def test_in_four_bits_kernels_and_modules_draw_alike_and_exact_methods_too(
    own_kernels, served, monkeypatch, dtype, temperature
):
    pipeline = build_tiny_pipeline(dim=64, intermediate_size=128)
    as_it_was = draw(pipeline, "ar", temperature)
    nn.Module.to(pipeline.transformer, dtype)
    pipeline.quantize("int4")
    assert pipeline.reuse.computed_by(pipeline.transformer.transformer_blocks) == {"quantization": "int4"}
    plain = draw(pipeline, "ar", temperature)
    assert not torch.equal(plain, as_it_was)
    assert torch.equal(draw(pipeline, "jacobi", temperature, window=5), plain)
    assert served and all(served)
    if dtype == torch.float32:
        monkeypatch.setenv("VARGEN_KERNELS", "plain")
        assert torch.equal(draw(pipeline, "ar", temperature), plain)
    layer = pipeline.transformer.transformer_blocks[1].attn.to_qkv
    assert type(layer) is Int4Linear
    layer.weight[:, 3::36] ^= 0x80  # a planted fault: scales turned round
    assert not torch.equal(draw(pipeline, "ar", temperature), plain)


def test_int4_is_refused_where_no_layer_takes_it(copied):
    refused("quantization int4 needs layers whose number of inputs is a multiple of 64; there", copied.quantize, "int4")


@pytest.mark.parametrize("parts", [["decoder"], ["drafts"]])
def test_what_is_rounded_is_not_rounded_otherwise(copied, parts):
    copied.quantize("int8", parts)
    before = copied.reuse.computed_by(copied._decoder_layers)
    for other in ("int4", "int8-dynamic"):
        refused(f"quantization {other} cannot follow int8, .*; load the pipeline again", copied.quantize, other, parts)
    copied.quantize("int8", parts)  # as it is already
    assert copied.reuse.computed_by(copied._decoder_layers) == before


def test_drafts_in_int8_leave_pictures_as_they_are(copied, drafting_pipeline, tmp_path):
    copied.quantize(parts=["drafts"])
    for dtype in (torch.float32, torch.bfloat16):
        for pipeline in (copied, drafting_pipeline):
            for part in (pipeline.transformer, pipeline.drafter, pipeline.draft_model):
                nn.Module.to(part, dtype)
        plain = draw(drafting_pipeline, "ar", 0.0)
        assert torch.equal(draw(copied, "draft-model", 0.0, draft_length=3), plain)
        assert torch.equal(draw(copied, "eagle", 0.0, total_tokens=6, depth=3), plain)
    for part in (drafting_pipeline.transformer, drafting_pipeline.drafter, drafting_pipeline.draft_model):
        nn.Module.to(part, torch.float32)
    assert type(copied.transformer.transformer_blocks[0].attn.to_qkv) is nn.Linear
    assert type(copied.drafter.ff.down_proj) is Int8Linear and type(copied.drafter.fc) is nn.Linear
    assert type(copied.draft_model.transformer_blocks[0].ff.gate_up_proj) is Int8Linear
    copied.reuse.models.clear()
    drafting_pipeline.drafter.save_pretrained(tmp_path / "drafter")  # and one that a method names
    named = draw(copied, "eagle", 0.0, total_tokens=6, depth=3, drafter=str(tmp_path / "drafter"))
    assert torch.equal(named, draw(drafting_pipeline, "ar", 0.0))
    assert type(copied.reuse.models[str(tmp_path / "drafter")].attn.to_out) is Int8Linear


def test_measured_costs_are_of_the_precision_that_draws(copied):
    layers, kept = copied.transformer.transformer_blocks, copied.reuse
    assert kept.computed_by(layers) == {}
    assert copied.quantize(parts=["drafts"]).reuse.computed_by(layers) == {"draft_quantization": "int8"}
    told = copied.quantize("int8-dynamic").reuse.computed_by(layers)
    assert told == {"quantization": "int8-dynamic", "draft_quantization": "int8"}


@pytest.mark.parametrize("save", [janus_models.save, emu3_models.save, glm_image_models.save])
def test_every_family_is_loaded_in_int8(own_kernels, save, tmp_path):
    folder = str(save(tmp_path / "model"))
    options = ModelOptions(folder, quantization="int8", draft_quantization="int8", device="cpu")
    assert options.special == {} and options.identity == {"quantization": "int8", "draft_quantization": "int8"}
    pipeline, device, dtype = load_pipeline(open_model(options), options, quiet=True)
    assert pipeline.reuse.draft_quantization == "int8"
    assert (device, dtype) == ("cpu", "float32")
    linears = [each for each in pipeline._decoder_layers.modules() if isinstance(each, nn.Linear | Int8Linear)]
    assert linears and all(type(each) is Int8Linear for each in linears)


def test_where_nothing_is_gained_it_is_refused(drafting_pipeline, own_kernels, tiny_model_folder, monkeypatch):
    gpu, cpu = torch.device("cuda:0"), torch.device("cpu")
    refused("runs in vargen's own kernels, which need a CPU, not cuda:0; ", check_quantization, "int8", gpu, "bfloat16")
    refused("int8 goes with dtype float32 or bfloat16, got float16", check_quantization, "int8", cpu, "float16")
    refused("quantization must be .* int8, int8-dynamic, int4, got 'nf4'; from_p", drafting_pipeline.quantize, "nf4")
    refused("parts must be among decoder, drafts, got 'head'", drafting_pipeline.quantize, parts=["head"])
    refused("draft_quantization must be one of .*, got 'torchao-int8'", ModelOptions, draft_quantization="torchao-int8")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    options = ModelOptions(str(tiny_model_folder), quantization="bitsandbytes-8bit")
    refused(r"bitsandbytes-8bit cannot be used with .* llamagen; it takes int8 or int8-d", open_model, options)
    monkeypatch.setenv("VARGEN_KERNELS", "plain")
    refused(r"without which it is slower \(VARGEN_KERNELS is plain\)", drafting_pipeline.quantize)
