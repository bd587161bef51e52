"""`vargen generate` at other sizes than a family's usual one."""

import json
from pathlib import Path

import emu3_models
import glm_image_models
import pytest
import torch
from PIL import Image

from vargen.cli import main
from vargen.methods.catalogue import resolve_method
from vargen.models.description import describe_model
from vargen.pipelines.emu3 import Emu3Pipeline


@pytest.fixture(scope="module")
def emu3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emu3_models.save(tmp_path_factory.mktemp("emu3"))


@pytest.fixture(scope="module")
def glm_image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return glm_image_models.save(tmp_path_factory.mktemp("glm_image"))


def test_emu3_draws_what_its_pipeline_draws(emu3, tmp_path, capsys):
    command = ["generate", emu3_models.PROMPTS[0], "--model", str(emu3), "--output", str(tmp_path / "out"), "--quiet"]
    size, method = ["--height", "24", "--width", "32"], ["--method", "scd", "--method_options.window", "4"]
    assert main([*command, *size, *method, "--trace_image", "true"]) == 0
    picture = Image.open(tmp_path / "out" / "images" / "000000.png")
    assert picture.size == (32, 24)
    pipeline = Emu3Pipeline.from_pretrained(emu3)
    expected = pipeline(
        emu3_models.PROMPTS[0], height=24, width=32, method=resolve_method("scd", {"window": 4}),
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert picture.convert("RGB").tobytes() == expected.images[0].tobytes()
    trace = Image.open(tmp_path / "out" / "traces" / "000000.png")
    assert trace.size[0] > trace.size[1]
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["settings"]
    assert (settings["height"], settings["width"]) == (24, 32)
    assert main([*command, *size, *method]) == 0  # goes on
    assert main(["check", str(emu3), *size, "--output", str(tmp_path / "check.json")]) == 0
    capsys.readouterr()
    assert main([*command, "--ratio", "3:4", *method]) == 2
    assert "holds a run with another height (24, now 832)" in capsys.readouterr().err


def test_glm_image_draws_its_preview_and_a_picture_of_that_size(glm_image, tmp_path, capsys):
    output = tmp_path / "out"
    command = ["generate", glm_image_models.PROMPTS[0], "--model", str(glm_image), "--output", str(output)]
    assert main([*command, "--height", "64", "--width", "96", "--method", "jacobi", "--json", "--quiet"]) == 0
    assert Image.open(output / "images" / "000000.png").size == (96, 64)
    told = describe_model(glm_image).sized(64, 96)
    assert json.loads(capsys.readouterr().out)["tokens"] == told.num_tokens == 6 + 13 * 19


def test_other_sizes_than_the_only_one_are_refused(tiny_model_folder, emu3, tmp_path, capsys):
    place = ["a red cube", "--quiet", "--output", str(tmp_path / "out"), "--model"]
    for option, value in (("height", "640"), ("ratio", "16:9")):
        assert main(["generate", *place, str(tiny_model_folder), f"--{option}", value]) == 2
        assert f"{option} cannot be chosen with a model of the family llamagen: its" in capsys.readouterr().err
    assert main(["generate", *place, str(emu3), "--height", "24"]) == 2
    assert "height and width must be given both" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
