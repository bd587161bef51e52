"""Scripts of benchmarks/: each is called as a person would, as small as can be; figures are checked by hand."""

import importlib
import json
import os
import runpy
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import host_work
import judge_report
import language_models
import paper_tables
import passes
import projection
import pytest
import real_text
import record_all
import rows_side_by_side
import tokenizers
import torch
import vvs_studies
import weighted
from refusals import raised
from results_page.plain import plain_section
from scene_truth import reading_from_scene
from tiny_pipelines import build_drafting_pipeline
from training_commands import configuration_of
from transformers import PreTrainedTokenizerFast
from warm import executable

from scenes.cases import sample_prompts
from scenes.judge.network import SceneJudge
from scenes.rendering.renderer import SceneRenderer
from vargen.cli import main
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.llamagen_target import LlamaGenTarget

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
CALLED = [path.stem for path in sorted(BENCHMARKS.glob("*.py")) if "ArgumentParser(" in path.read_text()]


@pytest.mark.parametrize("name", CALLED)
def test_every_script_says_how_it_is_called(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")
    assert not ended.value.code and capsys.readouterr().out.startswith("usage")


def call(monkeypatch: pytest.MonkeyPatch, module: Any, *arguments: Any) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *map(str, arguments)])
    module.main()


def run_script(name: str, settings: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command, environment = ["bash", str(BENCHMARKS / name)], {**os.environ, **settings}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1100)


def commands_of(
    name: str, folder: Path, settings: dict[str, str]
) -> tuple[subprocess.CompletedProcess[str], list[list[str]]]:
    """How a script of the shell ends whose python does nothing, and what it asked of it: VARGEN_TILES, then a command.
    To run the commands in this process (`run_here`) saves a start of Python and torch for each."""
    python, told = folder / "python", folder / "told"
    python.write_text('#!/bin/sh\nprintf "%s\\0" "$VARGEN_TILES" "$@" >> "$TOLD"; echo >> "$TOLD"; echo kernels\n')
    python.chmod(0o755)
    told.unlink(missing_ok=True)
    done = run_script(name, {**settings, "PYTHON": str(python), "TOLD": str(told)})
    return done, [line.split("\0")[:-1] for line in told.read_text().splitlines()]


def run_here(monkeypatch: pytest.MonkeyPatch, tiles: str, script: str, *arguments: str) -> None:
    """Scripts set threads and kernels for the process that is theirs."""
    monkeypatch.setenv("VARGEN_TILES", tiles or "plain")
    monkeypatch.setenv("VARGEN_KERNELS", os.environ.get("VARGEN_KERNELS", "auto"))
    threads = torch.get_num_threads()
    try:
        _run(monkeypatch, script, *arguments)
    finally:
        torch.set_num_threads(threads)


def _run(monkeypatch: pytest.MonkeyPatch, script: str, *arguments: str) -> None:
    if script == "-m":
        assert arguments[0] == "vargen" and main(arguments[1:]) == 0
    else:
        call(monkeypatch, importlib.import_module(Path(script).stem), *arguments)


def test_passes_are_timed_and_kept(own_kernels, tmp_path, monkeypatch):
    path = tmp_path / "passes.json"
    given = ("--smoke", "--output", path, "--num_threads", torch.get_num_threads())
    call(monkeypatch, passes, *given)
    rows = json.loads(path.read_text())["rows"]
    cases = {("shipped", dtype, tokens) for dtype in ("float32", "bfloat16") for tokens in (1, 8)}
    assert {(row["model"], row["dtype"], row["tokens"]) for row in rows} == cases
    for row in rows:
        assert row["streaming_ms"] == pytest.approx(row["bytes_read"] / row["read_gb_per_second"] / 1e6)
        for kernels, share in row["roof_share"].items():
            read = row["bandwidth_share"][kernels] * row["median_ms"][kernels]
            bound = max(read, row["arithmetic_ms"][kernels])
            assert share == pytest.approx(bound / row["median_ms"][kernels])
    monkeypatch.setattr(passes, "milliseconds", lambda *_: pytest.fail("it is there"))
    call(monkeypatch, passes, *given)
    assert json.loads(path.read_text())["rows"] == rows


def test_calls_of_torch_and_of_the_kernels_are_counted_by_step(own_kernels):
    pipeline = build_drafting_pipeline()
    plain, skipping = (host_work.calls(pipeline, method) for method in ("ar", "vvs"))
    assert plain["steps"] == pipeline.transformer.config.grid_size**2 - 1 > skipping["steps"]
    for each in (plain, skipping):
        assert each["by_operator"]["kernel judging_finite"] == 1, "every pass is looked at once"
        assert sum(each["by_operator"].values()) == pytest.approx(each["calls"])
    assert plain["by_operator"]["kernel judging_race"] == 1 and "kernel judging_race" not in skipping["by_operator"]


def test_the_script_for_a_gpu_runs_where_there_is_none(tmp_path, monkeypatch, capsys):
    """Every part with tiny shapes; a second call has nothing to do, and one without time says what is missing."""
    build_drafting_pipeline().save_pretrained(tmp_path / "model")
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    settings = {"DEVICE": "cpu", "RESULTS": str(tmp_path / "made"), "MODEL": str(tmp_path / "model")}
    settings |= {"METHODS": "jacobi,jacobi-wide", "VIDEOS": "1", "SIZES": "tiny", "BATCHES": "1"}
    if not torch.cuda.is_available():
        found = executable(tmp_path / "warm")
        none = {"DEVICE": "cuda", "RESULTS": str(tmp_path / "none"), "PYTHON": str(found)}
        done = run_script("gpu.sh", {**settings, **none})
        assert done.returncode == 0 and done.stdout.startswith("skipped: torch finds no GPU here")
        assert not (tmp_path / "none").exists()
    done, (command,) = commands_of("gpu.sh", tmp_path, {**settings, "MINUTES": "0"})
    assert done.returncode == 1 and "passes: not finished" in done.stdout
    run_here(monkeypatch, *command)
    assert "nothing was measured" in capsys.readouterr().out
    done, commands = commands_of("gpu.sh", tmp_path, {**settings, "MINUTES": "60"})
    assert done.returncode == 0 and "0 parts are not finished" in done.stdout, done.stdout + done.stderr
    for command in commands:
        run_here(monkeypatch, *command, *(("--max_new_tokens", "6") if "video" in command else ()))
    told = capsys.readouterr()
    assert "jacobi-wide is left out: UserError: jacobi.window must leave room" in told.err
    rows = json.loads((tmp_path / "made" / "table.json").read_text())["rows"]
    wanted = [("tiny", "ar"), ("tiny", "jacobi"), ("video", "ar"), ("video", "sd"), ("video", "flash")]
    assert [(row["model"], row["method"]) for row in rows] == wanted
    ways = ("plain eager", "plain captured", "eager", "captured")
    assert all(row[way] > 0 for row in rows[:2] for way in ways) and rows[2]["captured"] is None
    assert (tmp_path / "made" / "table.md").read_text() in told.out
    again, (table,) = commands_of("gpu.sh", tmp_path, settings)
    assert again.returncode == 0 and "==" not in again.stdout and "gpu_table" in table[1]


def test_the_script_for_tiles_runs_anywhere(own_kernels, tmp_path, monkeypatch, capsys):
    """Every part with tiny shapes, of pieces as those of the script for a GPU."""
    build_drafting_pipeline().save_pretrained(tmp_path / "model")
    settings = {"RESULTS": str(tmp_path / "made"), "MODEL": str(tmp_path / "model"), "PASSES": "--smoke --repeats 1"}
    settings |= {"METHODS": "jacobi", "SIZE": "tiny", "PROMPTS": "1", "PROCESSES": "1", "BATCHES": "1", "KINDS": "off"}
    done, (version, *commands) = commands_of("tiles.sh", tmp_path, {**settings, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0 and "0 parts are not finished" in done.stdout, done.stdout + done.stderr
    assert version[1:] == ["-m", "vargen", "--version", "--verbose"] and {command[0] for command in commands} == {"off"}
    for command in commands:
        run_here(monkeypatch, *command)
    made = [tmp_path / "made" / part for part in ("weighted_off", "shipped_1_off")]
    kinds = {row["kernels"] for part in made for row in json.loads((part / "results.json").read_text())}
    rows = json.loads((tmp_path / "made" / "passes_off" / "passes.json").read_text())["rows"]
    assert {row["kernels"] for row in rows} == kinds and len(kinds) == 1 and "tiles" not in kinds.pop()
    assert "| jacobi" in capsys.readouterr().out


def test_every_step_of_the_sweep_names_a_script_and_a_record():
    for step in record_all.STEPS.values():
        if step.command[0] != "-m":
            assert (BENCHMARKS.parent / step.command[0]).is_file()
        if step.copies is not None:
            assert step.copies[1].is_file()


def test_the_sweep_runs_what_is_out_of_date_and_nothing_twice(monkeypatch, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"

    def write(path: Path, text: str) -> tuple[str, ...]:
        return ("-c", f"open({str(path)!r}, 'a').write({text!r})")

    steps = {"one": record_all.Step(write(one, "x"), reads_drafter=False), "two": record_all.Step(("-c", "exit(3)"))}
    monkeypatch.setattr(record_all, "STEPS", steps)
    monkeypatch.setattr(record_all, "RECORDED_ON", tmp_path / "recorded_on.json")
    old = record_all.Weights("old", "old, no drafter")
    raised(SystemExit, "3", record_all.run, ["one", "two"], {}, old)
    kept = json.loads(record_all.RECORDED_ON.read_text())
    steps["two"] = record_all.Step(write(two, '{"a": 1}'), copies=(two, tmp_path / "record.json"))
    record_all.run([name for name in steps if record_all.out_of_date(name, kept, old)], kept, old)
    assert one.read_text() == "x" and json.loads((tmp_path / "record.json").read_text()) == {"a": 1}
    for weights, late in (("old, no drafter", [False, True]), ("newer, no drafter", [True, True])):
        shipped = record_all.Weights("new", weights)
        assert [record_all.out_of_date(name, kept, shipped) for name in steps] == late
    rows = [{"method": "ar", "judge": {"value": 0.5, "interval": [0.4, 0.6]}, "exact": True}]
    assert dict(record_all.figures(rows)) == {("ar", "judge", "value"): 0.5}


def test_true_pictures_are_right_and_false_ones_are_counted(monkeypatch):
    cases = sample_prompts(12)
    renderer = SceneRenderer(64)
    known = renderer([case.scene for case in cases]).images.flatten(1)
    drawn = {case.caption.text: cases[index + (index in (2, 7, 8))].scene for index, case in enumerate(cases)}

    def draw(**arguments: Any) -> SimpleNamespace:
        return SimpleNamespace(images=renderer([drawn[text] for text in arguments["prompt"]]).images)

    def read(judge: SceneJudge, images: torch.Tensor) -> list[Any]:
        nearest = torch.cdist(images.flatten(1), known).argmin(1).tolist()
        return [reading_from_scene(cases[index].scene) for index in nearest]

    class Pipeline:
        image_size = 64
        __call__ = staticmethod(draw)

    monkeypatch.setattr(judge_report, "read_images", read)
    monkeypatch.setattr(judge_report, "reconstruct", lambda vqvae, images, *_: images)
    Pipeline.vqvae = None  # type: ignore[attr-defined]
    judge = SceneJudge(64, (4, 4, 4, 4))
    report = judge_report.evaluate_prompts(Pipeline(), judge, cases, batch_size=5, seed=100, guidance_scale=2.5)
    assert [index for index, verdict in enumerate(report.verdicts) if not verdict.right] == [2, 7, 8]
    assert report.tallies["generated"].share("prompt").accuracy == pytest.approx(9 / 12)
    assert report.tallies["renders"].share("prompt").accuracy == 1.0


# Rows of the grid side by side, and guidance that ends early.


def batch(claims: list[int], numbers: list[int], passes: int) -> dict[str, Any]:
    """Of two claims and one number a picture."""
    judged = [[right, 2, number, 1] for right, number in zip(claims, numbers, strict=True)]
    return {"judged": judged, "passes": [passes] * len(judged), "rows_fed": [300] * len(judged), "unverified": 0.25}


def test_settings_of_studies_are_those_of_their_methods():
    label, call = "zipar 4, 128 guided, guidance 3, temperature 0.9, top-k 100, in int8-dynamic", {"guided_tokens": 128}
    call |= {"guidance_scale": 3.0, "temperature": 0.9, "top_k": 100}
    assert rows_side_by_side.chosen(label) == ("zipar", {"window": 4}, call, "int8-dynamic")
    for name, settings in {**rows_side_by_side.SETTINGS, **rows_side_by_side.ON_LARGER_GRIDS}.values():
        kept = json.loads(json.dumps(resolve_method(name, settings).to_dict()))
        assert {**kept, **json.loads(json.dumps(settings))} == kept
    for rows in vvs_studies.STUDIES.values():
        for row in rows.values():
            settings = json.loads(json.dumps(vvs_studies.resolve(row.method, row.settings).to_dict()))
            assert all(settings[name] == value for name, value in row.settings.items())


def test_rows_go_on_after_a_kill_and_differences_are_over_the_same_captions(monkeypatch, tmp_path):
    drawn: list[tuple[str, int]] = []

    def draw(pipeline: Any, method: Any, first: int, cases: list[Any], judge: Any) -> dict[str, Any]:
        if len(drawn) == 3:
            raise KeyboardInterrupt
        drawn.append((method.name, first))
        plain = method.name == "ar"
        return batch([2, 1 + plain], [int(plain), first // 2], 256 if plain else 64)

    monkeypatch.setattr(rows_side_by_side, "draw", draw)
    monkeypatch.setattr(rows_side_by_side, "BATCH", 2)
    output = tmp_path / "record.json"
    given = ("--prompts", 4, "--labels", "zipar 4,pjd 5, 2 guesses", "--kept", tmp_path / "kept", "--output", output)
    with pytest.raises(KeyboardInterrupt):
        call(monkeypatch, rows_side_by_side, *given)
    assert drawn == [("ar", 0), ("ar", 2), ("zipar", 0)] and not output.exists()
    drawn.clear()
    call(monkeypatch, rows_side_by_side, *given)
    assert drawn == [("zipar", 2), ("pjd", 0), ("pjd", 2)]
    plain, zipar, pjd = json.loads(output.read_text())["rows"]
    assert [plain["label"], zipar["label"], pjd["label"]] == ["plain", "zipar 4", "pjd 5, 2 guesses"]
    assert (zipar["pictures"], zipar["claims"], zipar["numbers"], zipar["fewer_passes"]) == (4, 6 / 8, 1 / 4, 4)
    assert zipar["claims_against_plain"]["value"] == pytest.approx(-2 / 8)
    assert zipar["numbers_against_plain"]["value"] == pytest.approx(-2 / 4)


# The paper's studies of VVS, fronts of `vargen tune`.


@pytest.mark.parametrize(("stale", "wanted"), [(-1, [3, 4]), (0, [1, 2]), (1, [0, 1]), (2, [-1, 0])])
def test_drafting_reads_fresh_features_or_those_before(stale, wanted):
    """Three features were written, then two: fresh ones, or as many that end so long before."""
    cache = vvs_studies.StaleFeatureCache(20, max(stale, 0), stale)
    cache.start(torch.full((1, 1, 1), -1.0))
    positions = torch.arange(5).float()
    cache.write(positions[:3].view(1, 3, 1), torch.tensor([0]), torch.tensor([3]))
    read = cache.after_verified(positions[3:].view(1, 2, 1), torch.tensor([3]), torch.tensor([2]))
    assert read[0, :, 0].tolist() == wanted
    assert cache.at(torch.arange(5)[None])[0, :, 0].tolist() == positions.tolist()


# Networks of a published model's size beside the small one.


@pytest.fixture
def networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes them small, and keeps measured costs here."""
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "costs"))
    of_size = weighted.WeightNetworks.of_size
    sizes = {
        "B": {"dim": 16, "num_layers": 1, "num_attention_heads": 2},
        "L": {"dim": 24, "num_layers": 2, "num_attention_heads": 2},
    }

    def tiny(size: str, small: Any, dtype: torch.dtype) -> Any:
        own = {name: {**each, "vocab_size": small.config.vocab_size} for name, each in sizes.items()}
        return of_size(size, small, torch.float32, own)

    monkeypatch.setattr(weighted.WeightNetworks, "of_size", tiny)
    return tiny


@pytest.mark.parametrize("method", ["ar", "jacobi", "eagle", "vvs", "draft-model", "zipar", "vvs-rows"])
def test_tokens_are_the_small_models_and_every_pass_is_weighted(networks, method, monkeypatch):
    """Beside every forward pass of the model runs one over as many tokens of as many rows."""
    pipeline = build_drafting_pipeline()
    tree = {"total_tokens": 10, "depth": 3}
    settings = {"eagle": tree, "vvs": tree, "jacobi": {"window": 5}, "zipar": {"window": 2}}
    settings["draft-model"] = {"draft_length": 3}  # else the clock chooses it
    settings["vvs-rows"] = {"opens_after": 2, "guesses": 3, "max_visits": 1}
    chosen: Any = pipeline.resolve_method(method, settings.get(method))
    heavy = weighted.WeightedPipeline.of(pipeline, networks("LlamaGen-L", pipeline.transformer, torch.float32))
    prompts = ["a cone", "a small shiny blue sphere left of a large green cone on grass", "two cones"]
    fed: list[tuple[Any, tuple[int, ...]]] = []

    def watched(original: Any) -> Any:
        def forward(self: Any, tokens: Any, *more: Any) -> Any:
            fed.append((self.transformer, tuple(tokens.shape)))
            return original(self, tokens, *more)

        return forward

    for name in ("forward", "forward_places"):
        monkeypatch.setattr(LlamaGenTarget, name, watched(getattr(LlamaGenTarget, name)))

    def draw(own: Any) -> Any:
        generators = [torch.Generator().manual_seed(100 + row) for row in range(3)]
        return own(prompts, generator=generators, method=chosen, output_type="latent")

    plain = draw(pipeline)
    fed.clear()
    drawn = draw(heavy)
    assert torch.equal(plain.tokens, drawn.tokens) and plain.trace.steps == drawn.trace.steps
    light, beside = (
        [shape for each, shape in fed if each is own] for own in (pipeline.transformer, heavy.networks.transformer)
    )
    assert light == beside and len(heavy.networks.passes["target"]) == drawn.trace.target_passes - 1
    assert bool(heavy.networks.passes["head"]) == (method in ("eagle", "vvs"))
    assert bool(heavy.networks.passes["draft model"]) == (method == "draft-model")


def test_rows_say_what_they_were_weighted_by(networks, tmp_path, monkeypatch):
    import weighted_bench

    small = ("--methods", "jacobi", "--num_prompts", 1, "--warm_up", 0, "--dtype", "float32", "--device", "cpu")
    call(monkeypatch, weighted_bench, "--weighted_by", "L", *small, "--output", tmp_path)
    plain, jacobi = json.loads((tmp_path / "results.json").read_text())
    label = "LlamaGen-L (random weights, float32)"
    assert plain["weighted_by"] == jacobi["weighted_by"] == label and jacobi["model"].endswith(f"weighted by {label}")
    assert plain["target_passes"] == 256 > jacobi["target_passes"]
    with pytest.raises(SystemExit):
        call(monkeypatch, weighted_bench, "--weighted_by", "XXL", *small, "--output", tmp_path)


def test_the_projection_of_vvs_is_near_its_papers_speedups():
    rows = projection.rows()
    assert all(abs(row["error_percent"]) <= 10 for row in rows) and max(abs(row["error_percent"]) for row in rows) > 1
    for stage in ("I", "II"):
        plain, eagle, lantern, vvs = (row["projected_speedup"] for row in rows if row["stage"] == stage)
        assert eagle < plain == 1 < min(lantern, vvs)
    plain = projection.plain_rows()
    assert all(row["captured_seconds"] < row["published_seconds"] for row in plain)
    slower = [row["model"] for row in plain if row["captured_seconds"] < (row["method_seconds"] or 0)]
    assert slower == ["LlamaGen-XL, 512 px", "Lumina-mGPT 7B, 768 px"]
    studies = json.loads(projection.RECORD.read_text())["studies"]
    assert (studies[projection.STUDY]["rows"], studies[projection.PLAIN]["rows"]) == (rows, plain)


# Videos.


def test_rows_of_the_papers_tables_are_methods_and_heads_have_commands():
    studies, heads = paper_tables.read_studies()
    assert {row["drafter"] for study in studies.values() for row in study.rows.values() if "drafter" in row} == {*heads}
    for command in paper_tables.commands("runs/x/export", Path("runs/heads")):
        configuration_of(command)
    for study in studies.values():
        assert {study.over} - {None} <= set(study.rows) and all(study.settings(label) for label in study.rows)


def test_papers_tables_go_on_where_they_were_stopped(tmp_path, qwen_pair, monkeypatch):
    """A longer video, a head that sees a share, seconds and operations; a second run answers nothing."""
    names = ("sparrow_by_length", "sparrow_same_words", "sparrow_shares", "flash", "flash_cost")
    short = {name: replace(paper_tables.read_studies()[0][name], times=(1,), max_new_tokens=12) for name in names}
    short["sparrow_by_length"] = replace(short["sparrow_by_length"], times=(1, 4))
    monkeypatch.setattr(paper_tables, "read_studies", lambda: (short, {}))
    monkeypatch.setattr(paper_tables, "RESULTS", tmp_path)
    monkeypatch.setattr("metrics.provenance.describe_commit", lambda *_: None)  # git is slow
    models = ("--model", qwen_pair / "target", "--draft_model", qwen_pair / "draft", "--videos", 1)
    sizes = ("--num_frames", 8, "--image_size", 64, "--kept", tmp_path / "kept.jsonl", "--quiet")

    def rows() -> dict[str, list[dict[str, Any]]]:
        call(monkeypatch, paper_tables, *models, *sizes)
        record = json.loads((tmp_path / "paper_tables.json").read_text())
        assert "| Sparrow |" in plain_section("paper_tables", record)
        return {name: record["studies"][name]["rows"] for name in names}

    made = rows()
    *few, _, _, longest = made["sparrow_by_length"]
    assert longest["visual_tokens"] == 4 * few[0]["visual_tokens"] and few[2]["kept"]["value"] == 1
    assert [row["accepted"] for row in made["sparrow_same_words"]] == [row["accepted"] for row in few]
    share = {row["method"]: row["share"] for row in made["flash_cost"]}
    assert share["text alone"] < share["FLASH"] < share["multimodal"] == 1
    monkeypatch.setattr(paper_tables, "look", None)
    assert rows() == made


# Text.


def test_real_text_goes_on_after_a_kill_and_a_token_that_differs_is_told(tmp_path, monkeypatch):
    """On a small model of random weights and a tokenizer of characters."""
    words = {word: number for number, word in enumerate(["<pad>", "<s>", "</s>", *map(chr, range(32, 127))])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Split("", "isolated")
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", bos_token="<s>")
    fast.chat_template = "{{ messages[0]['content'][:40] }}"
    fast.save_pretrained(tmp_path / "model")
    sizes: dict[str, Any] = {"vocab_size": len(words), "num_hidden_layers": 7, "dtype": torch.float32}
    language_models.make("llama", **sizes).save_pretrained(tmp_path / "model")
    output, calls, continued = tmp_path / "real_text.json", [0], real_text.continued
    given = ["--prompts", "6", "--batch_sizes", "1", "--temperatures", "0"]
    given += ["--model", str(tmp_path / "model"), "--output", str(output)]

    def killed(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == 20:
            raise KeyboardInterrupt
        return continued(*arguments)

    monkeypatch.setattr(real_text, "NEW_TOKENS", 6)
    monkeypatch.setattr(real_text, "continued", killed)
    with pytest.raises(KeyboardInterrupt):
        real_text.main(given)
    assert real_text.main(given) == 0
    ways = len(real_text.WAYS) - 1  # without a head
    assert calls[0] == 1 + 6 * ways, "what was done is not done again"
    rows = json.loads(output.read_text())["rows"]
    assert len(rows) == 6 * ways and all(row["texts_equal"] == 1 for row in rows)
    lines = output.with_suffix(".jsonl").read_text().splitlines()
    wrong = json.loads(lines[5])
    wrong["tokens"][0][0] += 1
    output.with_suffix(".jsonl").write_text("\n".join([*lines[:5], json.dumps(wrong), *lines[6:]]) + "\n")
    assert real_text.main(given) == 1
