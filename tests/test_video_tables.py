"""The benchmarks on videos: what they reckon, and that their records have tables."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from results_page.plain import plain_section
from training_commands import configuration_of

from metrics.provenance import provenance
from scenes.models.architectures import (
    TextModelConfig,
    VideoLLMConfig,
    VisionModelConfig,
    build_model,
    build_processor,
)

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def test_every_study_of_a_pair_has_its_table() -> None:
    rows = [{"share": 0.1, "agreement": {"value": 0.8, "interval": [0.78, 0.82]}}]
    names = runpy.run_path(str(BENCHMARKS / "video_pair.py"))["STUDIES"]
    studies = {name: {"videos": 200, "provenance": provenance(), "rows": rows} for name in names}
    text = plain_section("video_pair", {"studies": studies})
    assert all(f"### {name}" in text for name in names)
    assert text.count("| 0.1 | 0.8 (0.78 to 0.82) |") == len(studies)


@pytest.fixture(scope="module")
def long_videos() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "long_videos.py"))


def test_what_a_draft_must_be_worth_to_pay(long_videos: dict[str, Any]) -> None:
    """A drafter as dear as the target pays never; one that costs nothing, where a pass over ten costs one, always."""
    speedup, break_even = long_videos["speedup"], long_videos["break_even"]
    assert break_even(1.0, 1.0, 1.0, 9) == pytest.approx(1.0)
    assert break_even(1.0, 1.1, 1.0, 9) is None
    assert break_even(1.0, 0.0, 1.0, 9) == pytest.approx(0.0, abs=1e-9)
    assert speedup(1.0, 1.0, 0.5, 2.0, 2) == 3 / (2 * 0.5 + 2)
    assert speedup(0.5, 1.0, 0.5, 2.0, 2) == (1 + 0.5 + 0.25) / (2 * 0.5 + 2)
    share = break_even(1.0, 0.3, 1.5, 9)
    assert speedup(share, 1.0, 0.3, 1.5, 9) == pytest.approx(1.0)


def test_long_videos_are_measured_and_told(long_videos: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"layers": 1, "heads": 2, "key_value_heads": 1, "head_dim": 32, "intermediate_size": 64}
    measure = long_videos["measure"]
    monkeypatch.setitem(long_videos["seconds_of"].__globals__, "TIMED", 1)
    model = long_videos["build_model"](**sizes)
    row = measure("tiny", long_videos["Geometry"](sizes, 4, (200,)), model, 200)
    known = {"plain_seconds": 0.1, "judging_seconds": 0.2, "sparse_draft_seconds": 0.05, "speedup_at_most": 1.5}
    known |= {"loose_share": 0.004}
    assert row.keys() > known.keys() and row["loose_seconds"] == row["loose_seconds"]
    rows = [{**row, **known, "break_even": each} for each in (None, 0.9)]
    told = {"rows": rows, "window": 9, "kept": 0.25, "provenance": provenance()}
    text = plain_section("long_videos", told)
    assert "| - |" in text and "| 0.9 |" in text and "speedup at most 1.5" in text


def test_long_videos_have_the_sizes_of_the_shipped_target(long_videos: dict[str, Any]) -> None:
    config = json.loads((BENCHMARKS.parent / "scenes" / "weights" / "video-llm" / "config.json").read_text())[
        "text_config"
    ]
    geometry = long_videos["GEOMETRIES"]["shipped"]
    assert geometry.layers == config["num_hidden_layers"]
    assert geometry.sizes == {
        "layers": config["num_hidden_layers"],
        "heads": config["num_attention_heads"],
        "key_value_heads": config["num_key_value_heads"],
        "head_dim": config["hidden_size"] // config["num_attention_heads"],
        "intermediate_size": config["intermediate_size"],
    }


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
    sizes = TextModelConfig(32, 64, 2, 4, 2), VisionModelConfig(32, 64, 1, 2)
    config = VideoLLMConfig(image_size=32, num_frames=8, captions="written", text=sizes[0], vision=sizes[1])
    processor = build_processor(config)
    build_model(config, processor.tokenizer).save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    models = ["--model", str(tmp_path), "--draft_model", str(tmp_path), "--image_size", "32"]
    chosen = ["--studies", "length", "--lengths", "8", "--videos", "1", "--quiet", "--dry_run"]
    monkeypatch.setattr(sys, "argv", ["video_pair.py", *models, *chosen])
    runpy.run_path(str(BENCHMARKS / "video_pair.py"))["main"]()
    assert "'frames': 8, 'visual_tokens': 16" in capsys.readouterr().out


def test_every_drafter_that_a_study_reads_has_a_command() -> None:
    """Of the benchmark of drafters, whose commands are run before it."""
    script = runpy.run_path(str(BENCHMARKS / "video_drafters.py"))
    read = {f"flash_k{places}" for places in script["PLACES"]} | set(script["PARTS"].values())
    read |= {f"flash_{each}" for each in script["QUERIES"] if each != script["USUAL_QUERIES"]} | {"flash_scaled"}
    for parts in ("states", "embeddings"):
        read |= {f"still_{parts}_{own}_{row}" for own in ("mtp", "none") for row in ("text", "video")}
    assert read | {"sparrow", "msd"} <= set(script["trained"]())
    for command in script["commands"]("runs/x/export", "runs/drafters"):
        configuration_of(command)
