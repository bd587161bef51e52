"""`vargen tune`: the front and the choice against slow loops, a search that goes on, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

optuna = pytest.importorskip("optuna", reason="tuning needs the tune extra")

from vargen import benchmark  # noqa: E402
from vargen.cli import main  # noqa: E402
from vargen.commands import tune  # noqa: E402
from vargen.commands.tune import TuneConfig  # noqa: E402
from vargen.files import UserError  # noqa: E402
from vargen.methods import METHODS, resolve_method  # noqa: E402
from vargen.tuning import SEARCH_SPACES, Point, Suggestions, fastest_within, pareto_front  # noqa: E402

numbers = st.integers(0, 6).map(float)
points = st.lists(st.tuples(numbers, numbers).map(lambda pair: Point({}, *pair)), max_size=12)


@given(points)
def test_the_front_is_what_nothing_beats(measured: list[Point]) -> None:
    def beaten(point: Point) -> bool:
        return any(
            other.speed >= point.speed
            and other.quality >= point.quality
            and (other.speed > point.speed or other.quality > point.quality)
            for other in measured
        )

    wanted = {(point.speed, point.quality) for point in measured if not beaten(point)}
    front = [(point.speed, point.quality) for point in pareto_front(measured)]
    assert set(front) == wanted and len(front) == len(wanted)
    assert front == sorted(front, reverse=True)


@given(points, numbers)
def test_the_choice_is_the_fastest_within_the_budget(measured: list[Point], least: float) -> None:
    best = fastest_within(measured, least)
    good = [point for point in measured if point.quality >= least]
    if not good:
        assert best is None
    else:
        assert best is not None and best.quality >= least
        assert best.speed == max(point.speed for point in good)


@pytest.mark.parametrize("name", SEARCH_SPACES)
def test_search_spaces_name_settings_of_their_method(name: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    config = next(method for method in METHODS if method.name == name)
    for _ in range(30):
        settings = SEARCH_SPACES[name](Suggestions(study.ask(), {}))
        assert settings.keys() <= config.__dataclass_fields__.keys()
        try:
            resolve_method(name, settings)
        except UserError as error:  # more levels than nodes is drawn now and then, and refused
            assert "depth must be below total_tokens" in str(error)


def test_what_is_fixed_is_not_searched() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trial = study.ask()
    settings = SEARCH_SPACES["vvs"](Suggestions(trial, {"schedule": "likeness", "threshold": 0.5}))
    assert settings["schedule"] == "likeness" and settings["threshold"] == 0.5 and "interval" not in settings
    assert not {"schedule", "threshold"} & trial.params.keys()


@pytest.fixture
def arguments(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A search over the window of Jacobi decoding. The tiny model's pictures are no scenes: a reading stands in."""
    from vargen.scenes.reading import Reading

    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    monkeypatch.setattr(
        benchmark, "read_images", lambda judge, pictures: [Reading((), "grass", "clear")] * len(pictures)
    )
    monkeypatch.setattr("vargen.scenes.judge.load_judge", lambda *arguments: object())
    output = ["--output", str(tmp_path / "tuning"), "--model", str(tiny_model_folder), "--quiet"]
    return ["tune", "--method", "sjd", "--prompts", "2", "--speed", "pass_reduction", *output]


def limit_trials(monkeypatch: pytest.MonkeyPatch, count: int, end: type[BaseException] | None = None) -> list[Any]:
    """Let the clock run out, or the process be stopped, after so many measurements."""
    measured: list[Any] = []
    measure = tune.Evaluation.measure

    def counted(self: tune.Evaluation, method: Any) -> Point:
        if len(measured) == count:
            assert end is not None
            raise end
        measured.append(method)
        if len(measured) == count and end is None:
            object.__setattr__(self.config, "max_seconds", 0.0)
        return measure(self, method)

    monkeypatch.setattr(tune.Evaluation, "measure", counted)
    return measured


def test_a_search_writes_the_front_and_settings_that_generate_reads(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = limit_trials(monkeypatch, 3)
    assert main(arguments) == 0
    out = capsys.readouterr().out
    folder = tmp_path / "tuning"
    best = resolve_method(str(folder / "best.yaml"))
    assert best in measured and "3 settings measured" in out
    written = json.loads((folder / "pareto.json").read_text())
    assert written["trials"] == 3 and written["provenance"]["hardware"]["cores"]
    speeds = [point["speed"] for point in written["front"]]
    assert max(speeds) == speeds[0] >= 1.0
    assert str(best.to_dict()["window"]) in (folder / "best.yaml").read_text()


def test_a_stopped_search_goes_on_and_measures_plain_decoding_once(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patch:
        limit_trials(patch, 2, KeyboardInterrupt)
        assert main(arguments) == 130
    assert "the same command goes on" in capsys.readouterr().err
    folder = tmp_path / "tuning"
    assert json.loads((folder / "pareto.json").read_text())["trials"] == 2
    plain = (folder / "plain.jsonl").read_bytes()
    with monkeypatch.context() as patch:
        limit_trials(patch, 2)
        assert main(arguments) == 0
    assert (folder / "plain.jsonl").read_bytes() == plain
    assert json.loads((folder / "pareto.json").read_text())["trials"] == 4
    assert main([*arguments, "--seed", "5"]) == 2
    assert "search with another seed" in capsys.readouterr().err


def test_settings_that_exclude_each_other_are_left_out(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, calls = tune.Evaluation.measure, []

    def refusing(self: tune.Evaluation, method: Any) -> Point:
        calls.append(method)
        if len(calls) == 1:
            raise UserError("these do not fit")
        object.__setattr__(self.config, "max_seconds", 0.0)
        return measure(self, method)

    monkeypatch.setattr(tune.Evaluation, "measure", refusing)
    assert main(arguments) == 0
    assert len(calls) == 2 and json.loads((tmp_path / "tuning" / "pareto.json").read_text())["trials"] == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ar"}, "method 'ar' cannot be tuned; choose one of: eagle"),
        ({"method": "sjd", "fixed": {"depth": 3}}, "fixed: method 'sjd' has no setting 'depth'"),
        ({"speed": "fast"}, "speed must be one of speedup, pass_reduction"),
        ({"quality": "beauty"}, "quality must be one of judge_accuracy"),
        ({"max_quality_loss": -0.1}, "max_quality_loss must be 0 or more"),
        ({"max_seconds": 0.0}, "max_seconds must be positive"),
        ({"prompts": 0}, "prompts must be at least 1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TuneConfig(**options)


def test_an_output_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["tune", "--output", str(tmp_path / "file")]) == 2
    assert "output: " in capsys.readouterr().err
