"""Runs of training that are interrupted and resumed: by their loss, or by the scenes that they render."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch


def stop_and_go_on(task: type[Any], train: Callable[[Any], object], config: Any, folder: Path, step: int) -> Path:
    """Train once whole, and once stopped by the task's loss at `step` and resumed: weights are equal.

    Returns the folder of the run that was stopped.
    """
    train(replace(config, output=str(folder / "a")))
    stopping, loss = replace(config, output=str(folder / "b"), checkpoint_seconds=1e-9), task.loss

    def interrupted(self: Any, at: int, progress: float) -> Any:
        if at == step:
            raise KeyboardInterrupt
        return loss(self, at, progress)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(task, "loss", interrupted)
        train(stopping)
    train(stopping)
    equal_checkpoints(folder)
    return folder / "b"


def assert_resumed_run_is_the_same(
    train: Callable[..., Any], config: Any, scenes: Any, folder: Path, step: int
) -> dict[str, Any]:
    """Train once whole, and once interrupted before `step` and resumed: weights are equal. Returns the checkpoint."""
    train(replace(config, output=str(folder / "a")), scenes)
    interrupted = replace(config, output=str(folder / "b"), checkpoint_seconds=1e-9)
    calls = len(scenes.first_seeds)

    def fails(first_seed: int, count: int, split: str) -> Any:
        if first_seed == step * config.batch_size:
            raise KeyboardInterrupt
        return scenes(first_seed, count, split)

    with pytest.raises(KeyboardInterrupt):
        train(interrupted, fails)
    train(interrupted, scenes)
    assert len(scenes.first_seeds) - calls == config.steps + 2  # every batch once, two held-out sets
    return equal_checkpoints(folder)


def equal_checkpoints(folder: Path) -> dict[str, Any]:
    """Of its runs a and b."""
    left, right = (torch.load(folder / name / "checkpoint.pt", weights_only=True) for name in "ab")
    for part in {"module", "extra_modules"} & left.keys():
        assert left[part].keys() == right[part].keys()
        assert all(torch.equal(value, right[part][name]) for name, value in left[part].items())
    assert left["module"]
    return left
