"""Tables of the video side, out of records as their scripts write them, and only where there are any."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
from results_page.video import (
    VIDEO_STUDIES,
    long_videos_section,
    pair_section,
    trained_drafters_section,
    video_memory_section,
    video_section,
)
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


def figure(value: float) -> dict[str, Any]:
    return {"value": value, "interval": [value - 0.02, value + 0.02]}


def study(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"videos": 200, "frames": 32, "provenance": provenance(), "rows": list(rows), **more}


PAIR: dict[str, dict[str, Any]] = {
    "layers": {"layer": 8, "layers": 12, "accuracy": figure(0.7)},
    "views": {"model": "drafter", "share": 0.1, "accuracy": figure(0.6), "retention": 0.9},
    "pruning": {
        "pruning": "visual_gain", "share": 0.1, "object_share": figure(0.5), "agreement": figure(0.8),
        "mean_run_length": figure(7.5), "over_uniform": figure(0.25),
    },
    "overlap": {
        "share": 0.1, "cost_ratio": 3.25, "window": 3, "mean_run_length": 7.5, "target_idle": 0.1, "drafter_idle": 0.2,
        "reckoned_speedup": 2.5, "reckoned_speedup_in_turn": 1.75,
    },
    "lossy": {"method": "fastv", "share": 0.1, "agreement": figure(0.86), "accuracy": figure(0.4)},
    "length": {
        "frames": 128, "visual_tokens": 4096, "accuracy": figure(0.3), "agreement": figure(0.7), "mean_run_length": 4.0,
    },
}  # fmt: skip
SHOWN = {
    "layers": "| 8 of 12 | 70.0 (68.0-72.0) |",
    "views": "| drafter | 10 % | 60.0 (58.0-62.0) | 90 % |",
    "pruning": "| visual_gain | 10 % | 50.0 (48.0-52.0) | 80.0 (78.0-82.0) | 7.50 ± 0.02 | 0.25 ± 0.02 |",
    "overlap": "| 10 % | 3.25 | 3 | 7.50 | 10 % | 20 % | 2.50x | 1.75x |",
    "lossy": "| fastv | 10 % | 86.0 (84.0-88.0) | 40.0 (38.0-42.0) |",
    "length": "| 128 | 4,096 | 30.0 (28.0-32.0) | 70.0 (68.0-72.0) | 4.00 |",
}


def pair_record(*names: str) -> dict[str, Any]:
    return {"models": [], "captions": "written", "studies": {name: study(PAIR[name]) for name in names}}


@pytest.mark.parametrize("name", PAIR)
def test_every_study_of_a_pair_has_its_table(name: str) -> None:
    assert set(PAIR) == set(runpy.run_path(str(BENCHMARKS / "video_pair.py"))["STUDIES"])
    text = "\n\n".join(pair_section(pair_record(name)))
    assert SHOWN[name] in text and "written captions" in text and "200 held-out videos of 32 frames" in text
    assert not any(other in text for key, other in SHOWN.items() if key != name)


def test_memory_says_that_weights_are_random_and_whether_answers_are_right() -> None:
    rows = [
        {"way": way, "visual_tokens": 1000, "mebibytes": value, "equal_to_generate": True}
        for way, value in (("generate", 100.4), ("ar", 50.0))
    ]
    record = {"rows": rows, "dtype": "float32", "provenance": provenance()}
    record["model"] = {"layers": 2, "heads": 7, "key_value_heads": 1, "head_dim": 32}
    text = "\n\n".join(video_memory_section(record))
    assert "| 1,000 | 100 | 50 |" in text and "Random weights" in text and "All answers are those" in text
    rows[1]["equal_to_generate"] = False
    assert "Not all answers are those" in "\n\n".join(video_memory_section(record))


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
    text = "\n\n".join(long_videos_section(told))
    assert "| tiny | 200 | 100.0 | 200.0 | 50.0 | 1.50x | never | 0.40 % |" in text and "| 90 % | 0.40 % |" in text


def test_long_videos_have_the_sizes_of_the_shipped_target(long_videos: dict[str, Any]) -> None:
    config = json.loads((BENCHMARKS.parent / "vargen" / "weights" / "video-llm" / "config.json").read_text())[
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


def test_parts_of_flash_are_told() -> None:
    row = {"compression": True, "places": False, "text_only": False, "accepted_length": 2.5}
    row |= {"accepted_per_drafting_pass": 0.75, "draft_milliseconds_per_pass": 1.25}
    record = {"studies": {"parts": study(row)}}
    text = "\n\n".join(trained_drafters_section(record))
    assert "| yes | no | no | 2.50 | 0.75 | 1.25 |" in text


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


def test_a_table_is_there_once_its_record_is(tmp_path: Path) -> None:
    record = tmp_path / "video_pair.json"
    studies: dict[str, Any] = dict.fromkeys(VIDEO_STUDIES)
    assert "What a pair is like" not in video_section({}, [], studies)
    record.write_text(json.dumps(pair_record("layers")))
    text = video_section({}, [], {**studies, "video_pair": json.loads(record.read_text())})
    assert SHOWN["layers"] in text


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
