"""`vargen tune`: the front and the choice against slow loops, a search that goes on, and bad input."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

optuna = pytest.importorskip("optuna", reason="tuning needs the tune extra")

from specdecode.grid.positions import scaled_window  # noqa: E402
from vargen.base.errors import UserError  # noqa: E402
from vargen.cli import main  # noqa: E402
from vargen.jobs import calls as pipeline_calls  # noqa: E402
from vargen.jobs import study, tuning  # noqa: E402
from vargen.jobs.study import (  # noqa: E402
    Point,
    Trials,
    fastest_within,
    pareto_front,
    settings_of,
    starting_points,
)
from vargen.jobs.tuning import TuneConfig  # noqa: E402
from vargen.methods.base import ImageMethodConfig, Suggestions  # noqa: E402
from vargen.methods.catalogue import methods_for, resolve_method  # noqa: E402
from vargen.pipelines.llamagen import LlamaGenPipeline  # noqa: E402

TUNABLE = [config.name for config in methods_for("image").values() if config.name != "ar"]


def resolve(name: str, options: Any = None) -> ImageMethodConfig:
    """What a name stands for with a model of 256 tokens that prefers nothing."""
    return resolve_method(name, options).resolved(256)


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
    good = [point for point in measured if point.quality >= least - 1e-9]
    if not good:
        assert best is None
    else:
        assert best is not None and best.quality >= least - 1e-9
        assert best.speed == max(point.speed for point in good)


def test_a_loss_of_just_the_budget_is_within_it() -> None:
    measured = [Point({}, 2.0, 0.3), Point({}, 3.0, 0.299)]
    assert 0.4 - 0.1 > 0.3  # in binary
    assert fastest_within(measured, 0.4 - 0.1) == measured[0]


@pytest.mark.parametrize("name", TUNABLE)
def test_search_spaces_name_settings_of_their_method(name: str) -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    config = next(method for method in methods_for("image").values() if method.name == name)
    for _ in range(30):
        settings = resolve_method(name).search(Suggestions(study.ask(), {}))
        assert settings.keys() <= config.__dataclass_fields__.keys()
        try:
            resolve_method(name, settings)
        except UserError as error:  # what does not go together is drawn now and then, and refused
            reasons = ("depth must be below total_tokens", '"confidence" needs tree "dynamic"')
            assert any(reason in str(error) for reason in reasons), error


def test_what_is_fixed_is_not_searched() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    trial = study.ask()
    settings = resolve_method("vvs").search(Suggestions(trial, {"schedule": "likeness", "threshold": 0.5}))
    assert settings["schedule"] == "likeness" and settings["threshold"] == 0.5 and "interval" not in settings
    assert not {"schedule", "threshold"} & trial.params.keys()


@pytest.mark.parametrize("name", TUNABLE)
def test_a_search_begins_with_the_defaults(name: str) -> None:
    start = starting_points(name, {}, resolve)[0]
    assert {"method": name, **start.settings} == settings_of(resolve(name))


def test_presets_come_next_in_the_terms_of_the_search_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    presets = {
        "inside": {"schedule": "likeness", "threshold": 0.5, "depth": 4, "total_tokens": 30, "num_neighbours": 128},
        "again": {},  # the defaults
        "outside": {"depth": 9, "total_tokens": 12, "delta": 0.9, "num_neighbours": 50, "min_tokens": 9},
    }
    paths = {name: tmp_path / f"{name}.yaml" for name in presets}
    resolved = {name: resolve_method("vvs", options) for name, options in presets.items()}
    monkeypatch.setattr(study, "find_presets", lambda: paths)
    default, inside, outside = starting_points(
        "vvs", {"truncate": False}, lambda name, options: (resolved.get(name) or resolve_method(name)).resolved(256)
    )
    assert all("truncate" not in (start.settings | start.parameters) for start in (default, inside, outside))
    drawn = resolve_method("vvs").search(Suggestions(optuna.trial.FixedTrial(inside.parameters), {"truncate": False}))
    assert drawn.items() <= {**inside.settings, "truncate": False}.items()
    assert drawn["num_neighbours"] == 128 and "interval" not in drawn
    drawn = resolve_method("vvs").search(Suggestions(optuna.trial.FixedTrial(default.parameters), {"truncate": False}))
    assert (drawn["total_tokens"], drawn["depth"], drawn["interval"]) == (60, 5, 3)
    assert outside.settings["min_tokens"] == 9 and outside.parameters["total_tokens"] == 12
    assert not {"depth", "delta", "num_neighbours"} & outside.parameters.keys()


def test_chains_of_drawn_tokens_are_in_the_space_and_presets_of_them_are_retraced() -> None:
    for name in ("eagle", "vvs"):
        chains = [start for start in starting_points(name, {}, resolve) if start.parameters.get("draft") == "chain"]
        assert chains, f"no shipped preset of {name} drafts a chain"
        for start in chains:
            fixed = {key: value for key, value in start.settings.items() if key not in ("tree", "depth", "children")}
            del fixed["total_tokens"], fixed["tree_top_k"]
            drawn = resolve_method(name).search(Suggestions(optuna.trial.FixedTrial(dict(start.parameters)), fixed))
            assert drawn["tree"] == start.settings["tree"] and drawn["children"] == "sampled"
            assert drawn["depth"] == len(drawn["tree"]) == start.parameters["chain_length"]


def test_windows_of_every_order_are_measured_before_any_is_drawn() -> None:
    def windows(name: str, fixed: dict[str, Any]) -> list[int]:
        return [start.settings.get("window") for start in starting_points(name, fixed, resolve)]

    for name in ("jacobi", "scd", "gsd", "vvs-jacobi"):
        measured = {"auto"} if name == "jacobi" else set()  # where seconds choose, that is a setting of its own
        assert set(windows(name, {"initial_guess": "random"})) == {4, 8, 16, 32, 64} | measured
        assert set(windows(name, {"window": 5, "initial_guess": "random"})) == {None}


def test_a_fixed_shape_is_not_replaced_by_a_chain() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(10):
        trial = study.ask()
        settings = resolve_method("vvs").search(Suggestions(trial, {"tree": [[0], [1]]}))
        assert "tree" not in settings and "draft" not in trial.params


def open_trials(folder: Path, method: str) -> Trials:
    return Trials(folder / "trials.jsonl", starting_points(method, {}, resolve), 0)


def measure(trials: Trials, trial: optuna.Trial, figure: float) -> None:
    """Keep what came of a trial, as a search does."""
    trials.add(trial, 1.0, Point(dict(trial.params) or {"window": 1}, figure, figure))


def test_a_search_that_goes_on_does_not_draw_the_same_again(tmp_path: Path) -> None:
    draws = []
    for _ in range(3):
        trials = open_trials(tmp_path, "gsd")
        while (trial := trials.study.ask()).user_attrs.get("start"):
            measure(trials, trial, 1.0)
        draws.append(str(resolve_method("gsd").search(Suggestions(trial, {}))))
        measure(trials, trial, 1.0)
    assert len(set(draws)) == 3


def test_a_starting_point_whose_process_was_killed_is_measured_again(tmp_path: Path) -> None:
    for _ in range(2):  # asked for, never told
        trial = open_trials(tmp_path, "coolsd").study.ask()
        assert trial.user_attrs["start"] == starting_points("coolsd", {}, resolve)[0].settings
    trials = open_trials(tmp_path, "coolsd")
    measure(trials, trials.study.ask(), 1.0)
    assert "start" not in open_trials(tmp_path, "coolsd").study.ask().user_attrs


def test_a_search_that_goes_on_knows_what_the_last_one_knew(tmp_path: Path) -> None:
    trials = open_trials(tmp_path, "gsd")
    for number in range(12):
        trial = trials.study.ask()
        resolve_method("gsd").search(Suggestions(trial, {}))
        point = Point({**trial.params, "number": number}, number, 1.0, [0.5], {"pass_reduction": 2.0})
        trials.add(trial, 0.5, None if number == 3 else point)
    again = open_trials(tmp_path, "gsd")
    assert again.points == trials.points and len(again.points) == 11 and again.seconds == trials.seconds == 6.0

    def seen(study: optuna.Study) -> list[Any]:
        ended = [trial for trial in study.trials if trial.state.is_finished()]
        return [(trial.state, trial.params, trial.distributions, trial.values) for trial in ended]

    assert seen(again.study) == seen(trials.study)


def test_trials_that_are_alike_are_two_and_a_line_that_comes_twice_is_named(tmp_path: Path) -> None:
    """Trials of a space that is used up repeat a setting, and may take as long as another did."""
    trials = open_trials(tmp_path, "gsd")
    for _ in range(2):
        trials.add(trials.study.ask(), 0.5, None)
    assert open_trials(tmp_path, "gsd").count == 2
    trials.path.write_bytes(trials.path.read_bytes() + trials.path.read_bytes())
    with pytest.raises(UserError, match=r"trials\.jsonl: line 3 repeats the record of line 1"):
        open_trials(tmp_path, "gsd")


def test_a_kill_in_the_middle_of_a_write_does_no_harm(tmp_path: Path) -> None:
    folder = tmp_path / "a strange ?name #1 {of} 100%"
    folder.mkdir()
    for figure in (1.0, 2.0):
        trials = open_trials(folder, "gsd")
        measure(trials, trials.study.ask(), figure)
        path = folder / "trials.jsonl"
        path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
        assert len(open_trials(folder, "gsd").study.get_trials(states=[optuna.trial.TrialState.COMPLETE])) == figure


LINE = {"start": None, "parameters": {}, "distributions": {}, "seconds": 1.0, "point": None}


@pytest.mark.parametrize(
    "content",
    [
        b"junk\n",
        b"[1]\n",
        *(json.dumps({key: value for key, value in LINE.items() if key != gone}).encode() + b"\n" for gone in LINE),
        *(json.dumps(LINE | {key: 5}).encode() + b"\n" for key in ("parameters", "distributions", "point")),
        json.dumps(LINE | {"parameters": {"window": 3}}).encode() + b"\n",
        json.dumps(LINE | {"seconds": "long"}).encode() + b"\n",
        "link",
    ],
)
def test_a_file_of_trials_that_is_none_is_one_line(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "trials.jsonl"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        path.symlink_to(tmp_path / "outside")
    with pytest.raises(UserError, match=r"trials\.jsonl(: line 1 is| holds a line that is no trial \(| is a link)"):
        open_trials(tmp_path, "sjd")
    assert not (tmp_path / "outside").exists()


@pytest.fixture
def arguments(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A search over the window of Jacobi decoding. The tiny model's pictures are no scenes: a reading stands in."""
    from scenes.judge import claim_judge
    from scenes.judge.picture_reading import Reading

    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    monkeypatch.setattr(
        claim_judge, "read_images", lambda judge, pictures: [Reading((), "grass", "clear")] * len(pictures)
    )
    judge = SimpleNamespace(config=SimpleNamespace(image_size=8))
    monkeypatch.setattr("scenes.judge.claim_judge.load_judge", lambda *arguments: judge)
    output = ["--output", str(tmp_path / "tuning"), "--model", str(tiny_model_folder), "--quiet"]
    return ["tune", "--method", "sjd", "--num_prompts", "2", "--speed", "pass_reduction", *output]


def limit_trials(monkeypatch: pytest.MonkeyPatch, count: int, end: type[BaseException] | None = None) -> list[Any]:
    """Let the clock run out, or the process be stopped, after so many measurements."""
    measured: list[Any] = []
    measure = tuning.Evaluation.measure

    def counted(self: tuning.Evaluation, method: Any) -> Point:
        if len(measured) == count:
            assert end is not None
            raise end
        point = measure(self, method)  # what is refused does not count
        measured.append(method)
        if len(measured) == count and end is None:
            object.__setattr__(self.config, "max_seconds", 0.0)
        return point

    monkeypatch.setattr(tuning.Evaluation, "measure", counted)
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
    assert measured[0] == resolve_method("sjd", {"window": 15}), "auto, in a picture of 16 tokens"
    written = json.loads((folder / "pareto.json").read_text())
    assert written["trials"] == 3 and written["provenance"]["hardware"]["cores"]
    speeds = [point["speed"] for point in written["front"]]
    assert max(speeds) == speeds[0] >= 1.0
    for point in written["measured"]:
        assert point["pass_reduction"] == point["speed"] and point["never_verified"] == 0 and "speedup" not in point
    assert "| pass_reduction | never_verified | judge_accuracy |" in out
    assert written["best"] == settings_of(best)
    assert str(best.to_dict()["window"]) in (folder / "best.yaml").read_text()


@pytest.mark.parametrize("name", ["zipar", "vvs-rows"])
def test_windows_that_do_not_fit_the_grid_are_left_out(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Searches of rows side by side draw windows of up to 16 tokens; this grid has four. Presets fit in proportion."""
    measured = limit_trials(monkeypatch, 3)
    assert main([*arguments, "--method", name]) == 0
    best = resolve_method(str(tmp_path / "tuning" / "best.yaml"))
    assert best in measured and best.name == name
    openings = [scaled_window(getattr(method, method.opening_setting), 4, method.columns) for method in measured]
    assert all(max(each) <= 4 for each in openings)


def test_a_front_says_what_nobody_verified(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every second step takes a token unseen, and the other one at least one that was seen."""
    limit_trials(monkeypatch, 1)
    window = (
        "--method",
        "vvs-jacobi",
        "--fixed.schedule",
        "uniform",
        "--fixed.interval",
        "2",
        "--fixed.min_tokens",
        "1",
    )
    assert main([*arguments, *window, "--fixed.max_skip", "1", "--speed", "speedup"]) == 0
    (point,) = json.loads((tmp_path / "tuning" / "pareto.json").read_text())["measured"]
    assert 0.1 < point["never_verified"] <= 0.5 and point["speedup"] == point["speed"] > 0
    cells = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-3].split("|")]
    assert cells[2:4] == [f"{point['pass_reduction']:.2f}x", f"{100 * point['never_verified']:.0f} %"]


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
    measure, calls = tuning.Evaluation.measure, []

    def refusing(self: tuning.Evaluation, method: Any) -> Point:
        calls.append(method)
        if len(calls) == 1:
            raise UserError("these do not fit")
        object.__setattr__(self.config, "max_seconds", 0.0)
        return measure(self, method)

    monkeypatch.setattr(tuning.Evaluation, "measure", refusing)
    assert main(arguments) == 0
    assert len(calls) == 2 and json.loads((tmp_path / "tuning" / "pareto.json").read_text())["trials"] == 1


def test_time_that_was_spent_counts_and_a_smaller_budget_takes_the_best_away(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tuning"
    with monkeypatch.context() as patch:
        limit_trials(patch, 1)
        assert main(arguments) == 0
    with monkeypatch.context() as patch:
        measured = limit_trials(patch, 1)
        assert main([*arguments, "--max_seconds", "0.0001"]) == 0
        assert measured == [] and (folder / "best.yaml").exists()
        patch.setattr(study, "fastest_within", lambda points, least: None)
        assert main([*arguments, "--max_seconds", "0.0001", "--max_quality_loss", "0.01"]) == 1
    assert not (folder / "best.yaml").exists()
    assert json.loads((folder / "pareto.json").read_text())["best"] is None
    assert "nothing is within 0.01" in capsys.readouterr().out


def test_a_space_that_is_used_up_ends_the_search_and_the_model_may_keep_what_was_found(
    arguments: list[str], tiny_model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixed = ("--fixed.window", "3", "--fixed.branches", "1")
    assert main([*arguments, *fixed, "--save_to_model", "true"]) == 0
    out, err = capsys.readouterr()
    assert "1 settings measured" in out and "ended before its time" in err
    assert json.loads((tiny_model_folder / "model_index.json").read_text())["methods"] == {"sjd": {"window": 3}}
    assert main([*arguments, "--fixed.window", "3", "--fixed.branches", "1"]) == 0, (
        "the same model, and the same search"
    )
    assert resolve_method(str(tmp_path / "tuning" / "best.yaml")) == resolve_method("sjd", {"window": 3})


def test_a_stop_while_plain_decoding_is_measured_keeps_its_calls(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = pipeline_calls.call_pipeline

    def stopped(pipeline: Any, method: Any, cases: Any, seed: int, **generation: Any) -> Any:
        if method.name == "ar" and seed == 1:
            raise KeyboardInterrupt
        return call(pipeline, method, cases, seed, **generation)

    monkeypatch.setattr(pipeline_calls, "call_pipeline", stopped)
    assert main([*arguments, "--batch_size", "1"]) == 130
    assert "plain decoding's calls so far are kept" in capsys.readouterr().err
    assert len((tmp_path / "tuning" / "plain.jsonl").read_text().splitlines()) == 1 + 1


def test_a_model_that_the_method_does_not_fit_is_refused_at_once(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--method", "eagle"]) == 2
    assert "method 'eagle' cannot be tuned with this model: drafter: " in capsys.readouterr().err
    assert not (tmp_path / "tuning").exists()


def test_models_whose_pictures_cannot_be_judged_are_refused(
    tiny_model_folder: Path,
    tiny_class_model_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["tune", "--method", "sjd", "--output", str(tmp_path / "tuning"), "--model"]
    assert main([*arguments, str(tiny_class_model_folder)]) == 2
    assert "model: a class-conditional one has no prompts to judge" in capsys.readouterr().err
    judge = SimpleNamespace(config=SimpleNamespace(image_size=128))
    monkeypatch.setattr("scenes.judge.claim_judge.load_judge", lambda *arguments: judge)
    assert main([*arguments, str(tiny_model_folder)]) == 2
    assert "clip must name the folder of a CLIP model: the judge reads" in capsys.readouterr().err
    assert not (tmp_path / "tuning").exists()


def test_without_optuna_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tuning.importlib.util, "find_spec", lambda name: None)
    assert main(["tune", "--output", str(tmp_path / "tuning")]) == 2
    assert 'pip install "vargen[tune]"' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ar"}, "method 'ar' has nothing to tune; choose one of: eagle"),
        ({"method": "vss"}, "method 'vss' is not known; choose one of: eagle"),
        (
            {"method": "vvs", "fixed": {"depth": -3}},
            'fixed: vvs.depth must be an integer of at least 1 or "auto", got -3',
        ),
        ({"method": "sjd", "fixed": {"depth": 3}}, "fixed: method 'sjd' has no setting 'depth'"),
        ({"speed": "fast"}, "speed must be one of speedup, pass_reduction"),
        ({"quality": "clip_score"}, "clip must name the folder of a CLIP model: quality is clip_score"),
        ({"quality": "beauty"}, "quality must be one of judge_accuracy"),
        ({"max_quality_loss": -0.1}, "max_quality_loss must lie between 0 and 100, got -0.1"),
        ({"quality": "judge_accuracy", "max_quality_loss": 2.0}, "max_quality_loss must lie between 0 and 1, got 2"),
        ({"max_quality_loss": float("nan")}, "max_quality_loss must lie between 0 and 100, got nan"),
        ({"max_seconds": 0.0}, "max_seconds must be positive"),
        ({"num_prompts": 0}, "num_prompts must be at least 1"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        TuneConfig(**options)


def test_an_output_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    assert main(["tune", "--output", str(tmp_path / "file")]) == 2
    assert "output: " in capsys.readouterr().err


def test_skipping_methods_are_tuned_within_what_is_fixed(
    arguments: list[str],
    drafting_pipeline: LlamaGenPipeline,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "drafting"
    drafting_pipeline.save_pretrained(folder)
    measured = limit_trials(monkeypatch, 4)
    fixed = ["--fixed.schedule", "dynamic", "--fixed.num_neighbours", "4"]
    assert main([*arguments, "--method", "vvs", *fixed, "--model", str(folder), "--max_quality_loss", "1"]) == 0
    assert [(method.schedule, method.num_neighbours) for method in measured] == [("dynamic", 4)] * 4
    options = {"schedule": "dynamic", "num_neighbours": 4}
    assert measured[0] == resolve_method("vvs", options, {}).resolved(16), "the model has no entry: the paper's"
    assert resolve_method(str(tmp_path / "tuning" / "best.yaml")) in measured
