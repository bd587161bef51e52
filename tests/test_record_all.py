"""The sweep after new weights: what is out of date runs, what is finished runs once, and what changed is told."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def sweep(monkeypatch, tmp_path):
    specification = importlib.util.spec_from_file_location("record_all", ROOT / "benchmarks" / "record_all.py")
    module = importlib.util.module_from_spec(specification)
    # Dataclasses look their module up.
    monkeypatch.setitem(__import__("sys").modules, "record_all", module)
    specification.loader.exec_module(module)
    monkeypatch.setattr(module, "RECORDED_ON", tmp_path / "recorded_on.json")
    return module


def write(path: Path, text: str) -> tuple[str, ...]:
    """Arguments of Python that append `text` to a file."""
    return ("-c", f"open({str(path)!r}, 'a').write({text!r})")


def test_every_step_names_a_script_or_a_command_and_a_record_that_is_there(sweep) -> None:
    for step in sweep.STEPS.values():
        if step.command[0] != "-m":
            assert (ROOT / step.command[0]).is_file()
        if step.copies is not None:
            assert step.copies[1].is_file()


def test_what_is_finished_is_not_run_again_until_the_weights_are_others(sweep, monkeypatch, tmp_path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    without = sweep.Step(write(one, "x"), reads_drafter=False)
    monkeypatch.setattr(sweep, "STEPS", {"one": without, "two": sweep.Step(("-c", "raise SystemExit(3)"))})
    old = sweep.Weights("old", "old, no drafter")
    recorded: dict = {}
    with pytest.raises(SystemExit, match="3"):
        sweep.run(["one", "two"], recorded, old)
    kept = json.loads(sweep.RECORDED_ON.read_text())
    assert [sweep.out_of_date(name, kept, old) for name in ("one", "two")] == [False, True]
    sweep.STEPS["two"] = sweep.Step(write(two, '{"a": 1}'), copies=(two, tmp_path / "record.json"))
    sweep.run([name for name in sweep.STEPS if sweep.out_of_date(name, kept, old)], kept, old)
    assert one.read_text() == "x" and json.loads((tmp_path / "record.json").read_text()) == {"a": 1}
    drafter = sweep.Weights("new", "old, no drafter")
    assert [sweep.out_of_date(name, kept, drafter) for name in ("one", "two")] == [False, True]
    whole = sweep.Weights("newer", "newer, no drafter")
    assert [sweep.out_of_date(name, kept, whole) for name in ("one", "two")] == [True, True]


def test_figures_go_by_place_and_method(sweep) -> None:
    record = [{"method": "ar", "judge": {"value": 0.5, "interval": [0.4, 0.6]}, "exact": True, "settings": {"x": 1}}]
    assert dict(sweep.figures(record)) == {("ar", "judge", "value"): 0.5}
    assert dict(sweep.figures({"provenance": {"x": 1}, "rows": record, "n": 2})) == {
        ("rows", "ar", "judge", "value"): 0.5,
        ("n",): 2.0,
    }


def test_what_changed_since_a_commit_is_a_table(sweep, monkeypatch, tmp_path) -> None:
    results = ROOT / "benchmarks" / "results"
    record = json.loads((results / "bench_picks.json").read_text())
    record[0]["target_passes"] += 1
    folder = tmp_path / "benchmarks" / "results"
    folder.mkdir(parents=True)
    (folder / "bench_picks.json").write_text(json.dumps(record))
    monkeypatch.setattr(sweep, "RESULTS", folder)
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    before = json.dumps(json.loads((results / "bench_picks.json").read_text()))
    shown = sweep.subprocess.CompletedProcess((), 0, stdout=before)
    monkeypatch.setattr(sweep.subprocess, "run", lambda *_, **__: shown)
    page = sweep.compare("HEAD")
    rows = [line for line in page.splitlines() if line.startswith("| ar / ")]
    passes = record[0]["target_passes"]
    assert rows == [f"| ar / target_passes | {passes - 1:.4g} | {passes:.4g} |"]
