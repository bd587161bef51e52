"""The benchmarks on videos: what they reckon, and that their records have tables."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

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
    assert "'frames': 8, 'visual_tokens': 16" in told and "self_drafting {'share': 0.02" in told


def test_every_drafter_that_a_study_reads_has_a_command() -> None:
    """Of the benchmark of drafters, whose commands are run before it."""
    script = runpy.run_path(str(BENCHMARKS / "video_drafters.py"))
    read = {f"flash_k{places}" for places in script["PLACES"]} | set(script["PARTS"].values())
    read |= {f"flash_{each}" for each in script["QUERIES"] if each != script["USUAL_QUERIES"]}
    for parts in ("states", "embeddings"):
        read |= {f"still_{parts}_{own}_{row}" for own in ("mtp", "none") for row in ("text", "video")}
    assert read | {"sparrow", "msd"} <= set(script["trained"]())
    for command in script["commands"]("runs/x/export", "runs/drafters"):
        configuration_of(command)
