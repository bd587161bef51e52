"""Kinds of faults that strangers found, each wherever it can occur: pictures, tables, files of options, figures."""

import ast
import errno
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hostile import ROOT, called, check_refused, source_calls
from PIL import Image
from refusals import raised, refused
from tiny_pipelines import build_tiny_pipeline
from torch import Tensor, nn

from metrics.bootstrap import mean_interval, spread_interval, student_interval
from metrics.class_score import inception_score
from metrics.clip_score import clip_scores, retrieval_accuracy
from metrics.diversity import distances_to_others
from metrics.errors import DataError
from metrics.frechet import GaussianStatistics, frechet_distance
from metrics.images import IMAGE_SUFFIXES, ImageFolder, list_pictures, read_image, resize
from metrics.manifold import compare_manifolds
from metrics.proportion import clustered_interval
from vargen import cli
from vargen.base.errors import UserError
from vargen.base.prompts import read_prompts
from vargen.base.reading import parse_json, parse_yaml
from vargen.checkpoints.finite import check_weights
from vargen.checkpoints.foreign_weights import read_tensors
from vargen.pipelines.arguments import warn_of_prompts
from vargen.runs.records import ImageRequest, PictureFolder
from vargen.video.models.frames import _pictures_of

CUBE = Image.new("RGB", (4, 4), "red")

# ---------------------------------------------------------------------------------------------------------------------
# Pictures: none is left out or counted twice without a word, and what is none starts no program


def test_pictures_are_read_whatever_their_suffix_and_others_are_told(tmp_path):
    for number, suffix in enumerate(IMAGE_SUFFIXES):
        for name in (f"a{number}{suffix}", f"b{number}{suffix.upper()}"):
            CUBE.save(tmp_path / name, {".jpe": "JPEG", ".jfif": "JPEG"}.get(suffix))
    for read in (lambda: ImageFolder(tmp_path).files, lambda: _pictures_of(tmp_path)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            files = read()
        assert len(files) == 2 * len(IMAGE_SUFFIXES) and {read_image(file).shape for file in files} == {(3, 4, 4)}
        others = ("c.avif", "d.heic", "e.svg", "f.ico")
        for name in others:
            (tmp_path / name).touch()
        with pytest.warns(UserWarning, match=r"4 are left out: c\.avif, d\.heic, e\.svg, \.\.\.; use"):
            assert read() == files
        for name in others:
            (tmp_path / name).unlink()


def test_pictures_behind_links_count_once(tmp_path):
    folder, other = tmp_path / "reference", tmp_path / "other"
    for place in (folder / "a", other):
        place.mkdir(parents=True)
        for number in range(3):
            CUBE.save(place / f"{number}.png")
    (folder / "b").symlink_to(other)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(list_pictures(folder)) == 6
    for name, target in {"again": folder / "a", "loop": folder, "lost.png": "nowhere"}.items():
        (folder / name).symlink_to(target)
    with pytest.warns(UserWarning, match="3 are left out: again, a folder that is read already, .*lost.png"):
        assert len(list_pictures(folder)) == 6


PROGRAMS = {"eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "text": b"a cube", "html": b"<html>"}


@pytest.mark.parametrize("content", PROGRAMS)
@pytest.mark.parametrize("suffix", [".png", ".jpg"])
def test_what_is_no_picture_starts_no_program(content, suffix, tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: pytest.fail(f"{given} was started"))
    path = tmp_path / f"0{suffix}"
    path.write_bytes(PROGRAMS[content])
    raised(DataError, "cannot be read", read_image, path)


def test_every_reader_of_pictures_names_the_formats_that_it_reads():
    names = ("Image.open", "PIL.Image.open")
    opened = [(path, node) for path, node in source_calls() if called(node) in names]
    assert len(opened) >= 2
    for path, node in opened:
        own = "BytesIO" in ast.unparse(node)  # made a line before
        assert own or "formats" in [keyword.arg for keyword in node.keywords], f"{path}:{node.lineno}"


def _as_jpeg(path: Path) -> None:
    CUBE.save(path, "JPEG")


def _repainted(path: Path) -> None:
    with Image.open(path) as image:
        told, again = image.text, Image.new("RGB", image.size, "blue")  # type: ignore[attr-defined]
    _with(again, path, told)


def _resized(path: Path) -> None:
    with Image.open(path) as image:
        _with(image.resize((8, 8)), path, image.text)  # type: ignore[attr-defined]


def _grey(path: Path) -> None:
    with Image.open(path) as image:
        _with(image.convert("L"), path, image.text)  # type: ignore[attr-defined]


def _torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:50])


def _deep(path: Path) -> None:
    _with(CUBE, path, {"vargen": "[" * 100_000})


def _with(image: Image.Image, path: Path, told: dict[str, str]) -> None:
    from PIL.PngImagePlugin import PngInfo

    chunk = PngInfo()
    for name, text in told.items():
        chunk.add_text(name, text)
    image.save(path, "PNG", pnginfo=chunk)


@pytest.mark.parametrize("change", [_as_jpeg, _repainted, _resized, _grey, _torn, _deep])
@pytest.mark.parametrize("kept", ["a run", "an evaluation"])
def test_a_finished_picture_is_believed_for_its_pixels_alone(change, kept, tmp_path):
    from vargen.runs.batches import PictureBatches

    request = ImageRequest(0, 3, "a red cube")
    folder, batches = PictureFolder(tmp_path, [request]), PictureBatches(tmp_path, {}, 1, 1)
    if kept == "a run":
        folder.save(request, CUBE, {})
    else:
        batches.keep_picture(0, CUBE)

    def is_believed() -> bool:
        folder.scan()
        return not folder.missing if kept == "a run" else not batches._broken(0)

    assert is_believed()
    change(tmp_path / "images" / "000000.png")
    assert not is_believed()


# ---------------------------------------------------------------------------------------------------------------------
# Tables and files of options: no value is taken for another


TWICE = {
    "a.csv": ["prompt,prompt\na,b\n", "prompt,Prompt\na,b\n", "id, id ,prompt\n1,2,b\n", '"prompt",prompt\na,b\n'],
    "a.tsv": ["prompt\tprompt\na\tb\n", "Prompt\tprompt\na\tb\n"],
    "a.jsonl": ['{"prompt": "a", "prompt": "b"}', '{"prompt": "a", "Prompt": "b"}', '{"prompt": "a", "prompt ": "b"}'],
    "a.json": ['[{"prompt": "a", "PROMPT": "b"}]', '{"annotations": [], "annotations": [{"caption": "a"}]}'],
}


@pytest.mark.parametrize(("name", "content"), [(name, each) for name, every in TWICE.items() for each in every])
def test_a_name_that_stands_twice_in_a_table(name, content, tmp_path):
    (tmp_path / name).write_text(content)
    refused(r"two columns|two keys|is there twice", read_prompts, str(tmp_path / name))


TWO_KEYS = [
    *("a: 1\na: 2", '{a: 1, "a": 2}', "a: 1\n? a\n: 2", "1: x\n0x1: y", "yes: 1\ntrue: 2", "? {a: 1, a: 2}\n: 3"),
    *("<<: {a: 1}\na: 2", "a: 2\n<<: {a: 1}", "<<: {a: 1}\n<<: {a: 2}", "<<: [{a: 1}, {a: 2}]", "!!set {a, a}"),
    *("b: [{a: 1, a: 2}]", "b: {c: {a: 1, a: 2}}", "a: 1\n'a': 2", "!!str a: 1\na: 2", "~: 1\nnull: 2"),
]


@pytest.mark.parametrize("text", TWO_KEYS)
def test_a_name_that_stands_twice_in_yaml(text):
    raised(ValueError, r"is there twice|merges keys|not YAML", parse_yaml, text)


QUOTED = [
    ("a.csv", 'prompt\n"a red cube\nb\nc\n', "unexpected end of data"),
    ("a.csv", 'prompt,id\n"a",1\n"b,2\n', "unexpected end of data"),
    ("a.tsv", '"prompt"\n"a\nb\n', "unexpected end of data"),
    ("a.csv", 'prompt\n"a ""big"" cube"\n', ['a "big" cube']),
    ("a.tsv", 'prompt\n"a ""big"" cube"\n', ['a "big" cube']),  # as pandas has it
    ("a.tsv", '"prompt"\t"id"\n"a cube"\t"1"\n', ["a cube"]),
    ("a.tsv", 'prompt\na sign that says "go"\n"go" on a sign\n', ['a sign that says "go"', '"go" on a sign']),
    ("a.tsv", 'prompt\n"a" and "b"\n', ['"a" and "b"']),
]


@pytest.mark.parametrize(("name", "content", "found"), QUOTED)
def test_quotes_of_tables(name, content, found, tmp_path):
    (tmp_path / name).write_text(content)
    if isinstance(found, list):
        assert read_prompts(str(tmp_path / name)) == found
    else:
        refused(found, read_prompts, str(tmp_path / name))


@pytest.mark.parametrize(
    "content", ["", "# nothing\n", "secret: root:x:0:0\nroot:x:0:0:root\n", "a secret", "- a secret\n"]
)
def test_no_error_shows_what_stands_in_a_file(content, tmp_path, capsys):
    path = tmp_path / "c.yaml"
    path.write_text(content)
    for command in (["generate", "a"], ["bench"], ["evaluate"], ["serve"], ["caption", "x"], ["train", "tokenizer"]):
        assert cli.main([*command, "--config", str(path)]) == 2
        told = capsys.readouterr().err
        assert str(path) in told and "secret" not in told and "x:0:0" not in told, told


LARGE = {
    "text": "a" * 3_000_000,
    "keys": "".join(f"k{number}: 1\n" for number in range(100_000)),
    "a name": f"model: {'x' * 1_000_000}",
    "fewer keys": "".join(f"k{number}: 1\n" for number in range(8_000)),
    "a long name": f"model: {'x' * 99_000}",
    "dots": "method_options.window: 3",
}


@pytest.mark.parametrize("content", LARGE)
def test_files_of_options_have_a_bound(content, tmp_path, capsys):
    (tmp_path / "c.yaml").write_text(LARGE[content])
    assert cli.main(["generate", "a", "--config", str(tmp_path / "c.yaml")]) == 2
    assert len(capsys.readouterr().err) < 3000


# ---------------------------------------------------------------------------------------------------------------------
# Errors: whatever reading and writing raises ends in one line


def _raised() -> list[BaseException]:
    failed = shutil.Error([("a", "b", "it is a pipe"), ("c", "d", "it is a loop")])
    encoding = UnicodeEncodeError("ascii", "\u2603", 0, 1, "ordinal not in range")
    decoding = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")
    own = [OSError("no errno"), OSError(), io.UnsupportedOperation("seek"), RecursionError("maximum recursion depth")]
    return [
        failed,
        encoding,
        decoding,
        *own,
        *(OSError(number, os.strerror(number), "x") for number in errno.errorcode),
    ]


@pytest.mark.parametrize("error", _raised(), ids=repr)
def test_an_error_of_reading_or_writing_is_one_line(error, monkeypatch, capsys):
    if isinstance(error, BrokenPipeError):
        return

    def fails(arguments: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_dispatch", fails)
    assert cli.main(["generate"]) == (130 if isinstance(error, KeyboardInterrupt) else 2)
    told = capsys.readouterr().err
    assert told.startswith("vargen: error: ") and told.count("\n") == 1 and len(told) < 400


def test_no_name_reaches_a_terminal_as_it_is(monkeypatch, capsys):
    names = ["\x1b[2J", "\x07", "\r\n", "\x9b31m", "\u202e", "\x7f", "\u2028", "x" * 9000]

    def fails(arguments: list[str]) -> int:
        warnings.warn(f"the tensor {names}{''.join(names)} is odd", stacklevel=1)
        raise UserError(f"the tensor {''.join(names)} is odd")

    monkeypatch.setattr(cli, "_dispatch", fails)
    cli.main(["generate"])
    lines = capsys.readouterr().err.split("\n")
    assert len(lines) == 3 and all(line.isprintable() and len(line) < 2100 for line in lines)
    assert "\\x1b[2J" in lines[1]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [_Terminal, io.StringIO])
def test_a_terminal_obeys_no_answer_and_a_file_has_it_whole(stream, monkeypatch):
    said, shown = "\x1b[2J\x07\r\x9b\u202e\x7f \t\xe9 \u200d\n", "\\x1b[2J\\x07\\r\\x9b\\u202e\\x7f \t\xe9 \u200d\n"
    streams, bar = (stream(), stream()), "50 %\r\x1b[A"
    for name, each in zip(("stdout", "stderr"), streams, strict=True):
        monkeypatch.setattr(sys, name, each)
    monkeypatch.setattr(cli, "_dispatch", lambda given: print(said, end="") or print(bar + said, file=sys.stderr) or 0)
    assert cli.main(["caption"]) == 0 and (sys.stdout, sys.stderr) == streams
    out, told = (each.getvalue() for each in streams)
    assert out == (shown if stream is _Terminal else said)
    assert told == bar + (shown.replace("\\r", "\r") if stream is _Terminal else said) + "\n"


def test_remedies_can_help(tmp_path, capsys):
    for row, told in (
        ('{"foo": "a"}', "; it has foo"),
        ('{"Text": [3]}', "; text holds [3]"),
        ("3", "; prompt holds 3"),
    ):
        (tmp_path / "p.jsonl").write_text(row)
        refused(re.escape(told), read_prompts, str(tmp_path / "p.jsonl"))
    for place in ("s3://bucket/x", "${HOME}/x", "file:///x"):
        check_refused(["generate", "a", "--output", place], "output must be a path on this machine", capsys, tmp_path)
    weights = {"a.weight": torch.ones(1)}
    for wrapped in ({"_orig_mod.module.a.weight": weights["a.weight"]}, {"ema": weights}, {"model": weights}):
        torch.save(wrapped, tmp_path / "w.pt")
        assert read_tensors(tmp_path / "w.pt", "weights") == weights
    with pytest.raises(UserError, match="pretrained_model_name_or_path must be a folder that PEFT saved"):
        build_tiny_pipeline().load_lora_weights({"a": torch.ones(1)})  # type: ignore[arg-type]


UNREAD, TOLD = "\U0001f600", "nothing of the prompt '\U0001f600' is read"


def test_a_prompt_of_which_nothing_is_read_is_told(tmp_path, _saved_tiny_pipelines, clip_folder, capsys):
    """By every command that reads prompts, whichever place they stand in; of many, some are told."""
    pipeline = build_tiny_pipeline()
    for prompt in (UNREAD, "\u200b"):
        assert "nothing of the prompt" in pipeline.prompt_problems(prompt)[0]
    assert f"cannot draw them: {UNREAD}" in pipeline.prompt_problems(f"a red cube {UNREAD}")[0]
    (tmp_path / "c.txt").write_text(f"{UNREAD}\na cube")
    (tmp_path / "p.yaml").write_text(
        "captions: file\nextractor: clip\nresizer: bicubic\nresolution: 32\nreference: none"
    )
    files = ["--prompts_file", str(tmp_path / "c.txt")]
    scored = ["--protocol", str(tmp_path / "p.yaml"), "--clip", str(clip_folder), "--bootstrap", "0"]
    commands = (
        ["generate", UNREAD], ["generate", "a cube", "--negative_prompt", UNREAD], ["generate", *files],
        ["evaluate", *files, *scored], ["bench", *files, "--num_prompts", "1", "--methods", "ar", "--warm_up", "0"],
    )  # fmt: skip
    for number, command in enumerate(commands):
        model, output = str(_saved_tiny_pipelines["text"]), str(tmp_path / str(number))
        assert cli.main([*command, "--model", model, "--output", output, "--quiet"]) == 0
        assert TOLD in capsys.readouterr().err, command
    with pytest.warns(UserWarning) as told:
        warn_of_prompts(pipeline, [UNREAD * number for number in range(9)])
    assert len(told) == 4 and "8 such warnings in all" in str(told[-1].message)


def test_a_console_without_a_letter_shows_its_number(tmp_path):
    told = subprocess.run(
        [sys.executable, "-c", "from vargen import cli; cli._dispatch = print; cli.main(['\u2603'])"],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
    )  # fmt: skip
    assert told.returncode == 0 and "\\u2603" in told.stdout, told.stderr


def test_json_of_strangers_is_read_in_one_place():
    """`json.loads` takes the last of two keys, and ends in a RecursionError for deep ones."""
    for path, node in source_calls("vargen"):
        if called(node) in ("json.loads", "json.load"):
            assert "json.dumps" in ast.unparse(node.args[0]) or path.endswith("/reading.py"), f"{path}:{node.lineno}"
    raised(ValueError, "nested too deeply", parse_json, "[" * 100_000)


# ---------------------------------------------------------------------------------------------------------------------
# Figures: numbers that mean nothing are not scored


def _features(value: float | None) -> Tensor:
    features = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
    if value is not None:
        features = features.double()
        features[3, 2] = value
    return features


GOOD = _features(None)
FIGURES: dict[str, Callable[[Any], Any]] = {
    "statistics": GaussianStatistics.of,
    "manifolds": lambda features: compare_manifolds(GOOD, features, 3),
    "manifolds of a reference": lambda features: compare_manifolds(features, GOOD, 3),
    "inception score": inception_score,
    "distances": distances_to_others,
    "retrieval": lambda features: retrieval_accuracy(nn.functional.normalize(GOOD, dim=1), features, 2),
    "clip score": lambda features: clip_scores(nn.functional.normalize(GOOD, dim=1), features),
}
NOTHING: dict[str, Any] = {
    **{str(value): _features(value) for value in (float("nan"), float("inf"), float("-inf"), 1e200)},
    **{"flat": torch.zeros(9), "deep": torch.zeros(9, 2, 2), "no width": torch.zeros(9, 0), "none": torch.zeros(0, 4)},
}


@pytest.mark.parametrize(("figure", "features"), itertools.product(FIGURES, NOTHING))
def test_features_that_mean_nothing(figure, features):
    if figure == "clip score" and features == "none":
        return
    with pytest.raises(DataError):
        FIGURES[figure](NOTHING[features])


@pytest.mark.parametrize("figure", [name for name in FIGURES if name != "clip score"])
@pytest.mark.parametrize("features", [[[1.0]], np.zeros((9, 4)), None, torch.zeros(9, 4, dtype=torch.complex64)])
def test_features_that_are_no_tensor(figure, features):
    raised(DataError, "features must be a tensor of real numbers", FIGURES[figure], features)


@pytest.mark.parametrize("neighbours", [0, -1, True, False, 1.0, None])
def test_neighbours_that_are_none(neighbours):
    raised(DataError, "neighbours must be an integer of at least 1", compare_manifolds, GOOD, GOOD, neighbours)


REFERENCES: dict[str, tuple[dict[str, Any], str]] = {
    "zeros": ({"sigma": np.zeros((2, 2))}, "no feature differs"),
    "a negative variance": ({"sigma": np.diag([1.0, -1e-3])}, "no variance below zero"),
    "an asymmetry": ({"sigma": np.array([[1.0, 0.5], [0.4, 1.0]])}, "must be symmetric"),
    "not finite": ({"sigma": np.diag([1.0, np.inf])}, "not finite"),
    "a mean that is not": ({"mu": np.array([0, np.nan])}, "not finite"),
    **{
        f"a count of {count}": ({"count": np.asarray(count)}, "count must be a number of pictures from 2")
        for count in (-5, 1, True, 2.5, [3], "x")
    },
}


@pytest.mark.parametrize("reference", REFERENCES)
def test_a_reference_that_no_set_of_pictures_has(reference, tmp_path):
    changed, message = REFERENCES[reference]
    whole = {"mu": np.zeros(2), "sigma": np.eye(2), "count": np.asarray(9)}
    np.savez(tmp_path / "r.npz", **whole)  # type: ignore[arg-type]
    assert GaussianStatistics.load(tmp_path / "r.npz").count == 9
    np.savez(tmp_path / "r.npz", **whole | changed)  # type: ignore[arg-type]
    raised(DataError, message, GaussianStatistics.load, tmp_path / "r.npz")


def test_statistics_that_are_none():
    good = GaussianStatistics.of(GOOD)
    eye, mean = torch.eye(4).double(), torch.zeros(4).double()
    turned = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0]
    negative = turned @ torch.diag(torch.tensor([4.0, 3.0, 2.0, -1.0]).double()) @ turned.T
    for bad in (
        *([0.0] * 4, np.zeros(4), GaussianStatistics([0.0], [[1.0]], 3)),  # type: ignore[arg-type]
        *(GaussianStatistics(mean, value * eye, 9) for value in (float("nan"), float("inf"), 1e200)),
        *(GaussianStatistics(mean, negative, 9), GaussianStatistics(mean[:2], eye, 9)),
    ):
        with pytest.raises(DataError):
            frechet_distance(bad, good)  # type: ignore[arg-type]
    single = GaussianStatistics(good.mean.float(), good.covariance.float(), good.count)
    assert frechet_distance(single, good) < 1e-5


def test_intervals_of_numbers_that_mean_nothing():
    infinite = torch.tensor([1.0, 2, 3, 4, 5, 6, float("inf")])
    raised(DataError, "infinite", mean_interval, infinite)
    for interval in (student_interval, lambda *given: spread_interval(1.0, *given)):
        raised(DataError, "infinite", interval, 5, lambda chosen: float("inf"))
        assert interval(5, lambda chosen: float("nan")) is None
        found = interval(9, lambda chosen: float("nan") if chosen[0] else 2.0)
        assert found is None or all(bound == bound for bound in found)
    for right, total in (([2, 1], [1, 1]), ([-1, 1], [1, 1]), ([1, float("nan")], [1, 1]), ([1, 1], [1, float("inf")])):
        raised(DataError, "each group needs", clustered_interval, right, total)


@pytest.mark.parametrize("value", [torch.zeros(3, 4, 4), torch.zeros(4, 4).byte(), torch.zeros(1, 4, 4).byte(), None])
def test_pictures_that_are_none_are_not_resized(value):
    raised(DataError, r"pictures must be uint8 \[3, H, W\]", resize, [] if value is None else [value], "bicubic", 2)


@pytest.mark.parametrize("filler", [0.0, 1e-42])
def test_weights_of_a_file_that_was_never_filled(filler):
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    nn.init.zeros_(model[0].weight)  # as a head that is not trained yet
    check_weights(model, "model")
    for layer in model[:3]:
        nn.init.constant_(layer.weight, filler)
    refused("model: most weights are 0", check_weights, model, "model")
