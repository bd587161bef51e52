"""Training of an EAGLE drafter on its target's own pictures and hidden states.

The drafter learns to guess the target's next hidden state from a token and the hidden state before it, in both halves
of guidance. Losses and recipe follow EAGLE as LANTERN trained it for LlamaGen (SmoothL1 on the features plus a tenth of
the soft cross-entropy of the tokens, uniform noise on the features read), with one more: the cross-entropy of the
*guided* distributions, because guidance at scale s multiplies the halves' errors by s, and the guided distribution is
what the draft is judged by.

Below the first level of a tree the drafter reads its own guesses in place of features, so it learns on such: a random
share of the features of each picture is replaced by what it guesses there (scheduled sampling for all positions at
once; HASS, arXiv 2408.15766, and EAGLE-3 train on own guesses to the same end).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vargen.errors import UserError
from vargen.models.description import open_model
from vargen.models.llamagen.transformer import CONDITION_POSITION
from vargen.models.model_folder import weights_fingerprint
from vargen.models.options import ModelOptions
from vargen.pipelines.loading import load_pipeline
from vargen.prompts import gather_prompts
from vargen.training.config import RunConfig, check, check_fraction, check_positive
from vargen.training.generated import generate_codes
from vargen.training.run import RunResult, autocast, move, prepare, train
from vargen.training.teachers import Teacher, teacher_of
from vargen.training.transformer_pass import train_on_cpu, training_mask


@dataclass
class DrafterTrainingConfig(RunConfig):
    """Settings of `vargen train drafter`, beside those of every run.

    Args:
        model: the target: a folder of any family, a name on the hub, or a shipped one; empty for the shipped default.
        revision: of a model on the hub; empty for its main one.
        dtype: precision of the target: float32, bfloat16 or float16; "auto" is bfloat16 on a GPU, float32 on a CPU.
        quantization: of the target, as `vargen generate` takes it; null for none.
        prompts: file of prompts to draw, as `vargen generate` reads them; empty for captions of the project's own
            scenes, which only models of them draw.
        images: pictures to learn from; with a file of prompts, at most so many of them.
        generation_batch_size: pictures made at once.
        intermediate_size: width of the drafter's feed-forward layer; null for the target's.
        token_loss_weight: weight of the soft cross-entropy of each half.
        guided_loss_weight: weight of the soft cross-entropy of the guided distributions.
        feature_noise: width of the uniform noise on the features read, for pictures of 512 tokens; it is divided by
            the tokens of a picture and multiplied by 512, as in LANTERN.
        loss_positions: at how many positions of each picture the cross-entropies are worked out, drawn anew at every
            step; null for all. Distributions over the vocabulary are most of a step's work.
        own_feature_share: share of the features of image tokens that are replaced by the drafter's own guesses.
        feature_memory_gib: the target's features are kept, in bfloat16 in main memory, up to so many GiB; what does
            not fit is worked out again at every step.
    """

    model: str = ""
    revision: str = ""
    dtype: str = "float32"
    quantization: str | None = None
    prompts: str = ""
    images: int = 2048
    generation_batch_size: int = 32
    intermediate_size: int | None = None
    token_loss_weight: float = 0.1
    guided_loss_weight: float = 0.5
    feature_noise: float = 0.2
    loss_positions: int | None = 64
    own_feature_share: float = 0.4
    feature_memory_gib: float = 4.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "images", "generation_batch_size")
        check(
            self.images > self.evaluation_size,
            "images",
            self.images,
            f"must exceed evaluation_size ({self.evaluation_size}), whose pictures are kept apart",
        )
        for name in ("token_loss_weight", "guided_loss_weight", "feature_noise", "feature_memory_gib"):
            check(getattr(self, name) >= 0, name, getattr(self, name), "must not be negative")
        check_fraction(self, "own_feature_share")
        positions = self.loss_positions
        check(positions is None or positions >= 1, "loss_positions", positions, "must be at least 1, or null for all")

    def architecture(self) -> dict[str, Any]:
        return {"intermediate_size": self.intermediate_size}


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Mean over everything but the last dimension of the cross-entropy of two distributions, in nats.

    Args:
        logits: [..., V] of the learner. target_logits: [..., V] of the teacher, fp32.
    """
    surprise = logits.float().log_softmax(-1).clamp(min=torch.finfo(torch.float32).min)  # 0 times infinity is no number
    return -(target_logits.softmax(-1) * surprise).sum(-1).mean()


class FeatureStore:
    """Features of pictures that have been seen, without padding, as far as memory goes.

    Args:
        num_bytes: the most that is kept.
    """

    def __init__(self, num_bytes: float) -> None:
        self._left = num_bytes
        self._kept: dict[int, Tensor] = {}

    def __contains__(self, row: int) -> bool:
        return row in self._kept

    @property
    def is_empty(self) -> bool:
        """Whether nothing is kept yet, though there would be room."""
        return self._left > 0 and not self._kept

    def offer(self, row: int, features: Tensor) -> bool:
        """Keep features [halves, T + N - 1, dim] of a picture. Returns whether there was room."""
        size = 2 * features.numel()
        if size > self._left:
            self._left = 0.0
            return False
        self._left -= size
        self._kept[row] = features.to("cpu", torch.bfloat16, copy=True)
        return True

    def batch(self, rows: Sequence[int], num_tokens: int, device: torch.device) -> tuple[Tensor, Tensor, int]:
        """Kept pictures as `DrafterTask._features` gives them, padded on the left."""
        kept = [self._kept[row] for row in rows]
        longest = max(features.shape[1] for features in kept)
        halves = len(kept[0])
        batch = torch.zeros(halves, len(rows), longest, kept[0].shape[2])
        length = longest - (num_tokens - 1)  # T
        mask = torch.zeros(len(rows), length, dtype=torch.bool)
        for number, features in enumerate(kept):
            batch[:, number, longest - features.shape[1] :] = features
            mask[number, longest - features.shape[1] :] = True
        return batch.flatten(0, 1).to(device), torch.cat([mask] * halves).to(device), length


class DrafterTask:
    """The drafter as the common loop sees it."""

    def __init__(self, config: DrafterTrainingConfig, teacher: Teacher, prompts: list[str], codes: Tensor):
        self.config = config
        self.device = codes.device
        self.teacher = teacher
        self.drafter = self.teacher.new_drafter(config.intermediate_size)
        self.drafter.train()
        move(self.drafter, self.device)
        if self.device.type == "cpu":
            train_on_cpu(self.drafter)
        self.module: nn.Module = self.drafter
        self.extra_modules = nn.ModuleList()
        size = config.evaluation_size
        self.prompts, self.codes = prompts[size:], codes[size:]
        self.heldout_prompts, self.heldout_codes = prompts[:size], codes[:size]
        self.store = FeatureStore(config.feature_memory_gib * 2**30)

    def muon_parameters(self) -> Iterable[nn.Parameter]:
        """Every matrix but the token embedding."""
        return [p for name, p in self.drafter.named_parameters() if p.ndim == 2 and not name.startswith("token_")]

    def _features(self, prompts: list[str], codes: Tensor) -> tuple[Tensor, Tensor, int]:
        """See `Teacher.features`."""
        return self.teacher.features(prompts, codes)

    def _fill_store(self) -> None:
        """Work out features picture by picture until memory is full. Always in the same batches, so that a resumed run
        reads the very same numbers."""
        size = self.config.generation_batch_size
        for start in range(0, len(self.codes), size):
            codes = self.codes[start : start + size]
            with autocast(self.config):
                features, mask, _ = self._features(self.prompts[start : start + size], codes)
            halves = features.unflatten(0, (self.teacher.halves, len(codes)))
            for number, valid in enumerate(mask[: len(codes)].sum(1).tolist()):
                if not self.store.offer(start + number, halves[:, number, -(valid + codes.shape[1] - 1) :]):
                    return

    def _features_of_rows(self, rows: list[int]) -> tuple[Tensor, Tensor, int]:
        """`_features` of training pictures, from the store where it has them all."""
        if self.store.is_empty:
            self._fill_store()
        if all(row in self.store for row in rows):
            return self.store.batch(rows, self.codes.shape[1], self.device)
        return self._features([self.prompts[row] for row in rows], self.codes[torch.tensor(rows, device=self.device)])

    def _guesses(self, features: Tensor, mask: Tensor, length: int, codes: Tensor) -> Tensor:
        """The drafter's hidden states [halves * B, N - 1, dim] for all image tokens but the last, from their pairs."""
        tokens = codes[:, :-1].repeat(self.teacher.halves, 1)
        tokens = F.pad(tokens, (length - 1, 0))  # token 0 with the features of the condition
        num_pairs = tokens.shape[1]
        positions = torch.arange(1 - length, num_pairs - length + 1, device=codes.device)
        positions = positions.clamp(min=CONDITION_POSITION)[None]
        visible = training_mask(mask[:, : length - 1], num_pairs - length + 1, features.dtype)
        guesses = self.drafter(tokens, features[:, :num_pairs], positions, visible)
        return guesses[:, length - 1 :]

    @torch.no_grad()
    def _with_own(self, features: Tensor, own: Tensor, mask: Tensor, length: int, codes: Tensor) -> Tensor:
        """Features with the drafter's own guesses of them where `own` [B, N - 1] says so."""
        guesses = self._guesses(features, mask, length, codes).to(features)
        own = own.repeat(self.teacher.halves, 1)[..., None]
        return torch.cat((features[:, :length], torch.where(own, guesses, features[:, length:])), 1)

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        generator = torch.Generator().manual_seed(config.base_seed + step)
        rows = torch.randint(len(self.codes), (config.batch_size,), generator=generator)
        codes = self.codes[rows.to(self.device)]
        features, mask, length = self._features_of_rows(rows.tolist())
        width = config.feature_noise * 512 / codes.shape[1]
        noise = (torch.rand(features.shape, generator=generator) - 0.5).to(features) * width
        given = features + noise
        if config.own_feature_share > 0:
            # Drawn per picture and position: the halves of guidance draft the same tokens, at the same depth.
            own = torch.rand(len(codes), codes.shape[1] - 1, generator=generator) < config.own_feature_share
            given = self._with_own(given, own.to(self.device), mask, length, codes)
        guesses = self._guesses(given, mask, length, codes)  # [halves * B, N - 1, dim]
        wanted = features[:, length:]
        feature_loss = F.smooth_l1_loss(guesses.float(), wanted.float())
        if config.loss_positions is not None:
            chosen = torch.randperm(wanted.shape[1], generator=generator)[: config.loss_positions].to(self.device)
            guesses, wanted = guesses[:, chosen], wanted[:, chosen]
        with torch.no_grad():
            wanted_logits = self.teacher.logits(wanted)
        logits = self.teacher.logits(guesses)
        token_loss = soft_cross_entropy(logits, wanted_logits)
        guided_loss = soft_cross_entropy(self.teacher.guided(logits), self.teacher.guided(wanted_logits))
        loss = feature_loss + config.token_loss_weight * token_loss + config.guided_loss_weight * guided_loss
        parts = {"features": feature_loss, "tokens": token_loss, "guided": guided_loss}
        return loss, {name: value.detach() for name, value in parts.items()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """How much of the target's guided probability the draft covers, on pictures kept apart.

        `accepted_top1` is the chance that the likeliest drafted token is accepted, `accepted_top10` that one of ten
        is, `overlap` that a drafted token drawn from the drafter's own distribution is (1 minus total variation). With
        `_own` at the end, where the drafter has read its own guesses throughout, which is harder than any tree.
        """
        sums: dict[str, float] = {}
        size = self.config.batch_size
        for start in range(0, len(self.heldout_codes), size):
            codes = self.heldout_codes[start : start + size]
            with autocast(self.config):
                features, mask, length = self._features(self.heldout_prompts[start : start + size], codes)
                every = torch.ones_like(codes[:, 1:], dtype=torch.bool)
                own = self._with_own(features, every, mask, length, codes)
                wanted = self.teacher.guided(self.teacher.logits(features[:, length:]))
                drafts = {
                    name: self.teacher.guided(self.teacher.logits(self._guesses(given, mask, length, codes)))
                    for name, given in (("", features), ("_own", own))
                }
            share = len(codes) / len(self.heldout_codes)
            for name, drafted in drafts.items():
                truth, guess = wanted.softmax(-1), drafted.softmax(-1)
                covered = truth.gather(-1, guess.topk(10).indices)  # [B, N - 1, 10]
                for measure, value in (
                    ("guided_loss", soft_cross_entropy(drafted, wanted)),
                    ("accepted_top1", covered[..., 0].mean()),
                    ("accepted_top10", covered.sum(-1).mean()),
                    ("overlap", torch.minimum(truth, guess).sum(-1).mean()),
                ):
                    sums[measure + name] = sums.get(measure + name, 0.0) + share * value.item()
        return sums

    def draw_samples(self, path: Path) -> None:
        """A drafter has no pictures of its own: with it the target makes the pictures that it makes without."""

    def export(self, folder: Path) -> None:
        """Write the drafter in bfloat16, with the acceptance it reaches where it reads its own guesses."""
        drafter: Any = copy.deepcopy(self.drafter)
        drafter.to(torch.bfloat16)
        measured = self.evaluate()
        drafter.register_to_config(
            acceptance_rate=round(measured["accepted_top1_own"], 3),
            sampled_acceptance_rate=round(measured["overlap_own"], 3),
        )
        drafter.save_pretrained(folder)


def train_drafter(config: DrafterTrainingConfig, sample_prompts: Callable[[int, int], list[str]]) -> RunResult:
    """Make pictures with the target, then train a drafter on them.

    Args:
        sample_prompts: gives so many prompts, by seed and number, where the config names no file of them.

    Raises:
        UserError: for a field, model folder or checkpoint that does not fit.
    """
    device = prepare(config)
    options = ModelOptions(
        config.model or None, config.revision or None, config.device, config.dtype, quantization=config.quantization
    )
    model = open_model(options)
    pipeline, _, _ = load_pipeline(model, options)
    if config.prompts:
        prompts = gather_prompts((), config.prompts)[: config.images]
    elif model.draws_scenes:
        prompts = sample_prompts(config.base_seed, config.images)
    else:
        raise UserError(
            f"prompts must name a file: a model of the family {model.family} does not draw vargen's own scenes, which "
            f"composed prompts speak of"
        )
    check(
        len(prompts) > config.evaluation_size,
        "prompts",
        config.prompts,
        f"must hold more than evaluation_size ({config.evaluation_size}) prompts",
    )
    teacher = teacher_of(pipeline)  # what cannot teach is said before pictures are made
    # Of LlamaGen's folder only the transformer teaches; another drafter beside it changes nothing.
    fingerprint = weights_fingerprint(model.folder / "transformer" if model.family == "llamagen" else model.folder)
    codes = generate_codes(
        pipeline,
        prompts,
        Path(config.output_dir) / "generated",
        settings={"weights": fingerprint, "prompts_file": config.prompts, **options.identity},
        seed=config.base_seed,
        batch_size=config.generation_batch_size,
    ).to(device)
    return train(config, DrafterTask(config, teacher, prompts, codes), {"target": fingerprint, **options.identity})
