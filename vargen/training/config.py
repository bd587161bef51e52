"""Settings of a training run: the fields that trainers share, and their checks.

Belongs here: settings of two trainers or more. Does not belong here: the code that uses them (`run.py`, the trainers),
and anything that imports a model.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from vargen.base.bounds import MAX_BATCH_SIZE, MAX_PIXELS, MAX_SEED, MAX_THREADS
from vargen.base.errors import UserError
from vargen.base.places import MODEL, writes_in
from vargen.training.trackers import check_tracker

CHECKPOINT_NAME = "checkpoint.pt"
DEVICES = ("cpu", "cuda")
OPTIMIZERS = ("adamw", "muon")


def check(condition: bool, name: str, value: object, remedy: str) -> None:
    """Raise a `UserError` naming the field `name` unless `condition` holds."""
    if not condition:
        raise UserError(f"{name}: {value!r} {remedy}")


def check_positive(config: object, *names: str, prefix: str = "") -> None:
    """Raise a `UserError` for the first of the named fields that is not above zero."""
    for name in names:
        value = getattr(config, name)
        check(0 < value < math.inf, prefix + name, value, "must be above zero and finite")


def check_not_negative(config: object, *names: str) -> None:
    """Raise a `UserError` for the first of the named fields that is below zero or not finite."""
    for name in names:
        check(0 <= getattr(config, name) < math.inf, name, getattr(config, name), "must not be negative, but finite")


def check_weights(config: object, *names: str) -> None:
    """Raise a `UserError` for weights of a loss below zero, or if all are zero."""
    check_not_negative(config, *names)
    check(any(getattr(config, name) for name in names), names[-1], 0, "leaves no loss at all; raise a weight")


def check_fraction(config: object, *names: str, prefix: str = "") -> None:
    """Raise a `UserError` for the first of the named fields that is outside [0, 1]."""
    for name in names:
        value = getattr(config, name)
        check(0 <= value <= 1, prefix + name, value, "must lie between 0 and 1")


def check_sizes(config: object) -> None:
    """Raise a `UserError` for more threads, pixels along a side or samples of a batch than any machine can use."""
    for name, most in (("num_threads", MAX_THREADS), ("image_size", MAX_PIXELS), ("batch_size", MAX_BATCH_SIZE)):
        value = getattr(config, name, None) or 0
        check(value <= most, name, value, f"must be at most {most:,}")


@dataclass
class RunConfig:
    """Settings of every training run.

    Args:
        output: folder of the run: checkpoint.pt, log.jsonl, samples/ and, at the end, export/.
        seed: seed of the first sample and of the initial weights.
        batch_size: samples per step.
        steps: steps of the whole run, unless `max_seconds` ends it earlier.
        max_seconds: seconds of training, those before a resume included, after which the learning rate reaches its end
            and the run stops; null for no limit.
        learning_rate: the highest rate, reached after the warm-up.
        warmup_steps: steps over which the rate rises linearly.
        decay_start: share of the run after which the rate falls along half a cosine. Before it the rate is constant, so
            a run that stopped there may be given more steps or fewer.
        optimizer: "adamw", or "muon" (Muon for hidden matrices, AdamW for everything else).
        muon_learning_rate: the highest rate of Muon, in units of AdamW's (`match_rms_adamw`).
        weight_decay: decoupled weight decay of matrices and filters; vectors have none.
        adam_betas: decay rates of the AdamW moments.
        gradient_clip: highest norm of the gradient; 0 leaves it alone.
        ema_decay: decay rate of the averaged weights, which are exported; 0 exports the last weights.
        num_threads: CPU threads for torch; 0 keeps torch's choice.
        device: "cpu" or "cuda".
        autocast: compute in bfloat16 where torch's autocast allows it; null: where that is faster (`bfloat16_pays`).
        compile: pass the model through torch.compile, which takes minutes at the start.
        checkpoint_seconds: the longest training time that a kill can lose.
        log_every: steps between two log lines.
        log_with: "tensorboard" or "wandb": a place to watch the run beside log.jsonl; null for none.
        evaluate_every: steps between two evaluations on held-out samples.
        sample_every: steps between two sample sheets.
        evaluation_size: held-out samples used for evaluation.
    """

    output: str = field(metadata=writes_in("checkpoint.pt", "log.jsonl", "samples", "generated", "answers", "export/"))
    seed: int = 0
    batch_size: int = 16
    steps: int = 10_000
    max_seconds: float | None = None
    learning_rate: float = 1e-3
    warmup_steps: int = 100
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
    log_with: str | None = None
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
        check_not_negative(self, "warmup_steps", "weight_decay", "gradient_clip", "num_threads")
        check(0 <= self.decay_start < 1, "decay_start", self.decay_start, "must be at least 0 and below 1")
        check(0 <= self.ema_decay < 1, "ema_decay", self.ema_decay, "must be at least 0 and below 1")
        check(self.device in DEVICES, "device", self.device, f"is not one of {', '.join(DEVICES)}")
        check(self.optimizer in OPTIMIZERS, "optimizer", self.optimizer, f"is not one of {', '.join(OPTIMIZERS)}")
        check(all(0 <= beta < 1 for beta in self.adam_betas), "adam_betas", self.adam_betas, "must lie in [0, 1)")
        check_tracker(self.log_with)
        if self.autocast is None:
            self.autocast = bfloat16_pays(self.device)

    @property
    def goes_on(self) -> bool:
        """Whether the run resumes from a checkpoint. It then reads no initial weights; `run.py` compares them."""
        return (Path(self.output) / CHECKPOINT_NAME).is_file()

    def architecture(self) -> dict[str, Any]:
        """The fields that fix the shape of the weights, by dotted name: a run resumes only with equal ones."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self)


@dataclass
class FromTargetConfig(RunConfig):
    """Settings of every run that learns from what a target makes, beside those of `RunConfig`.

    Args:
        model: the target: a folder, a name on the hub, or the name of a shipped model; empty for the shipped default.
        revision: branch, tag or commit of a target on the hub; null for its main one.
        generation_batch_size: pictures or answers that the target makes at once, to learn from.
    """

    model: str = field(default="", metadata=MODEL)
    revision: str | None = None
    generation_batch_size: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "generation_batch_size")


@dataclass
class DrafterRunConfig(FromTargetConfig):
    """Settings of every run that trains a drafter, beside those of `FromTargetConfig`.

    Args:
        token_loss_weight: weight of the soft cross-entropy of the tokens.
        feature_noise: width of the uniform noise on the features read, for sequences of 512 tokens. As in LANTERN, it
            is divided by the tokens of a sequence and multiplied by 512.
    """

    token_loss_weight: float = 0.1
    feature_noise: float = 0.2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_not_negative(self, "token_loss_weight", "feature_noise")


@dataclass
class UnrolledConfig(DrafterRunConfig):
    """Settings of every run that trains an EAGLE head by drafting, see `unrolled.py`.

    Args:
        intermediate_size: width of the head's feed-forward layer; null for the target's.
        feature_layers: numbers of the target's layers after which the head reads it, the last at the end; null for a
            low, a middle and the last one; the last layer alone for EAGLE's single depth.
        overlap_loss_weight: weight of the total variation, 1 minus the overlap.
        feature_loss_weight: weight of the SmoothL1 of the features.
        loss_positions: positions of each step's pictures or answers at which the cross-entropies are computed, drawn
            anew at every step; null for all. Distributions over the vocabulary are most of a step's work.
        levels: levels of a draft that are learned, 1 or more.
        level_decay: factor by which each level counts less than the one above it.
    """

    intermediate_size: int | None = None
    feature_layers: list[int] | None = None
    overlap_loss_weight: float = 1.0
    feature_loss_weight: float = 1.0
    loss_positions: int | None = 64
    levels: int = 3
    level_decay: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "levels")
        for name in ("intermediate_size", "loss_positions"):
            value = getattr(self, name)
            check(value is None or value >= 1, name, value, "must be at least 1, or null")
        check_fraction(self, "level_decay")
        layers = self.feature_layers
        rising = layers is None or [0, *layers] == sorted({0, *layers}) != [0]
        check(rising, "feature_layers", layers, "must be numbers of layers from 1 on, rising, or null")

    def layers_read(self, last: int) -> list[int]:
        """`feature_layers` of a target with so many layers. Raises UserError for others than it has."""
        layers = self.feature_layers
        if layers is None:
            layers = sorted({min(2, last), max(last // 2, 1), last})
        check(layers[-1] == last, "feature_layers", layers, f"must end with the target's last layer, which is {last}")
        return layers


def bfloat16_pays(device: str) -> bool:
    """Whether a device computes faster in bfloat16 than in float32: GPUs, and processors with instructions for it."""
    instructions = ("avx512_bf16", "amx_bf16", "bf16")
    return device != "cpu" or any(torch.cpu.get_capabilities().get(each) for each in instructions)
