"""`vargen generate` interrupted in the middle: what is there is whole, and nothing is lost. Kills are tried in
`test_generate_processes.py`."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from vargen.cli import main

PICTURES = 30


def arguments(model: Path, output: Path) -> list[str]:
    generate = ["generate", "a red cube", "--num-images-per-prompt", str(PICTURES), "--batch-size", "1", "--quiet"]
    return [*generate, "--model", str(model), "--output", str(output)]


def interrupt_in_the_middle(arguments: list[str], output: Path) -> subprocess.Popen[str]:
    """Run in a process of its own, and interrupt it as soon as two pictures are there."""
    process = subprocess.Popen(
        [sys.executable, "-m", "vargen.cli", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background jobs ignore interrupts, and so would all that they start.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 600
    while len(list(output.glob("images/*.png"))) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline, "no picture appeared"
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    return process


def pixels(output: Path) -> dict[str, bytes]:
    return {path.name: Image.open(path).tobytes() for path in sorted((output / "images").glob("*.png"))}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, _saved_tiny_pipelines: dict[str, Path]) -> dict[str, bytes]:
    """What a run draws that nobody stops."""
    output = tmp_path_factory.mktemp("whole") / "run"
    assert main(arguments(_saved_tiny_pipelines["text"], output)) == 0
    return pixels(output)


def test_an_interrupted_run_goes_on_with_nothing_lost(whole, tiny_model_folder, tmp_path):
    stopped = tmp_path / "stopped"
    process = interrupt_in_the_middle(arguments(tiny_model_folder, stopped), stopped)
    error = process.communicate(timeout=600)[1]
    there = pixels(stopped)  # every picture opens and is whole
    assert 2 <= len(there) < PICTURES, "the signal came too late to test anything"
    for line in (stopped / "result.jsonl").read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            assert json.loads(line)["image_path"].removeprefix("images/") in there
    assert process.returncode == 130
    assert f"of {PICTURES} new images are finished; the same command makes the rest" in error
    before = {name: (stopped / "images" / name).stat().st_mtime_ns for name in there}

    assert main(arguments(tiny_model_folder, stopped)) == 0
    assert pixels(stopped) == whole and len(whole) == PICTURES
    assert {name: (stopped / "images" / name).stat().st_mtime_ns for name in there} == before
    records = [json.loads(line) for line in (stopped / "result.jsonl").read_text().splitlines()]
    assert [record["index"] for record in records] == list(range(PICTURES))
    assert not [path for path in stopped.rglob(".*") if path.is_file()]
