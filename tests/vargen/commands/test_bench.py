"""`vargen bench`: rows that agree with what the model did, interleaving, going on after a kill, and bad input."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from refusals import refused, refuses

from metrics.speculation import CallRecord, summarise
from metrics.tables import format_table
from scenes.captions.picture_captions import Claims, ObjectClaim
from scenes.judge import claim_judge
from scenes.judge.claim_judge import ClaimJudge
from scenes.judge.picture_reading import Reading
from specdecode.kernels import build
from vargen.cli import main
from vargen.commands.arguments import build_parser, fill, parse
from vargen.commands.bench import _place
from vargen.jobs import calls, stopwatch
from vargen.jobs.benchmark import BenchConfig, build_rows, run_benchmark
from vargen.jobs.cases import BenchmarkCase
from vargen.methods.catalogue import resolve_method
from vargen.models.description import describe_model
from vargen.runs.files import read_jsonl
from vargen.runs.records import Records

CASES = [BenchmarkCase(prompt) for prompt in ("a red cube", "two cones", "a blue sphere on grass", "a cone", "a ball")]
FIELDS = {
    "method", "exact", "images", "tokens", "target_passes", "pass_reduction", "tokens_per_pass", "mean_accepted_length",
    "accepted_histogram", "drafted", "skipped_steps", "seconds_per_image", "speedup", "phase_seconds", "judge_accuracy",
}  # fmt: skip


def contenders(*names: str) -> dict[str, Any]:
    options: dict[str, dict[str, Any]] = {
        "eagle": {"total_tokens": 8, "depth": 3},
        "vvs": {"total_tokens": 8, "depth": 3, "interval": 2},
        "zipar": {"window": 2},
    }
    return {name: resolve_method(name, options.get(name)) for name in names}


def test_who_names_no_methods_compares_those_that_pay(drafting_pipeline, tiny_pipeline, tmp_path):
    for name, pipeline in (("with", drafting_pipeline), ("without", tiny_pipeline)):
        pipeline.save_pretrained(tmp_path / name)
    without, with_drafter = (describe_model(tmp_path / name).usual_methods.split(",") for name in ("without", "with"))
    assert without == ["ar", "jacobi", "scd", "vvs-jacobi"]
    assert with_drafter == [*without, "eagle-chain", "likeness-quality"]
    assert list(BenchConfig().contenders()) == without


@pytest.mark.parametrize("batch_size", [1, 2])
def test_passes_are_those_a_hook_counts(drafting_pipeline, batch_size):
    counts: list[int] = []
    handle = drafting_pipeline.transformer.register_forward_hook(lambda *_: counts.append(1))
    try:
        for name in ("ar", "eagle", "vvs", "zipar", "vvs-rows"):
            counts.clear()
            (row,) = run_benchmark(drafting_pipeline, contenders(name), CASES, batch_size=batch_size, warm_up=0)
            assert row["target_passes"] == len(counts)
            assert row["tokens"] == len(CASES) * 16 and row["images"] == len(CASES)
    finally:
        handle.remove()


class Counting:
    """Stands for `FeatureDistance`: the distance is the number of pictures."""

    def encode(self, pixels: torch.Tensor) -> str:
        assert pixels.dtype == torch.uint8 and pixels.float().std() > 0
        return str(len(pixels))

    def figures(self, encoded: list[str]) -> dict[str, Any]:
        return {"frechet_distance": sum(map(int, encoded)), "extractor": "efficientnet-lite0"}


def test_rows_compare_with_plain_decoding(drafting_pipeline):
    players = contenders("ar", "eagle", "vvs")
    rows = run_benchmark(drafting_pipeline, players, CASES, seed=3, distance=Counting())  # type: ignore[arg-type]
    assert [row["frechet_distance"] for row in rows] == [len(CASES)] * 3
    assert "Frechet distance (efficientnet-lite0 features)" in format_table(rows)
    assert all(row.keys() >= FIELDS for row in rows)
    plain, eagle, vvs = rows
    assert plain["pass_reduction"] == 1.0 and plain["speedup"] == 1.0 and plain["mean_accepted_length"] == 0.0
    assert all(row["achieved"]["kernels"] == row["kernels"] == build.kind() for row in rows)
    assert plain["target_passes"] == 16 * len(CASES)
    assert eagle["pass_reduction"] == pytest.approx(plain["target_passes"] / eagle["target_passes"])
    steps = sum(eagle["accepted_histogram"])
    assert eagle["target_passes"] == steps + len(CASES)
    assert eagle["tokens"] == steps * (1 + eagle["mean_accepted_length"]) + len(CASES)
    assert vvs["skipped_steps"] > 0 and not vvs["exact"]
    json.dumps(rows)


def test_in_continuous_batches_pictures_are_the_same_and_none_waits_for_another(drafting_pipeline, tmp_path):
    cases, players = CASES * 2, contenders("ar", "eagle", "vvs-rows", "zipar")  # calls of eight and of two
    way = {"batch_size": 2, "warm_up": 0}
    fixed, flowing = (
        run_benchmark(drafting_pipeline, players, cases, **way, continuous_batches=each, images=tmp_path / f"{each}")
        for each in (False, True)
    )
    names = [path.relative_to(tmp_path / "True") for path in (tmp_path / "True").rglob("*.png")]
    assert len(names) == len(players) * len(cases)
    assert all((tmp_path / "True" / name).read_bytes() == (tmp_path / "False" / name).read_bytes() for name in names)
    for one, other in zip(fixed, flowing, strict=True):
        assert (one["tokens"], one["images"]) == (other["tokens"], other["images"])
        assert one["accepted_histogram"] == other["accepted_histogram"]
    assert fixed[0]["rows_fed"] == flowing[0]["rows_fed"]  # of others the padding differs
    assert flowing[0]["target_passes"] == 2 * 16  # a mean of pictures for each call
    own = fixed[1]["target_passes"] / len(cases) * 2  # of a batch that waits for its slowest
    assert flowing[1]["target_passes"] / 2 <= own < 16


def test_methods_take_turns(drafting_pipeline, monkeypatch):
    made: list[tuple[str, str | None]] = []
    call = calls.call_pipeline

    def spy(pipeline: Any, method: Any, cases: Any, seed: int, **generation: Any) -> Any:
        made.append((method.name, cases[0].prompt))
        return call(pipeline, method, cases, seed, **generation)

    monkeypatch.setattr(calls, "call_pipeline", spy)
    run_benchmark(drafting_pipeline, contenders("ar", "eagle"), CASES[:3], warm_up=1)
    assert [name for name, _ in made] == ["ar", "eagle", "ar", "eagle", "eagle", "ar", "ar", "eagle"]
    assert [prompt for _, prompt in made[2:]] == [case.prompt for case in CASES[:3] for _ in range(2)]
    made.clear()
    run_benchmark(drafting_pipeline, contenders("ar"), CASES, batch_size=2, warm_up=1)
    assert [prompt for _, prompt in made] == [CASES[number].prompt for number in (0, 4, 0, 2, 4)]  # both sizes are warm


def test_a_killed_run_goes_on_with_the_calls_it_had(drafting_pipeline, tmp_path, monkeypatch):
    path, settings = tmp_path / "calls.jsonl", {"seed": 0}
    players = contenders("ar", "eagle")
    call, left = calls.call_pipeline, [7]

    def killed(*arguments: Any, **generation: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return call(*arguments, **generation)

    monkeypatch.setattr(calls, "call_pipeline", killed)
    with pytest.raises(KeyboardInterrupt):
        run_benchmark(drafting_pipeline, players, CASES, warm_up=1, records=Records(path, settings))
    assert len(read_jsonl(path)) == 1 + 5
    before = path.read_bytes()
    left[0] = 2 + 5  # a warm-up each, and the five calls that are missing, not one more
    rows = run_benchmark(drafting_pipeline, players, CASES, warm_up=1, records=Records(path, settings))
    assert left[0] == 0 and path.read_bytes().startswith(before)
    assert [row["images"] for row in rows] == [5, 5]
    assert build_rows(players, Records(path, settings), 5)[1]["target_passes"] == rows[1]["target_passes"]


def test_pictures_are_judged(drafting_pipeline, monkeypatch):
    claims = Claims((ObjectClaim("cube", "red", None, None),), (), None, "grass", None)
    cases = [BenchmarkCase("a red cube on grass", claims=claims), BenchmarkCase("something else")]
    reading = Reading((), "grass", "clear")  # it stands in: no recogniser was trained for 8 x 8 pixels
    monkeypatch.setattr(claim_judge, "read_images", lambda judge, pictures: [reading] * len(pictures))
    judge = ClaimJudge(SimpleNamespace(config=SimpleNamespace(image_size=8)))  # type: ignore[arg-type]
    (row,) = run_benchmark(drafting_pipeline, contenders("ar"), cases, judge=judge, batch_size=2)
    assert row["judge_accuracy"] == pytest.approx(1 / 3)  # shape and colour wrong, the ground right
    assert row["judge"]["ground"]["n"] == 1


def test_pictures_asked_for_later_are_made_and_others_stay_apart(drafting_pipeline, tmp_path):
    cases, pictures = [BenchmarkCase("a red cube"), BenchmarkCase("something else")], tmp_path / "pictures"
    for images in (None, pictures):
        kept = Records(tmp_path / "calls.jsonl", {})
        run_benchmark(drafting_pipeline, contenders("ar"), cases, records=kept, images=images)
    assert sorted(path.name for path in (pictures / "ar").iterdir()) == ["000000.png", "000001.png"]
    assert len(Records(tmp_path / "calls.jsonl", {}).call_records("ar")) == 2
    told = r"^output: .*000001.png is not of this run; name another folder or delete it"
    refused(told, run_benchmark, drafting_pipeline, contenders("ar"), cases[:1], images=pictures)


def test_the_command_prints_a_table_and_writes_a_list(tiny_model_folder, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path))
    pytest.importorskip("matplotlib", reason="plots need the eval extra")
    arguments = ["bench", "--methods", "sjd,scd", "--method_options.sjd.window", "3", "--num_prompts", "2"]
    arguments += ["--model", str(tiny_model_folder), "--quiet"]
    assert main([*arguments, "--save_images", "--output", str(tmp_path / "out")]) == 0
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    assert [row["method"] for row in rows] == ["ar", "sjd", "scd"]
    assert rows[1]["settings"]["window"] == 3 and rows[2]["settings"]["window"] == 15
    assert all(row["provenance"]["hardware"]["cores"] for row in rows)
    made = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert made == {"results.json", *(f"images/{name}/00000{i}.png" for name in ("ar", "sjd", "scd") for i in (0, 1))}
    out, err = capsys.readouterr()
    assert "| scd" in out and "nothing was judged" in err
    assert main([*arguments, "--json"]) == 0
    assert [row["method"] for row in json.loads(capsys.readouterr().out)] == ["ar", "sjd", "scd"]


def test_a_line_says_whether_rows_are_cheap_here():
    def told(kernels: str, dtype: str = "bfloat16", device: str = "cpu", **more: str) -> str:
        hardware = {"processor": "P", "device": device}
        return _place([{"dtype": dtype, "kernels": kernels, "provenance": {"hardware": hardware}, **more}])

    cheap, dear = "Rows are cheap here: presets that end with -wide", "Rows are dear here: small drafts gain most."
    assert told("avx2") == f"Measured on P (avx2), bfloat16. {dear}"
    assert cheap in told("avx512_bf16+amx") and cheap in told("avx2", device="a GPU")
    assert dear in told("avx512_bf16+amx", "float32") and dear in told("avx2+plain tiles")
    assert cheap in told("avx512_bf16+amx", "float32", quantization="int8-dynamic")


def test_every_process_is_asked_once(tmp_path, capsys, monkeypatch):
    """A stopped run asks those that are missing; other arguments do not mix with them; a failure is told."""
    asked: list[list[str]] = []
    hardware = {"processor": "a processor", "device": "cpu"}
    judged = {"judge_accuracy": None, "clip_score": None, "dtype": "float32", "provenance": {"hardware": hardware}}

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        asked.append(command)
        if len(asked) == 2:
            return SimpleNamespace(returncode=3, stdout="")
        summary = summarise([CallRecord(1.0 / len(asked), 1, 4, 2, 2, 2, [0, 2])])
        rows = [{"method": "ar", "exact": True, **summary, **judged, "speedup": 1.0, "pass_reduction": 1.0}]
        if "--output" in command:
            (Path(command[-1]) / "results.json").write_text(json.dumps(rows))
        return SimpleNamespace(returncode=0, stdout=json.dumps(rows))

    monkeypatch.setattr(stopwatch.subprocess, "run", run)
    arguments = ["bench", "--methods", "ar", "--processes", "3", "--output", str(tmp_path)]
    refuses(capsys, main(arguments), "process 2 of 3 ended with 3")
    assert main(arguments) == 0
    assert "1.00x / 1.00x / 1.00x" in capsys.readouterr().out
    assert [Path(command[-1]).name for command in asked] == ["0", "1", "1", "2"]
    assert asked[0][-5:-2] == ["--processes", "1", "--json"]
    (row,) = json.loads((tmp_path / "results.json").read_text())
    assert row["speedups"] == [1.0, 1.0, 1.0]
    assert main(["bench", "--methods", "ar", "--processes=4", "--output", str(tmp_path)]) == 0
    assert [Path(command[-1]).name for command in asked[4:]] == ["3"], "what is there is not measured again"
    refuses(capsys, main([*arguments, "--seed", "4"]), "results of other arguments")


def test_pictures_have_a_folder_and_one_process():
    refused("save_images needs output", BenchConfig, save_images=True)
    refused("save_images needs processes 1", BenchConfig, processes=2, save_images=True, output="x")


def test_several_options_of_one_method_all_count():
    """jsonargparse alone keeps only the last of them."""
    flags = ["--method_options.eagle.total_tokens", "9", "--method-options.eagle.depth=2", "--seed", "3"]
    flags += ["--method_options.likeness-fast.threshold", "0.4"]
    config = fill(BenchConfig, parse(build_parser("bench", "", BenchConfig), flags))
    eagle, likeness = config.method_options["eagle"], config.method_options["likeness-fast"]
    assert (eagle, likeness, config.seed) == ({"total_tokens": "9", "depth": "2"}, {"threshold": "0.4"}, 3)
    refused("nothing", parse, build_parser("bench", "", BenchConfig), ["--nothing.eagle.depth", "3"])
