"""A training is watched in TensorBoard: the numbers of `log.jsonl`, through a kill and a resume."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vargen.base.errors import UserError
from vargen.runs.files import read_jsonl
from vargen.training.config import RunConfig
from vargen.training.run import train


class OneWeight:
    """Pulls one weight to zero."""

    def __init__(self, ends_at: int | None = None) -> None:
        torch.manual_seed(0)
        self.module, self.extra_modules, self.ends_at = nn.Linear(1, 1), nn.Linear(1, 1), ends_at

    def muon_parameters(self) -> tuple[nn.Parameter, ...]:
        return ()

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        if step == self.ends_at:
            raise KeyError("a kill")
        ends = self.module.weight.square().mean() + self.extra_modules.weight.square().mean()
        return ends, {"progress": torch.tensor(progress)}

    def evaluate(self) -> dict[str, float]:
        return {"weight": self.module.weight.item()}

    def draw_samples(self, path: Path) -> None:
        pass

    def export(self, folder: Path) -> None:
        pass


def config_of(folder: Path, **changes: Any) -> RunConfig:
    settings: dict[str, Any] = {"steps": 20, "log_every": 5, "evaluate_every": 10, "checkpoint_seconds": 1e-9}
    return RunConfig(output=str(folder), autocast=False, **{**settings, **changes})


def test_tensorboard_shows_the_numbers_of_the_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra track")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with pytest.raises(KeyError):
        train(config_of(tmp_path, log_with="tensorboard"), OneWeight(ends_at=12))
    train(config_of(tmp_path, log_with="tensorboard"), OneWeight())
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    entries = [entry for entry in read_jsonl(tmp_path / "log.jsonl") if "loss" in entry]
    assert [entry["step"] for entry in entries] == [5, 10, 15, 20]
    for name in ("loss", "lr", "progress", "gradient_norm"):
        seen = {event.step: event.value for event in shown.Scalars(f"train/{name}")}
        assert seen == pytest.approx({entry["step"]: entry[name] for entry in entries})
    evaluations = [entry for entry in read_jsonl(tmp_path / "log.jsonl") if entry.get("event") == "evaluation"]
    seen = {event.step: event.value for event in shown.Scalars("evaluation/weight")}
    assert seen == pytest.approx({entry["step"]: entry["weight"] for entry in evaluations}) and len(seen) == 2


def test_trackers_that_are_none_or_not_there_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="log_with must be one of tensorboard, wandb, got 'comet'"):
        config_of(tmp_path, log_with="comet")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="log_with wandb needs wandb, which is not installed"):
        config_of(tmp_path, log_with="wandb")
