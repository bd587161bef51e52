"""`vargen generate` shared by several processes: the folder of one process, also when they are killed on the way."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from process_jobs import ProcessJob

from vargen.cli import main

PROMPTS = ["a red cube", "two blue spheres on sand", "a green cone"]
PICTURES = 5


@pytest.fixture(scope="module")
def arguments(_saved_tiny_pipelines: dict[str, Path]) -> list[str]:
    return [
        *("generate", *PROMPTS, "--num-images-per-prompt", str(PICTURES), "--batch-size", "2", "--quiet"),
        *("--model", str(_saved_tiny_pipelines["text"]), "--device", "cpu"),
    ]


def made(output: Path) -> tuple[list[dict[str, Any]], dict[str, bytes], dict[str, Any]]:
    """The lines without what they cost, which hangs on the clock and on neighbours, the pictures, and the settings."""
    lines = [json.loads(line) for line in (output / "result.jsonl").read_text().splitlines()]
    for line in lines:
        del line["seconds"], line["forward_passes"], line["batch_size"]
    images = {path.name: Image.open(path).tobytes() for path in sorted((output / "images").glob("*.png"))}
    assert not [path for path in output.rglob(".*") if path.is_file()]
    return lines, images, json.loads((output / "config.json").read_text())["settings"]


@pytest.fixture(scope="module")
def alone(
    arguments: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[dict[str, Any]], dict[str, bytes], dict[str, Any]]:
    """What one process makes."""
    output = tmp_path_factory.mktemp("alone") / "run"
    assert main([*arguments, "--output", str(output)]) == 0
    return made(output)


def test_more_processes_than_pictures(tiny_model_folder, tmp_path):
    few = ["generate", "a red cube", "--quiet", "--model", str(tiny_model_folder), "--output", str(tmp_path / "few")]
    assert ProcessJob(few, 3).wait() == [0, 0, 0]
    lines, images, _ = made(tmp_path / "few")
    assert len(lines) == len(images) == 1
    assert ProcessJob(few, 2).wait() == [0, 0], "a finished run has nothing left to make"
    assert made(tmp_path / "few")[:2] == (lines, images)


def test_several_processes_fill_the_folder_that_one_would_and_kills_lose_nothing(arguments, tmp_path, alone):
    assert [line["index"] for line in alone[0]] == list(range(len(PROMPTS) * PICTURES))
    killed = tmp_path / "killed"
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
