"""`vargen tune`: the front and the choice against slow loops, a search that goes on, and bad input."""

import json
from operator import ge
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused, refuses

optuna = pytest.importorskip("optuna", reason="tuning needs the tune extra")

from specdecode.grid.positions import scaled_window  # noqa: E402
from vargen.base.errors import UserError  # noqa: E402
from vargen.cli import main  # noqa: E402
from vargen.commands import tune as tune_command  # noqa: E402
from vargen.jobs import study, tuning  # noqa: E402
from vargen.jobs.study import Point, ended, open_search, points_of, settings_of, starting_points  # noqa: E402
from vargen.jobs.tuning import TuneConfig  # noqa: E402
from vargen.methods.base import ImageMethodConfig, SearchSpace  # noqa: E402
from vargen.methods.catalogue import methods_for, resolve_method  # noqa: E402

TUNABLE = [config.name for config in methods_for("image").values() if config.name != "ar"]


def resolve(name: str, options: Any = None) -> ImageMethodConfig:
    """What a name stands for with a model of 256 tokens that prefers nothing."""
    return resolve_method(name, options).resolved(256)


numbers = st.integers(0, 6).map(float)
points = st.lists(st.tuples(numbers, numbers).map(lambda pair: Point({}, *pair)), max_size=12)


@given(points)
def test_the_front_is_what_nothing_beats(measured):
    pairs = {(point.speed, point.quality) for point in measured}
    wanted = {one for one in pairs if not any(other != one and all(map(ge, other, one)) for other in pairs)}
    front = [(point.speed, point.quality) for point in study.pareto_front(measured)]
    assert front == sorted(wanted, reverse=True)


@given(points, numbers)
def test_the_choice_is_the_fastest_within_the_budget(measured, least):
    good = [point for point in measured if point.quality >= least]
    best = study.fastest_within(measured, least)
    assert best in good and best.speed == max(point.speed for point in good) if good else best is None


def test_a_loss_of_just_the_budget_is_within_it():
    measured = [Point({}, 2.0, 0.3), Point({}, 3.0, 0.299)]
    assert 0.4 - 0.1 > 0.3  # in binary
    assert study.fastest_within(measured, 0.4 - 0.1) == measured[0]


@pytest.mark.parametrize("name", TUNABLE)
def test_search_spaces_name_settings_of_their_method(name):
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    config = next(method for method in methods_for("image").values() if method.name == name)
    for _ in range(30):
        settings = resolve_method(name).search(SearchSpace(study.ask(), {}))
        assert settings.keys() <= config.__dataclass_fields__.keys()
        try:
            resolve_method(name, settings)
        except UserError as error:  # what does not go together is drawn now and then, and refused
            reasons = ("depth must be below total_tokens", '"confidence" needs tree "dynamic"')
            assert any(reason in str(error) for reason in reasons), error
    start = starting_points(name, {}, resolve)[0]
    assert {"method": name, **start} == settings_of(resolve(name)), "a search begins with the defaults"


def test_what_is_fixed_is_not_searched():
    """A shape is not replaced by a chain, either."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for _ in range(10):
        trial = study.ask()
        fixed = {"schedule": "likeness", "threshold": 0.5, "tree": [[0], [1]]}
        settings = resolve_method("vvs").search(SearchSpace(trial, fixed))
        assert settings["schedule"] == "likeness" and settings["threshold"] == 0.5
        assert not {"interval", "tree"} & settings.keys()
        assert not {"schedule", "threshold", "draft"} & trial.params.keys()


def test_presets_come_next_and_are_learned_from_as_far_as_the_space_holds_them(tmp_path, monkeypatch):
    presets = {
        "inside": {"schedule": "likeness", "threshold": 0.5, "depth": 4, "total_tokens": 30, "num_neighbours": 128},
        "again": {},  # the defaults
        "outside": {"depth": 9, "total_tokens": 12, "delta": 0.9, "num_neighbours": 50, "refresh": True},
    }
    paths = {name: tmp_path / f"{name}.yaml" for name in presets}
    resolved = {name: resolve_method("vvs", options) for name, options in presets.items()}
    monkeypatch.setattr(study, "find_presets", lambda: paths)
    fixed = {"truncate": False}
    of_model = lambda name, _: (resolved.get(name) or resolve_method(name)).resolved(256)  # noqa: E731
    default, inside, outside = starting_points("vvs", fixed, of_model)
    assert all("truncate" not in start for start in (default, inside, outside))
    search = open_search(tmp_path / "trials.log", [inside, default, outside], 0)

    trial = search.ask()
    drawn = resolve_method("vvs").search(SearchSpace(trial, fixed))
    assert drawn.items() <= {**inside, **fixed}.items() and "interval" not in drawn
    assert trial.params["num_neighbours"] == 128 and trial.params["depth"] == 4 and "truncate" not in trial.params

    drawn = resolve_method("vvs").search(SearchSpace(search.ask(), fixed))
    assert (drawn["total_tokens"], drawn["depth"], drawn["interval"]) == (60, 5, 3)

    trial = search.ask()
    drawn = resolve_method("vvs").search(SearchSpace(trial, fixed))
    assert drawn.items() <= {**outside, **fixed}.items() and outside["refresh"]
    assert trial.params["total_tokens"] == 12 and not {"depth", "delta", "num_neighbours"} & trial.params.keys()


def test_chains_of_drawn_tokens_are_in_the_space_and_presets_of_them_are_learned_from(tmp_path):
    for name in ("eagle", "vvs"):
        chains = [start for start in starting_points(name, {}, resolve) if start["children"] == "sampled"]
        assert chains, f"no shipped preset of {name} drafts a chain"
        search = open_search(tmp_path / f"{name}.log", chains, 0)
        for start in chains:
            trial = search.ask()
            drawn = resolve_method(name).search(SearchSpace(trial, {}))
            assert drawn["tree"] == start["tree"] and drawn["children"] == "sampled"
            assert drawn["depth"] == len(drawn["tree"]) == trial.params["depth"]


def test_windows_of_every_order_are_measured_before_any_is_drawn():
    def windows(name: str, fixed: dict[str, Any]) -> list[int]:
        return [start.get("window") for start in starting_points(name, fixed, resolve)]

    for name in ("jacobi", "scd", "gsd", "vvs-jacobi"):
        measured = {"auto"} if name == "jacobi" else set()  # where seconds choose, that is a setting of its own
        assert set(windows(name, {"initial_guess": "random"})) == {4, 8, 16, 32, 64} | measured
        assert set(windows(name, {"window": 5, "initial_guess": "random"})) == {None}


def reopen(folder: Path, method: str) -> optuna.Study:
    return open_search(folder / "trials.log", starting_points(method, {}, resolve), 0)


def measure(search: optuna.Study, trial: optuna.Trial, figure: float) -> None:
    """Keep what came of a trial, as a search does."""
    study.tell(search, trial, Point(dict(trial.params) or {"window": 1}, figure, figure))


def test_a_search_that_goes_on_does_not_draw_the_same_again(tmp_path):
    draws = []
    for _ in range(3):
        search = reopen(tmp_path, "gsd")
        while (trial := search.ask()).user_attrs.get("start"):
            measure(search, trial, 1.0)
        draws.append(str(resolve_method("gsd").search(SearchSpace(trial, {}))))
        measure(search, trial, 1.0)
    assert len(set(draws)) == 3


def test_a_starting_point_whose_process_was_killed_is_measured_again(tmp_path):
    starts = starting_points("coolsd", {}, resolve)
    for _ in range(2):  # asked for, never told
        search = reopen(tmp_path, "coolsd")
        asked = [search.ask().user_attrs["start"] for _ in starts]
        assert sorted(map(str, asked)) == sorted(map(str, starts)) and not ended(search)
    search = reopen(tmp_path, "coolsd")
    for _ in starts:
        measure(search, search.ask(), 1.0)
    assert "start" not in reopen(tmp_path, "coolsd").ask().user_attrs


def test_a_search_that_goes_on_knows_what_the_last_one_knew(tmp_path):
    search = reopen(tmp_path, "gsd")
    for number in range(12):
        trial = search.ask()
        resolve_method("gsd").search(SearchSpace(trial, {}))
        point = Point({**trial.params, "number": number}, number, 1.0, [0.5], {"pass_reduction": 2.0})
        study.tell(search, trial, None if number == 3 else point)
    again = reopen(tmp_path, "gsd")
    assert points_of(again) == points_of(search) and len(points_of(again)) == 11
    seconds = sum((trial.datetime_complete - trial.datetime_start).total_seconds() for trial in ended(search))
    assert study.seconds_of(again) == study.seconds_of(search) == pytest.approx(seconds)
    known, seen = (
        [(trial.state, trial.params, trial.distributions, trial.values) for trial in ended(each)]
        for each in (search, again)
    )
    assert len(seen) == 12 and seen == known


def test_a_kill_in_the_middle_of_a_write_does_no_harm(tmp_path):
    folder = tmp_path / "a strange ?name #1 {of} 100%"
    folder.mkdir()
    for figure in (1.0, 2.0):
        search = reopen(folder, "gsd")
        measure(search, search.ask(), figure)
        path = folder / "trials.log"
        path.write_bytes(path.read_bytes() + path.read_bytes()[:40])
        assert len(ended(reopen(folder, "gsd"))) == figure


@pytest.mark.parametrize("content", [b"junk\n", b"[1]\n", b"{}\n", b'{"op_code": 4}\n', "link"])
def test_a_journal_that_is_none_is_one_line(tmp_path, content):
    path = tmp_path / "trials.log"
    if isinstance(content, bytes):
        path.write_bytes(content + b"{}\n")
    else:
        path.symlink_to(tmp_path / "outside")
    refused(r"trials\.log( holds no search \(| is a link)", reopen, tmp_path, "sjd")
    assert not (tmp_path / "outside").exists()


@pytest.fixture
def arguments(tiny_model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A search over the window of Jacobi decoding. The tiny model's pictures are no scenes: a reading stands in."""
    from scenes.judge import claim_judge
    from scenes.judge.picture_reading import Reading

    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    reading = Reading((), "grass", "clear")
    monkeypatch.setattr(claim_judge, "read_images", lambda judge, pictures: [reading] * len(pictures))
    judge = SimpleNamespace(config=SimpleNamespace(image_size=8))
    monkeypatch.setattr(claim_judge, "load_judge", lambda *arguments: judge)
    output = ["--output", str(tmp_path / "tuning"), "--model", str(tiny_model_folder), "--quiet"]
    return ["tune", "--method", "sjd", "--num_prompts", "2", "--speed", "pass_reduction", *output]


def limit_trials(monkeypatch: pytest.MonkeyPatch, count: int, end: type[BaseException] | None = None) -> list[Any]:
    """Let the clock run out, or the process be stopped, after so many measurements."""
    measured: list[Any] = []
    measure = tuning.Measurement.measure

    def counted(self: tuning.Measurement, method: Any) -> Point:
        if len(measured) == count:
            assert end is not None
            raise end
        point = measure(self, method)  # what is refused does not count
        measured.append(method)
        if len(measured) == count and end is None:
            object.__setattr__(self.config, "max_seconds", 0.0)
        return point

    monkeypatch.setattr(tuning.Measurement, "measure", counted)
    return measured


def test_a_search_writes_the_front_and_settings_that_generate_reads(arguments, tmp_path, monkeypatch, capsys):
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
    assert f"best.yaml, {speeds[0]:.2f} times fewer passes than plain decoding" in out.splitlines()[-1]
    for point in written["measured"]:
        assert point["pass_reduction"] == point["speed"] and point["never_verified"] == 0 and "speedup" not in point
    assert "| pass_reduction | never_verified | judge_accuracy |" in out
    assert written["best"] == settings_of(best)
    assert str(best.to_dict()["window"]) in (folder / "best.yaml").read_text()


@pytest.mark.parametrize("name", ["zipar", "vvs-rows"])
def test_windows_that_do_not_fit_the_grid_are_left_out(arguments, tmp_path, monkeypatch, name):
    """Searches of rows side by side draw windows of up to 16 tokens; this grid has four. Presets fit in proportion."""
    measured = limit_trials(monkeypatch, 3)
    assert main([*arguments, "--method", name]) == 0
    best = resolve_method(str(tmp_path / "tuning" / "best.yaml"))
    assert best in measured and best.name == name
    openings = [scaled_window(getattr(method, method.opening_setting), 4, method.columns) for method in measured]
    assert all(max(each) <= 4 for each in openings)


def test_a_front_says_what_nobody_verified(arguments, tmp_path, monkeypatch, capsys):
    """Every second step takes a token unseen, and the other one at least one that was seen."""
    limit_trials(monkeypatch, 1)
    window = ("--method", "vvs-jacobi", "--method_options.schedule", "uniform", "--method_options.interval", "2")
    assert main([*arguments, *window, "--method_options.max_skip", "1", "--speed", "speedup"]) in (0, 1)
    record = json.loads((tmp_path / "tuning" / "pareto.json").read_text())
    (point,) = record["measured"]
    assert 0.1 < point["never_verified"] <= 0.5 and point["speedup"] == point["speed"] > 0
    capsys.readouterr()
    tune_command._report(tmp_path, {**record, "front": [point], "best": point["settings"]})
    *_, row, _, told = capsys.readouterr().out.splitlines()
    figures = f"{point['speedup']:.2f}x | {point['pass_reduction']:.2f}x | {100 * point['never_verified']:.0f} %"
    assert " ".join(row.split()).startswith(f"| {figures} |")
    assert f"{point['speed']:.2f} times as fast as plain decoding" in told


def test_a_stopped_search_goes_on_and_measures_plain_decoding_once(arguments, tmp_path, monkeypatch, capsys):
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
    refuses(capsys, main([*arguments, "--seed", "5"]), "search with another seed")


def test_settings_that_exclude_each_other_are_left_out(arguments, tmp_path, monkeypatch):
    measured = limit_trials(monkeypatch, 1)
    measure, calls = tuning.Measurement.measure, []

    def refusing(self: tuning.Measurement, method: Any) -> Point:
        calls.append(method)
        if len(calls) == 1:
            raise UserError("these do not fit")
        return measure(self, method)

    monkeypatch.setattr(tuning.Measurement, "measure", refusing)
    assert main(arguments) == 0
    assert calls[1:] == measured and json.loads((tmp_path / "tuning" / "pareto.json").read_text())["trials"] == 1


def test_time_that_was_spent_counts_and_plain_decoding_is_best_where_nothing_gains(
    arguments, tmp_path, monkeypatch, capsys
):
    folder = tmp_path / "tuning"
    with monkeypatch.context() as patch:
        limit_trials(patch, 1)
        assert main(arguments) == 0
    with monkeypatch.context() as patch:
        measured = limit_trials(patch, 1)
        assert main([*arguments, "--max_seconds", "0.0001"]) == 0
        assert measured == [] and (folder / "best.yaml").exists()
        slower = [Point({"method": "sjd"}, 0.9, 1.0, (), {"pass_reduction": 0.9, "never_verified": 0.0})]
        patch.setattr(study, "points_of", lambda search: dict(enumerate(slower)))
        assert main([*arguments, "--max_seconds", "0.0001", "--max_quality_loss", "0.01"]) == 1
    assert resolve_method(str(folder / "best.yaml")) == resolve_method("ar")
    written = json.loads((folder / "pareto.json").read_text())
    assert written["best"] == written["front"][0]["settings"] == {"method": "ar"}
    assert "nothing within 0.01 is faster than plain decoding" in capsys.readouterr().out.splitlines()[-1]


def test_a_space_that_is_used_up_ends_the_search_and_the_model_may_keep_what_was_found(
    arguments, tiny_model_folder, tmp_path, capsys
):
    fixed = ("--method_options.window", "3", "--method_options.branches", "1")
    assert main([*arguments, *fixed, "--save_to_model", "true"]) == 0
    out, err = capsys.readouterr()
    assert "2 settings measured" in out and "ended before its time" in err, "with guesses kept, and without"
    found = json.loads((tiny_model_folder / "model_index.json").read_text())["methods"]["sjd"]
    assert found["window"] == 3
    assert main([*arguments, *fixed]) == 0, "the same model, and the same search"
    assert resolve_method(str(tmp_path / "tuning" / "best.yaml")) == resolve_method("sjd", found)


def test_a_model_that_the_method_does_not_fit_is_refused_at_once(arguments, tmp_path, capsys):
    refuses(capsys, main([*arguments, "--method", "eagle"]), "method 'eagle' cannot be tuned with this model:")
    assert not (tmp_path / "tuning").exists()


def test_models_whose_pictures_cannot_be_judged_are_refused(
    tiny_model_folder, tiny_class_model_folder, tmp_path, monkeypatch, capsys
):
    refused("clip must name the folder of a CLIP model: quality is clip_score", TuneConfig, quality="clip_score")
    arguments = ["tune", "--method", "sjd", "--output", str(tmp_path / "tuning"), "--model"]
    refuses(capsys, main([*arguments, str(tiny_class_model_folder)]), "model: a class-conditional one has no prompts")
    judge = SimpleNamespace(config=SimpleNamespace(image_size=128))
    monkeypatch.setattr("scenes.judge.claim_judge.load_judge", lambda *arguments: judge)
    refuses(capsys, main([*arguments, str(tiny_model_folder)]), "clip must name the folder of a CLIP model: the judge")
    assert not (tmp_path / "tuning").exists()


def test_without_optuna_the_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tuning.importlib.util, "find_spec", lambda name: None)
    refuses(capsys, main(["tune", "--output", str(tmp_path / "tuning")]), 'pip install "vargen[tune]"')
