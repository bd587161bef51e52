"""Training of an EAGLE head on its target's own pictures and hidden states.

The head learns to guess the target's next hidden state from a token and the target's hidden state before it, in both
halves of guidance. Losses and recipe follow EAGLE as LANTERN trained it for LlamaGen: SmoothL1 on the features, a tenth
of the soft cross-entropy of the tokens, and uniform noise on the features read. Two more losses use the *guided*
distributions, because guidance at scale s multiplies the halves' errors by s, and drafts are judged by the guided
distribution: their soft cross-entropy, and their total variation, which is the chance that a drawn token is rejected.

As in EAGLE-3 (Li et al. 2025, arXiv 2503.01840), the head reads the target at three depths, and learns the lower levels
of a tree by drafting there (`unrolled.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vargen.base.errors import UserError
from vargen.base.places import READ
from vargen.base.prompts import gather_prompts
from vargen.drafters.eagle_head import EagleHead
from vargen.models.description import open_model
from vargen.models.model_folder import check_component_folder, weights_fingerprint
from vargen.models.options import OWN_QUANTIZATION, ModelOptions
from vargen.models.transformer_layers import CONDITION_POSITION
from vargen.pipelines.loading import load_pipeline
from vargen.training.config import DrafterRunConfig, check, check_fraction, check_not_negative, check_positive
from vargen.training.drafter_task import DrafterTask
from vargen.training.generated import generate_codes
from vargen.training.initial_weights import fill
from vargen.training.run import RunResult, autocast, prepare, train
from vargen.training.teachers import Teacher, teacher_of
from vargen.training.unrolled import guesses_by_level

_MEASURED_LEVELS = 4
_ENDS = ("", *(f"_{level}" for level in range(2, _MEASURED_LEVELS + 1)))


@dataclass
class DrafterTrainingConfig(DrafterRunConfig):
    """Settings of `vargen train drafter`, beside those of every drafter's run.

    Args:
        dtype: precision of the target: float32, bfloat16 or float16; "auto" is bfloat16 on a GPU, float32 on a CPU.
        quantization: of the target, by a library, as `vargen generate` takes it; null for none.
        prompts_file: file of prompts to draw, as `vargen generate` reads them; empty for captions of rendered scenes,
            which only models trained on scenes draw.
        images: pictures that the target makes to learn from; with a file of prompts, at most this many of them.
        codes: folder of a store that `vargen train data` wrote with the model's own tokenizer; its pictures are learned
            from as well, and are rendered instead of drawn. Empty for none.
        stored_images: the most pictures read from the store.
        initial_weights: folder of a head of the same shape from which a new run starts; empty starts from new weights.
        intermediate_size: width of the head's feed-forward layer; null for the target's.
        guided_loss_weight: weight of the soft cross-entropy of the guided distributions.
        overlap_loss_weight: weight of their total variation, 1 minus the overlap.
        feature_loss_weight: weight of the SmoothL1 of the features.
        loss_positions: positions of each picture at which the cross-entropies are computed, drawn anew at every step;
            null for all. Distributions over the vocabulary are most of a step's work.
        feature_layers: numbers of the target's layers after which the head reads it, the last at the end; null for a
            low, a middle and the last one; the last layer alone for EAGLE's single depth.
        levels: levels of a draft that are learned, 1 or more.
        level_decay: factor by which each level counts less than the one above it.
    """

    dtype: str = "float32"
    quantization: str | None = None
    prompts_file: str = field(default="", metadata=READ)
    images: int = 2048
    codes: str = field(default="", metadata=READ)
    stored_images: int = 20_000
    initial_weights: str = field(default="", metadata=READ)
    intermediate_size: int | None = None
    guided_loss_weight: float = 0.5
    overlap_loss_weight: float = 1.0
    feature_loss_weight: float = 1.0
    loss_positions: int | None = 64
    feature_layers: list[int] | None = None
    levels: int = 3
    level_decay: float = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "images", "stored_images", "levels")
        is_own = self.quantization in OWN_QUANTIZATION
        remedy = "is for drawing; leave it out: a head trained without it drafts for the quantized model as well"
        check(not is_own, "quantization", self.quantization, remedy)
        remedy = f"must exceed evaluation_size ({self.evaluation_size}), whose pictures are kept apart"
        check(self.images > self.evaluation_size, "images", self.images, remedy)
        weights = ("token_loss_weight", "guided_loss_weight", "overlap_loss_weight", "feature_loss_weight")
        check_not_negative(self, *weights)
        check(any(getattr(self, name) for name in weights), weights[-1], 0, "leaves no loss at all; raise a weight")
        check_fraction(self, "level_decay")
        layers = self.feature_layers
        rising = layers is None or (len(layers) > 0 and sorted({0, *layers})[1:] == list(layers))
        check(rising, "feature_layers", layers, "must be numbers of layers from 1 on, rising, or null")
        positions = self.loss_positions
        check(positions is None or positions >= 1, "loss_positions", positions, "must be at least 1, or null for all")

    def architecture(self) -> dict[str, Any]:
        return {"intermediate_size": self.intermediate_size, "feature_layers": self.feature_layers}


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Cross-entropy of two distributions in nats, a mean over everything but the last dimension.

    Args:
        logits: [..., V] of the learner. target_logits: [..., V] of the teacher, fp32.
    """
    surprise = logits.float().log_softmax(-1).clamp(min=torch.finfo(torch.float32).min)  # 0 * infinity would be NaN
    return -(target_logits.softmax(-1) * surprise).sum(-1).mean()


def total_variation(logits: Tensor, target_logits: Tensor) -> Tensor:
    """1 - sum min(p, q) in [0, 1], a mean over everything but the last dimension; arguments as above."""
    return 1 - torch.minimum(logits.float().softmax(-1), target_logits.softmax(-1)).sum(-1).mean()


class PictureDrafterTask(DrafterTask):
    """An EAGLE head as the training loop sees it.

    Args:
        config: of the run.
        teacher: the target.
        prompts, codes [M, N]: pictures that the target drew; the first `evaluation_size` are kept apart.
        stored_prompts, stored_codes [K, N]: others to learn from.

    Raises:
        UserError: layers that the target does not have, or initial weights of another shape.
    """

    not_muon = "token_"

    def __init__(
        self,
        config: DrafterTrainingConfig,
        teacher: Teacher,
        prompts: list[str],
        codes: Tensor,
        stored_prompts: Sequence[str] = (),
        stored_codes: Tensor | None = None,
    ) -> None:
        self.config, self.teacher = config, teacher
        last = teacher.num_layers
        layers = default_feature_layers(last) if config.feature_layers is None else config.feature_layers
        check(layers[-1] == last, "feature_layers", layers, f"must end with the target's last layer, which is {last}")
        drafter: nn.Module = teacher.new_head(config.intermediate_size, layers if len(layers) > 1 else ())
        if (folder := config.initial_weights) and not config.goes_on:
            check_component_folder(folder, EagleHead)
            saved: nn.Module = EagleHead.from_pretrained(folder)
            fill(drafter, saved.state_dict(), f"drafter in {folder!r}", "the target and intermediate_size say")
        super().__init__(config, drafter.to(codes.device))
        size = config.evaluation_size
        self.prompts, self.codes = [*prompts[size:], *stored_prompts], codes[size:]
        if stored_codes is not None:
            self.codes = torch.cat((self.codes, stored_codes.to(codes)))
        self.heldout_prompts, self.heldout_codes = prompts[:size], codes[:size]

    def _states(self, prompts: list[str], codes: Tensor) -> tuple[Tensor, Tensor, int]:
        """See `LlamaGenTeacher.features`; the final states are the last `dim` channels."""
        return self.teacher.features(prompts, codes, self.drafter.feature_layers)

    def _guesses(self, features: Tensor, mask: Tensor, length: int, codes: Tensor, levels: int) -> list[Tensor]:
        """For each level the drafter's hidden states [halves * B, N - 1, dim] for all image tokens but the last."""
        tokens = codes[:, :-1].repeat(self.teacher.halves, 1)
        tokens = F.pad(tokens, (length - 1, 0))  # token 0 with the features of the condition
        num_pairs = tokens.shape[1]
        positions = torch.arange(1 - length, num_pairs - length + 1, device=codes.device)
        positions = positions.clamp(min=CONDITION_POSITION)[None]
        valid = F.pad(mask[:, : length - 1], (0, num_pairs - length + 1), value=True)
        guesses = guesses_by_level(
            self.drafter, tokens, features[:, :num_pairs], positions, valid, first=length, levels=levels
        )
        return [each[:, length - 1 :] for each in guesses]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        generator = self.generator(step)
        rows = torch.randint(len(self.codes), (config.batch_size,), generator=generator)
        codes = self.codes[rows.to(self.device)]
        states, mask, length = self._states([self.prompts[row] for row in rows.tolist()], codes)
        features = self.drafter.fused(states)
        features = self.noised(features, codes.shape[1], generator)
        guesses = self._guesses(features, mask, length, codes, config.levels)
        final = states[:, length:, -features.shape[2] :]
        chosen = torch.arange(final.shape[1], device=self.device)
        if config.loss_positions is not None:
            chosen = torch.randperm(final.shape[1], generator=generator)[: config.loss_positions].to(self.device)
        with torch.no_grad():
            wanted = self.teacher.logits(final[:, chosen])
            guided = self.teacher.guided(wanted)
        decays = [config.level_decay**level for level in range(config.levels)]
        parts: dict[str, Tensor] = {}
        for decay, guess in zip(decays, guesses, strict=True):
            logits = self.teacher.logits(guess[:, chosen])
            drafted = self.teacher.guided(logits)
            for name, value in (
                ("features", F.smooth_l1_loss(guess.float(), final.float())),
                ("tokens", soft_cross_entropy(logits, wanted)),
                ("guided", soft_cross_entropy(drafted, guided)),
                ("missed", total_variation(drafted, guided)),
            ):
                parts[name] = parts.get(name, 0.0) + decay / sum(decays) * value
        loss = (
            config.feature_loss_weight * parts["features"]
            + config.token_loss_weight * parts["tokens"]
            + config.guided_loss_weight * parts["guided"]
            + config.overlap_loss_weight * parts["missed"]
        )
        return loss, {name: value.detach() for name, value in parts.items()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """The share of the target's guided probability that the draft covers, on held-out pictures that it drew.

        `accepted_top1` is the chance that the likeliest drafted token is accepted, `accepted_top10` that one of the ten
        likeliest is, `overlap` that a token drawn from the head's own distribution is (1 minus total variation).
        These are of the first level; names with `_2` to `_4` are of the levels below, if all tokens above them are
        accepted. `accepted_length` is the mean number of accepted tokens of a chain of four drawn ones.
        """
        sums: dict[str, float] = {}

        def add(name: str, values: Tensor) -> None:
            sums[name] = sums.get(name, 0.0) + values.double().sum().item()

        size = self.config.batch_size
        for start in range(0, len(self.heldout_codes), size):
            codes = self.heldout_codes[start : start + size]
            with autocast(self.config):
                states, mask, length = self._states(self.heldout_prompts[start : start + size], codes)
                features = self.drafter.fused(states)
                truth = self.teacher.guided(self.teacher.logits(states[:, length:, -features.shape[2] :])).softmax(-1)
                # The codes were drawn from the truth. So the chance that a drawn chain is accepted down to level k is,
                # on average, the product of min(1, q / p) at the codes of its levels.
                following = codes[:, 1:-1, None]  # the code after each pair but the last
                reached = torch.ones_like(truth[..., 0])  # [B, N - 1]: chance that all tokens above are accepted
                for level, guess in enumerate(self._guesses(features, mask, length, codes, _MEASURED_LEVELS), start=1):
                    drafted = self.teacher.guided(self.teacher.logits(guess)).softmax(-1)
                    covered = truth.gather(-1, drafted.topk(10).indices)  # [B, N - 1, 10]
                    overlap = torch.minimum(truth, drafted).sum(-1)
                    # Only chains that lie inside the picture count.
                    here, end = slice(level - 1, None), "" if level == 1 else f"_{level}"
                    add(f"reached{end}", reached[:, here])
                    add(f"places{end}", torch.ones_like(reached[:, here]))
                    add(f"overlap{end}", (reached * overlap)[:, here])
                    add(f"accepted_top1{end}", (reached * covered[..., 0])[:, here])
                    if level == 1:
                        add("accepted_top10", covered.sum(-1))
                        surprise = -(truth * drafted.clamp(min=1e-30).log()).sum(-1)
                        add("guided_loss", surprise)
                    mine, theirs = (each[:, :-1].gather(-1, following)[..., 0] for each in (drafted, truth))
                    # A token that the target never gives is put there by the family, which always drafts it.
                    stays = torch.where(theirs > 0, mine / theirs, 1.0).clamp(max=1)
                    reached = F.pad(reached[:, :-1] * stays, (1, 0))
        return _figures(sums)

    def export(self, folder: Path) -> None:
        """Write the head in bfloat16, with its acceptance rates, means over levels."""
        drafter = copy.deepcopy(self.drafter).to(torch.bfloat16)
        measured = self.evaluate()
        rates = {
            name: sum(measured[name + end] for end in _ENDS) / _MEASURED_LEVELS for name in ("accepted_top1", "overlap")
        }
        drafter.register_to_config(
            acceptance_rate=round(rates["accepted_top1"], 3), sampled_acceptance_rate=round(rates["overlap"], 3)
        )
        drafter.save_pretrained(folder)


def default_feature_layers(num_layers: int) -> list[int]:
    """A low layer, the middle one and the last, without repetition."""
    return sorted({min(2, num_layers), max(num_layers // 2, 1), num_layers})


def _figures(sums: dict[str, float]) -> dict[str, float]:
    """Means of the sums in `PictureDrafterTask.evaluate`."""
    figures = {name: sums[name] / sums["places"] for name in ("guided_loss", "accepted_top10")}
    for name in ("accepted_top1", "overlap"):
        figures |= {name + end: sums[name + end] / max(sums["reached" + end], 1e-9) for end in _ENDS}
    figures["accepted_length"] = sum(sums["overlap" + end] / sums["places" + end] for end in _ENDS)
    return figures


class Pictures(Protocol):
    """A reader of stored pictures."""

    def __call__(self, folder: str, count: int, vqvae: Any) -> tuple[list[str], Tensor]:
        """Prompts and codes [K, N] of at most `count` pictures of a store, made with this tokenizer. Raises UserError
        for no such store, or one of another tokenizer."""
        ...


def train_drafter(
    config: DrafterTrainingConfig,
    sample_prompts: Callable[[int, int], list[str]],
    stored_pictures: Pictures | None = None,
) -> RunResult:
    """Make pictures with the target, then train an EAGLE head on them.

    Args:
        sample_prompts: gives prompts, by seed and count, if the config names no file of them.
        stored_pictures: reads the store that the config names.

    Raises:
        UserError: for a field, model folder or checkpoint that does not fit.
    """
    device = prepare(config)
    options = ModelOptions(
        config.model or None, config.revision or None, config.device, config.dtype, quantization=config.quantization
    )
    model = open_model(options)
    pipeline, _, _ = load_pipeline(model, options)
    if config.prompts_file:
        prompts = gather_prompts((), config.prompts_file)[: config.images]
    elif model.draws_scenes:
        prompts = sample_prompts(config.seed, config.images)
    else:
        raise UserError(
            f"prompts_file must name a file: a model of the family {model.family} does not draw rendered scenes, which "
            f"the default prompts describe"
        )
    check(
        len(prompts) > config.evaluation_size,
        "prompts_file",
        config.prompts_file,
        f"must hold more than evaluation_size ({config.evaluation_size}) prompts",
    )
    teacher = teacher_of(pipeline)  # refuses a model that cannot teach, before pictures are made
    # In LlamaGen's folder only the transformer teaches; another drafter beside it changes nothing.
    fingerprint = weights_fingerprint(model.folder / "transformer" if model.family == "llamagen" else model.folder)
    # A model's default guidance is not among its weights, but decides its pictures and features.
    sampling = model.sampling(guidance_scale=None, temperature=None, top_k=None, top_p=None)
    codes = generate_codes(
        pipeline,
        prompts,
        Path(config.output) / "generated",
        settings={"weights": fingerprint, "prompts_file": config.prompts_file, **options.identity, **sampling},
        seed=config.seed,
        batch_size=config.generation_batch_size,
    ).to(device)
    stored: tuple[Sequence[str], Tensor | None] = ((), None)
    if config.codes:
        if not model.draws_scenes or stored_pictures is None:
            raise UserError("codes: a store holds rendered scenes, which this model does not draw; leave it out")
        stored = stored_pictures(config.codes, config.stored_images, pipeline.vqvae)
    task = PictureDrafterTask(config, teacher, prompts, codes, *stored)
    return train(config, task, {"target": fingerprint, **options.identity, **sampling})
