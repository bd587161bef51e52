"""A training of microseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from vargen.training.run import Task


class LineTask(Task):
    """Fits a line to data that depend on the step and on the global random state; `before_step` may interfere."""

    def __init__(self, before_step: Callable[[int], None] = lambda step: None):
        torch.manual_seed(0)
        self.module = nn.Linear(3, 1)
        self.extra_modules = nn.Linear(1, 1)
        self.before_step = before_step
        self.steps: list[int] = []
        self.samples: list[str] = []

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        self.before_step(step)
        self.steps.append(step)
        inputs = torch.randn(8, 3, generator=torch.Generator().manual_seed(step))
        noise = 0.1 * torch.randn(8, 1)
        loss = (self.module(inputs) - inputs.sum(1, keepdim=True) + noise).square().mean()
        return loss + self.extra_modules(noise).square().mean(), {"progress": torch.tensor(progress)}

    def evaluate(self) -> dict[str, float]:
        torch.rand(3)  # an evaluation may draw; training must not notice
        return {"error": (self.module.weight - 1).abs().max().item()}

    def draw_samples(self, path: Path) -> None:
        self.samples.append(path.name)

    def export(self, folder: Path) -> None:
        torch.save(self.module.state_dict(), folder / "weights.pt")


class Killed(Exception):
    """Stands for a kill: nothing of the run's own code gets to save anything."""


def killed_at(at: int) -> LineTask:
    """The task, killed before a step."""

    def kill(step: int) -> None:
        if step == at:
            raise Killed

    return LineTask(kill)
