"""The shared part of every drafter's training, whether it drafts pictures or answers about videos.

Belongs here: the parts of `vargen.training.run.Task` that do not depend on whether the target makes pictures or text.
Does not belong here: losses and figures (`drafter.py`, `video_drafter.py`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from vargen.training.config import DrafterRunConfig
from vargen.training.run import Task

NOISE_LENGTH = 512
"""Tokens of the sequences for which `feature_noise` is given."""


class DrafterTask(Task):
    """A drafter as the training loop sees it; a subclass adds `loss`, `evaluate` and `export` of `Task`.

    It draws no samples: with an exact drafter the target's output is the same as without it.

    Args:
        config: of the run.
        drafter: the network, on its device.

    Attributes:
        not_muon: prefix of the names of matrices that AdamW trains also where Muon trains the others.
    """

    not_muon: ClassVar[str]

    def __init__(self, config: DrafterRunConfig, drafter: nn.Module) -> None:
        self.device = torch.device(config.device)
        self.drafter: Any = drafter.train()
        self.module = drafter
        self._noise, self._base_seed = config.feature_noise, config.seed

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        """Every matrix but those of `not_muon`."""
        return [p for name, p in self.module.named_parameters() if p.ndim == 2 and not name.startswith(self.not_muon)]

    def generator(self, step: int) -> torch.Generator:
        """The random numbers of one step."""
        return torch.Generator().manual_seed(self._base_seed + step)

    def noised(self, features: Tensor, num_tokens: int, generator: torch.Generator) -> Tensor:
        """Features [B, n, dim] of sequences of `num_tokens` with uniform noise, as in LANTERN."""
        width = self._noise * NOISE_LENGTH / num_tokens
        return features + (torch.rand(features.shape, generator=generator) - 0.5).to(features) * width
