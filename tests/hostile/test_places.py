"""Where results go: links, devices, pipes, files for folders and folders for files are refused, never replaced."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

from hostile import Case, arguments_of, check_case, check_refused, each

from vargen.cli import main

GENERATE = "generate 'a red cube' --model {model} --quiet --output {work}/out"
BENCH = "bench --methods ar --model {model} --num_prompts 1 --warm_up 0 --quiet --judge false --output {work}/out"
EVALUATE = "evaluate --methods ar --model {model} --num_prompts 2 --quiet --output {work}/out"
SCENES = "scenes --num_scenes 1 --quiet --output {work}/out"
TUNE = "tune --method eagle --model {model} --quiet --output {work}/out"
TRAIN = "train judge --output {work}/out --batch_size 2 --steps 1 --evaluation_size 2 --image_size 32"
CONVERT = "convert llamagen --transformer a.pt --vqvae b.pt --image_size 256 --output {work}/out"
WRITERS = {
    "generate": GENERATE, "bench": BENCH, "evaluate": EVALUATE, "scenes": SCENES, "tune": TUNE, "train": TRAIN,
    "convert": CONVERT,
}  # fmt: skip


def file(name: str, content: str = "mine") -> Callable[[Path], object]:
    return lambda work: (work / name).write_text(content)


def folder(name: str) -> Callable[[Path], object]:
    return lambda work: (work / name).mkdir(parents=True)


def link(name: str, target: str) -> Callable[[Path], object]:
    def damage(work: Path) -> None:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / "elsewhere").mkdir(exist_ok=True)
        if "/" in target:
            (work / target).touch()
        os.symlink(work / target, work / name)

    return damage


def begun(inner: Callable[[Path], object]) -> Callable[[Path], object]:
    """A run that was begun, and then something done to its folder."""

    def damage(work: Path) -> None:
        (work / "out").mkdir()
        (work / "out" / "config.json").write_text('{"settings": {}}')
        inner(work)

    return damage


def of_all(name: str, place: str, expected: str, damage: Callable[[Path], object] | None = None) -> list[Case]:
    """The same place for every command that writes a folder."""
    commands = {command: line.replace("{work}/out", place) for command, line in WRITERS.items()}
    return [Case(f"{command}: {name}", line, expected, damage) for command, line in commands.items()]


CASES = [
    *of_all("a file for a folder", "{work}/out", "is a file; name a folder", file("out")),
    *of_all("below a file", "{work}/f/out", "is a file", file("f")),
    *of_all("below /proc", "/proc/nothing/here", "/proc"),
    *of_all("a device", "/dev/full", "/dev/full"),
    Case("generate: images is a link", GENERATE, "is a link", begun(link("out/images", "elsewhere"))),
    Case("generate: traces is a link", GENERATE, "is a link", begun(link("out/traces", "elsewhere"))),
    Case("generate: result.jsonl is a link", GENERATE, "is a link", link("out/result.jsonl", "elsewhere/r")),
    Case("generate: result.jsonl is a folder", GENERATE, "is a folder", folder("out/result.jsonl")),
    Case("generate: config.json is a folder", GENERATE, "config.json is a folder", folder("out/config.json")),
    Case("evaluate: batches is a link", EVALUATE, "is a link", link("out/ar/batches", "elsewhere")),
    Case("evaluate: images is a link", EVALUATE, "is a link", link("out/ar/images", "elsewhere")),
    Case("scenes: images is a link", SCENES, "is a link", link("out/images", "elsewhere")),
    Case("scenes: images is a file", SCENES, "is a file", begun(file("out/images"))),
    Case("scenes: metadata is a folder", SCENES, "metadata.jsonl", folder("out/metadata.jsonl")),
    Case("train: samples is a link", TRAIN, "is a link", link("out/samples", "elsewhere")),
    Case("train: export is a link", TRAIN, "is a link", link("out/export", "elsewhere")),
    Case("train: a checkpoint that is a folder", TRAIN, "checkpoint.pt", folder("out/checkpoint.pt")),
    Case("bench: results that are a link", BENCH, "results.json is a link", link("out/results.json", "elsewhere/b")),
    Case("bench: results that are a folder", BENCH, "results.json is a folder", folder("out/results.json")),
    Case("bench: a plot that is a pipe", BENCH, "a device or a pipe", begun(lambda w: os.mkfifo(w / "out/plot.png"))),
    Case("bench: calls that are a link", BENCH, "is a link", link("out/calls.jsonl", "elsewhere/c")),
    Case("bench: calls that are a folder", BENCH, "is a folder", folder("out/calls.jsonl")),
    Case("bench: images is a file", BENCH + " --save_images", "is a file", begun(file("out/images"))),
    Case("bench: images of a method is a link", BENCH + " --save_images", "a link", link("out/images/ar", "elsewhere")),
    Case("caption: a picture that is a device", "caption {work} --picture /dev/full", "is a device or a pipe"),
    Case("caption: a picture that is a link", "caption {model} --picture {work}/p.png", "a link", link("p.png", "x")),
    Case("caption: a picture that is a folder", "caption {model} --picture {work}/p.png", "a folder", folder("p.png")),
    Case("judge: nothing there", "judge {work}", "has no result.jsonl"),
    Case("judge: a file", "judge {work}/f", "has no result.jsonl", file("f")),
    Case("judge: no such judge", "judge {work} --judge_model {work}/none", "holds none", file("result.jsonl", "")),
    Case("judge: its model is a file", "judge {work} --judge_model {work}/result.jsonl", "none", file("result.jsonl")),
]  # fmt: skip


@each(CASES)
def test_it_is_refused(case, tmp_path, _saved_tiny_pipelines, capsys):
    check_case(case, {"work": tmp_path, "model": _saved_tiny_pipelines["text"]}, capsys)


def test_what_is_no_regular_file_is_still_there(tmp_path, capsys):
    """A device named as an output was once replaced by a picture."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "frames").mkdir()
    assert main(["caption", str(tmp_path / "frames"), "--picture", str(tmp_path / "pipe")]) == 2
    assert "is a device or a pipe" in capsys.readouterr().err
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)


def test_a_failed_start_does_not_block_the_folder(tmp_path, _saved_tiny_pipelines, capsys):
    command = arguments_of(GENERATE, {"work": tmp_path, "model": _saved_tiny_pipelines["text"]})
    wrong = [*command, "--method", "eagle", "--method_options.drafter", str(tmp_path / "none")]
    check_refused(wrong, "none is not a folder", capsys, tmp_path)
    assert main(command) == 0


def test_modules_of_the_working_directory_are_never_searched(tmp_path, tiny_model_folder, monkeypatch, capsys):
    from hostile import change_json

    (tmp_path / "planted.py").write_text("raise SystemExit('executed')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    change_json(tiny_model_folder / "model_index.json", vqvae=["planted", "X"])
    command = arguments_of(GENERATE, {"work": tmp_path, "model": tiny_model_folder})
    check_refused(command, "planted.X, which is not a component of vargen", capsys, tmp_path)
