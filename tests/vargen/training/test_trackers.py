"""A training is watched in TensorBoard, through a kill, and in Weights & Biases: both show the numbers of its log."""

import importlib.util
import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from accelerate import PartialState
from line_task import Killed, LineTask, killed_at
from refusals import refused

from vargen.runs.files import read_jsonl
from vargen.training.config import RunConfig
from vargen.training.run import train


def config_of(folder: Path, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {"steps": 20, "log_every": 5, "evaluate_every": 10, "checkpoint_seconds": 1e-9}
    return RunConfig(output=str(folder), autocast=False, **{**settings, **changes})


def test_tensorboard_shows_the_numbers_of_the_log(tmp_path):
    pytest.importorskip("tensorboard", reason="needs the extra track")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(Killed):
        train(config_of(tmp_path, log_with="tensorboard"), killed_at(12))
    train(config_of(tmp_path, log_with="tensorboard"), LineTask())
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    entries = [entry for entry in read_jsonl(tmp_path / "log.jsonl") if "loss" in entry]
    assert [entry["step"] for entry in entries] == [5, 10, 15, 20]
    for name in ("loss", "lr", "progress", "gradient_norm"):
        seen = {event.step: event.value for event in shown.Scalars(f"train/{name}")}
        assert seen == pytest.approx({entry["step"]: entry[name] for entry in entries})
    evaluations = [entry for entry in read_jsonl(tmp_path / "log.jsonl") if entry.get("event") == "evaluation"]
    seen = {event.step: event.value for event in shown.Scalars("evaluation/error")}
    assert seen == pytest.approx({entry["step"]: entry["error"] for entry in evaluations}) and len(seen) == 2


def test_trackers_that_are_none_or_not_there_are_one_line(tmp_path, monkeypatch):
    refused("log_with must be one of tensorboard, wandb, got 'comet'", config_of, tmp_path, log_with="comet")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused("log_with wandb needs wandb, which is not installed", config_of, tmp_path, log_with="wandb")


def wandb_records(path: Path) -> Iterator[Any]:
    """The records of an offline run that are written: blocks of 32 KiB, in which every piece has a checksum, a length
    and a kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, offset, whole = path.read_bytes(), 7, b""
    while offset + 7 <= len(content):
        if (left := 32_768 - offset % 32_768) < 7:
            offset += left
            continue
        _, length, kind = struct.unpack_from("<IHB", content, offset)
        whole += content[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if offset > len(content):
            return
        if kind in (1, 4):  # the whole of a record, or its last piece
            yield Record.FromString(whole)
            whole = b""


def finished_records(path: Path) -> list[Any]:
    """All records: wandb's own process writes on after a run has been finished, up to a record of its end."""
    while True:
        records = [*wandb_records(path)]
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)


def test_wandb_keeps_the_numbers_of_the_log_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs wandb, an account of which the training would use")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    PartialState._reset_state()  # as in a process of its own: other tests of this one have begun accelerate's
    output = tmp_path / "run"
    train(config_of(output, log_with="wandb", steps=2, log_every=1, evaluate_every=2), LineTask())
    (path,) = output.rglob("*.wandb")
    seen: dict[int, dict[str, float]] = {}
    settings: dict[str, Any] = {}
    for record in finished_records(path):
        items = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        if items:
            seen.setdefault(items["_step"], {}).update(items)
        # Settings come with the run or behind it.
        for told in (record.run.config, record.config):
            settings |= {item.key: json.loads(item.value_json) for item in told.update}
    assert (settings["steps"], settings["log_with"]) == (2, "wandb")
    entries = [entry for entry in read_jsonl(output / "log.jsonl") if "loss" in entry]
    assert [entry["step"] for entry in entries] == [1, 2]
    for entry in entries:
        for name in ("loss", "lr", "progress"):
            assert seen[entry["step"]][f"train/{name}"] == pytest.approx(entry[name])
    assert "evaluation/error" in seen[2]
