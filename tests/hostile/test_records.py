"""What earlier runs left, damaged: records, pictures, batches, calls, searches, checkpoints, stores."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile import Harm, arguments_of, change_json, check_refused, file_size_limit, write, write_json
from refusals import refused

from scenes.shipped import WEIGHTS
from vargen.cli import main

DEEP = "[" * 50_000
GENERATE = "generate 'a red cube' 'a blue cone' --model {model} --quiet --output {work}/run"
JUDGE = "judge {work}/run"
BENCH = "bench --methods ar --model {model} --num_prompts 2 --warm_up 0 --quiet --output {work}/b"


def change(**values: object) -> Callable[[Path], object]:
    """Change the first record of result.jsonl."""

    def damage(run: Path) -> None:
        lines = (run / "result.jsonl").read_text().splitlines()
        record = {**json.loads(lines[0]), **values}
        lines[0] = json.dumps({name: value for name, value in record.items() if value is not None})
        (run / "result.jsonl").write_text("\n".join(lines) + "\n")

    return damage


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (write("config.json", "{"), "config.json cannot be read"),
        (write("config.json", "7"), "is not of a `vargen generate` run"),
        (write("config.json", "{}"), "is not of a `vargen generate` run"),
        (write("config.json", '{"settings": 7}'), "is not of a `vargen generate` run"),
        (write("config.json", '{"settings": {}}'), "holds a run with"),
        (write("config.json", b"\xff\xfe"), "config.json cannot be read"),
        (write("config.json", DEEP), "it is nested too deeply"),
        (write("result.jsonl", "7\n8\n"), "line 1 is no record"),
        (write("result.jsonl", "[]\n"), "line 1 is no record"),
        (write("result.jsonl", "{\n"), "line 1 is not JSON"),
        (write("result.jsonl", b"\xff\n"), "line 1 is not JSON"),
        (write("result.jsonl", DEEP + "\n"), "line 1 is not JSON (it is nested too deeply)"),
        (lambda run: change_json(run / "config.json", settings={"prompts": 3}), "holds a run with"),
    ],
)
def test_a_run_is_not_continued_on_what_is_damaged(
    damage, expected, finished_run, tmp_path, _saved_tiny_pipelines, capsys
):
    damage(finished_run)
    command = arguments_of(GENERATE, {"work": tmp_path, "model": _saved_tiny_pipelines["text"]})
    check_refused(command, expected, capsys, tmp_path)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (write("result.jsonl", "7\n"), "line 1 is no record"),
        (write("result.jsonl", ""), "holds no record"),
        (write("result.jsonl", "{}\n"), "a record without an index or text"),
        (write("result.jsonl", DEEP + "\n"), "line 1 is not JSON"),
        (change(image_path="../../../../etc/passwd"), "is not the name of something in it"),
        (change(image_path="/etc/passwd"), "is not the name of something in it"),
        (change(image_path=7), "is not the name of something in it"),
        (change(image_path=["a"]), "is not the name of something in it"),
        (change(image_path="a\0b"), "is not the name of something in it"),
        (change(image_path="images/999999.png"), "999999.png"),
        (change(image_path="x" * 300), "xxx"),
        (change(image_path=None), "is not the name of something in it"),
        (change(text=7), "text"),
        (change(index="first"), "index"),
        (write("images/000000.png", "no picture"), "000000.png cannot be read"),
        (write("images/000000.png", b""), "000000.png cannot be read"),
        (lambda run: os.remove(run / "images/000001.png"), "000001.png"),
    ],
)
def test_a_damaged_run_is_not_judged(damage, expected, finished_run, tmp_path, capsys):
    damage(finished_run)
    check_refused(arguments_of(JUDGE, {"work": tmp_path}), expected, capsys, tmp_path)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("[]\n", "line 1 is no record"),
        ("7\n", "line 1 is no record"),
        ("{}\n", "does not say what it holds"),
        ('{"settings": 3}\n', "does not say what it holds"),
        ('{"settings": {}}\n', "holds calls of a run with"),
        ("{\n", "line 1 is not JSON"),
        (DEEP + "\n", "line 1 is not JSON"),
    ],
)
def test_calls_of_a_comparison_that_are_none(content, expected, tmp_path, _saved_tiny_pipelines, capsys):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "calls.jsonl").write_text(content)
    command = arguments_of(BENCH, {"work": tmp_path, "model": _saved_tiny_pipelines["text"]})
    check_refused(command, expected, capsys, tmp_path)


def test_a_value_of_a_kept_call_that_is_another_one_is_seen(tmp_path):
    from vargen.runs.records import Records

    path, call = tmp_path / "calls.jsonl", {"method": "ar", "batch": 0, "call": {"seconds": 0.1}, "claims": {"a": [1]}}
    Records(path, {}).add(call)
    assert Records(path, {}).calls == {("ar", 0): call}
    sound = path.read_text()
    for old, new in (('"seconds": 0.1', '"seconds": "a"'), ('"claims": ', '"claim": '), ("[1]", "[2]")):
        path.write_text(sound.replace(old, new))
        refused("line 2 is not as it was written", Records, path, {})


def test_a_line_whose_index_is_none_is_written_anew(finished_run, tmp_path, _saved_tiny_pipelines):
    path = finished_run / "result.jsonl"
    wanted = path.read_text()
    lines = [json.loads(line) for line in wanted.splitlines()]
    path.write_text("".join(json.dumps({**line, "index": [number]}) + "\n" for number, line in enumerate(lines)))
    assert main(arguments_of(GENERATE, {"work": tmp_path, "model": _saved_tiny_pipelines["text"]})) == 0
    assert path.read_text() == wanted


EVALUATE = (
    "evaluate --methods ar --model {model} --protocol {work}/p.yaml --prompts_file {work}/c.txt --reference {work}/ref "
)
EVALUATE += "--reference {work}/ref --output {work}/e --quiet --batch_size 2 --bootstrap 0"


@pytest.fixture(scope="session")
def _evaluated(
    _saved_tiny_pipelines: dict[str, Path], _finished_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    work = tmp_path_factory.mktemp("evaluated")
    (work / "p.yaml").write_text("extractor: clip\nresizer: bicubic\nresolution: 32\nclip_score: null\n")
    (work / "c.txt").write_text("a red cube\na blue cone\n")
    shutil.copytree(_finished_run / "images", work / "ref")
    clip = WEIGHTS / "clip"
    command = arguments_of(EVALUATE, {"work": work, "model": _saved_tiny_pipelines["text"]})
    assert main([*command, "--clip", str(clip)]) == 0
    return work


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("e/ar/batches/000000.npz", b"", "000000.npz cannot be read"),
        ("e/ar/batches/000000.npz", b"PK\x03\x04torn", "000000.npz cannot be read"),
        ("e/ar/batches/000000.npz", b"\x80\x04cos\nsystem\n", "000000.npz cannot be read"),
        ("e/ar/config.json", b"{", "config.json cannot be read"),
        ("e/ar/config.json", b"[]", "does not say what it holds"),
        ("e/ar/config.json", b"{}", "holds pictures with"),
        ("p.yaml", b"\xff", "cannot be read"),
        ("c.txt", b"one caption\n", "num_prompts"),
        ("ref/000000.png", b"no picture", "cannot be read"),
    ],
)
def test_a_damaged_evaluation(name, content, expected, _evaluated, tmp_path, _saved_tiny_pipelines, capsys):
    work = Path(shutil.copytree(_evaluated, tmp_path / "work"))
    (work / name).write_bytes(content)
    if name.startswith("e/ar/batches"):
        shutil.rmtree(work / "e" / "ar" / "images")  # so that the batch is read
    clip = WEIGHTS / "clip"
    command = arguments_of(EVALUATE, {"work": work, "model": _saved_tiny_pipelines["text"]})
    code = main([*command, "--clip", str(clip)])
    told = capsys.readouterr().err
    assert code == 2 and expected in told and told.count("vargen: error: ") == 1 and "Traceback" not in told, told


TUNE = "tune --method sjd --model {model} --quiet --output {work}/t"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("settings.json", b"{", "settings.json cannot be read"),
        ("settings.json", b"[]", "does not say what it holds"),
        ("settings.json", b"{}", "holds a search with"),
    ],
)
def test_a_damaged_search(name, content, expected, tmp_path, tiny_model_folder, capsys, monkeypatch):
    import vargen.commands.tune  # noqa: F401
    from scenes.world import SceneWorld

    class Reader:
        """Reads pictures of the tiny model's size, and is never asked to."""

        image_size = 8

    monkeypatch.setattr(SceneWorld, "judge", lambda _: Reader())
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / name).write_bytes(content)
    command = arguments_of(TUNE, {"work": tmp_path, "model": tiny_model_folder})
    check_refused(command, expected, capsys, tmp_path)


CHECKPOINTS = [
    *(b"", b"junk" * 100, b"PK\x03\x04" + b"\0" * 100, [1, 2], {"model": {}}, {"architecture": "{}", "module": {}}),
    *({"architecture": 7}, {"architecture": "["}, Harm),
]


@pytest.mark.parametrize("content", CHECKPOINTS, ids=range(len(CHECKPOINTS)))
def test_a_checkpoint_that_is_none(content, tmp_path, capsys):
    import torch

    (tmp_path / "run").mkdir()
    if isinstance(content, bytes):
        (tmp_path / "run" / "checkpoint.pt").write_bytes(content)
    else:
        made = {"bomb": Harm(tmp_path / "executed")} if content is Harm else content
        torch.save(made, tmp_path / "run" / "checkpoint.pt")
    sizes = ["--batch_size", "2", "--steps", "1", "--evaluation_size", "2", "--image_size", "32"]
    command = ["train", "judge", "--output", str(tmp_path / "run"), *sizes]
    check_refused(command, "checkpoint.pt", capsys, tmp_path)
    assert not (tmp_path / "executed").exists()


def test_a_full_disk_at_a_checkpoint(tmp_path, capsys):
    """One line, nothing half-written, and the same command goes on from the last whole one."""
    sizes = ["--batch_size", "2", "--evaluation_size", "2", "--image_size", "32", "--num_threads", "1"]
    often = ["--checkpoint_seconds", "0.001", "--sample_every", "1000", "--evaluate_every", "1000", "--log_every", "1"]
    command = ["train", "judge", "--output", str(tmp_path / "run"), *sizes, *often, "--steps"]
    assert main([*command, "1"]) == 0
    whole = (tmp_path / "run" / "checkpoint.pt").read_bytes()
    capsys.readouterr()
    with file_size_limit(len(whole) // 2):
        assert main([*command, "3"]) == 2
    told = capsys.readouterr().err
    named = f"file too large: {tmp_path / 'run' / 'checkpoint.pt'}; name another"
    assert told.count("vargen: error: ") == 1 and "Traceback" not in told and named in told, told[-800:]
    assert (tmp_path / "run" / "checkpoint.pt").read_bytes() == whole
    assert main([*command, "3"]) == 0
    assert not [path for path in (tmp_path / "run").rglob("*") if "tmp" in path.name]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("store.json", b"{", "store.json cannot be read"),
        ("store.json", b"[]", "store.json cannot be read"),
        ("store.json", b"{}", "store.json cannot be read"),
        ("codes-000000.safetensors", b"junk", "codes-000000.safetensors cannot be read"),
        ("codes-000000.safetensors", b"", "codes-000000.safetensors cannot be read"),
    ],
)
def test_a_damaged_store_of_codes(name, content, expected, tmp_path):
    from scenes.training import code_store

    weights = [1.0, 1.0, 1.0]
    description = {
        "shard_size": 2,
        "num_tokens": 4,
        "object_count_weights": weights,
        "scenes": code_store._scenes_fingerprint(weights),
    }
    write_json(tmp_path / code_store._DESCRIPTION, description)
    (tmp_path / (code_store._DESCRIPTION if name == "store.json" else name)).write_bytes(content)
    refused(expected.replace("store.json", code_store._DESCRIPTION), code_store.StoredCodes, tmp_path)


def test_a_run_says_which_of_its_figures_follow_the_clock(finished_run):
    """A window that is chosen by seconds changes passes and traces of a run that is killed and continued."""
    from vargen.methods.catalogue import resolve_method

    assert json.loads((finished_run / "config.json").read_text())["follows_the_clock"] == ["window"]
    assert resolve_method("jacobi").follows_the_clock == ["window"]
    assert resolve_method("ar").follows_the_clock == resolve_method("jacobi", {"window": 4}).follows_the_clock == []


def test_rows_of_bench_and_evaluate_say_which_settings_follow_the_clock(_evaluated):
    from metrics.speculation import CallRecord
    from vargen.jobs.benchmark import build_rows
    from vargen.methods.catalogue import resolve_method
    from vargen.runs.records import Records

    assert [row["follows_the_clock"] for row in json.loads((_evaluated / "e" / "scores.json").read_text())] == [[]]
    methods = {
        "ar": resolve_method("ar"),
        "jacobi": resolve_method("jacobi"),
        "four": resolve_method("jacobi", {"window": 4}),
    }
    records = Records(None, {})
    for label in methods:
        records.add({"method": label, "batch": 0, "call": CallRecord(1.0, 1, 4, 2, 2, 2, [1]).to_dict(), "claims": {}})
    assert [row["follows_the_clock"] for row in build_rows(methods, records, 1)] == [[], ["window"], []]
