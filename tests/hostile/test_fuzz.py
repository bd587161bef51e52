"""What the tables miss: options, model folders and records changed at random. Nothing may end in a traceback, and what
is refused is refused in one line. Seeds are fixed, so that a run today tries what a run tomorrow tries."""

import contextlib
import io
import json
import math
import shutil
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from vargen.cli import main
from vargen.jobs.benchmark import BenchConfig
from vargen.jobs.evaluation import EvaluateConfig
from vargen.jobs.generation import GenerateConfig
from vargen.jobs.tuning import TuneConfig
from vargen.methods.catalogue import methods_for
from vargen.video.jobs.captioning import CaptionConfig
from vargen.video.jobs.video_benchmark import BenchVideoConfig

plain = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, 1, -1, 2, 7, 2**31, 2**63, 1e300, 1e-300, -0.5, 0.5, math.inf, -math.inf, math.nan]),
    st.text(max_size=12),
    st.sampled_from(
        ["auto", "", " ", "../..", "/etc/passwd", "~", "*a", "!!python/name:os.system", "[", "{}", "x" * 300]
    ),
)
values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
tried = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


def run(arguments: list[str]) -> int:
    """The exit code, if it ended as a command may: well, or with one line."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(arguments)
    errors = [line for line in said.getvalue().splitlines() if line.startswith("vargen: error: ")]
    assert (code, len(errors)) in ((0, 0), (2, 1)), (code, said.getvalue()[:500])
    assert "Traceback" not in said.getvalue()
    return code


def of_methods(configs: Any, option: str) -> list[str]:
    return [f"--method {c.name} --{option}.{f.name}" for c in configs for f in fields(c)]


OPTIONS = [
    *(f"generate a --{field.name}" for field in fields(GenerateConfig)),
    *(f"evaluate --{field.name}" for field in fields(EvaluateConfig)),
    *(f"bench --{field.name}" for field in fields(BenchConfig)),
    *(f"bench --task video --{field.name}" for field in fields(BenchVideoConfig)),
    *(f"tune --{field.name}" for field in fields(TuneConfig)),
    *(f"caption nowhere --{field.name}" for field in fields(CaptionConfig)),
    *(f"generate a {option}" for option in of_methods(methods_for("image").values(), "method_options")),
    *(f"caption nowhere {option}" for option in of_methods(methods_for("video").values(), "method_options")),
]
"""Every option of every command, but for how much it renders or trains."""


def as_written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@settings(tried, max_examples=60)
@given(st.sampled_from(OPTIONS), values)
def test_options(option, value):
    assume(not (option.endswith(" --model") and value is None))  # the shipped model: all of it would be done
    with tempfile.TemporaryDirectory() as folder:
        # Behind them a model that is not there, so that what is right is not made.
        places = [] if "--output" in option else ["--output", f"{folder}/out"]
        places = [] if option.startswith(("bench", "caption")) else places
        model = [] if option.endswith(" --model") else ["--model", f"{folder}/none"]
        flag = f"{option.split()[-1]}={as_written(value)}"
        run([*option.split()[:-1], flag, *places, *model])


def changed(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value with one of its inner values replaced, taken out, or given a neighbour."""
    if isinstance(value, dict) and value and draw(st.integers(0, 5)):
        name = draw(st.sampled_from(sorted(value)))
        how = draw(st.sampled_from(["deeper", "deeper", "deeper", "remove", "add"]))
        if how == "remove":
            return {key: inner for key, inner in value.items() if key != name}
        if how == "add":
            return {**value, draw(st.text(max_size=8)): draw(values)}
        return {**value, name: changed(draw, value[name])}
    if isinstance(value, list) and value and draw(st.booleans()):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], changed(draw, value[place]), *value[place + 1 :]]
    return draw(values)


def damage(draw: st.DrawFn, path: Path) -> None:
    """Change a file: a value if it holds JSON, or bytes."""
    content = path.read_bytes()
    how = draw(st.sampled_from(["values", "values", "bytes", "cut"]))
    if how == "values" and path.suffix in (".json", ".jsonl"):
        lines = content.splitlines() if path.suffix == ".jsonl" else [content]
        place = draw(st.integers(0, max(len(lines) - 1, 0)))
        if lines:
            lines[place] = json.dumps(changed(draw, json.loads(lines[place]))).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
    elif how == "cut":
        path.write_bytes(content[: draw(st.integers(0, len(content)))])
    else:
        start = draw(st.integers(0, max(len(content) - 1, 0)))
        new = draw(st.binary(min_size=1, max_size=16))
        path.write_bytes(content[:start] + new + content[start + len(new) :])


@settings(tried, max_examples=30)
@given(st.data())
def test_model_folders(_saved_tiny_pipelines, data):
    with tempfile.TemporaryDirectory() as folder:
        model = Path(shutil.copytree(_saved_tiny_pipelines["text"], f"{folder}/model"))
        names = sorted(path.relative_to(model) for path in model.rglob("*") if path.is_file())
        damage(data.draw, model / data.draw(st.sampled_from(names)))
        run(["generate", "a red cube", "--model", str(model), "--output", f"{folder}/out", "--quiet"])


@settings(tried, max_examples=30)
@given(st.data())
def test_records(_saved_tiny_pipelines, _finished_run, data):
    with tempfile.TemporaryDirectory() as folder:
        work = Path(shutil.copytree(_finished_run, f"{folder}/run"))
        damage(data.draw, work / data.draw(st.sampled_from(["config.json", "result.jsonl", "images/000001.png"])))
        if data.draw(st.booleans()):
            run(["judge", str(work)])
        else:
            model = str(_saved_tiny_pipelines["text"])
            run(["generate", "a red cube", "a blue cone", "--model", model, "--output", str(work), "--quiet"])
