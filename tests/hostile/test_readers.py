"""What is read: pipes, arrays, pictures, videos, numbers and environments that would hang, crash or answer wrongly.

Where a kind can occur in many places, they are found by walking the settings of every command or the source itself.
"""

import ast
import contextlib
import datetime
import io
import os
import re
import sys
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from commands import every_command
from hostile import Case, arguments_of, check_refused, contents, each, file_size_limit, source_calls
from PIL import Image
from refusals import raised

from metrics.errors import DataError
from metrics.frechet import GaussianStatistics
from metrics.images import open_images, read_image
from vargen.base.errors import UserError
from vargen.base.options import path_roles_of
from vargen.cli import main
from vargen.commands.arguments import fill

COMMANDS = every_command()


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_nothing_waits_for_a_pipe(command, tmp_path):
    """Every argument of every command that is read."""
    os.mkfifo(tmp_path / "pipe")
    for name in (name for name, place in path_roles_of(command.settings).items() if place.is_read):
        with pytest.raises(UserError, match=f"{name}: .*pipe is a device or a pipe"):
            fill(command.settings, command.values(**{name: str(tmp_path / "pipe")}))


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_every_number_inside_of_settings_has_a_bound(command):
    """Settings of methods, before the method is known."""
    for name in (name for name, kind in command.types().items() if kind == dict[str, Any]):
        with pytest.raises(UserError, match=rf"^{name}.eagle.depth must be"):
            fill(command.settings, command.values(**{name: {"eagle": {"depth": 10**30}}}))


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_null_is_refused_where_it_means_nothing(command, tmp_path):
    """In a file of options, for every option that has a default and no null."""
    needed = [
        field.name
        for field in fields(command.settings)
        if type(None) not in get_args(command.types()[field.name])
        and (field.default not in (MISSING, None) or field.default_factory is not MISSING)
    ]
    (tmp_path / "c.yaml").write_text("".join(f"{name}: null\n" for name in needed))
    positional = ["nowhere"] if command.words in ("caption", "judge") else []
    required = [f"--{name}={value}" for name, value in command.required().items()]
    told = io.StringIO()
    with contextlib.redirect_stderr(told):
        assert main([*command.words.split(), *positional, *required, "--config", str(tmp_path / "c.yaml")]) == 2
    assert set(needed) <= set(re.findall(r"\w+", told.getvalue().partition("must not be null")[0])), told.getvalue()


def test_a_byte_of_a_picture_that_is_another_one_is_seen(tmp_path):
    """Every byte between the header and the end of a PNG; PIL's own reading ignores the sums."""
    frames(1, (8, 8))(tmp_path)
    path = tmp_path / "f" / "0.png"
    sound = path.read_bytes()
    for place in range(8, len(sound) - 12):
        path.write_bytes(sound[:place] + bytes([sound[place] ^ 1]) + sound[place + 1 :])
        raised(DataError, "cannot be read", read_image, path)


READERS = {
    "vargen/base/reading.py": "the reader of bytes itself",
    "metrics/images.py": "the readers of arrays and pictures",
    "vargen/video/models/frames.py": "the reader of videos",
    "scenes/rendering/video_file.py": "writes videos",
    "vargen/runs/records.py": "reads back what it wrote, after asking whether it is a file",
    "metrics/provenance.py": "reads /proc/cpuinfo",
    "vargen/checkpoints/model_folder.py": "hashes files of a folder, after asking whether they are",
    "vargen/checkpoints/foreign_weights.py": "looks at the first bytes of what --checkpoint named",
    "vargen/demo/videos.py": "looks at the first bytes of an upload",
    "vargen/demo/compare.py": "opens a plot in memory",
    "vargen/commands/evaluate.py": "reads back its own scores",
}
"""Modules that open files for themselves, and why."""


def test_files_are_opened_by_the_readers_alone():
    """So that what they refuse is refused everywhere."""
    opening = {"read_bytes", "read_text", "safe_load", "full_load", "unsafe_load"}
    of_modules = {("np", "load"), ("av", "open"), ("Image", "open"), ("yaml", "load")}
    found: dict[str, list[str]] = {}
    for name, node in source_calls("vargen", "scenes", "metrics"):
        if not isinstance(node.func, ast.Attribute):
            continue
        home = node.func.value.id if isinstance(node.func.value, ast.Name) else ""
        if node.func.attr in opening or (home, node.func.attr) in of_modules:
            found.setdefault(name, []).append(f"line {node.lineno}: {node.func.attr}")
    assert {name: lines for name, lines in found.items() if name not in READERS} == {}


def npz(**arrays: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.savez(content, **arrays)
    return content.getvalue()


def encrypted(archive: bytes) -> bytes:
    """An archive whose directory says that its first file is."""
    flags = archive.index(b"PK\1\2") + 8
    return archive[:flags] + bytes([archive[flags] | 1]) + archive[flags + 1 :]


def header(shape: str, *names: str) -> bytes:
    """An array in an .npz file, under each of the names, whose header claims a shape."""
    told = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    told += " " * (-(len(told) + 11) % 64) + "\n"
    array = b"\x93NUMPY\x01\x00" + len(told).to_bytes(2, "little") + told.encode() + b"\0" * 12
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zipfile knows that a name is there twice
        for name in names or ("arr_0.npy",):
            file.writestr(name, array)
    return content.getvalue()


ARRAYS = {
    "none": b"",
    "junk": b"junk" * 100,
    "torn": npz(arr_0=np.zeros((4, 8, 8, 3), np.uint8))[:300],
    "a negative shape": header("(-1, 2, 2, 3)"),
    "a shape that is longer": header("(9, 2, 2, 3)"),
    "a shape of words": header("('a', 2)"),
    "more than memory holds": header("(1000000000000000, 2, 2, 3)"),
    **{f"two of {name}": header("(1, 2, 2, 3)", name, "arr_0.npy") for name in ("arr_0", "arr_0.npy")},
    "objects": npz(arr_0=np.array([{}], dtype=object)),
    "no pixels": npz(arr_0=np.zeros((4, 0, 0, 3), np.uint8)),
    "no pictures": npz(arr_0=np.zeros((0, 8, 8, 3), np.uint8)),
    "of numbers": npz(arr_0=np.zeros((4, 8, 8, 3), np.float32)),
    "encrypted": encrypted(npz(arr_0=np.zeros((4, 8, 8, 3), np.uint8))),
    "outside": npz(**{"../../arr_0": np.zeros((4, 8, 8, 3), np.uint8)}),
    "one array": b"\x93NUMPY\x01\x00",
    "statistics that do not fit": npz(mu=np.zeros(4), sigma=np.zeros((3, 3))),
    "statistics of complex numbers": npz(mu=np.zeros(2, complex), sigma=np.eye(2)),
    "one picture": npz(arr_0=np.zeros((1, 8, 8, 3), np.uint8)),
    "statistics of another network": npz(mu=np.zeros(3), sigma=np.eye(3)),
    "statistics of words": npz(mu=np.array(["a"]), sigma=np.zeros((1, 1))),
}
WHOLE = ("statistics of another network", "one picture")
"""Arrays that are what they should be, and no reference."""
GIVEN = (
    "evaluate --given_images {work}/f --protocol {work}/p.yaml --prompts_file {work}/c.txt --output {work}/out --quiet "
)
GIVEN += "--clip {clip} "


@pytest.mark.parametrize("name", [name for name in ARRAYS if name not in WHOLE])
def test_arrays_that_are_none(name, tmp_path):
    path = tmp_path / "r.npz"
    path.write_bytes(ARRAYS[name])
    raised(DataError, r"r\.npz", open_images, path)
    raised(DataError, r"r\.npz", GaussianStatistics.load, path)


@pytest.mark.parametrize("name", ["a negative shape", "torn", "no pixels", "statistics that do not fit", *WHOLE])
def test_arrays_of_another_kind_that_a_command_is_given(name, tmp_path, clip_folder, capsys):
    frames(3, (8, 8))(tmp_path)
    (tmp_path / "r.npz").write_bytes(ARRAYS[name])
    (tmp_path / "p.yaml").write_text("extractor: clip\nresizer: bicubic\nresolution: 32\nclip_score: null\n")
    (tmp_path / "c.txt").write_text("a red cube\n" * 3)
    array, folder = str(tmp_path / "r.npz"), str(tmp_path / "f")
    for given in (["--reference", array], ["--given_images", array, "--reference", folder]):
        code = main([*arguments_of(GIVEN, {"work": tmp_path, "clip": clip_folder}), *given])
        told = capsys.readouterr().err
        assert (code, told.count("vargen: error: ")) == (2, 1) and "r.npz" in told and "Traceback" not in told, told
        assert not (tmp_path / "out").exists()


READ_ARRAYS = {
    "metrics/images.py": "test_arrays_that_are_none",
    "metrics/frechet.py": "test_arrays_that_are_none",
    "vargen/jobs/measuring.py": "test_arrays_of_another_kind_that_a_command_is_given",
    "vargen/runs/batches.py": "test_records.py: test_a_damaged_evaluation",
}
"""Modules that read arrays, and the test that gives them what is none."""


def test_arrays_are_read_where_tests_give_what_is_none():
    """`test_files_are_opened_by_the_readers_alone` says that nobody opens them otherwise."""
    reading = {name for name, node in source_calls() if getattr(node.func, "id", "") == "open_npz"}
    assert reading == set(READ_ARRAYS)


def frames(count: int, size: tuple[int, int], name: str = "f") -> Callable[[Path], object]:
    def draw(work: Path) -> None:
        (work / name).mkdir(exist_ok=True)
        for number in range(count):
            Image.new("RGB", size, (number, 0, 0)).save(work / name / f"{number}.png")

    return draw


def bomb(work: Path) -> None:
    """50,000 pixels a side, and one of each told."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    size = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    picture = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", zlib.compress(b"\0" * 99)) + chunk(b"IEND", b"")
    )
    frames(0, (1, 1))(work)
    for number in range(4):
        (work / "f" / f"{number}.png").write_bytes(picture)


def playlist(content: str, name: str = "v.mp4") -> Callable[[Path], object]:
    def damage(work: Path) -> None:
        images = [Image.new("RGB", (32, 32), (number * 30, 0, 0)) for number in range(8)]
        images[0].save(work / "secret.gif", save_all=True, append_images=images[1:])
        (work / name).write_text(content)

    return damage


CAPTION = "caption {work}/v.mp4 --num_frames 4 --max_new_tokens 1"
SLOW = "generate --prompts_file {work}/p.txt --output {work}/out --quiet"
BENCHMARK = "generate --prompts_file {work}/p.jsonl --prompts_format geneval --output {work}/out --quiet"
CASES = [
    Case("GenEval: a pipe", BENCHMARK, "is a device or a pipe", lambda work: os.mkfifo(work / "p.jsonl")),
    Case(
        "bench: an unknown extractor",
        "bench --methods ar --num_prompts 1 --extractor vgg16",
        "extractor must be one of efficientnet-lite0, or null",
    ),
    Case("a pipe as prompts", SLOW, "is a device or a pipe", lambda work: os.mkfifo(work / "p.txt")),
    Case("a pipe as a video", CAPTION, "is a device or a pipe", lambda work: os.mkfifo(work / "v.mp4")),
    Case("frames of 50,000 pixels", "caption {work}/f", "cannot be read as a picture", bomb),
    Case("ffconcat", CAPTION, "cannot be read as a video", playlist("ffconcat version 1.0\nfile secret.gif\n")),
    Case("a list of HLS", CAPTION, "cannot be read", playlist("#EXTM3U\n#EXTINF:1,\nsecret.gif\n#EXT-X-ENDLIST\n")),
    Case("a pattern", "caption {work}/%d.png", "does not exist", frames(4, (32, 32))),
    Case(
        "a model that is a pipe",
        "generate a --model {work}/m --output {work}/out",
        "pipe",
        lambda w: os.mkfifo(w / "m"),
    ),
]


@each(CASES)
def test_it_is_refused(case, tmp_path, capsys):
    if case.damage is not None:
        case.damage(tmp_path)
    pipes = [path for path in tmp_path.rglob("*") if path.is_fifo()]
    check_refused(arguments_of(case.command, {"work": tmp_path}), case.expected, capsys, tmp_path)
    assert all(path.is_fifo() for path in pipes)


def test_a_video_with_a_colon_in_its_name(tmp_path, monkeypatch):
    import torch

    from scenes.rendering.video_file import write_video
    from vargen.video.models.frames import read_video

    monkeypatch.chdir(tmp_path)
    wanted = torch.arange(4 * 3 * 32 * 32).reshape(4, 3, 32, 32).remainder(255).byte()
    write_video(wanted, "a:b.mp4")
    assert read_video("a:b.mp4").total_num_frames == 4


def test_hidden_files_are_no_pictures(tmp_path):
    from metrics.images import ImageFolder
    from vargen.video.models.frames import read_video

    frames(4, (32, 32))(tmp_path)
    (tmp_path / "f" / "._1.png").write_bytes(b"of macOS")
    (tmp_path / "f" / ".ipynb_checkpoints").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "f" / ".ipynb_checkpoints" / "0.png")
    (tmp_path / "f" / "1.png").rename(tmp_path / "f" / "²1.png")  # a digit that is no number
    assert len(ImageFolder(tmp_path / "f")) == 4 == read_video(tmp_path / "f").total_num_frames


def test_standard_input_that_is_closed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "stdin", None)
    check_refused(["generate", "--prompts_file", "-", "--output", f"{tmp_path}/out"], "is closed", capsys, tmp_path)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "abc"}, "RANK must be a whole number"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE must be a whole number"),
        ({"WORLD_SIZE": "-3"}, "WORLD_SIZE must be a whole number"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"WORLD_SIZE": "2", "RANK": "5", "MASTER_ADDR": "x", "MASTER_PORT": "1"}, "RANK is 5, but WORLD_SIZE is 2"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "x"}, "MASTER_PORT is not set"),
    ],
)
@pytest.mark.parametrize("command", ["generate a --output {work}/out", GIVEN + "--reference {work}/f"])
def test_an_environment_that_no_launcher_made(
    environment, expected, command, tmp_path, clip_folder, monkeypatch, capsys
):
    from vargen.runs import processes

    monkeypatch.setattr(processes, "_PATIENCE", datetime.timedelta(seconds=2))  # what is not refused waits for others
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    frames(3, (8, 8))(tmp_path)
    (tmp_path / "p.yaml").write_text("extractor: clip\nresizer: bicubic\nresolution: 32\nclip_score: null\n")
    (tmp_path / "c.txt").write_text("a red cube\n" * 3)
    check_refused(arguments_of(command, {"work": tmp_path, "clip": clip_folder}), expected, capsys, tmp_path)


def test_a_wait_for_other_processes_says_so(monkeypatch, capsys):
    import time

    from vargen.runs import processes

    monkeypatch.setattr(processes, "_SILENT_SECONDS", 0.0)
    with processes._told("the other process", True):
        time.sleep(0.2)
    assert capsys.readouterr().err == "vargen: waiting for the other process; Ctrl+C ends it\n"


def test_a_tokenizer_that_panics_ends_in_one_line(tiny_model_folder, tmp_path, capsys):
    from hostile import change_json

    change_json(
        tiny_model_folder / "tokenizer" / "tokenizer.json",
        normalizer={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": "b"},
    )
    command = ["generate", "a" * 60 + "b", "--model", str(tiny_model_folder), "--output", f"{tmp_path}/out", "--quiet"]
    check_refused(command, "a tokenizer gave up", capsys, tmp_path)


def test_a_failed_start_leaves_no_folder(tmp_path, capsys):
    with file_size_limit(64):
        check_refused(["scenes", "--num_scenes", "1", "--quiet", "--output", f"{tmp_path}/out"], "", capsys, tmp_path)
    assert contents(tmp_path) == {}


def test_a_record_that_comes_twice(finished_run, tmp_path, capsys):
    path = finished_run / "result.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    for more in (lines[0], lines[0].replace("{", '{"more": 1, ', 1)):
        path.write_text("".join([*lines, more]))
        check_refused(["judge", str(finished_run)], "line 3 repeats the record of line 1", capsys, tmp_path)


def test_settings_that_are_dataclasses_are_all_found():
    assert len(COMMANDS) >= 22 and all(fields(command.settings) for command in COMMANDS)
