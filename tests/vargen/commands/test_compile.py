"""`--compile` from the outside: the same pictures, a line about compiling, another identity, refusals in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from refusals import refused

from vargen.checkpoints.options import ModelOptions
from vargen.cli import main
from vargen.commands.arguments import build_parser, fill, parse
from vargen.jobs.generation import GenerateConfig
from vargen.pipelines.compilation import CompilablePipeline


@pytest.fixture(autouse=True)
def _nothing_compiled() -> None:
    """Graphs are kept by function, whoever has them compiled."""
    torch._dynamo.reset()


@pytest.fixture
def only_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs are captured and run as they are: no machine code is made."""
    compile = CompilablePipeline.compile

    def captured(self: Any, *arguments: Any, **options: Any) -> Any:
        return compile(self, "eager", *arguments, **options)

    monkeypatch.setattr(CompilablePipeline, "compile", captured)


def generate(model: Path, output: Path, *arguments: str) -> int:
    return main(["generate", "a red cube", "--model", str(model), "--output", str(output), *arguments])


@pytest.mark.usefixtures("only_captured")
def test_the_same_picture_and_a_line_about_it(tiny_model_folder, tmp_path, capsys):
    assert generate(tiny_model_folder, tmp_path / "eager", "--quiet") == 0
    capsys.readouterr()
    assert generate(tiny_model_folder, tmp_path / "compiled", "--json", "--compile") == 0
    shown = capsys.readouterr()
    assert "compiling a decoding step of at most 5 tokens: " in shown.err
    summary = json.loads(shown.out)
    assert summary["seconds"]["compile"] > summary["seconds"]["decode"], "compiling is no decoding"
    pictures = [Image.open(tmp_path / name / "images" / "000000.png").tobytes() for name in ("eager", "compiled")]
    assert pictures[0] == pictures[1]
    assert generate(tiny_model_folder, tmp_path / "eager", "--quiet", "--compile") == 2
    assert "compile_bucket" in capsys.readouterr().err, "another identity: compiled code may round otherwise"


def test_a_switch_needs_no_value():
    for arguments, compiled, prompts in (
        (["--compile"], True, []),
        (["a", "--compile", "--seed", "3"], True, ["a"]),
        (["--compile", "a red cube"], True, ["a red cube"]),
        (["--compile", "false", "a"], False, ["a"]),
        (["--compile=true", "--", "--compile"], True, ["--compile"]),
    ):
        parser = build_parser("generate", "", GenerateConfig)
        parser.add_argument("prompts", nargs="*", type=str)
        parser.add_argument("--quiet", action="store_true")
        values = parse(parser, [*arguments[:1], "--quiet", *arguments[1:]] if arguments[0] == "a" else arguments)
        assert fill(GenerateConfig, values).compile is compiled and values.prompts == prompts
        for value in ("off", "1", "ON"):  # which look like one, and like no prompt
            refused(f"compile must be true or false, got '{value}'", parse, parser, ["--compile", value, "a red cube"])


def test_what_is_compiled_is_told_in_the_identity():
    assert ModelOptions().identity == {} and ModelOptions(compile_bucket=64).identity == {}
    assert ModelOptions(compile=True, compile_bucket=64).identity == {"compile_bucket": 64}


@pytest.mark.usefixtures("only_captured")
def test_bench_captures_steps_where_it_can_unless_told_not_to(tiny_model_folder, monkeypatch, capsys):
    monkeypatch.setattr("vargen.pipelines.compilation.can_capture", lambda device: device == "cpu")
    bench = ["bench", "--model", str(tiny_model_folder), "--methods", "ar", "--num_prompts", "1"]
    for more, compiles in (([], True), (["--eager"], False)):
        assert main([*bench, *more]) == 0
        shown = capsys.readouterr()
        assert ("compiling a decoding step" in shown.err) is compiles and "Measured on " in shown.out
