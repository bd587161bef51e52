"""Networks beside a small model: its tokens stay its own, and they see every pass of it, no more and no less."""

from __future__ import annotations

import copy
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import weighted
from tiny_pipelines import build_drafting_pipeline
from torch import Tensor
from weighted import WeightedPipeline, WeightNetworks

from specdecode.kernels.quantized import quantization_of
from vargen.base.errors import UserError
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a cone", "a small shiny blue sphere left of a large green cone on grass", "two cones"]
GEOMETRIES = {
    "B": {"dim": 16, "num_layers": 1, "num_attention_heads": 2, "vocab_size": 40},
    "L": {"dim": 24, "num_layers": 2, "num_attention_heads": 2, "vocab_size": 40},
}


@pytest.fixture(autouse=True)
def costs_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "costs"))


@pytest.fixture
def drafting_pipeline() -> LlamaGenPipeline:
    return build_drafting_pipeline()


@pytest.fixture
def weighted_pipeline(drafting_pipeline: LlamaGenPipeline) -> WeightedPipeline:
    networks = WeightNetworks.of_size("LlamaGen-L", drafting_pipeline.transformer, torch.float32, GEOMETRIES)
    return WeightedPipeline.of(drafting_pipeline, networks)


def draw(pipeline: LlamaGenPipeline, method: str, **other: Any) -> Any:
    generators = [torch.Generator().manual_seed(100 + row) for row in range(3)]
    return pipeline(PROMPTS, generator=generators, method=method, output_type="latent", **other)


@pytest.mark.parametrize("method", ["ar", "jacobi", "eagle", "vvs", "draft-model"])
@pytest.mark.parametrize("scale", [1.0, 3.0])
def test_tokens_are_the_small_models_and_every_pass_was_seen(
    drafting_pipeline: LlamaGenPipeline,
    weighted_pipeline: WeightedPipeline,
    method: str,
    scale: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {
        "eagle": {"total_tokens": 10, "depth": 3},
        "vvs": {"total_tokens": 10, "depth": 3},
        "jacobi": {"window": 5},
    }
    chosen: Any = drafting_pipeline.resolve_method(method, settings.get(method))
    plain = draw(drafting_pipeline, chosen, guidance_scale=scale)
    networks = weighted_pipeline.networks
    fed: list[tuple[Any, tuple[int, ...], list[int]]] = []
    original = LlamaGenTarget.forward

    def watched(self: LlamaGenTarget, tokens: Tensor, mask: Tensor, depths: Tensor) -> Any:
        fed.append((self.transformer, tuple(tokens.shape), self.kv_cache.lengths.tolist()))
        return original(self, tokens, mask, depths)

    monkeypatch.setattr(LlamaGenTarget, "forward", watched)
    drawn = draw(weighted_pipeline, chosen, guidance_scale=scale)
    assert torch.equal(plain.tokens, drawn.tokens) and plain.trace.steps == drawn.trace.steps
    assert len(networks.passes["target"]) == drawn.trace.target_passes - 1
    # Beside every forward pass of the model runs one over as many tokens of as many rows, behind as many kept ones.
    light = [each[1:] for each in fed if each[0] is drafting_pipeline.transformer]
    heavy = [each[1:] for each in fed if each[0] is networks.transformer]
    assert light == heavy and len(light) == drawn.trace.target_passes - 1
    assert bool(networks.passes["head"]) == (method in ("eagle", "vvs"))
    assert bool(networks.passes["draft model"]) == (method == "draft-model")
    if method == "draft-model":
        kinds = [each[0] for each in fed]
        assert kinds.count(networks.draft_model) == kinds.count(drafting_pipeline.draft_model)


@pytest.mark.parametrize("method", ["zipar", "vvs-rows"])
def test_passes_over_places_are_weighted_too(
    drafting_pipeline: LlamaGenPipeline,
    weighted_pipeline: WeightedPipeline,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"zipar": {"window": 2}, "vvs-rows": {"opens_after": 2, "guesses": 3, "looks": 1}}
    chosen: Any = drafting_pipeline.resolve_method(method, settings[method])
    plain = draw(drafting_pipeline, chosen)
    networks, original = weighted_pipeline.networks, LlamaGenTarget.forward_places
    fed: list[tuple[Any, tuple[int, ...], list[list[int]]]] = []

    def watched(self: LlamaGenTarget, tokens: Tensor, placed: Any) -> Any:
        fed.append((self.transformer, tuple(tokens.shape), placed.slots.tolist()))
        return original(self, tokens, placed)

    monkeypatch.setattr(LlamaGenTarget, "forward_places", watched)
    drawn = draw(weighted_pipeline, chosen)
    assert torch.equal(plain.tokens, drawn.tokens) and plain.trace.steps == drawn.trace.steps
    light = [each[1:] for each in fed if each[0] is drafting_pipeline.transformer]
    heavy = [each[1:] for each in fed if each[0] is networks.transformer]
    assert light == heavy and len(light) == len(networks.passes["target"]) == drawn.trace.target_passes - 1


def test_streams_are_weighted_too(drafting_pipeline: LlamaGenPipeline, weighted_pipeline: WeightedPipeline) -> None:
    generators = [torch.Generator().manual_seed(100 + row) for row in range(3)]
    stream = weighted_pipeline.stream(
        PROMPTS, generator=generators, batch_size=2, method="vvs-jacobi", output_type="latent"
    )
    pictures = {picture.index: picture.tokens for picture in stream}
    prefills = 2
    assert len(weighted_pipeline.networks.passes["target"]) == stream.trace.target_passes - prefills
    plain = draw(drafting_pipeline, "vvs-jacobi")
    assert all(torch.equal(plain.tokens[index], tokens) for index, tokens in pictures.items())


def test_a_pass_that_the_network_misses_is_noticed(
    weighted_pipeline: WeightedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        weighted.WeightedTarget, "forward", lambda self, tokens, mask, depths: self.target.forward(tokens, mask, depths)
    )
    drawn = draw(weighted_pipeline, "jacobi")
    assert len(weighted_pipeline.networks.passes["target"]) != drawn.trace.target_passes - 1


def test_making_them_says_nothing(drafting_pipeline: LlamaGenPipeline, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("diffusers")
    logger.addHandler(caplog.handler)
    try:
        WeightNetworks.of_size("LlamaGen-L", drafting_pipeline.transformer, torch.bfloat16, GEOMETRIES)
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records


def test_labels_and_sizes(drafting_pipeline: LlamaGenPipeline, weighted_pipeline: WeightedPipeline) -> None:
    assert weighted_pipeline.networks.label == "LlamaGen-L (random weights, float32)"
    with pytest.raises(UserError, match="weighted_by must be one of LlamaGen-B, LlamaGen-L, LlamaGen-XL, got 'XXL'"):
        WeightNetworks.of_size("XXL", drafting_pipeline.transformer, torch.float32)


def test_networks_are_rounded_as_the_model_is(own_kernels: None, weighted_pipeline: WeightedPipeline) -> None:
    networks = copy.deepcopy(weighted_pipeline.networks)
    networks.quantize(None, None)
    assert networks.label == "LlamaGen-L (random weights, float32)"
    networks.quantize("int8-dynamic", "int8")
    assert networks.label == "LlamaGen-L (random weights, float32, layers in int8-dynamic, drafts in int8)"
    rounded = {
        "int8-dynamic": (networks.transformer.transformer_blocks,),
        "int8": (networks.drafter.ff, networks.draft_model.transformer_blocks),
    }
    for name, parts in rounded.items():
        assert all(quantization_of(part) == name for part in parts)
    assert quantization_of(networks.transformer) == "int8-dynamic"


def test_the_command_writes_rows_that_say_what_they_were_weighted_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import weighted_bench

    of_size = WeightNetworks.of_size

    def tiny(size: str, small: Any, dtype: torch.dtype) -> WeightNetworks:
        own = {name: {**sizes, "vocab_size": small.config.vocab_size} for name, sizes in GEOMETRIES.items()}
        return of_size(size, small, torch.float32, own)

    monkeypatch.setattr(WeightNetworks, "of_size", tiny)
    arguments = ["--weighted_by", "L", "--methods", "jacobi", "--num_prompts", "1", "--warm_up", "0"]
    arguments += ["--output", str(tmp_path)]
    monkeypatch.setattr("sys.argv", ["weighted_bench.py", *arguments, "--dtype", "float32", "--device", "cpu"])
    weighted_bench.main()
    plain, jacobi = json.loads((tmp_path / "results.json").read_text())
    label = "LlamaGen-L (random weights, float32)"
    assert f"Every forward pass is weighted by {label}" in capsys.readouterr().out
    assert plain["weighted_by"] == jacobi["weighted_by"] == label and jacobi["model"].endswith(f"weighted by {label}")
    assert plain["target_passes"] == 256 > jacobi["target_passes"]
    assert not list(tmp_path.glob("*.jsonl"))
    monkeypatch.setattr("sys.argv", ["weighted_bench.py", *arguments, "--weighted_by", "XXL"])
    with pytest.raises(SystemExit):
        weighted_bench.main()
    assert "weighted_by must be one of" in capsys.readouterr().err
