"""The benchmarks on videos: what they reckon, and that their records have tables."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path

import paper_tables as papers
import pytest
from results_page.plain import plain_section
from small_video_llms import build_video_llm, save_both
from training_commands import configuration_of

from metrics.provenance import provenance
from scenes.models.architectures import TextModelConfig, TowerConfig, VideoLLMConfig

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_every_study_of_a_pair_has_its_table() -> None:
    rows = [{"share": 0.1, "agreement": {"value": 0.8, "interval": [0.78, 0.82]}}]
    names = runpy.run_path(str(BENCHMARKS / "video_pair.py"))["STUDIES"]
    studies = {name: {"videos": 200, "provenance": provenance(), "rows": rows} for name in names}
    text = plain_section("video_pair", {"studies": studies})
    assert all(f"### {name}" in text for name in names)
    assert text.count("| 0.1 | 0.8 (0.78 to 0.82) |") == len(studies)


def test_runs_of_a_video_come_together() -> None:
    """Of two videos one has one long run and one many short ones; beside itself nothing has more."""
    mean_length = runpy.run_path(str(BENCHMARKS / "video_pair.py"))["mean_length"]
    runs = [[12], [1, 2, 3]]
    whole, itself = mean_length(runs), mean_length(runs, runs)
    assert whole["value"] == pytest.approx(18 / 4) and whole["interval"] == pytest.approx((2.0, 12.0))
    assert itself["value"] == 0 and itself["interval"] == pytest.approx((0.0, 0.0))
    assert mean_length([[13], [2, 3, 4]], runs) == {"value": 1.0, "interval": pytest.approx((1.0, 1.0))}


def test_a_pair_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two tiny models, one video, by the script as it is called."""
    sizes = TextModelConfig(32, 64, 2, 4, 2), TowerConfig(32, 64, 1, 2)
    save_both(tmp_path, *build_video_llm(VideoLLMConfig(32, 8, 8, *sizes)))
    models = ["--model", str(tmp_path), "--draft_model", str(tmp_path), "--image_size", "32"]
    chosen = ["--studies", "length,self_drafting", "--lengths", "8", "--videos", "1", "--quiet", "--dry_run"]
    monkeypatch.setattr(sys, "argv", ["video_pair.py", *models, *chosen])
    runpy.run_path(str(BENCHMARKS / "video_pair.py"))["main"]()
    told = capsys.readouterr().out
    assert "'frames': 8, 'visual_tokens': 16" in told and "self_drafting {'pruning': 'visual_gain, half'" in told


def test_every_head_that_a_study_reads_has_a_command() -> None:
    studies, heads = papers.read_studies()
    assert {row["drafter"] for study in studies.values() for row in study.rows.values() if "drafter" in row} == {*heads}
    for command in papers.commands("runs/x/export", Path("runs/heads")):
        configuration_of(command)


def test_rows_of_the_papers_tables_are_methods_and_figures_have_columns() -> None:
    for name, study in papers.read_studies()[0].items():
        assert {study.over} - {None} <= set(study.rows), name
        assert study.of != "seconds" or "plain decoding" in study.rows, name
        for label, row in study.rows.items():
            assert study.settings(label), label
            listed = [figure for figure in row.get("paper", {}).values() if isinstance(figure, list)]
            assert all(len(figure) == len(papers.LENGTHS) for figure in listed), label


def test_papers_tables_go_on_where_they_were_stopped(
    tmp_path: Path, qwen_pair: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer video, a head that sees a share, seconds and operations; a second run answers nothing."""
    names = ("sparrow_by_length", "sparrow_same_words", "sparrow_shares", "flash", "flash_cost")
    short = {name: replace(papers.read_studies()[0][name], times=(1,), max_new_tokens=12) for name in names}
    short["sparrow_by_length"] = replace(short["sparrow_by_length"], times=(1, 4))
    monkeypatch.setattr(papers, "read_studies", lambda: (short, {}))
    monkeypatch.setattr(papers, "RESULTS", tmp_path)
    monkeypatch.setattr("metrics.provenance.describe_commit", lambda *_: None)  # git is slow
    models = ["--model", str(qwen_pair / "target"), "--draft_model", str(qwen_pair / "draft"), "--videos", "1"]
    sizes = ["--num_frames", "8", "--image_size", "64", "--kept", str(tmp_path / "kept.jsonl"), "--quiet"]
    monkeypatch.setattr(sys, "argv", ["paper_tables.py", *models, *sizes])

    def rows() -> dict[str, list[dict]]:
        papers.main()
        record = json.loads((tmp_path / "paper_tables.json").read_text())
        assert "| Sparrow |" in plain_section("paper_tables", record)
        return {name: record["studies"][name]["rows"] for name in names}

    made = rows()
    *few, _, _, longest = made["sparrow_by_length"]
    assert longest["visual_tokens"] == 4 * few[0]["visual_tokens"] and few[2]["kept"]["value"] == 1
    assert made["sparrow_shares"][-1]["accepted"] == few[1]["accepted"]
    assert [row["accepted"] for row in made["sparrow_same_words"]] == [row["accepted"] for row in few]
    assert made["flash"][0]["decoding"]["value"] == 1
    share = {row["method"]: row["share"] for row in made["flash_cost"]}
    assert share["text alone"] < share["FLASH"] < share["multimodal"] == 1
    monkeypatch.setattr(papers, "look", None)
    assert rows() == made


def test_a_quotient_of_sums_is_paired_over_videos() -> None:
    twice = papers.quotient([2.0, 40.0], [1.0, 1.0], [1.0, 20.0], [1.0, 1.0])
    assert twice == {"value": 2.0, "interval": pytest.approx((2.0, 2.0))}
    assert papers.quotient([1.0], [0.0]) is None
