"""`vargen generate` with folders of other families: the pictures that their pipelines make, and the same refusals."""

import json
import shutil
from pathlib import Path

import emu3_models
import glm_image_models
import janus_models
import numpy as np
import pytest
import token_image_models
import torch
from hostile import change_json
from janus_models import PROMPTS
from PIL import Image
from refusals import refuses
from transformers import Qwen2Config, Qwen2ForCausalLM

from specdecode.kernels import build
from vargen.cli import main
from vargen.methods.catalogue import resolve_method
from vargen.models.description import describe_model
from vargen.models.token_images.simplear import SIMPLEAR
from vargen.pipelines.emu3 import Emu3Pipeline
from vargen.pipelines.janus import JanusPipeline


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Janus as transformers saves it; tests must leave it as it is."""
    return janus_models.save(tmp_path_factory.mktemp("janus"))


@pytest.fixture(scope="module")
def emu3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emu3_models.save(tmp_path_factory.mktemp("emu3"))


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
    known = "LlamaGenPipeline, GlmImagePipeline, janus, emu3"
    refused(other, f"holds a 'llama', which cannot be drawn with; known: {known}", *PROMPTS)
    (other / "model_index.json").write_text('{"_class_name": "StableDiffusionPipeline"}')
    refused(other, "holds a 'StableDiffusionPipeline', which cannot be drawn with", *PROMPTS)


def test_what_was_published_in_bfloat16_is_drawn_in_it_where_the_processor_multiplies_it(
    folder, tiny_model_folder, tmp_path, capsys, monkeypatch
):
    """And by one kind of processor: another is refused, whatever it would take by itself."""
    published, out = tmp_path / "published", tmp_path / "out"
    shutil.copytree(folder, published)
    change_json(published / "config.json", dtype="bfloat16")

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
        refusal = 'other kernels ("avx512_bf16", now "avx2"); choose another --output or delete that one'
        refuses(capsys, generate(published, out, PROMPTS[0], "--method", "ar"), refusal)
    told = settings(published, tmp_path / "elsewhere")
    assert (told["dtype"], "kernels" in told) == ("float32", False)


def test_emu3_draws_what_its_pipeline_draws(emu3, tmp_path, capsys):
    command = ["generate", emu3_models.PROMPTS[0], "--model", str(emu3), "--output", str(tmp_path / "out"), "--quiet"]
    size, method = ["--height", "24", "--width", "32"], ["--method", "scd", "--method_options.window", "4"]
    assert main([*command, *size, *method, "--trace_image", "true"]) == 0
    picture = Image.open(tmp_path / "out" / "images" / "000000.png")
    assert picture.size == (32, 24)
    same = {"method": resolve_method("scd", {"window": 4}), "generator": torch.Generator().manual_seed(0)}
    expected = Emu3Pipeline.from_pretrained(emu3)(emu3_models.PROMPTS[0], height=24, width=32, **same)
    assert picture.convert("RGB").tobytes() == expected.images[0].tobytes()
    trace = Image.open(tmp_path / "out" / "traces" / "000000.png")
    assert trace.size[0] > trace.size[1]
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["settings"]
    assert (settings["height"], settings["width"]) == (24, 32)
    assert main([*command, *size, *method]) == 0  # goes on
    capsys.readouterr()
    refuses(capsys, main([*command, "--ratio", "3:4", *method]), "holds a run with another height (24, now 832)")


def test_glm_image_draws_its_preview_and_a_picture_of_that_size(tmp_path, capsys):
    output, glm_image = tmp_path / "out", glm_image_models.save(tmp_path / "model")
    command = ["generate", glm_image_models.PROMPTS[0], "--model", str(glm_image), "--output", str(output)]
    assert main([*command, "--height", "64", "--width", "96", "--method", "jacobi", "--json", "--quiet"]) == 0
    assert Image.open(output / "images" / "000000.png").size == (96, 64)
    told = describe_model(glm_image).sized(64, 96)
    assert json.loads(capsys.readouterr().out)["tokens"] == told.num_tokens == 6 + 13 * 19


def test_other_sizes_than_the_only_one_are_refused(tiny_model_folder, emu3, tmp_path, capsys):
    place = ["a red cube", "--quiet", "--output", str(tmp_path / "out"), "--model"]
    for option, value in (("height", "640"), ("ratio", "16:9")):
        told = f"{option} cannot be chosen with a model of the family llamagen: its"
        refuses(capsys, main(["generate", *place, str(tiny_model_folder), f"--{option}", value]), told)
    refuses(capsys, main(["generate", *place, str(emu3), "--height", "24"]), "height and width must be given both")
    assert not (tmp_path / "out").exists()


class Blocks(torch.nn.Module):
    """A picture of codes in squares of 16 pixels, in the place of Cosmos's decoder."""

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        grown = codes.repeat_interleave(16, 2).repeat_interleave(16, 3)
        return (grown.float() / 32_000 - 1)[:, None].expand(-1, 3, -1, -1, -1)


@pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning")  # of writing a script
def test_a_described_family_draws_with_the_file_that_makes_its_pixels(tmp_path, capsys):
    folder, decoder = tmp_path / "model", tmp_path / "decoder.jit"
    tokenizer = token_image_models.tiny_tokenizer(SIMPLEAR)
    torch.manual_seed(0)
    size = {**token_image_models.TINY, "vocab_size": len(tokenizer) + 64_000, "max_position_embeddings": 512}
    Qwen2ForCausalLM(Qwen2Config(**size)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    change_json(folder / "config.json", architectures=["SimpARForCausalLM"])
    torch.jit.save(torch.jit.script(Blocks()), str(decoder))

    output = tmp_path / "out"
    command = ["generate", "a dog", "--model", str(folder), "--output", str(output), "--quiet"]
    size_and_pixels = ["--height", "256", "--width", "256", "--vqvae", str(decoder)]
    assert main([*command, *size_and_pixels, "--trace_image", "true"]) == 0
    picture = Image.open(output / "images" / "000000.png")
    assert picture.size == (256, 256) and len(set(picture.resize((16, 16), 0).tobytes())) > 20
    without = [*command[:-3], "--output", str(tmp_path / "no"), "--height", "256", "--width", "256"]
    refuses(capsys, main(without), "vqvae must be given to make pictures of codes (from decoder.jit of nvidia/Cosmos")
    assert main([*command, "--family", "liquid", *size_and_pixels]) == 2
    assert "\n" not in capsys.readouterr().err.strip()
