"""A kill just before every rename of every command that writes: the next start finishes the same work, and leaves
nothing else. And two processes on one folder: the second ends at once.

The kill is real: a forked process ends itself by SIGKILL where it would have renamed, so that nothing cleans up.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import arguments_of, check_refused
from PIL import Image

from vargen.cli import main
from vargen.jobs import tuning
from vargen.runs.files import own_file, own_folder
from vargen.world.judge import judging


class _Reader:
    """A judge of the tiny model's pictures that finds everything right."""

    image_size = 8
    kinds = ("shape",)

    def __call__(self, pictures: torch.Tensor, cases: Sequence[Any]) -> torch.Tensor:
        return torch.ones(len(cases), 1, 2, dtype=torch.int64)


@pytest.fixture(autouse=True)
def _judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "SCENE_WORLD", dataclasses.replace(judging.SCENE_WORLD, judge=_Reader))
    monkeypatch.setattr(tuning, "_PATIENCE", 2)


def killed_at(rename: int, command: list[str]) -> bool:
    """Run a command in a process that is killed where it would rename for the `rename`-th time, from 0; whether it came
    so far."""
    child = os.fork()
    if not child:
        try:
            torch.set_num_threads(1)  # a forked process has no other ones
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            replace, left = os.replace, [rename]

            def replace_or_die(*places: Any) -> None:
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                replace(*places)

            os.replace = replace_or_die  # type: ignore[assignment]
            main(command)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def pixels(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): Image.open(path).tobytes() for path in sorted(folder.rglob("*.png"))}


def generated(work: Path) -> object:
    lines = (work / "out" / "result.jsonl").read_text().splitlines()
    records = [{**json.loads(line), "seconds": None, "batch_size": None} for line in lines]
    return pixels(work / "out" / "images"), len(pixels(work / "out" / "traces")), records


def evaluated(work: Path) -> object:
    tokens = [np.load(path)["tokens"].tolist() for path in sorted(work.glob("out/ar/batches/*.npz"))]
    scores = json.loads((work / "out" / "scores.json").read_text())
    rows = scores if isinstance(scores, list) else scores["methods"]
    return pixels(work / "out" / "ar" / "images"), tokens, [row["frechet_distance"] for row in rows]


def benched(work: Path) -> object:
    rows = json.loads((work / "b.json").read_text())
    return pixels(work / "i"), [(row["method"], row["tokens"], row["target_passes"]) for row in rows]


def tuned(work: Path) -> object:
    found = json.loads((work / "out" / "pareto.json").read_text())
    return found["best"], found["front"], (work / "out" / "best.yaml").read_text()


def trained(work: Path) -> object:
    from safetensors.torch import load_file

    weights = load_file(work / "out" / "export" / "diffusion_pytorch_model.safetensors")
    return sorted(weights), torch.load(work / "out" / "checkpoint.pt", weights_only=True)["step"]


COMMANDS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "generate": (
        "generate 'a red cube' 'a blue cone' --trace_image true --model {model} --quiet --output {work}/out",
        generated,
    ),
    "evaluate": (
        "evaluate --model {model} --preset {work}/p.yaml --captions_file {work}/c.txt --reference {work}/ref --quiet "
        "--output {work}/out --batch_size 2 --bootstrap 0 --clip {clip}",
        evaluated,
    ),
    "bench": (
        "bench --methods ar --model {model} --prompts 2 --warm_up 0 --judge false --quiet --images {work}/i "
        "--json {work}/b.json",
        benched,
    ),
    "tune": (
        "tune --method sjd --fixed.window 2 --fixed.initial_guess random --speed pass_reduction --prompts 2 "
        "--batch_size 2 --model {model} --quiet --output {work}/out",
        tuned,
    ),
    "train": (
        "train judge --output_dir {work}/out --steps 2 --batch_size 2 --evaluation_size 2 --warmup_steps 1 "
        "--image_size 32 --log_every 1 --max_seconds null --num_threads 1 --autocast false --checkpoint_seconds 0.001",
        trained,
    ),
}


@pytest.fixture
def prepared(tmp_path: Path, _saved_tiny_pipelines: dict[str, Path], _finished_run: Path) -> Callable[[str], Any]:
    """`prepared(name)`: a folder to work in and its command line."""

    def prepare(command: str, name: str) -> tuple[Path, list[str]]:
        work = tmp_path / name
        work.mkdir()
        (work / "p.yaml").write_text("extractor: clip\nresizer: bicubic\nresolution: 32\nclip_score: null\n")
        (work / "c.txt").write_text("a red cube\na blue cone\n")
        clip = Path(main.__code__.co_filename).parent / "weights" / "clip"
        places = {"work": work, "model": _saved_tiny_pipelines["text"], "clip": clip}
        (work / "ref").symlink_to(_finished_run / "images")
        return work, arguments_of(COMMANDS[command][0], places)

    return prepare


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a kill needs fork")
@pytest.mark.parametrize("command", COMMANDS)
def test_a_kill_before_any_rename_loses_and_leaves_nothing(command: str, prepared: Callable[..., Any]) -> None:
    whole, arguments = prepared(command, "whole")
    assert main(arguments) == 0
    made = COMMANDS[command][1]
    wanted = made(whole)
    for rename in range(100):
        work, arguments = prepared(command, f"killed{rename}")
        if not killed_at(rename, arguments):
            break
        assert main(arguments) == 0
        assert made(work) == wanted, f"killed before rename {rename}"
        assert not [path for path in work.rglob(".*")], f"left by a kill before rename {rename}"
    assert rename >= {"generate": 5, "evaluate": 6, "bench": 3, "tune": 3, "train": 3}[command]


@pytest.mark.parametrize(
    "command",
    [
        *(COMMANDS[name][0] for name in ("generate", "evaluate", "tune", "train")),
        "scenes --count 1 --quiet --output {work}/out",
        "convert llamagen --transformer a.pt --vqvae b.pt --image_size 256 --output {work}/out",
        "convert lantern-drafter --drafter a --output {work}/out",
        "judge {work}/out",
        "bench --methods ar --model {model} --prompts 1 --judge false --quiet --images {work}/out",
        "train data --output_dir {work}/out --vqvae {model}/vqvae",
    ],
)
def test_a_second_process_on_a_folder_ends_at_once(
    command: str, tmp_path: Path, _saved_tiny_pipelines: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "result.jsonl").touch()
    (tmp_path / "p.yaml").write_text("extractor: clip\nclip_score: null\n")
    places = {"work": tmp_path, "model": _saved_tiny_pipelines["text"], "clip": "none"}
    with own_folder(tmp_path / "out"):
        check_refused(arguments_of(command, places), "another run is writing to", capsys, tmp_path)


@pytest.mark.parametrize("task", ["image", "video"])
def test_a_second_comparison_on_a_file_ends_at_once(
    task: str, tmp_path: Path, _saved_tiny_pipelines: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model = f" --model {_saved_tiny_pipelines['text']}" if task == "image" else ""
    command = f"bench --task {task} --methods ar{model} --quiet --json {{work}}/b.json"
    calls = tmp_path / "b.json.calls.jsonl"
    with own_file(calls):
        calls.write_text("\n")
        check_refused(arguments_of(command, {"work": tmp_path}), "another run is writing to", capsys, tmp_path)
