"""Settings of a training run: the fields every trainer shares, their checks, and reading them from YAML and flags.

What a field does is said where it is used (`run.py` and the trainers); this module must not import a model.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from jsonargparse import ArgumentParser

from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PIXELS, MAX_SEED, MAX_THREADS
from vargen.base.errors import UserError

CHECKPOINT_NAME = "checkpoint.pt"
DEVICES = ("cpu", "cuda")
OPTIMIZERS = ("adamw", "muon")

Config = TypeVar("Config", bound="RunConfig")


def check(condition: bool, name: str, value: object, remedy: str) -> None:
    """Raise a `UserError` naming the field `name` unless `condition` holds."""
    if not condition:
        raise UserError(f"{name}: {value!r} {remedy}")


def check_positive(config: object, *names: str, prefix: str = "") -> None:
    """Raise a `UserError` for the first of the named fields that is not above zero."""
    for name in names:
        value = getattr(config, name)
        check(0 < value < math.inf, prefix + name, value, "must be above zero and finite")


def check_fraction(config: object, *names: str, prefix: str = "") -> None:
    """Raise a `UserError` for the first of the named fields that is outside [0, 1]."""
    for name in names:
        value = getattr(config, name)
        check(0 <= value <= 1, prefix + name, value, "must lie between 0 and 1")


def check_sizes(config: object) -> None:
    """Raise a `UserError` for what no machine has or holds: threads, pixels along a side, samples of a batch."""
    for name, most in (("num_threads", MAX_THREADS), ("image_size", MAX_PIXELS), ("batch_size", MAX_BATCH_SIZE)):
        value = getattr(config, name, None) or 0
        check(value <= most, name, value, f"must be at most {most:,}")


@dataclass
class RunConfig:
    """What every training run needs.

    Args:
        output: folder of the run: checkpoint.pt, log.jsonl, samples/ and, at the end, export/.
        seed: seed of the first scene and of the initial weights.
        batch_size: images per step.
        steps: steps of the whole run, unless `max_seconds` ends it earlier.
        max_seconds: training time after which the learning rate reaches zero and the run ends; null for no limit.
            Time spent before a resume counts.
        learning_rate: the highest rate, reached after the warm-up.
        warmup_steps: steps over which the rate rises linearly.
        final_learning_rate: the rate at the end, as a fraction of `learning_rate`.
        decay_start: share of the run from which the rate falls, along half a cosine. Before it the rate is constant, so
            a run that was stopped there may be given more steps or less.
        optimizer: "adamw", or "muon" (hidden matrices by Muon, everything else by AdamW).
        muon_learning_rate: the highest rate of the Muon group; in units of AdamW's (`match_rms_adamw`).
        weight_decay: decoupled weight decay of matrices and filters; vectors have none.
        adam_betas: decay rates of the AdamW moments.
        gradient_clip: highest norm of the gradient; 0 leaves it alone.
        ema_decay: decay rate of the averaged weights, which are the ones that are exported; 0 exports the last ones.
        num_threads: CPU threads for torch; 0 keeps torch's choice.
        device: "cpu" or "cuda".
        autocast: compute in bfloat16 where torch's autocast allows it; null: where that is the faster way
            (`bfloat16_pays`).
        compile: pass the model through torch.compile (minutes at the start; see docs of the trainer for its gain).
        checkpoint_seconds: the longest time that a kill can cost.
        log_every: steps between two log lines.
        evaluate_every: steps between two evaluations on held-out scenes.
        sample_every: steps between two sample sheets.
        evaluation_size: held-out scenes used for evaluation.
    """

    output: str
    seed: int = 0
    batch_size: int = 16
    steps: int = 10_000
    max_seconds: float | None = None
    learning_rate: float = 1e-3
    warmup_steps: int = 100
    final_learning_rate: float = 0.0
    decay_start: float = 0.0
    optimizer: str = "adamw"
    muon_learning_rate: float = 2e-3
    weight_decay: float = 0.01
    adam_betas: tuple[float, float] = (0.9, 0.95)
    gradient_clip: float = 1.0
    ema_decay: float = 0.999
    num_threads: int = 0
    device: str = "cpu"
    autocast: bool | None = None
    compile: bool = False
    checkpoint_seconds: float = 300.0
    log_every: int = 20
    evaluate_every: int = 500
    sample_every: int = 500
    evaluation_size: int = 64

    def __post_init__(self) -> None:
        check(bool(self.output), "output", self.output, "must name a folder")
        check_sizes(self)
        check(0 <= self.seed <= MAX_SEED, "seed", self.seed, "must lie between 0 and 2**63 - 1")
        check_positive(
            self,
            *("batch_size", "steps", "learning_rate", "muon_learning_rate", "checkpoint_seconds"),
            *("log_every", "evaluate_every", "sample_every", "evaluation_size"),
        )
        if self.max_seconds is not None:
            check_positive(self, "max_seconds")
        for name in ("warmup_steps", "weight_decay", "gradient_clip", "num_threads"):
            check(0 <= getattr(self, name) < math.inf, name, getattr(self, name), "must not be negative, but finite")
        check_fraction(self, "final_learning_rate")
        check(0 <= self.decay_start < 1, "decay_start", self.decay_start, "must be at least 0 and below 1")
        check(0 <= self.ema_decay < 1, "ema_decay", self.ema_decay, "must be at least 0 and below 1")
        check(self.device in DEVICES, "device", self.device, f"is not one of {', '.join(DEVICES)}")
        check(self.optimizer in OPTIMIZERS, "optimizer", self.optimizer, f"is not one of {', '.join(OPTIMIZERS)}")
        check(all(0 <= beta < 1 for beta in self.adam_betas), "adam_betas", self.adam_betas, "must lie in [0, 1)")
        if self.autocast is None:
            self.autocast = bfloat16_pays(self.device)

    @property
    def goes_on(self) -> bool:
        """Whether a checkpoint is there to go on from. Initial weights then count for nothing and may be gone."""
        return (Path(self.output) / CHECKPOINT_NAME).is_file()

    def architecture(self) -> dict[str, Any]:
        """The fields, by dotted name, that fix the shape of the weights: a run resumes only with the same ones."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


def bfloat16_pays(device: str) -> bool:
    """Whether a device computes in bfloat16 faster than in float32: GPUs, and processors that have instructions for it.
    On two cores of a Xeon without them it took four times as long."""
    instructions = ("avx512_bf16", "amx_bf16", "bf16")
    return device != "cpu" or any(torch.cpu.get_capabilities().get(each) for each in instructions)


def from_mapping(config_type: type[Config], values: dict[str, Any]) -> Config:
    """Fill a config from plain values; an unknown key is a `UserError` that names it."""
    known = {field.name for field in fields(config_type)}
    for name in values:
        check(name in known, name, values[name], f"is not a field of {config_type.__name__}")
    return config_type(**values)


def build_parser(config_type: type[RunConfig], description: str) -> ArgumentParser:
    """A parser with `--config FILE.yaml` and one flag per field (dotted for nested ones)."""
    parser = ArgumentParser(description=description)
    parser.add_argument("--config", action="config", help="YAML file with any of the fields below")
    parser.add_class_arguments(config_type)
    return parser


def main(config_type: type[Config], train: Callable[[Config], object], arguments: Sequence[str] | None = None) -> None:
    """Run `train` with a config read from the command line; bad values end with one line and exit code 2."""
    parser = build_parser(config_type, (train.__doc__ or "").split("\n")[0])
    try:
        values = parser.instantiate_classes(parser.parse_args(arguments))
        known = {field.name for field in fields(config_type)}
        train(config_type(**{name: value for name, value in values.items() if name in known}))
    except UserError as error:
        print(f"vargen: error: {error}", file=sys.stderr)
        sys.exit(2)
