"""Inputs that nobody wrote down, each drawn from a generator of its own, and what is known of its right answer.

Belongs here: making an input of each kind, trying it, and saying how it ended. Does not belong here: many of them, each
in a process of its own (`benchmarks/fuzz.py`), and inputs that were found once (`tests/hostile`, a row each).
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import shutil
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

import language_models
import torch
from tiny_pipelines import build_drafting_pipeline, build_tiny_pipeline

import specdecode
from metrics.images import read_image
from vargen.base.errors import UserError
from vargen.base.options import options_of
from vargen.cli import main
from vargen.jobs.generation import GenerateConfig
from vargen.methods.catalogue import methods_for, resolve_method

PROMPTS = ("a red cube", "a blue cone")
ODD = [
    *(None, True, -1, 2**31, 2**63, 2**70, 1e300, -0.5, 1e-300, math.nan, -math.inf, "", " ", "auto", "../..", "~"),
    *("/etc/passwd", "!!python/name:os.system", "*a", "{}", "[", "x" * 300, "\x1b[2J", "\ud800", [], [1], {}, {"a": 1}),
]
LEFT = ("output", "config", "model", "json", "quiet", "compile", "max_seconds")
GOOD = ("answered", "refused")


@dataclass
class Tried:
    """One input.

    Args:
        what: tells a reader what was changed.
        run: tries it, and returns an exit code as `vargen.cli.main` does.
        check: after success, says what is wrong with the answer; empty: nothing.
    """

    what: str
    run: Callable[[], int]
    check: Callable[[], str] = lambda: ""


class Sound:
    """What is damaged, in a folder of its own, made once."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.pipeline = folder, build_drafting_pipeline()
        build_tiny_pipeline().save_pretrained(folder / "text")
        self.words = language_models.make("llama", dtype=torch.float64)
        assert main([*self.generate(folder / "run"), "--num_images", "1"]) == 0
        self.pixels = _pixels(folder / "run")

    def generate(self, output: Path, *more: str, model: str = "text") -> list[str]:
        """The command line of two pictures."""
        asked = [*PROMPTS, "--model", str(self.folder / model), "--output", str(output), "--quiet"]
        return ["generate", *asked, *more]


def attempt(kind: str, seed: int, number: int, sound: Sound, work: Path) -> tuple[str, str]:
    """How an input ended: "answered" and "refused" are right; then what it was, and what it said."""
    tried = KINDS[kind](Random(f"{kind}/{seed}/{number}"), sound, work)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = tried.run()
            wrong = tried.check() if code == 0 else ""
    except BaseException:
        return "traceback", f"{tried.what}\n{traceback.format_exc()[-1500:]}"
    text = said.getvalue()
    errors = [line for line in text.splitlines() if line.startswith("vargen: error: ")]
    if (code, len(errors)) not in ((0, 0), (2, 1)) or "Traceback" in text:
        return "no line", f"{tried.what}\n{code}: {text[-800:]}"
    told = f"{tried.what}\n{wrong or text[-300:]}"
    return ("refused" if code else "wrong" if wrong else "answered"), told


def _value(draw: Random, declared: Any, usual: Any) -> Any:
    """One that an option may have, seven of eight times; else an odd one."""
    if not draw.randrange(8):
        return draw.choice(ODD)
    if declared.choices:
        return draw.choice(sorted(declared.choices))
    if isinstance(usual, bool):
        return not usual
    if isinstance(usual, int) or (usual is None and isinstance(declared.least, int)):
        least = int(declared.least or 0)
        return draw.randint(least, int(min(declared.most or least + 4, least + 4)))
    if isinstance(usual, float) or declared.least is not None or declared.above is not None:
        low = declared.least or declared.above or 0.0
        return round(draw.uniform(low, min(declared.most or low + 2, low + 2)), 3)
    return usual


def _some(draw: Random, kind: Any, count: int, leave: tuple[str, ...] = ()) -> dict[str, Any]:
    known = {name: each for name, each in options_of(kind).items() if name not in leave}
    usual = kind()
    return {name: _value(draw, known[name], getattr(usual, name)) for name in draw.sample(sorted(known), count)}


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _pixels(folder: Path) -> list[Any]:
    records = [json.loads(line) for line in (folder / "result.jsonl").read_text().splitlines()]
    return [read_image(folder / each["image_path"]).tolist() for each in records]


def options(draw: Random, sound: Sound, work: Path) -> Tried:
    """A command line with a few options of `vargen generate`."""
    given = _some(draw, GenerateConfig, draw.choice((1, 1, 2, 3)), LEFT)
    flags = [f"--{name}={_written(value)}" for name, value in given.items() if value is not None]
    return Tried(f"{flags}", lambda: main(sound.generate(work / "out", *flags)), lambda: _few(work / "out"))


def _few(folder: Path) -> str:
    """Whether something else than whole pictures is there."""
    return "" if len(_pixels(folder)) >= 2 else "pictures are missing"


def spoilt(draw: Random, path: Path) -> str:
    """Change a file: a value where it holds JSON, or bytes; and say how."""
    content, how = path.read_bytes(), draw.choice(("value", "value", "bytes", "cut", "twice", "same"))
    if how == "value" and path.suffix in (".json", ".jsonl"):
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        place = draw.randrange(len(lines))
        found = inner = json.loads(lines[place])
        while isinstance(inner, dict) and inner:
            key = draw.choice(sorted(inner))
            if isinstance(inner[key], dict) and inner[key]:
                inner = inner[key]
            else:
                how, inner[key] = f"{key} changed", draw.choice(ODD)
                break
        lines[place] = json.dumps(found).encode()
        content = b"\n".join(lines) + b"\n"
    elif how == "cut":
        content = content[: draw.randrange(len(content))]
    elif how == "twice":
        content += content
    elif how != "same":
        start, new = draw.randrange(len(content)), draw.randbytes(draw.randint(1, 16))
        content = content[:start] + new + content[start + len(new) :]
    path.write_bytes(content)
    return f"{path.name}: {how}"


def models(draw: Random, sound: Sound, work: Path) -> Tried:
    """A folder of a model with a damaged file."""
    shutil.copytree(sound.folder / "text", work / "text")
    files = sorted(path for path in (work / "text").rglob("*") if path.is_file())
    what = spoilt(draw, draw.choice(files))
    command = ["generate", *PROMPTS, "--model", str(work / "text"), "--output", str(work / "out"), "--quiet"]
    same = what.endswith(": same")

    def check() -> str:
        return "other pictures" if same and _pixels(work / "out") != sound.pixels else _few(work / "out")

    return Tried(what, lambda: main(command), check)


def records(draw: Random, sound: Sound, work: Path) -> Tried:
    """A finished run with damaged records or pictures, gone on with: its pictures are those of a sound one."""
    shutil.copytree(sound.folder / "run", work / "run")
    names = ("config.json", "result.jsonl", "result.jsonl", "images/000000.png", "images/000001.png")
    what = spoilt(draw, work / "run" / draw.choice(names))

    def check() -> str:
        return "" if _pixels(work / "run") == sound.pixels else "other pictures"

    return Tried(what, lambda: main([*sound.generate(work / "run"), "--num_images", "1"]), check)


def prompts(draw: Random, sound: Sound, work: Path) -> Tried:
    """A list of prompts in any of its forms, damaged, or written by another system."""
    form = draw.choice(("txt", "csv", "tsv", "jsonl", "json"))
    separator = {"csv": ",", "tsv": "\t"}.get(form, "")
    rows = [{"prompt": prompt, "id": str(number)} for number, prompt in enumerate(PROMPTS)]
    lines = {"txt": [*PROMPTS], "jsonl": [json.dumps(row) for row in rows], "json": [json.dumps(rows)]}.get(form)
    lines = lines or [separator.join(("prompt", "id")), *(separator.join(row.values()) for row in rows)]
    path, end = work / f"p.{form}", draw.choice(("\n", "\r\n"))
    path.write_bytes(draw.choice((b"", b"\xef\xbb\xbf")) + end.join([*lines, ""]).encode())
    what = "same" if draw.randrange(2) else spoilt(draw, path)
    command = ["generate", "--prompts_file", str(path), "--model", str(sound.folder / "text"), "--quiet"]

    def check() -> str:
        found = [json.loads(line)["text"] for line in (work / "out" / "result.jsonl").read_text().splitlines()]
        return f"{found}" if what == "same" and found != [*PROMPTS] else ""

    return Tried(f"{form}: {what}", lambda: main([*command, "--output", str(work / "out")]), check)


def _called(call: Callable[..., Any], given: dict[str, Any], keep: list[Any]) -> int:
    try:
        keep.append(call(**given))
    except (UserError, ValueError) as error:
        if "\n" in str(error) or not any(name.split("_")[0] in str(error) for name in given):
            raise
        print(f"vargen: error: {error}", file=sys.stderr)
        return 2
    return 0


def pictures(draw: Random, sound: Sound, work: Path) -> Tried:
    """A call with a method's settings: greedily an exact one draws plain decoding's tokens, and any method draws for a
    seed in a batch what it draws for it alone."""
    name, kind = draw.choice(sorted((name, each) for name, each in methods_for("image").items()))
    settings = _some(draw, kind, min(draw.choice((0, 1, 1, 2)), len(fields(kind))), ("tree",))
    sampling = draw.choice(({"temperature": 0.0}, {"top_k": 3}, {"guidance_scale": 1.0}, {"top_p": 0.8}))
    method = {"name": name, **settings}

    def drawn(which: Any, numbers: tuple[int, ...]) -> Any:
        seeds = [torch.Generator().manual_seed(number) for number in numbers]
        asked = [PROMPTS[number] for number in numbers]
        given = {"prompt": asked, "method": which, "generator": seeds, "output_type": "latent", **sampling}
        return sound.pipeline(**given).tokens

    keep: list[Any] = []

    def check() -> str:
        if not torch.equal(keep[0][1:], drawn(method, (1,))):
            return "another picture alone"
        is_plain = resolve_method(name, settings).exact and sampling == {"temperature": 0.0}
        return "not plain decoding's" if is_plain and not torch.equal(keep[0], drawn("ar", (0, 1))) else ""

    given = {"which": method, "numbers": (0, 1), name: None, **settings}
    return Tried(f"{method} {sampling}", lambda: _called(lambda **_: drawn(method, (0, 1)), given, keep), check)


def texts(draw: Random, sound: Sound, work: Path) -> Tried:
    """A call of `specdecode.generate` with settings of logits: greedily the tokens of plain decoding."""
    ids, mask = language_models.ragged_prompts(draw.randrange(100))
    places: dict[str, Callable[[], Any]] = {
        "max_new_tokens": lambda: draw.randint(1, 12), "repetition_penalty": lambda: draw.uniform(0.5, 2),
        "no_repeat_ngram_size": lambda: draw.randint(1, 3), "min_new_tokens": lambda: draw.randint(1, 9),
        "bad_words_ids": lambda: [[draw.randrange(30)] for _ in range(3)],
        "eos_token_id": lambda: draw.randrange(30), "suppress_tokens": lambda: draw.sample(range(30), 20),
        "num_return_sequences": lambda: draw.randint(1, 3), "draft_length": lambda: draw.randint(1, 9),
    }  # fmt: skip
    given = {name: places[name]() for name in draw.sample(sorted(places), draw.choice((0, 1, 2, 3)))}
    if not draw.randrange(4):
        given[draw.choice(sorted(places))] = draw.choice(ODD)
    method = draw.choice(("prompt-lookup", "jacobi"))

    def said(**given: Any) -> Any:
        if not given.get("max_new_tokens"):
            given["max_new_tokens"] = 8
        return specdecode.generate(sound.words, ids, attention_mask=mask, pad_token_id=0, **given).sequences

    keep: list[Any] = []

    def check() -> str:
        plain = said(method="ar", **{name: value for name, value in given.items() if name != "draft_length"})
        return "" if torch.equal(keep[0], plain) else "not plain decoding's tokens"

    return Tried(f"{method} {given}", lambda: _called(said, {"method": method, **given}, keep), check)


def requests(draw: Random, sound: Sound, work: Path) -> Tried:
    """A request to the server: a picture, or a status that says whose fault it is, and the server lives on."""
    import httpx

    from vargen.serve.app import PLACE, GenerationBody, build_app
    from vargen.serve.engine import Engine

    usual = GenerationBody("a")
    names = draw.sample(sorted(options_of(GenerationBody)), draw.choice((0, 1, 2)))
    body = {name: _value(draw, options_of(GenerationBody)[name], getattr(usual, name)) for name in names}
    content = json.dumps({"prompt": PROMPTS[0], **body}).encode()
    if not draw.randrange(8):
        content = content[: draw.randrange(len(content))]
    headers = draw.choice(({}, {}, {}, {"origin": "null"}, {"content-type": "text/plain"}, {"host": "x"}))
    answers: list[Any] = []

    def run() -> int:
        engine = Engine(sound.pipeline, {"method": resolve_method("ar")})

        async def ask() -> None:
            transport = httpx.ASGITransport(app=build_app(engine, "tiny"))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                answers.append(await client.post(PLACE, content=content, headers=headers))
                answers.append(await client.get("/health"))

        asyncio.run(ask())
        engine.close()
        return 0

    def check() -> str:
        status = answers[0].status_code
        is_line = status == 200 or (400 <= status < 500 and "\n" not in answers[0].json()["error"]["message"])
        return "" if is_line and answers[1].status_code == 200 else f"{status} {answers[0].text[:300]}"

    return Tried(f"{content!r} {headers}", run, check)


KINDS: dict[str, Callable[[Random, Sound, Path], Tried]] = {
    each.__name__: each for each in (options, models, records, prompts, pictures, texts, requests)
}
