"""Inputs that no program expects, each drawn from a random generator of its own: what `fuzz.py` tries.

Belongs here: how an input of each kind is made, and what is known of its right answer. Does not belong here: running,
watching and counting (`fuzz.py`), and inputs that were found once (`tests/hostile`, a row each).
"""

from __future__ import annotations

import inspect
import io
import json
import math
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "shared"))

from commands import CommandOfTests, every_command
from hostile import contents
from text_models import build as build_text_model
from text_models import load as load_text_model
from tiny_pipelines import build_drafting_pipeline, build_tiny_pipeline
from video_pairs import build_pair

from metrics.errors import DataError
from scenes.rendering.video_file import write_video
from scenes.shipped import WEIGHTS
from specdecode.text.generate import generate
from vargen.base.errors import UserError
from vargen.cli import main
from vargen.methods.catalogue import methods_for, resolve_method
from vargen.video.models.frames import VideoFrames
from vargen.video.pipelines.answering import VideoAnswerer

PROMPTS = ("a red cube", "a blue cone", "a green sphere left of a red cube")
PROTOCOL = "extractor: clip\nresizer: bicubic\nresolution: 32\nclip_score: null\n"
FEATURES = 128
"""The number of features of the shipped CLIP."""
WRITES = "out"
"""The one name in the folder of an attempt that may appear or change."""


@dataclass
class Attempt:
    """One input.

    Args:
        what: tells a reader what was changed.
        run: tries it, and returns an exit code as `vargen.cli.main` does.
        refused: no success is right.
        check: after success, says what is wrong with the answer; empty: nothing.
        may_change: names in its folder that it may change.
        begun: it goes on with a run, and may have done more of it when it ends with a line.
    """

    what: str
    run: Callable[[], int]
    refused: bool = False
    check: Callable[[], str] = lambda: ""
    may_change: tuple[str, ...] = (WRITES,)
    begun: bool = False


@dataclass
class Sound:
    """What is damaged: models, runs, videos and arrays in a folder of their own, made once."""

    folder: Path
    answers: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        every_command()  # imports what each command needs, which a forked process would do again
        build_tiny_pipeline().save_pretrained(self.folder / "text")
        build_tiny_pipeline(condition_type="class").save_pretrained(self.folder / "class")
        build_drafting_pipeline().save_pretrained(self.folder / "drafting")
        build_pair(self.folder / "pair", "qwen2_5_vl")
        build_text_model(self.folder / "words")
        (self.folder / "p.yaml").write_text(PROTOCOL)
        (self.folder / "c.txt").write_text("\n".join(PROMPTS) + "\n")
        frames = torch.arange(8 * 3 * 64 * 64).reshape(8, 3, 64, 64).remainder(251).byte()
        write_video(frames, str(self.folder / "v.mp4"))
        images = [Image.fromarray(frame.permute(1, 2, 0).numpy()) for frame in frames]
        images[0].save(self.folder / "v.gif", save_all=True, append_images=images[1:])
        (self.folder / "frames").mkdir()
        for number, image in enumerate(images[:4]):
            image.save(self.folder / "frames" / f"{number}.png")
        for name in ("text", "drafting"):
            assert main(self.generate(self.folder / name, self.folder / f"run-{name}")) == 0
        assert main(self.generate(self.folder / "class", self.folder / "run-class")) == 0
        shutil.copytree(self.folder / "run-text" / "images", self.folder / "ref")
        pictures = np.stack([np.asarray(Image.open(path)) for path in sorted((self.folder / "ref").iterdir())])
        self.arrays = {"arr_0": pictures}
        self.statistics = {"mu": np.zeros(FEATURES), "sigma": np.eye(FEATURES)}
        self.pipeline = build_drafting_pipeline()
        self.by_class = build_tiny_pipeline(condition_type="class")
        self.words = load_text_model(self.folder / "words")
        pair = self.folder / "pair"
        self.answerer = VideoAnswerer.from_pretrained(str(pair / "target"), str(pair / "draft"))
        self.frames = VideoFrames.from_frames(frames[:4])
        for name, command in {
            "evaluate": self.evaluate(self.folder, self.folder / "evaluated"),
            "bench": self.bench(self.folder / "benched"),
        }.items():
            assert main(command) == 0, name
        self.interrupted_bench(self.folder / "begun")

    def generate(self, model: Path, output: Path, *more: str) -> list[str]:
        asked = ["--class_labels", "[1,2]"] if model.name == "class" else list(PROMPTS[:2])
        return ["generate", *asked, "--model", str(model), "--output", str(output), "--quiet", *more]

    def evaluate(self, work: Path, output: Path, *more: str) -> list[str]:
        """It reads p.yaml, c.txt and ref in `work`."""
        places = {"protocol": "p.yaml", "prompts_file": "c.txt", "reference": "ref"}
        found = [word for name, place in places.items() for word in (f"--{name}", str(work / place))]
        small = ["--num_prompts", "3", "--batch_size", "2", "--bootstrap", "0", "--quiet"]
        made = [] if "--given_images" in more else ["--method", "ar", "--model", str(self.folder / "text")]
        return ["evaluate", *found, *small, *made, "--clip", str(WEIGHTS / "clip"), "--output", str(output), *more]

    def bench(self, output: Path) -> list[str]:
        small = ["--num_prompts", "2", "--warm_up", "0", "--judge", "false", "--quiet"]
        asked = ["--methods", "ar,pjd", "--prompts_file", str(self.folder / "c.txt")]
        return ["bench", *asked, *small, "--model", str(self.folder / "text"), "--output", str(output)]

    def interrupted_bench(self, output: Path) -> None:
        """A comparison that was interrupted when all of its calls were kept."""
        from unittest import mock

        with mock.patch("vargen.jobs.benchmark.write_atomic", side_effect=KeyboardInterrupt):
            assert main(self.bench(output)) == 130


def pixels(folder: Path) -> dict[str, bytes]:
    """The pictures of a folder by name."""
    return {path.name: np.asarray(Image.open(path)).tobytes() for path in sorted(folder.glob("*.png"))}


# Values.


def value(draw: Random, depth: int = 0) -> Any:
    """Anything that JSON can say, most of it plain."""
    kind = draw.randrange(10 if depth < 2 else 8)
    if kind < 3:
        numbers = (0, 1, -1, 2, 3, 7, 2**31, 2**63, 10**30, 0.5, -0.5, 1e300, 1e-300, math.inf, -math.inf, math.nan)
        return draw.choice(numbers)
    if kind < 4:
        return draw.choice((None, True, False))
    if kind < 6:
        texts = ("auto", "", " ", "../..", "/etc/passwd", "~", "*a", "!!python/name:os.system", "[", "{}", "x" * 300)
        return draw.choice((*texts, "1:30", "1e5", "0x10", "null", "\0", "\ud800", "é", "\n", "-1", "cpu", "float32"))
    if kind < 8:
        return "".join(chr(draw.choice((draw.randrange(32, 127), draw.randrange(1, 0x3000)))) for _ in range(5))
    if kind < 9:
        return [value(draw, depth + 1) for _ in range(draw.randrange(4))]
    return {str(value(draw, 2))[:8]: value(draw, depth + 1) for _ in range(draw.randrange(1, 3))}


def near(draw: Random, sound: Any) -> Any:
    """Something like `sound`, or anything."""
    ways: list[Callable[[], Any]] = [lambda: value(draw), lambda: value(draw), lambda: None]
    ways += [lambda: [sound], lambda: {"a": sound}, lambda: str(sound)]
    if isinstance(sound, int | float):
        ways += [lambda: -sound, lambda: sound + 1, lambda: sound * 2, lambda: sound / 2, lambda: sound * 10**9]
    if isinstance(sound, str) and sound:
        ways += [lambda: sound[:-1], lambda: sound.upper(), lambda: sound * 2, lambda: f"../{sound}"]
    return draw.choice(ways)()


def changed(draw: Random, content: Any) -> Any:
    """JSON with one inner value replaced, taken out or given a neighbour."""
    if isinstance(content, dict) and content and draw.randrange(6):
        name = draw.choice(sorted(content))
        how = draw.choice(("deeper", "deeper", "deeper", "remove", "add"))
        if how == "remove":
            return {key: inner for key, inner in content.items() if key != name}
        if how == "add":
            return {**content, str(value(draw, 2))[:8]: value(draw)}
        return {**content, name: changed(draw, content[name])}
    if isinstance(content, list) and content and draw.randrange(2):
        place = draw.randrange(len(content))
        return [*content[:place], changed(draw, content[place]), *content[place + 1 :]]
    return near(draw, content)


def spoilt(draw: Random, content: bytes) -> tuple[str, bytes]:
    """Bytes cut, overwritten, inserted or repeated, and how."""
    how = draw.choice(("cut", "overwritten", "overwritten", "inserted", "many", "repeated", "emptied", "junk"))
    new = bytearray(content)
    for _ in range({"overwritten": 1, "inserted": 1, "many": draw.randrange(2, 20)}.get(how, 0)):
        place, more = draw.randrange(len(new) + 1), draw.randbytes(draw.randrange(1, 9))
        new[place : place + (0 if how == "inserted" else len(more))] = more
    if how == "cut":
        new = new[: draw.randrange(len(new) + 1)]
    if how == "repeated":
        new = new + new
    if how in ("emptied", "junk"):
        new = bytearray(draw.randbytes(draw.randrange(200)) if how == "junk" else b"")
    return how, bytes(new)


# Configurations: options, files of options, methods and protocols.

SMALL: dict[str, Callable[[Sound, Path], dict[str, Any]]] = {
    "generate": lambda s, w: {"prompts_file": s.folder / "c.txt", "model": s.folder / "text", "method": "jacobi"},
    "evaluate": lambda s, w: {
        "protocol": s.folder / "p.yaml", "prompts_file": s.folder / "c.txt", "reference": s.folder / "ref",
        "clip": WEIGHTS / "clip", "model": s.folder / "text", "method": "ar", "bootstrap": 0, "num_prompts": 3,
    },
    "bench": lambda s, w: {
        "prompts_file": s.folder / "c.txt", "model": s.folder / "text", "methods": "ar", "num_prompts": 1,
        "warm_up": 0, "judge": False, "clip": None,
    },
    "bench --task video": lambda s, w: {"methods": "ar", "model": s.folder / "nowhere"},
    "tune": lambda s, w: {"model": s.folder / "nowhere", "method": "sjd"},
    "caption": lambda s, w: {
        "video": s.folder / "v.gif", "model": s.folder / "pair" / "target", "num_frames": 4, "max_new_tokens": 2,
        "method": "ar",
    },
    "scenes": lambda s, w: {"num_scenes": 1, "image_size": 32},
    "judge": lambda s, w: {"folder": s.folder / "run-text", "judge_model": s.folder / "nowhere"},
    "convert folder": lambda s, w: {"folder": s.folder / "text"},
}  # fmt: skip
"""Options with which a command is quick, or ends where its model is missing; of `train` none is, but for its steps."""
NEVER_ENDS = {"demo", "serve"}
POSITIONAL = {"video", "folder", "question"}


def configurations(draw: Random, sound: Sound, work: Path) -> Attempt:
    """A command with a few of its options changed, on its line or in a file, or a method or a protocol so."""
    commands = [each for each in every_command() if each.words not in NEVER_ENDS]
    plain = [each for each in commands if not each.words.startswith(("train", "convert"))]
    command = draw.choice(plain) if draw.randrange(4) else draw.choice(commands)
    options = {name: str(at) if isinstance(at, Path) else at for name, at in _small(command, sound, work).items()}
    names = [name for name in command.names() if name not in ("processes",)]
    fuzzed = {name: near(draw, options.get(name)) for name in draw.sample(names, draw.choice((1, 1, 2)))}
    place = draw.choice(("line", "line", "file", "method", "protocol", "twice", "text"))
    if place == "method" and "method" in command.names():
        return _of_method(draw, command, options, work)
    if place == "protocol" and command.words == "evaluate":
        content = changed(draw, {"extractor": "clip", "resizer": "bicubic", "resolution": 32, "clip_score": None})
        (work / "p.yaml").write_text(json.dumps(content))
        options["protocol"] = str(work / "p.yaml")
        return Attempt(f"evaluate with {content}", lambda: main(_line(command, options, work)))
    if place == "line":
        given = _line(command, options | fuzzed, work)
        return Attempt(f"{given}", lambda: main(given), check=_same_as_plain(command, options | fuzzed, work))
    text = "".join(f"{name}: {json.dumps(each)}\n" for name, each in fuzzed.items())
    if place == "twice":
        text += f"{draw.choice(sorted(fuzzed))}: {json.dumps(value(draw))}\n"
    if place == "text":
        text = spoilt(draw, text.encode())[1].decode(errors="surrogateescape")
    (work / "c.yaml").write_bytes(text.encode(errors="surrogateescape"))
    rest = {name: each for name, each in options.items() if name not in fuzzed or name in POSITIONAL}
    given = [*_line(command, rest, work), "--config", str(work / "c.yaml")]
    return Attempt(f"{command.words} --config of {text!r}", lambda: main(given), refused=place == "twice")


def _small(command: CommandOfTests, sound: Sound, work: Path) -> dict[str, Any]:
    if command.words.startswith("train"):
        sizes = {"steps": 1, "batch_size": 2, "evaluation_size": 2, "image_size": 32, "max_seconds": 5}
        return {**command.required("output"), **{name: size for name, size in sizes.items() if name in command.names()}}
    return {**command.required("output"), **SMALL.get(command.words, lambda s, w: {})(sound, work)}


def _line(command: CommandOfTests, options: dict[str, Any], work: Path) -> list[str]:
    """The words of a command line; positional arguments first."""
    options = {"output": str(work / WRITES), **options} if "output" in command.names() else options
    words = command.words.split()
    words += [_written(options[name]) for name in command.names() if name in POSITIONAL and name in options]
    return words + [f"--{name}={_written(each)}" for name, each in options.items() if name not in POSITIONAL]


def _written(option: Any) -> str:
    return option if isinstance(option, str) else json.dumps(option)


def _of_method(draw: Random, command: CommandOfTests, options: dict[str, Any], work: Path) -> Attempt:
    """Settings of a method, in a file or on the line."""
    methods = methods_for("video" if command.words == "caption" else "image")
    chosen = methods[draw.choice(sorted(methods))]
    settings = {name: each for name, each in chosen().to_dict().items() if name != "name"}
    fuzzed = {name: near(draw, settings[name]) for name in draw.sample(sorted(settings), min(2, len(settings)))}
    if draw.randrange(2):
        (work / "m.yaml").write_text(
            f"method: {chosen.name}\n" + "".join(f"{k}: {json.dumps(v)}\n" for k, v in fuzzed.items())
        )
        options = {**options, "method": str(work / "m.yaml")}
    else:
        options = {**options, "method": chosen.name}
        options |= {f"method_options.{name}": each for name, each in fuzzed.items()}
    if command.words == "generate" and chosen.name in ("eagle", "draft-model", "lantern"):
        options["model"] = options["model"].replace("text", "drafting")
    given = _line(command, options, work)
    return Attempt(f"{command.words}: {chosen.name} with {fuzzed}", lambda: main(given),
                   check=_same_as_plain(command, options, work))  # fmt: skip


def _same_tokens(method: Any) -> bool:
    """Whether settings draw plain decoding's picture; that of other exact ones is as likely, and another."""
    return method.name in ("jacobi", "eagle", "draft-model") and "sampled" not in method.to_dict().values()


def _same_as_plain(command: CommandOfTests, options: dict[str, Any], work: Path) -> Callable[[], str]:
    """An exact method draws what plain decoding draws."""

    def check() -> str:
        if command.words != "generate" or "output" in options:
            return ""
        settings = {
            name.partition(".")[2]: each for name, each in options.items() if name.startswith("method_options.")
        }
        method = resolve_method(str(options.get("method")), settings or options.get("method_options"))
        if not _same_tokens(method):
            return ""
        made = pixels(work / WRITES / "images")
        plain = {name: each for name, each in options.items() if not name.startswith("method")}
        plain |= {"method": "ar", "output": str(work / WRITES / "plain")}
        if main(_line(command, plain, work)) != 0:
            return "plain decoding refuses what an exact method draws"
        drawn = pixels(work / WRITES / "plain" / "images")
        return (
            "" if made == drawn else f"{sum(made[k] != drawn.get(k) for k in made)} pictures are not plain decoding's"
        )

    return check


# Folders of models.


def folders(draw: Random, sound: Sound, work: Path) -> Attempt:
    """A model's folder with one file damaged, renamed, added or taken out."""
    of = draw.choice(("text", "text", "class", "drafting", "pair"))
    model = Path(shutil.copytree(sound.folder / of, work / "model"))
    files = sorted(path for path in model.rglob("*") if path.is_file())
    path = draw.choice(files)
    weights = draw.choice([each for each in files if each.suffix == ".safetensors"])
    configs = [each for each in files if each.suffix == ".json" and each.stat().st_size < 20_000]
    name, damage, refused, same = draw.choice(_DAMAGES)
    chosen = {"weights": weights, "json": draw.choice(configs)}.get(name.split()[0], path)
    damage(draw, chosen)
    what = f"{of}: {name}, {chosen.relative_to(model)}"
    if of == "pair":
        target = ["--model", str(model / "target"), "--draft_model", str(model / "draft"), "--method"]
        drafts = chosen.is_relative_to(model / "draft") or "drafters" in chosen.parts
        method = "sparrow" if "sparrow" in chosen.parts else "sd" if drafts else "ar"
        given = ["caption", str(sound.folder / "v.gif"), *target, method, "--num_frames", "4", "--max_new_tokens", "2"]
        return Attempt(what, lambda: main(given), refused=refused and ("sparrow" in chosen.parts or not drafts))
    unused = of == "drafting" and chosen.relative_to(model).parts[0] == "draft_model"
    method = ["--method", "eagle"] if of == "drafting" else []
    given = sound.generate(model, work / WRITES, *method)
    known = pixels(sound.folder / f"run-{of}" / "images")
    drafts = of == "drafting" and chosen.relative_to(model).parts[0] == "drafter"

    def check() -> str:
        return "another picture" if (same or drafts) and pixels(work / WRITES / "images") != known else ""

    return Attempt(what, lambda: main(given), refused=refused and not unused, check=check)


def _json_changed(draw: Random, path: Path) -> None:
    path.write_text(json.dumps(changed(draw, json.loads(path.read_text()))))


def _json_twice(draw: Random, path: Path) -> None:
    content = json.loads(path.read_text())
    name = draw.choice(sorted(content)) if isinstance(content, dict) and content else "a"
    path.write_text(
        path.read_text().rstrip().removesuffix("}") + f", {json.dumps(name)}: {json.dumps(near(draw, 1))}}}"
    )


def _bytes(draw: Random, path: Path) -> None:
    path.write_bytes(spoilt(draw, path.read_bytes())[1])


def _tensors(change: Callable[[Random, dict[str, torch.Tensor], str], object]) -> Callable[[Random, Path], None]:
    def damage(draw: Random, path: Path) -> None:
        tensors = load_file(path)
        change(draw, tensors, draw.choice(sorted(name for name in tensors if tensors[name].ndim)))
        save_file({name: each.contiguous() for name, each in tensors.items()}, path, metadata={"format": "pt"})

    return damage


def _cast(draw: Random, tensors: dict[str, torch.Tensor], name: str) -> None:
    kinds = (torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool, torch.float8_e4m3fn, torch.complex64)
    kind = draw.choice(kinds)
    for each in tensors if draw.randrange(2) else (name,):
        tensors[each] = tensors[each].to(kind)


def _spoil(draw: Random, tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name].view(-1)[draw.randrange(tensors[name].numel())] = draw.choice((math.nan, math.inf, -math.inf))


def _wider(draw: Random, tensors: dict[str, torch.Tensor], name: str) -> None:
    for each in tensors:
        tensors[each] = tensors[each].double() if tensors[each].is_floating_point() else tensors[each]


def _reshaped(draw: Random, tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[name] = draw.choice((lambda t: t[:-1], lambda t: t[None], lambda t: torch.cat([t, t]), lambda t: t[:0]))(
        tensors[name]
    )


def _renamed(draw: Random, tensors: dict[str, torch.Tensor], name: str) -> None:
    tensors[f"{name}.x"] = tensors.pop(name)


def _beside(draw: Random, path: Path) -> None:
    name = draw.choice((".DS_Store", "README.txt", "._config.json", "extra.bin", "extra.safetensors", "a b.json", "é"))
    (path.parent / name).write_bytes(draw.randbytes(30))


def _renamed_file(draw: Random, path: Path) -> None:
    name = draw.choice((path.name.upper(), f"{path.name}.bak", path.stem, f"copy of {path.name}"))
    path.rename(path.with_name(name))


def _odd(draw: Random, path: Path) -> None:
    path.unlink()
    draw.choice((os.mkfifo, os.mkdir, lambda p: os.symlink("nowhere", p), lambda p: os.symlink(p.name, p)))(path)


_DAMAGES: list[tuple[str, Callable[[Random, Path], None], bool, bool]] = [
    # name, damage, must be refused, draws the same picture where it is not
    *[("json changed", _json_changed, False, False)] * 5,
    ("json with a key twice", _json_twice, True, False),
    *[("bytes", _bytes, False, False)] * 3,
    ("weights of integers", _tensors(_cast), True, False),
    ("weights not finite", _tensors(_spoil), True, False),
    ("weights in float64", _tensors(_wider), False, True),
    ("weights of another shape", _tensors(_reshaped), True, False),
    ("weights with a name changed", _tensors(_renamed), False, False),
    ("weights with one missing", _tensors(lambda draw, t, name: t.pop(name)), False, False),
    ("a file beside", _beside, False, True),
    ("renamed", _renamed_file, False, False),
    ("removed", lambda draw, path: path.unlink(), False, False),
    ("odd", _odd, False, False),
]


# Records, and lists of prompts.


def records(draw: Random, sound: Sound, work: Path) -> Attempt:
    """What an earlier run left, or a list of prompts, damaged."""
    return draw.choice((_resumed, _resumed, _judged, _evaluated, _benched, _prompts, _prompts))(draw, sound, work)


def _lines_damaged(draw: Random, path: Path) -> tuple[str, bool]:
    """Change the lines of a file; how, and whether no value in it is another."""
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    how = draw.choice(("values", "values", "twice", "removed", "order", "crlf", "bom", "nul", "blank", "bytes", "key"))
    place = draw.randrange(len(lines)) if lines else 0
    if how == "values" and lines:
        text = path.suffix in (".json", ".jsonl")
        whole = path.suffix == ".json"
        sound = json.loads(content if whole else lines[place]) if text else lines[place].decode().rstrip()
        new = json.dumps(changed(draw, sound)) if text else str(near(draw, sound)).encode("utf-8", "replace").decode()
        lines = [new.encode()] if whole else [*lines[:place], new.encode() + b"\n", *lines[place + 1 :]]
    elif how == "twice" and lines:
        lines.insert(draw.randrange(len(lines) + 1), lines[place])
    elif how == "removed" and lines:
        lines.pop(place)
    elif how == "order":
        draw.shuffle(lines)
    elif how == "crlf":
        lines = [line.rstrip(b"\n") + b"\r\n" for line in lines]
    elif how == "bom":
        lines = [b"\xef\xbb\xbf", *lines]
    elif how in ("nul", "blank"):
        lines.insert(place, {"nul": b"\0", "blank": b"\n\n"}[how])
    elif how == "key" and lines and b"{" in lines[place]:
        lines[place] = lines[place].rstrip().removesuffix(b"}") + b', "seed": 3, "text": 4}\n'
    elif how == "bytes":
        how, content = spoilt(draw, content)
        lines = [content]
    path.write_bytes(b"".join(lines))
    return how, how in ("twice", "removed", "order", "crlf", "bom", "nul", "blank")


def _damage_run(draw: Random, run: Path) -> tuple[str, bool]:
    files = [path for path in sorted(run.rglob("*")) if path.is_file()]
    path = draw.choice(files)
    if path.suffix in (".json", ".jsonl"):
        how, same = _lines_damaged(draw, path)
        return f"{path.relative_to(run)}: {how}", same
    others = [each for each in files if each.suffix == path.suffix and each != path]
    how = draw.choice(("bytes", "removed", "swapped", "folder", "link", "saved anew"))
    if how == "bytes":
        path.write_bytes(spoilt(draw, path.read_bytes())[1])
    elif how == "swapped" and others:
        other = draw.choice(others)
        one, two = path.read_bytes(), other.read_bytes()
        path.write_bytes(two), other.write_bytes(one)
    elif how == "saved anew" and path.suffix == ".png":
        Image.open(path).convert(draw.choice(("RGB", "L", "P", "RGBA"))).save(path)
    elif how in ("removed", "folder", "link"):
        path.unlink()
        {"removed": lambda: None, "folder": path.mkdir, "link": lambda: path.symlink_to(run / "nowhere")}[how]()
    return f"{path.relative_to(run)}: {how}", how in ("removed", "folder", "link")


def _resumed(draw: Random, sound: Sound, work: Path) -> Attempt:
    """The same command on a damaged run: it refuses, or all is as it was."""
    shutil.copytree(sound.folder / "run-text", work / WRITES)
    what, _ = _damage_run(draw, work / WRITES)
    anew = "saved anew" in what
    known = pixels(sound.folder / "run-text" / "images")

    def check() -> str:
        lines = [json.loads(line) for line in (work / WRITES / "result.jsonl").read_text().splitlines()]
        if [(line["index"], line["text"]) for line in lines] != list(enumerate(PROMPTS[:2])):
            return "result.jsonl does not hold one line for each picture"
        return "" if anew or pixels(work / WRITES / "images") == known else "another picture"

    given = sound.generate(sound.folder / "text", work / WRITES)
    return Attempt(f"resumed, {what}", lambda: main(given), check=check, begun=True)


def _judged(draw: Random, sound: Sound, work: Path) -> Attempt:
    shutil.copytree(sound.folder / "run-text", work / WRITES)
    what, _ = _damage_run(draw, work / WRITES)
    refused = what == "result.jsonl: twice"
    return Attempt(f"judged, {what}", lambda: main(["judge", str(work / WRITES)]), refused=refused)


def _evaluated(draw: Random, sound: Sound, work: Path) -> Attempt:
    """Damaged pictures, batches and features of an evaluation, or its inputs."""
    for name in ("p.yaml", "c.txt"):
        shutil.copy(sound.folder / name, work / name)
    shutil.copytree(sound.folder / "ref", work / "ref")
    shutil.copytree(sound.folder / "evaluated", work / WRITES)
    if draw.randrange(2):
        shutil.rmtree(work / WRITES / "ar" / "measured", ignore_errors=True)
    what, _ = _damage_run(draw, work / WRITES if draw.randrange(3) else work / "ref")
    known = _score(sound.folder / "evaluated")
    inputs = what.startswith("0000") or contents(work / "ref") != contents(sound.folder / "ref")
    given = sound.evaluate(work, work / WRITES)

    def check() -> str:
        score = _score(work / WRITES)
        if inputs or "saved anew" in what:
            return "" if math.isfinite(score) else f"a distance of {score}"
        return "" if math.isclose(score, known, rel_tol=1e-6) else f"a distance of {score}, not {known}"

    return Attempt(f"evaluated, {what}", lambda: main(given), check=check, begun=True)


def _score(folder: Path) -> float:
    rows = json.loads((folder / "scores.json").read_text())
    return float(rows[0]["frechet_distance"]["value"])


def _benched(draw: Random, sound: Sound, work: Path) -> Attempt:
    """Kept calls, damaged: what is left of them is right, or the command says which line is not."""
    shutil.copytree(sound.folder / "begun", work / WRITES)
    how, same = _lines_damaged(draw, work / WRITES / "calls.jsonl")

    def figures(folder: Path) -> list[Any]:
        rows = json.loads((folder / "results.json").read_text())
        return [(row["method"], row["tokens"], row["target_passes"], row["images"]) for row in rows]

    def check() -> str:
        return "other figures" if same and figures(work / WRITES) != figures(sound.folder / "benched") else ""

    given = sound.bench(work / WRITES)
    return Attempt(f"bench on calls.jsonl: {how}", lambda: main(given), check=check, begun=True)


def _prompts(draw: Random, sound: Sound, work: Path) -> Attempt:
    """A list of prompts in any of its forms."""
    rows = [{"prompt": prompt, "id": number} for number, prompt in enumerate(PROMPTS)]
    forms = {
        "txt": "".join(f"{prompt}\n" for prompt in PROMPTS),
        "csv": "prompt,id\n" + "".join(f"{row['prompt']},{row['id']}\n" for row in rows),
        "tsv": "prompt\tid\n" + "".join(f"{row['prompt']}\t{row['id']}\n" for row in rows),
        "jsonl": "".join(json.dumps(row) + "\n" for row in rows),
        "json": json.dumps(rows),
    }
    form = draw.choice(sorted(forms))
    path = work / f"p.{form}"
    path.write_text(forms[form])
    how, same = _lines_damaged(draw, path)
    same &= how in ("crlf", "bom")
    given = ["generate", "--prompts_file", str(path), "--model", str(sound.folder / "text"), "--quiet"]

    def check() -> str:
        lines = (work / WRITES / "result.jsonl").read_text().splitlines()
        return "other prompts" if same and [json.loads(line)["text"] for line in lines] != list(PROMPTS) else ""

    return Attempt(f"prompts of {form}: {how}", lambda: main([*given, "--output", str(work / WRITES)]), check=check)


# Arrays.


def arrays(draw: Random, sound: Sound, work: Path) -> Attempt:
    """Pictures or statistics in a file of arrays, which the command reads whole."""
    role = draw.choice(("given_images", "reference", "statistics"))
    held = dict(sound.statistics if role == "statistics" else sound.arrays)
    if role == "reference" and not draw.randrange(3):
        held |= sound.statistics
    name = draw.choice(sorted(held))
    how, held[name] = _array(draw, held[name])
    path = work / f"r.{draw.choice(('npz', 'npz', 'npz', 'npy', 'NPZ'))}"
    content = io.BytesIO()
    if path.suffix == ".npy":
        np.save(content, held[name], allow_pickle=True)
    else:
        draw.choice((np.savez, np.savez_compressed))(content, **held, **({"more": np.ones(1)} if how == "same" else {}))
    data = content.getvalue()
    spoils = not draw.randrange(5)
    if spoils:
        more, data = spoilt(draw, data)
        how = f"{how} and {more}"
    path.write_bytes(data)
    for each in ("p.yaml", "c.txt"):
        shutil.copy(sound.folder / each, work / each)
    shutil.copytree(sound.folder / "ref", work / "ref")
    option = "given_images" if role == "given_images" else "reference"
    given = sound.evaluate(work, work / WRITES, f"--{option}", str(path))
    if option == "given_images":
        given = [word for word in given if word not in ("--method", "ar", "--model", str(sound.folder / "text"))]
    wrong = _wrong(name, held[name]) and not (name == "arr_0" and "mu" in held)  # of both the statistics count

    def check() -> str:
        score = _score(work / WRITES)
        return "" if math.isfinite(score) and score > -1e-3 else f"a distance of {score}"

    return Attempt(f"{role}: {name} {how}, {path.name}", lambda: main(given), refused=wrong and not spoils, check=check)


def _array(draw: Random, array: np.ndarray) -> tuple[str, np.ndarray]:
    ways: dict[str, Callable[[], np.ndarray]] = {
        "same": lambda: array,
        "in Fortran's order": lambda: np.asfortranarray(array),
        "of another dtype": lambda: array.astype(
            draw.choice(("int8", "int64", "float16", "float32", ">f8", "bool", "complex64", "uint16", "S3", "U3", "O"))
        ),
        "turned": lambda: np.moveaxis(array, -1, 0),
        "cut": lambda: array[tuple(slice(draw.randrange(size + 1)) for size in array.shape)],
        "with one more axis": lambda: array[None],
        "flat": lambda: array.reshape(-1),
        "one number": lambda: np.array(value(draw, 2), dtype=object),
        "not finite": lambda: np.full(array.shape, draw.choice((math.nan, math.inf, 1e300))),
        "negative": lambda: -array.astype(float),
        "structured": lambda: np.zeros(len(array), dtype=[("a", "u1"), ("b", "f4")]),
        "constant": lambda: np.zeros_like(array),
        "repeated": lambda: np.concatenate([array, array]),
    }
    how = draw.choice(sorted(ways))
    return how, ways[how]()


def _wrong(name: str, array: np.ndarray) -> bool:
    """Whether an array is no pictures, or no mean or covariance of CLIP's features."""
    if name == "arr_0":
        return array.dtype != np.uint8 or array.ndim != 4 or array.shape[-1] != 3 or not array.size
    if array.dtype.kind not in "fiub" or array.shape != ((FEATURES,) if name == "mu" else (FEATURES, FEATURES)):
        return True
    return not np.isfinite(np.square(array.astype(float)).sum()) or (
        name == "sigma" and bool((np.diagonal(array) < 0).any())
    )


# Videos.


def videos(draw: Random, sound: Sound, work: Path) -> Attempt:
    """A file of video or a folder of frames, damaged."""
    name = draw.choice(("v.gif", "v.mp4", "frames"))
    source = sound.folder / name
    video = work / (name if draw.randrange(3) else draw.choice(("a.avi", "v.mkv", "b.webm", "c:d.mp4", "-v.mp4", "v")))
    refused = same = False
    if name == "frames":
        shutil.copytree(source, video)
        how = draw.choice(("bytes", "hidden", "sizes", "mode", "removed", "text", "folder", "link"))
        path = draw.choice(sorted(video.iterdir()))
        if how == "bytes":
            path.write_bytes(spoilt(draw, path.read_bytes())[1])
        elif how == "hidden":
            (video / draw.choice((".DS_Store", "._0.png", "Thumbs.db", "notes.txt"))).write_bytes(b"junk")
            same = True
        elif how == "sizes":
            Image.open(path).resize((draw.randrange(1, 200), draw.randrange(1, 200))).save(path)
        elif how == "mode":
            mode = draw.choice(("L", "1", "P", "RGBA", "CMYK", "I", "F", "I;16"))
            changed = Image.open(path).convert("L" if mode == "I;16" else mode)
            (changed.point(lambda x: x, "I").convert("I;16") if mode == "I;16" else changed).save(
                path.with_suffix(".tiff")
            )
            path.unlink()
        else:
            path.unlink()
            if how != "removed":
                {"text": lambda: path.write_text("no"), "folder": path.mkdir, "link": lambda: path.symlink_to("x")}[
                    how
                ]()
    else:
        data = source.read_bytes()
        how = draw.choice(("bytes", "bytes", "bytes", "list", "same", "header"))
        if how == "bytes":
            how, data = spoilt(draw, data)
        elif how == "list":
            shutil.copy(source, work / "secret.gif")
            data = draw.choice(
                (b"ffconcat version 1.0\nfile secret.gif\n", b"#EXTM3U\n#EXTINF:1,\nsecret.gif\n#EXT-X-ENDLIST\n")
            )
            refused = True
        elif how == "header":
            data = (
                draw.choice((b"RIFF\x24\0\0\0AVI LIST", b"\x1aE\xdf\xa3", b"GIF89a", b"\0\0\0\x18ftypmp42")) + data[8:]
            )
        else:
            same = True
        video.write_bytes(data)
    written = str(video) if not draw.randrange(4) else os.path.relpath(video, work)
    target = ["--model", str(sound.folder / "pair" / "target"), "--method", "ar", "--num_frames", "4"]
    given = ["caption", written if written[0] != "-" else f"./{written}", *target, "--max_new_tokens", "3"]

    def answered(arguments: list[str]) -> tuple[int, str]:
        import contextlib

        told = io.StringIO()
        with contextlib.redirect_stdout(told):
            code = main(arguments)
        return code, told.getvalue().splitlines()[0] if told.getvalue() else ""

    answer = {}

    def run() -> int:
        code, answer["own"] = answered(given)
        return code

    def check() -> str:
        known = answered(["caption", str(source), *given[2:]])[1]
        return f"{answer['own']!r}, not {known!r}" if same and answer["own"] != known else ""

    return Attempt(f"{name} as {video.name}: {how}", run, refused, check)


# Calls in Python.


def calls(draw: Random, sound: Sound, work: Path) -> Attempt:
    """A call with one or two arguments of another kind or size. What it refuses names an argument."""
    return draw.choice((_picture, _picture, _answer, _text))(draw, sound)


def _odd_argument(draw: Random) -> Any:
    objects = (object(), b"a", {1, 2}, torch.zeros(0), torch.ones(2, 3), torch.tensor(math.nan), torch.tensor([3]))
    more = (np.float32(0.5), np.int64(3), np.array([1, 2]), Path("a"), lambda *a, **k: {}, range(3), (1, 2), int, 3j)
    return draw.choice((*objects, *more, torch.Generator())) if draw.randrange(2) else value(draw)


def _called(call: Callable[..., Any], arguments: dict[str, Any], fuzzed: dict[str, Any], keep: dict[str, Any]) -> int:
    try:
        keep["made"] = call(**arguments)
        return 0
    except (UserError, ValueError, TypeError, DataError) as error:
        if not isinstance(error, UserError) and "specdecode" not in getattr(call, "__module__", ""):
            raise
        line = str(error)
        if "\n" in line or not any(name in line for name in arguments):
            raise
        print(f"vargen: error: {line}", file=sys.stderr)
        return 2


def _attempt(draw: Random, call: Callable[..., Any], sure: dict[str, Any], same: Callable[[Any, dict[str, Any]], str],
             leave: tuple[str, ...] = ()) -> Attempt:  # fmt: skip
    names = [
        name
        for name, parameter in inspect.signature(call).parameters.items()
        if name not in leave and parameter.kind is not parameter.VAR_KEYWORD
    ]
    fuzzed = {
        name: _odd_argument(draw) if draw.randrange(2) else near(draw, sure.get(name, 1))
        for name in draw.sample(names, draw.choice((1, 1, 2)))
    }
    keep: dict[str, Any] = {}
    arguments = sure | fuzzed
    return Attempt(f"{call.__qualname__} with {fuzzed!r}"[:600], lambda: _called(call, arguments, fuzzed, keep),
                   check=lambda: same(keep["made"], arguments))  # fmt: skip


def _fresh(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments, with generators as they were: a call that is drawn again draws the same."""
    return {
        name: torch.Generator().manual_seed(3) if isinstance(each, torch.Generator) else each
        for name, each in arguments.items()
    }


def _picture(draw: Random, sound: Sound) -> Attempt:
    by_class = not draw.randrange(4)
    pipeline = sound.by_class if by_class else sound.pipeline
    method = (
        draw.choice(("ar", "sjd", "jacobi")) if by_class else draw.choice(("jacobi", "eagle", "scd", "draft-model"))
    )
    asked: dict[str, Any] = {"class_labels": [1, 2]} if by_class else {"prompt": list(PROMPTS[:2])}
    sure = asked | {"method": method, "output_type": "latent", "generator": torch.Generator().manual_seed(3)}

    def same(made: Any, arguments: dict[str, Any]) -> str:
        method = arguments["method"]
        if not hasattr(made, "images") or not isinstance(method, str) or not _same_tokens(resolve_method(method)):
            return ""
        if not isinstance(made.images, torch.Tensor) or arguments.get("callback_on_step_end") is not None:
            return ""
        plain = pipeline(**_fresh(arguments | {"method": "ar"})).images
        again = pipeline(**_fresh(arguments)).images
        if made.images.min() < 0 or (made.images.dtype == torch.int64 and made.images.max() >= 24):
            return "codes that there are not"
        return "" if torch.equal(plain, again) else "not plain decoding's picture"

    return _attempt(draw, type(pipeline).__call__.__get__(pipeline), sure, same)


def _answer(draw: Random, sound: Sound) -> Attempt:
    method = draw.choice(("ar", "sd", "prompt-lookup"))
    sure = {"frames": sound.frames, "question": "what?", "method": method, "max_new_tokens": 4}

    def same(made: Any, arguments: dict[str, Any]) -> str:
        if not isinstance(arguments["method"], str) or not resolve_method(arguments["method"], task="video").exact:
            return ""
        plain = sound.answerer.answer(**_fresh(arguments | {"method": "ar"}))
        return "" if plain.text == made.text else f"{made.text!r}, not plain decoding's {plain.text!r}"

    return _attempt(draw, sound.answerer.answer, sure, same)


def _text(draw: Random, sound: Sound) -> Attempt:
    sure = {"model": sound.words, "input_ids": torch.tensor([[4, 9, 3], [0, 5, 6]]), "max_new_tokens": 6}
    sure |= {"attention_mask": torch.tensor([[1, 1, 1], [0, 1, 1]]), "method": draw.choice(("prompt-lookup", "jacobi"))}

    def same(made: Any, arguments: dict[str, Any]) -> str:
        if arguments.get("temperature") or arguments.get("draft_length"):
            return ""
        plain = generate(**_fresh(arguments | {"method": "ar", "draft_model": None, "drafter": None}))
        return "" if torch.equal(plain.sequences, made.sequences) else "not plain decoding's tokens"

    return _attempt(draw, generate, sure, same)


KINDS: dict[str, Callable[[Random, Sound, Path], Attempt]] = {
    each.__name__: each for each in (configurations, folders, records, arrays, videos, calls)
}
