"""`vargen generate` with a folder of another family: the same pictures as its pipeline makes, and the same refusals."""

import json
import shutil
from pathlib import Path

import janus_models
import numpy as np
import pytest
import torch
from janus_models import PROMPTS
from PIL import Image

from specdecode.kernels import build
from vargen.cli import main
from vargen.models.description import describe_model
from vargen.pipelines.janus import JanusPipeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Janus as transformers saves it; tests must leave it as it is."""
    return janus_models.save(tmp_path_factory.mktemp("janus"))


def generate(model: Path, output: Path, *arguments: str) -> int:
    return main(["generate", *arguments, "--model", str(model), "--output", str(output), "--quiet"])


def test_a_folder_tells_what_the_pipeline_knows(folder, tiny_model_folder):
    pipeline, told = JanusPipeline.from_pretrained(folder), describe_model(folder)
    assert (told.family, told.grid_size, told.image_size) == ("janus", pipeline.grid_size, pipeline.image_size)
    assert (told.guidance_scale, told.top_k, told.num_classes) == (5.0, 50, None)
    assert told.resolve_method("scd", {}) == pipeline.resolve_method("scd")
    assert describe_model(tiny_model_folder).family == "llamagen"


def test_pictures_are_those_of_the_pipeline_and_a_run_goes_on(folder, tmp_path, capsys):
    arguments = (*PROMPTS, "--method", "scd", "--seed", "5", "--trace_image", "true", "--batch_size", "2")
    assert generate(folder, tmp_path / "out", *arguments) == 0
    pipeline = JanusPipeline.from_pretrained(folder)
    pipeline.set_progress_bar_config(disable=True)
    generators = [torch.Generator().manual_seed(5 + index) for index in range(3)]
    for index, wanted in enumerate(pipeline(PROMPTS, method="scd", generator=generators).images):
        made = Image.open(tmp_path / "out" / "images" / f"{index:06}.png").convert("RGB")
        assert np.array_equal(made, wanted) and (tmp_path / "out" / "traces" / f"{index:06}.png").is_file()
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["settings"]
    assert settings["method"]["window"] == 15 and settings["guidance_scale"] == 5.0 and settings["top_k"] == 50
    (tmp_path / "out" / "images" / "000001.png").unlink()
    capsys.readouterr()
    assert generate(folder, tmp_path / "out", *arguments, "--json") == 0
    assert json.loads(capsys.readouterr().out)["new_images"] == 1


def test_what_cannot_be_drawn_is_refused_before_anything_is_written(folder, tmp_path, capsys):
    def refused(model: Path, message: str, *arguments: str) -> None:
        assert generate(model, tmp_path / "out", *arguments) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1 and not (tmp_path / "out").exists()

    refused(folder, "class_labels cannot be used", "--class_labels", "[1]")
    refused(folder, "prompt has 66 tokens; in the model's context of 64 there is room for 48", " ".join(["dog"] * 60))
    other = tmp_path / "other"
    other.mkdir()
    refused(other, "has no model_index.json or config.json", *PROMPTS)
    (other / "config.json").write_text('{"model_type": "llama"}')
    refused(
        other,
        "holds a 'llama', which cannot be drawn with; known: LlamaGenPipeline, GlmImagePipeline, janus, emu3",
        *PROMPTS,
    )
    (other / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    refused(other, "holds a 'StableDiffusionPipeline', which cannot be drawn with", *PROMPTS)


def test_what_was_published_in_bfloat16_is_drawn_in_it_where_the_processor_multiplies_it(
    folder, tiny_model_folder, tmp_path, capsys, monkeypatch
):
    """And by one kind of processor: another is refused, whatever it would take by itself."""
    published, out = tmp_path / "published", tmp_path / "out"
    shutil.copytree(folder, published)
    config = json.loads((published / "config.json").read_text()) | {"dtype": "bfloat16"}
    (published / "config.json").write_text(json.dumps(config))

    def settings(model: Path, output: Path, prompt: str = PROMPTS[0]) -> dict[str, object]:
        assert main(["generate", prompt, "--model", str(model), "--output", str(output), "--method", "ar"]) == 0
        return json.loads((output / "config.json").read_text())["settings"]

    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    monkeypatch.setattr(build, "kind", lambda: "avx512_bf16")
    told = settings(published, out)
    assert (told["dtype"], told["kernels"]) == ("bfloat16", "avx512_bf16")
    line = "dtype: bfloat16, in which published was published and this processor multiplies; --dtype float32 draws"
    assert capsys.readouterr().err.count(line) == 1
    for other, name in ((folder, "whole"), (tiny_model_folder, "small")):
        told = settings(other, tmp_path / name)
        assert (told["dtype"], "kernels" in told) == ("float32", False) and "dtype:" not in capsys.readouterr().err

    (out / "images" / "000000.png").unlink()
    monkeypatch.setattr(build, "kind", lambda: "avx2")
    for capable in (True, False):
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda able=capable: {"avx512_bf16": able})
        assert generate(published, out, PROMPTS[0], "--method", "ar") == 2
        refusal = 'other kernels ("avx512_bf16", now "avx2"); choose another --output or delete that one'
        assert refusal in capsys.readouterr().err
    told = settings(published, tmp_path / "elsewhere")
    assert (told["dtype"], "kernels" in told) == ("float32", False)
