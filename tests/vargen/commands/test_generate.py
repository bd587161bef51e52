"""`vargen generate` from the outside: files, resuming, refusals, and what is left behind when things go wrong."""

import errno
import json
import os
import signal
from pathlib import Path

import pytest
from refusals import refuses

import vargen.runs.files
import vargen.runs.records
from specdecode.drafters.draft_size import StepCosts
from vargen.cli import main

PROMPTS = ["a red cube", "two blue spheres on sand", "a green cone"]


def generate(model: Path, output: Path, *arguments: str) -> int:
    return main(["generate", *arguments, "--model", str(model), "--output", str(output), "--quiet"])


def records(output: Path) -> list[dict]:
    return [json.loads(line) for line in (output / "result.jsonl").read_text().splitlines()]


def pictures(output: Path) -> dict[str, bytes]:
    from PIL import Image

    return {path.name: Image.open(path).tobytes() for path in sorted((output / "images").glob("*"))}


def test_it_writes_pictures_results_and_settings(tiny_model_folder, tiny_class_model_folder, tmp_path):
    assert generate(tiny_model_folder, tmp_path / "out", *PROMPTS, "--num-images-per-prompt", "2") == 0
    written = records(tmp_path / "out")
    assert [record["index"] for record in written] == list(range(6))
    assert [record["text"] for record in written] == [text for text in PROMPTS for _ in range(2)]
    assert [record["seed"] for record in written] == list(range(6))
    assert all(record["forward_passes"] <= 16 and record["tokens"] == 16 for record in written)
    assert len(pictures(tmp_path / "out")) == 6
    assert json.loads((tmp_path / "out" / "config.json").read_text())["settings"]["prompts"] == PROMPTS
    assert generate(tiny_class_model_folder, tmp_path / "classes", "--class_labels", "[3, 7]") == 0
    assert [record["class_label"] for record in records(tmp_path / "classes")] == [3, 7]


@pytest.mark.parametrize("quiet", [True, False])
def test_a_batch_that_saves_few_passes_says_what_gains_and_its_price(
    quiet, tiny_model_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr("vargen.commands.generate.FEW", 100.0)
    asked = ["generate", *PROMPTS, "--model", str(tiny_model_folder), "--output", str(tmp_path / "out")]
    assert main([*asked, *["--quiet"] * quiet]) == 0
    told = capsys.readouterr().err
    assert all((words in told) != quiet for words in ("rows-batch with guided_tokens 96", "1 point less often"))


def test_without_a_method_plain_decodings_pictures_come_in_fewer_passes(tiny_model_folder, tmp_path, monkeypatch):
    """Where rows cost nothing; else the default may decode plainly."""
    monkeypatch.setenv("VARGEN_CACHE", str(tmp_path / "cache"))
    costs = StepCosts((1, 2, 9), (1.0, 1.0, 1.0))
    monkeypatch.setattr("vargen.models.draft_sizes.assumed_step_costs", lambda *_: costs)
    monkeypatch.setattr("vargen.models.draft_sizes.MeasuredDraftSizes.clock", None)
    assert generate(tiny_model_folder, tmp_path / "out", *PROMPTS) == 0
    assert generate(tiny_model_folder, tmp_path / "plain", *PROMPTS, "--method", "ar") == 0
    assert pictures(tmp_path / "out") == pictures(tmp_path / "plain")
    passes = [sum(each["forward_passes"] for each in records(tmp_path / folder)) for folder in ("out", "plain")]
    assert passes[0] < passes[1] == 16 * len(PROMPTS)


def test_several_processes_cannot_share_standard_input(tiny_model_folder, tmp_path, capsys, monkeypatch):
    for name, value in {"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert generate(tiny_model_folder, tmp_path / "out", "--prompts_file", "-") == 2
    said = capsys.readouterr().err
    assert "prompts_file: standard input" in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_without_an_output_another_run_gets_a_folder_beside_and_the_same_command_goes_on(
    tiny_model_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out-3").write_text("a file of somebody")
    away = ["--negative_prompt", "a blue ball"]
    asked = [["a red cube"], ["a cone"], ["a red cube"], ["a red cube", *away], ["a red cube", *away], ["a cone"]]
    made = []
    for arguments in asked:
        command = ["generate", *arguments, "--model", str(tiny_model_folder), "--quiet", "--json"]
        assert main(command) == 0
        said = json.loads(capsys.readouterr().out)
        made.append((said["output"], said["new_images"]))
    assert made == [("out", 1), ("out-2", 1), ("out", 0), ("out-4", 1), ("out-4", 0), ("out-2", 0)]
    assert pictures(tmp_path / "out") != pictures(tmp_path / "out-4"), "a negative prompt leads elsewhere"


def test_an_interrupt_keeps_what_is_finished(tiny_model_folder, tmp_path, monkeypatch, capsys):
    add = vargen.runs.records.PictureFolder.add

    def interrupted(self, request, *arguments):
        if request.index == 1:
            os.kill(os.getpid(), signal.SIGINT)
        return add(self, request, *arguments)

    monkeypatch.setattr(vargen.runs.records.PictureFolder, "add", interrupted)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite in the background ignores it
    try:
        assert generate(tiny_model_folder, tmp_path / "out", *PROMPTS, "--method", "ar") == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert "1 of 3" in capsys.readouterr().err
    assert list(pictures(tmp_path / "out")) == ["000000.png"]
    monkeypatch.undo()
    assert generate(tiny_model_folder, tmp_path / "out", *PROMPTS, "--method", "ar") == 0
    assert [record["index"] for record in records(tmp_path / "out")] == [0, 1, 2]


def test_a_full_disk_is_said_in_one_line_and_leaves_no_half_picture(tiny_model_folder, tmp_path, monkeypatch, capsys):
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "000000.png")

    monkeypatch.setattr(vargen.runs.files, "save_image_atomic", full)
    assert generate(tiny_model_folder, tmp_path / "out", *PROMPTS) == 2
    error = capsys.readouterr().err
    assert "disk is full" in error and error.count("\n") == 1
    assert not list((tmp_path / "out").rglob("*.png*"))


def test_unknown_words_and_long_prompts_are_warned_about(tiny_model_folder, tmp_path, capsys):
    assert generate(tiny_model_folder, tmp_path / "out", "a red zeppelin", "a red cube " * 60) == 0
    warning = capsys.readouterr().err
    assert "zeppelin" in warning and "120" in warning


def test_the_best_candidate_is_kept_and_can_be_made_again(tiny_model_folder, tmp_path, monkeypatch):
    """By darkness, whose best is known: a reader of scenes finds nothing in pictures of a tiny model."""
    import numpy as np

    from scenes.judge.claim_judge import JudgeRanker

    scored = []

    def darkness(self, images, prompts):
        assert len(set(prompts)) == 1
        scored.append([-float(np.array(image).mean()) for image in images])
        return scored[-1]

    monkeypatch.setattr(JudgeRanker, "__init__", lambda self, image_size: None)
    monkeypatch.setattr(JudgeRanker, "score", darkness)
    # So drawn, candidates that share a batch end in another order than they begin.
    drawn = ("--method", "jacobi", "--method_options.window", "4", "--temperature", "0.3")
    for size in ("1", "4", "7"):
        arguments = (*drawn, "--num_candidates", "3", "--batch_size", size)
        assert generate(tiny_model_folder, tmp_path / size, *PROMPTS, *arguments) == 0
    assert pictures(tmp_path / "1") == pictures(tmp_path / "4") == pictures(tmp_path / "7")
    one, written, other = (records(tmp_path / size) for size in ("1", "4", "7"))
    assert all(
        same["scores"] == record["scores"] for each in (one, other) for same, record in zip(each, written, strict=True)
    )
    for record, scores in zip(written, scored[:3], strict=True):
        assert record["scores"] == [round(score, 4) for score in scores]
        assert scores[record["candidate"]] == max(scores)
    assert {record["candidate"] for record in written} - {0} and [record["seed"] for record in written] == [0, 1, 2]
    for record in written:
        alone = tmp_path / f"alone-{record['index']}"
        assert generate(tiny_model_folder, alone, record["text"], *drawn, "--seed", str(record["candidate_seed"])) == 0
        assert list(pictures(alone).values()) == [pictures(tmp_path / "4")[f"{record['index']:06d}.png"]]


def test_candidates_that_nobody_can_rank_are_refused(tiny_model_folder, tiny_class_model_folder, tmp_path, capsys):
    several = ("--num_candidates", "2")
    (tmp_path / "no_clip").mkdir()
    no_clip = str(tmp_path / "no_clip")
    for model, arguments, named in (
        (tiny_model_folder, ["a red cube", *several], "the judge reads pictures of 128 pixels"),
        (tiny_model_folder, ["a red cube", *several, "--ranker", "clip", "--clip", no_clip], "no CLIP model"),
        (tiny_class_model_folder, ["--class_labels", "[3]", *several], "num_candidates must be 1"),
    ):
        refuses(capsys, generate(model, tmp_path / "out", *arguments), named)
        assert not (tmp_path / "out").exists()


def test_clip_ranks_whatever_the_words_are(tiny_model_folder, tmp_path, clip_folder):
    arguments = ("--num_candidates", "3", "--ranker", "clip", "--clip", str(clip_folder))
    assert generate(tiny_model_folder, tmp_path / "out", "a red cube", *arguments) == 0
    (record,) = records(tmp_path / "out")
    assert record["scores"][record["candidate"]] == max(record["scores"]) and len(set(record["scores"])) > 1
    assert generate(tiny_model_folder, tmp_path / "out", "a red cube") == 2, "it chose among three"
