"""Settings of a training run: the fields that trainers share, and their checks.

Belongs here: settings of two trainers or more. Does not belong here: the code that uses them (`run.py`, the trainers),
and anything that imports a model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vargen.base.bounds import MAX_BATCH_SIZE, MAX_SEED, MAX_THREADS
from vargen.base.errors import UserError
from vargen.base.options import COMPUTING, LOADING, OUTPUT, TRAINING, Settings, option
from vargen.base.path_roles import IN_A_TRAINING, MODEL, writes_in
from vargen.base.precision import bfloat16_pays
from vargen.training.trackers import TRACKERS, check_tracker

CHECKPOINT_NAME = "checkpoint.pt"
DEVICES = ("cpu", "cuda")
OPTIMIZERS = ("adamw", "muon")


def check(condition: bool, name: str, value: object, remedy: str) -> None:
    """Raise a `UserError` naming the field `name` unless `condition` holds."""
    if not condition:
        raise UserError(f"{name}: {value!r} {remedy}")


def check_weights(config: object, *names: str) -> None:
    """Raise a `UserError` if all of these weights of a loss are zero."""
    check(any(getattr(config, name) for name in names), names[-1], 0, "leaves no loss at all; raise a weight")


@dataclass
class RunConfig(Settings):
    """Settings of every training run."""

    output: str = option(path=writes_in("checkpoint.pt", "log.jsonl", *IN_A_TRAINING, "export/"), group=OUTPUT)
    """Folder of the run: checkpoint.pt, log.jsonl, samples/ and, at the end, export/."""
    seed: int = option(0, least=0, most=MAX_SEED, group=TRAINING)
    """Seed of the first sample and of the initial weights."""
    batch_size: int = option(16, least=1, most=MAX_BATCH_SIZE, group=TRAINING)
    """Samples per step."""
    steps: int = option(10_000, least=1, group=TRAINING)
    """Steps of the whole run, unless `max_seconds` ends it earlier."""
    max_seconds: float | None = option(None, above=0.0, group=TRAINING)
    """Seconds of training, those before a resume included, after which the learning rate reaches its end and the run
    stops; null for no limit."""
    learning_rate: float = option(1e-3, above=0.0, group=TRAINING)
    """The highest rate, reached after the warm-up."""
    warmup_steps: int = option(100, least=0, group=TRAINING)
    """Steps over which the rate rises linearly."""
    decay_start: float = option(0.0, least=0.0, below=1.0, group=TRAINING)
    """Share of the run after which the rate falls along half a cosine. Before it the rate is constant, so a run that
    stopped there may be given more steps or fewer."""
    optimizer: str = option("adamw", choices=OPTIMIZERS, group=TRAINING)
    """The optimizer, "adamw" or "muon" (Muon for hidden matrices, AdamW for everything else)."""
    muon_learning_rate: float = option(2e-3, above=0.0, group=TRAINING)
    """The highest rate of Muon, in units of AdamW's (`match_rms_adamw`)."""
    weight_decay: float = option(0.01, least=0.0, group=TRAINING)
    """Decoupled weight decay of matrices and filters; vectors have none."""
    adam_betas: tuple[float, float] = option((0.9, 0.95), least=0.0, below=1.0, group=TRAINING)
    """Decay rates of the AdamW moments."""
    gradient_clip: float = option(1.0, least=0.0, group=TRAINING)
    """Highest norm of the gradient; 0 leaves it alone."""
    ema_decay: float = option(0.999, least=0.0, below=1.0, group=TRAINING)
    """Decay rate of the averaged weights, which are exported; 0 exports the last weights."""
    num_threads: int = option(0, least=0, most=MAX_THREADS, group=COMPUTING)
    """CPU threads for torch; 0 keeps torch's choice."""
    device: str = option("cpu", choices=DEVICES, group=COMPUTING)
    """Device that trains, "cpu" or "cuda"."""
    autocast: bool | None = option(None, group=COMPUTING)
    """Compute in bfloat16 where torch's autocast allows it; null: where that is faster (`bfloat16_pays`)."""
    compile: bool = option(False, group=COMPUTING)
    """Pass the model through torch.compile, which takes minutes at the start."""
    checkpoint_seconds: float = option(300.0, above=0.0, group=OUTPUT)
    """The longest training time that a kill can lose."""
    log_every: int = option(20, least=1, group=OUTPUT)
    """Steps between two log lines."""
    log_with: str | None = option(None, choices=TRACKERS, group=OUTPUT)
    """A place to watch the run beside log.jsonl, "tensorboard" or "wandb"; null for none."""
    evaluate_every: int = option(500, least=1, group=TRAINING)
    """Steps between two evaluations on held-out samples."""
    sample_every: int = option(500, least=1, group=OUTPUT)
    """Steps between two sample sheets."""
    evaluation_size: int = option(64, least=1, group=TRAINING)
    """Held-out samples used for evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.output), "output", self.output, "must name a folder")
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
class OfModelConfig(RunConfig):
    """Settings of every run about a finished model, beside those of `RunConfig`."""

    model: str = option("", path=MODEL)
    """The target: a folder, a name on the hub, or the name of a shipped model; empty for the shipped default."""
    revision: str | None = option(None, group=LOADING)
    """Branch, tag or commit of a target on the hub; null for its main one."""


@dataclass
class FromTargetConfig(OfModelConfig):
    """Settings of every run that learns from what a target makes, beside those of `OfModelConfig`."""

    generation_batch_size: int = option(32, least=1)
    """Pictures or answers that the target makes at once, to learn from."""


@dataclass
class DrafterRunConfig(FromTargetConfig):
    """Settings of every run that trains a drafter, beside those of `FromTargetConfig`."""

    token_loss_weight: float = option(0.1, least=0.0)
    """Weight of the soft cross-entropy of the tokens."""
    feature_noise: float = option(0.2, least=0.0)
    """Width of the uniform noise on the features read, for sequences of 512 tokens. As in LANTERN, it is divided by the
    tokens of a sequence and multiplied by 512."""


@dataclass
class UnrolledConfig(DrafterRunConfig):
    """Settings of every run that trains an EAGLE head by drafting, see `unrolled.py`."""

    intermediate_size: int | None = option(None, least=1)
    """Width of the head's feed-forward layer; null for the target's."""
    feature_layers: list[int] | None = option(None, least=1)
    """Numbers of the target's layers after which the head reads it, the last at the end; null for a low, a middle and
    the last one; the last layer alone for EAGLE's single depth."""
    overlap_loss_weight: float = option(1.0, least=0.0)
    """Weight of the total variation, 1 minus the overlap."""
    feature_loss_weight: float = option(1.0, least=0.0)
    """Weight of the SmoothL1 of the features."""
    loss_positions: int | None = option(64, least=1)
    """Positions of each step's pictures or answers at which the cross-entropies are computed, drawn anew at every step;
    null for all. Distributions over the vocabulary are most of a step's work."""
    levels: int = option(3, least=1)
    """Levels of a draft that are learned, 1 or more."""
    level_decay: float = option(0.8, least=0.0, most=1.0)
    """Factor by which each level counts less than the one above it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers = self.feature_layers
        rising = layers is None or [0, *layers] == sorted({0, *layers}) != [0]
        check(rising, "feature_layers", layers, "must be numbers of layers from 1 on, rising, or null")

    @property
    def loss_weights(self) -> dict[str, float]:
        """Of the losses of a level, by name."""
        own = {"features": self.feature_loss_weight, "tokens": self.token_loss_weight}
        return {**own, "missed": self.overlap_loss_weight}

    def layers_read(self, last: int) -> list[int]:
        """`feature_layers` of a target with so many layers. Raises UserError for others than it has."""
        layers = self.feature_layers
        if layers is None:
            layers = sorted({min(2, last), max(last // 2, 1), last})
        check(layers[-1] == last, "feature_layers", layers, f"must end with the target's last layer, which is {last}")
        return layers
