"""Optimizer, learning-rate schedule and averaged weights of a training run, for any model.

The loop that uses these is in `run.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
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
            rates: dict[str, float] = {"lr": config.muon_learning_rate, "weight_decay": config.weight_decay}
            self.optimizers.append(torch.optim.Muon(muon, **rates, adjust_lr_fn="match_rms_adamw"))

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


class AveragedWeights:
    """Exponential moving average of a module's trained parameters; everything else is copied.

    The decay rises with the number of updates as (1 + n) / (10 + n) up to `decay`, so that the first weights fade
    quickly. Buffers and parameters that are not trained by gradient (a codebook) take the module's current values.
    """

    def __init__(self, module: nn.Module, decay: float):
        self.decay = decay
        self.updates = 0
        self.values = {name: value.detach().clone() for name, value in _named_state(module)}

    @torch.no_grad()
    def update(self, module: nn.Module) -> None:
        """Move the average towards the module's current values."""
        weight = 1.0 - min(self.decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        averaged, present = [], []
        for name, value in _named_state(module):
            if value.requires_grad:
                averaged.append(self.values[name])
                present.append(value.detach())
            else:
                self.values[name].copy_(value)
        torch._foreach_lerp_(averaged, present, weight)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.updates = state["updates"]
        for name, value in self.values.items():
            value.copy_(state["values"][name])

    @torch.no_grad()
    def swap(self, module: nn.Module) -> None:
        """Exchange the module's values with the averaged ones; calling it twice restores both."""
        for name, value in _named_state(module):
            present = value.detach().clone()
            value.copy_(self.values[name])
            self.values[name].copy_(present)


def _named_state(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()
