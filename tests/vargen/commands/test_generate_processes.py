"""`vargen generate` shared by several processes: the folder of one process, also when they are killed on the way."""

import json
import time
from pathlib import Path
from typing import Any

import emu3_models
import family_pipelines
import pytest
import token_image_models
from PIL import Image
from process_jobs import ProcessJob

from vargen.cli import main
from vargen.models.token_images.catalogue import TOKEN_IMAGE_FAMILIES

PROMPTS = ["a red cube", "two blue spheres on sand", "a green cone"]


def made(output: Path) -> tuple[list[dict[str, Any]], dict[str, bytes], dict[str, Any]]:
    """The lines without what they cost, which hangs on the clock and on neighbours, the pictures, and the settings."""
    lines = [json.loads(line) for line in (output / "result.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"], line["forward_passes"], line["batch_size"]
    images = {path.name: Image.open(path).tobytes() for path in sorted((output / "images").glob("*.png"))}
    assert not [path for path in output.rglob(".*") if path.is_file()]
    return lines, images, json.loads((output / "config.json").read_text())["settings"]


def test_more_processes_than_pictures(tiny_model_folder, tmp_path):
    few = ["generate", "a red cube", "--quiet", "--model", str(tiny_model_folder), "--output", str(tmp_path / "few")]
    assert ProcessJob(few, 3).wait() == [0, 0, 0]
    lines, images, _ = made(tmp_path / "few")
    assert len(lines) == len(images) == 1
    assert ProcessJob(few, 2).wait() == [0, 0], "a finished run has nothing left to make"
    assert made(tmp_path / "few")[:2] == (lines, images)


def test_several_processes_fill_the_folder_that_one_would_and_kills_lose_nothing(tiny_model_folder, tmp_path):
    arguments = ["generate", *PROMPTS, "--num-images-per-prompt", "5", "--batch-size", "2", "--quiet"]
    arguments += ["--model", str(tiny_model_folder), "--device", "cpu"]
    assert main([*arguments, "--output", str(tmp_path / "alone")]) == 0
    alone, killed = made(tmp_path / "alone"), tmp_path / "killed"
    assert [line["index"] for line in alone[0]] == list(range(len(PROMPTS) * 5))
    for processes, pictures in ((2, 1), (1, 7)):  # goes on with another number, too
        job = ProcessJob([*arguments, "--output", str(killed)], processes)
        deadline = time.monotonic() + 600
        while len(list(killed.glob("images/*.png"))) < pictures and time.monotonic() < deadline:
            time.sleep(0.002)
        assert job.kill(), "the kill came too late to test anything"
        for path in killed.glob("images/*.png"):
            Image.open(path).load()  # a picture that is there is whole
    assert ProcessJob([*arguments, "--output", str(killed)], 2).wait() == [0, 0]
    assert made(killed) == alone


@pytest.mark.parametrize(
    ("family", "method"), [("janus", "jacobi"), ("emu3_5", "scd"), ("simplear", "ar"), ("liquid", "jacobi")]
)
def test_one_model_split_over_two_processes_draws_what_one_draws(family, method, tmp_path, monkeypatch):
    tiny = None if family == "janus" else family
    if tiny is not None:
        monkeypatch.setitem(TOKEN_IMAGE_FAMILIES, family, token_image_models.tiny_family(family))
    family_pipelines.build(family).save_pretrained(tmp_path / "model")
    command = ["generate", "a dog", "a red cat", "--model", str(tmp_path / "model"), "--quiet", "--device", "cpu"]
    command += ["--num_images_per_prompt", "2", "--batch_size", "3", "--dtype", "float32", "--method", method]
    assert main([*command, "--output", str(tmp_path / "alone")]) == 0
    split = [*command, "--tp_plan", "auto", "--output", str(tmp_path / "split")]
    assert main(split) == 2, "one process has nobody to share with"
    assert ProcessJob(split, 2, tiny).wait() == [0, 0]
    lines, images, settings = made(tmp_path / "split")
    assert (lines, images) == made(tmp_path / "alone")[:2] and len(set(images.values())) > 1
    assert settings["tp_plan"] == "auto"


def test_a_family_that_cannot_be_split_says_so(tmp_path, tiny_model_folder):
    for folder in (emu3_models.save(tmp_path / "emu3"), tiny_model_folder):
        command = ["generate", "a dog", "--model", str(folder), "--tp_plan", "auto", "--output", str(tmp_path / "no")]
        assert ProcessJob([*command, "--device", "cpu"], 2).wait() == [2, 2]
    assert not (tmp_path / "no").exists()
