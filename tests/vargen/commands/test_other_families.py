"""Every command with a model that is not the project's own: what it measures, what it cannot, and what it refuses."""

import functools
import importlib.util
import json
import shutil
from pathlib import Path
from typing import Any

import glm_image_models
import janus_models
import pytest
import torch
from diffusers import PipelineQuantizationConfig
from hostile import change_json
from huggingface_hub import constants
from refusals import refused, refuses

from vargen.checkpoints.options import ModelOptions
from vargen.cli import main
from vargen.models.description import describe_model, open_model
from vargen.pipelines import loading
from vargen.pipelines.glm_image import GlmImagePriorPipeline
from vargen.pipelines.janus import JanusPipeline


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Janus as transformers saves it; tests must leave it as it is."""
    return janus_models.save(tmp_path_factory.mktemp("janus"))


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    (tmp_path / "prompts.txt").write_text("\n".join(janus_models.PROMPTS))
    return str(tmp_path / "prompts.txt")


def test_bench_reports_what_needs_no_judge(folder, prompts, clip_folder, tmp_path, capsys):
    command = ["bench", "--model", str(folder), "--prompts_file", prompts, "--warm_up", "0", "--quiet"]
    assert main([*command, "--clip", str(clip_folder), "--output", str(tmp_path / "rows")]) == 0
    rows = json.loads((tmp_path / "rows" / "results.json").read_text())
    assert [row["method"] for row in rows] == ["ar", "jacobi", "scd", "vvs-jacobi"]
    for row in rows:
        assert row["judge_accuracy"] is None and row["images"] == 3 and row["seconds_per_image"]["p50"] > 0
        assert 0 <= row["clip_score"] <= 100 and len(row["clip_score_interval"]) == 2
    assert rows[0]["target_passes"] == 3 * 16 and rows[2]["target_passes"] < 3 * 16
    out, err = capsys.readouterr()
    assert "CLIP score |" in out and "the judge reads vargen's own scenes alone, so nothing was judged" in err
    told = "prompts_file must name prompts: composed ones describe the scenes"
    refuses(capsys, main(["bench", "--model", str(folder), "--quiet"]), told)


def test_evaluate_scores_the_prompts_of_a_file(folder, prompts, clip_folder, tmp_path, capsys):
    command = ["evaluate", "--model", str(folder), "--output", str(tmp_path / "out"), "--methods", "ar,scd", "--quiet"]
    command += ["--prompts_file", prompts, "--bootstrap", "5", "--batch_size", "2"]
    told = "clip: prompts needs a CLIP model; name the folder of one; the shipped one comes with --protocol scene-"
    refuses(capsys, main(command), told)
    assert main([*command, "--clip", str(clip_folder), "--json"]) == 0
    out, err = capsys.readouterr()
    plain, fast = json.loads(out)
    assert plain["clip_score"]["value"] > 0 and plain["diversity"]["value"] > 0
    assert plain["frechet_distance"] is None and plain["reference"] is None and "judge_accuracy" not in plain
    assert fast["decoding"]["pass_reduction"] > 1 and fast["settings"]["guidance_scale"] == 5.0
    assert "no reference: Frechet distance, precision and recall are left out" in err


def test_tune_holds_clip_score(folder, prompts, clip_folder, tmp_path, capsys):
    pytest.importorskip("optuna", reason="tuning needs the tune extra")
    command = ["tune", "--model", str(folder), "--method", "gsd", "--prompts_file", prompts, "--num_prompts", "2"]
    command += ["--speed", "pass_reduction", "--output", str(tmp_path / "out"), "--quiet"]
    command += ["--clip", str(clip_folder)]
    told = "save_to_model cannot be used: only the folder of a LlamaGen keeps settings"
    refuses(capsys, main([*command, "--save_to_model", "true"]), told)
    assert main([*command, "--max_seconds", "3", "--max_quality_loss", "100"]) == 0
    record = json.loads((tmp_path / "out" / "pareto.json").read_text())
    assert record["quality"] == "clip_score" and record["max_quality_loss"] == 100 and record["trials"] >= 1
    assert record["plain_quality"] > 0 and record["best"]["method"] == "gsd"


@pytest.mark.parametrize("command", [("generate", "a red cube"), ("bench",), ("evaluate",), ("tune",)], ids=str)
def test_an_option_that_a_family_cannot_use_is_refused_by_name(command, tiny_model_folder, tmp_path, capsys):
    place = ["--output", str(tmp_path / "out"), "--model", str(tiny_model_folder)]
    for option, value in (("device_map", "auto"), ("attn_implementation", "eager")):
        told = f"{option} cannot be used with a model of the family llamagen"
        refuses(capsys, main([*command, *place, f"--{option}", value]), told)
    assert not (tmp_path / "out").exists()


def noted(pipeline: Any, monkeypatch: pytest.MonkeyPatch, **instead: Any) -> dict[str, Any]:
    """What `from_pretrained` is asked with, which loads with its dtype and `instead` alone. Every package is there."""
    asked: dict[str, Any] = {}
    loaded, find_spec = pipeline.from_pretrained, importlib.util.find_spec

    def from_pretrained(place: Path, **arguments: Any) -> Any:
        asked.update(arguments)
        monkeypatch.setattr("importlib.util.find_spec", find_spec)
        return loaded(place, dtype=arguments["dtype"], **instead)

    monkeypatch.setattr(pipeline, "from_pretrained", from_pretrained)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: True)
    return asked


def test_options_of_loading_arrive_at_from_pretrained(folder, monkeypatch):
    asked = noted(JanusPipeline, monkeypatch)
    options = ModelOptions(
        str(folder), dtype="bfloat16", quantization="bitsandbytes-8bit", attn_implementation="eager", device="cpu"
    )
    pipeline, device, dtype = loading.load_pipeline(open_model(options), options)
    assert asked["attn_implementation"] == "eager" and asked["device_map"] == {"": "cpu"}
    assert asked["quantization_config"].load_in_8bit and (device, dtype) == ("cpu", "bfloat16")
    assert pipeline.model.dtype is torch.bfloat16
    assert options.identity == {"quantization": "bitsandbytes-8bit", "attn_implementation": "eager"}


def test_attention_and_a_device_map_are_those_asked_for(folder):
    options = ModelOptions(str(folder), device_map="cpu", attn_implementation="eager")
    pipeline, device, _ = loading.load_pipeline(open_model(options), options)
    assert pipeline.model.config.get_text_config()._attn_implementation == "eager" and device == "cpu"


def test_a_name_on_the_hub_becomes_pictures_on_disk(folder, tmp_path, monkeypatch, capsys):
    """From the hub's own cache, without a network."""
    name, commit = "somebody/tiny-janus", "c" * 40
    repository = tmp_path / "hub" / "models--somebody--tiny-janus"
    shutil.copytree(folder, repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    command = ["generate", janus_models.PROMPTS[0], "--output", str(tmp_path / "out"), "--quiet", "--model"]
    assert main([*command, name, "--revision", commit]) == 0
    assert (tmp_path / "out" / "images" / "000000.png").is_file()
    capsys.readouterr()
    refuses(capsys, main([*command, "somebody/nothing"]), "model: somebody/nothing is not a folder, and the hub")


# GLM-Image, whose pixels are denoised by diffusers


@pytest.fixture(scope="module")
def glm_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Draws 64 x 64 pixels if nothing is said; tests must leave it as it is."""
    folder = glm_image_models.save(tmp_path_factory.mktemp("glm_image"))
    change_json(folder / "transformer" / "config.json", sample_size=8)
    return folder


def test_evaluate_scores_denoised_pictures_and_goes_on(glm_image, clip_folder, tmp_path, capsys, monkeypatch):
    two_steps = functools.partialmethod(GlmImagePriorPipeline.__call__, num_inference_steps=2)
    monkeypatch.setattr(GlmImagePriorPipeline, "__call__", two_steps)
    assert describe_model(glm_image).image_size == 64
    (tmp_path / "prompts.txt").write_text("\n".join(glm_image_models.PROMPTS))
    output = tmp_path / "out"
    command = ["evaluate", "--model", str(glm_image), "--output", str(output), "--methods", "jacobi", "--quiet"]
    command += ["--json", "--prompts_file", str(tmp_path / "prompts.txt"), "--bootstrap", "0", "--batch_size", "2"]
    command += ["--clip", str(clip_folder)]
    assert main(command) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["clip_score"]["value"] > 0 and row["frechet_distance"] is None and "judge_accuracy" not in row
    assert row["resolution"] == 64 and row["decoding"]["images"] == 3

    def found() -> list[tuple[bytes, int]]:
        return [(path.read_bytes(), path.stat().st_mtime_ns) for path in pictures]

    pictures = sorted((output / "jacobi" / "images").iterdir())
    before = found()
    pictures[2].write_bytes(before[2][0][:100])  # of a batch of its own
    assert main(command) == 0
    assert found()[:2] == before[:2] and found()[2][0] == before[2][0]


def test_quantization_and_a_device_map_arrive_at_diffusers(glm_image, monkeypatch):
    asked = noted(GlmImagePriorPipeline, monkeypatch, device_map="cpu")
    options = ModelOptions(str(glm_image), dtype="bfloat16", quantization="bitsandbytes-8bit", device="cpu")
    pipeline, device, _ = loading.load_pipeline(open_model(options), options)
    quantized = asked["quantization_config"]
    assert isinstance(quantized, PipelineQuantizationConfig) and asked["device_map"] == device == "cpu"
    own, theirs = (quantized.quant_mapping[name] for name in ("vision_language_encoder", "transformer"))
    assert own.load_in_8bit and theirs.load_in_8bit
    assert type(own).__module__.startswith("transformers.") and type(theirs).__module__.startswith("diffusers.")
    assert pipeline.vision_language_encoder.dtype is torch.bfloat16


def test_a_device_map_that_diffusers_does_not_know_is_refused_by_name(glm_image):
    options = ModelOptions(str(glm_image), device_map="auto")
    told = "device_map of a pipeline of diffusers must be one of balanced, "
    refused(told, loading.load_pipeline, open_model(options), options)
