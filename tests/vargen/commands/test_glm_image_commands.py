"""`vargen evaluate` with GLM-Image, whose pixels are denoised, and how its folder is loaded."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import glm_image_models
import pytest
import torch
from diffusers import PipelineQuantizationConfig

from vargen.base.errors import UserError
from vargen.checkpoints.options import ModelOptions
from vargen.cli import main
from vargen.models.description import describe_model, open_model
from vargen.pipelines import loading
from vargen.pipelines.glm_image import GlmImagePriorPipeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draws 64 x 64 pixels if nothing is said; tests must leave it as it is."""
    folder = glm_image_models.save(tmp_path_factory.mktemp("glm_image"))
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "sample_size": 8}))
    return folder


@pytest.fixture
def short_denoising(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps instead of fifty."""
    usual = GlmImagePriorPipeline.__call__

    def call(self: GlmImagePriorPipeline, *args: Any, **kwargs: Any) -> Any:
        return usual(self, *args, **kwargs, num_inference_steps=2)

    monkeypatch.setattr(GlmImagePriorPipeline, "__call__", call)


@pytest.mark.usefixtures("short_denoising")
def test_evaluate_scores_pictures_and_goes_on(folder, clip_folder, tmp_path, capsys):
    assert describe_model(folder).image_size == 64
    (tmp_path / "prompts.txt").write_text("\n".join(glm_image_models.PROMPTS))
    output = tmp_path / "out"
    command = ["evaluate", "--model", str(folder), "--output", str(output), "--methods", "jacobi", "--quiet", "--json"]
    command += ["--prompts_file", str(tmp_path / "prompts.txt"), "--bootstrap", "0", "--batch_size", "2"]
    command += ["--clip", str(clip_folder)]
    assert main(command) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["clip_score"]["value"] > 0 and row["frechet_distance"] is None and "judge_accuracy" not in row
    assert row["resolution"] == 64 and row["decoding"]["images"] == 3

    pictures = sorted((output / "jacobi" / "images").iterdir())
    before = [path.read_bytes() for path in pictures]
    stamps = [path.stat().st_mtime_ns for path in pictures]
    pictures[2].write_bytes(before[2][:100])  # of a batch of its own
    assert main(command) == 0
    assert [path.read_bytes() == known for path, known in zip(pictures, before, strict=True)] == [True] * 3
    assert [path.stat().st_mtime_ns == stamp for path, stamp in zip(pictures, stamps, strict=True)][:2] == [True] * 2


def test_quantization_and_a_device_map_arrive_at_diffusers(folder, monkeypatch):
    asked: dict[str, Any] = {}

    def from_pretrained(place: Path, **arguments: Any) -> Any:
        asked.update(arguments)
        monkeypatch.setattr("importlib.util.find_spec", find_spec)
        return loaded(place, dtype=arguments["dtype"], device_map="cpu")

    loaded, find_spec = GlmImagePriorPipeline.from_pretrained, importlib.util.find_spec
    monkeypatch.setattr(GlmImagePriorPipeline, "from_pretrained", from_pretrained)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    options = ModelOptions(str(folder), dtype="bfloat16", quantization="bitsandbytes-8bit", device="cpu")
    pipeline, device, _ = loading.load_pipeline(open_model(options), options)
    quantized = asked["quantization_config"]
    assert isinstance(quantized, PipelineQuantizationConfig) and asked["device_map"] == device == "cpu"
    own, theirs = (quantized.quant_mapping[name] for name in ("vision_language_encoder", "transformer"))
    assert own.load_in_8bit and theirs.load_in_8bit
    assert type(own).__module__.startswith("transformers.") and type(theirs).__module__.startswith("diffusers.")
    assert pipeline.vision_language_encoder.dtype is torch.bfloat16


def test_a_device_map_that_diffusers_does_not_know_is_refused_by_name(folder):
    options = ModelOptions(str(folder), device_map="auto")
    with pytest.raises(UserError, match="device_map of a pipeline of diffusers must be one of balanced, "):
        loading.load_pipeline(open_model(options), options)
