"""Optimizer and learning-rate schedule of a training run, for any model.

The loop that uses these is in `run.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vargen.training.config import RunConfig


def schedule_progress(step: int, steps: int, elapsed: float, max_seconds: float | None) -> float:
    """The share of the run that is done, from 0 to 1, by steps or by time, whichever is further.

    With a time limit the learning rate therefore reaches its end in time on a machine of any speed.
    """
    by_steps = step / steps
    by_time = 0.0 if max_seconds is None else elapsed / max_seconds
    return min(1.0, max(by_steps, by_time))


def learning_rate_factor(step: int, warmup_steps: int, progress: float, decay_start: float = 0.0) -> float:
    """Linear warm-up by step times a half cosine from 1 to 0 over `progress` from `decay_start` on; in [0, 1]."""
    warmup = min(1.0, (step + 1) / warmup_steps) if warmup_steps else 1.0
    falling = max(0.0, progress - decay_start) / (1.0 - decay_start)
    cosine = 0.5 * (1.0 + math.cos(math.pi * falling))
    return warmup * cosine


class OptimizerGroup:
    """One or two torch optimizers that step together and follow one schedule.

    "adamw": AdamW for everything. "muon": `torch.optim.Muon` for the matrices in `muon_parameters`, AdamW for the rest.
    Decay applies to tensors of two or more dimensions.
    """

    def __init__(self, config: RunConfig, parameters: Iterable[nn.Parameter], muon_parameters: Iterable[nn.Parameter]):
        muon = [each for each in muon_parameters if each.requires_grad] if config.optimizer == "muon" else []
        taken = {id(parameter) for parameter in muon}
        rest = [parameter for parameter in parameters if parameter.requires_grad and id(parameter) not in taken]
        self.parameters = muon + rest
        decays = ([p for p in rest if p.ndim >= 2], config.weight_decay), ([p for p in rest if p.ndim < 2], 0.0)
        groups = [{"params": params, "weight_decay": decay} for params, decay in decays if params]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.AdamW(groups, lr=config.learning_rate, betas=config.adam_betas, fused=True)
        ]
        if muon:
            rate, decay = config.muon_learning_rate, config.weight_decay
            self.optimizers.append(torch.optim.Muon(muon, rate, decay, adjust_lr_fn="match_rms_adamw"))

    def set_factor(self, factor: float) -> None:
        """Set each optimizer's rate to `factor` times its highest."""
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = optimizer.defaults["lr"] * factor

    def clip(self, highest_norm: float) -> Tensor:
        """Scale the gradient down to `highest_norm` if it is longer (0: never); returns the norm before, a scalar."""
        return nn.utils.clip_grad_norm_(self.parameters, highest_norm if highest_norm else math.inf)

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()

    def zero_grad(self) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)
