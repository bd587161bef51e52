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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vargen.base.options import option
from vargen.drafters.transformer_layers import CONDITION_POSITION
from vargen.training.config import UnrolledConfig, check_weights
from vargen.training.drafter_task import DrafterTask
from vargen.training.initial_weights import fill_from
from vargen.training.pictures import Lessons, PictureRunConfig, StoredPictures, gather_lessons
from vargen.training.run import RunResult, autocast, train
from vargen.training.unrolled import guesses_by_level, loss_over_levels

_MEASURED_LEVELS = 4
_ENDS = ("", *(f"_{level}" for level in range(2, _MEASURED_LEVELS + 1)))


@dataclass
class DrafterTrainingConfig(UnrolledConfig, PictureRunConfig):
    """Settings of `vargen train drafter`, beside those of every such head and every run that learns from pictures."""

    guided_loss_weight: float = option(0.5, least=0.0)
    """Weight of the soft cross-entropy of the guided distributions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_weights(self, "token_loss_weight", "guided_loss_weight", "overlap_loss_weight", "feature_loss_weight")

    @property
    def loss_weights(self) -> dict[str, float]:
        return {**super().loss_weights, "guided": self.guided_loss_weight}

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
    """An EAGLE head as the training loop sees it. Raises UserError for layers that the target does not have, or initial
    weights of another shape."""

    not_muon = "token_"

    def __init__(self, config: DrafterTrainingConfig, lessons: Lessons) -> None:
        self.config, self.lessons, self.teacher = config, lessons, lessons.teacher
        teacher = self.teacher
        layers = config.layers_read(teacher.num_layers)
        drafter = teacher.new_head(config.intermediate_size, layers if len(layers) > 1 else ())
        if config.initial_weights and not config.goes_on:
            fill_from(config.initial_weights, drafter, "drafter", "the target and intermediate_size say")
        super().__init__(config, drafter.to(lessons.codes.device))

    def _guesses(self, features: Tensor, mask: Tensor, length: int, codes: Tensor, levels: int) -> list[Tensor]:
        """The drafter's hidden states [halves * B, N - 1, dim] for all image tokens but the last, for each level."""
        tokens = codes[:, :-1].repeat(self.teacher.halves, 1)
        tokens = F.pad(tokens, (length - 1, 0))  # token 0 with the features of the condition
        num_pairs = tokens.shape[1]
        positions = torch.arange(1 - length, num_pairs - length + 1, device=codes.device)
        positions = positions.clamp(min=CONDITION_POSITION)[None]
        valid = F.pad(mask[:, : length - 1], (0, num_pairs - length + 1), value=True)
        return guesses_by_level(
            self.drafter, tokens, features[:, :num_pairs], positions, valid, first=length, levels=levels
        )

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        generator = self.generator(step)
        prompts, codes = self.lessons.draw(config.batch_size, generator)
        states, mask, length = self.teacher.features(prompts, codes, self.drafter.feature_layers)
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

        def losses(guess: Tensor) -> dict[str, Tensor]:
            logits = self.teacher.logits(guess[:, chosen])
            drafted = self.teacher.guided(logits)
            return {
                "features": F.smooth_l1_loss(guess.float(), final.float()),
                "tokens": soft_cross_entropy(logits, wanted),
                "guided": soft_cross_entropy(drafted, guided),
                "missed": total_variation(drafted, guided),
            }

        return loss_over_levels(map(losses, guesses), config)

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

        for prompts, codes in self.lessons.heldout(self.config.batch_size):
            with autocast(self.config):
                states, mask, length = self.teacher.features(prompts, codes, self.drafter.feature_layers)
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
        drafter = copy.deepcopy(self.drafter).bfloat16()
        measured = self.evaluate()
        rates = {
            name: sum(measured[name + end] for end in _ENDS) / _MEASURED_LEVELS for name in ("accepted_top1", "overlap")
        }
        drafter.register_to_config(
            acceptance_rate=round(rates["accepted_top1"], 3), sampled_acceptance_rate=round(rates["overlap"], 3)
        )
        drafter.save_pretrained(folder)


def _figures(sums: dict[str, float]) -> dict[str, float]:
    """Means of the sums in `PictureDrafterTask.evaluate`."""
    figures = {name: sums[name] / sums["places"] for name in ("guided_loss", "accepted_top10")}
    for name in ("accepted_top1", "overlap"):
        figures |= {name + end: sums[name + end] / max(sums["reached" + end], 1e-9) for end in _ENDS}
    figures["accepted_length"] = sum(sums["overlap" + end] / sums["places" + end] for end in _ENDS)
    return figures


def train_drafter(
    config: DrafterTrainingConfig,
    sample_prompts: Callable[[int, int], list[str]],
    stored_pictures: StoredPictures | None = None,
) -> RunResult:
    """Make pictures with the target, then train an EAGLE head on them.

    Args:
        sample_prompts: gives prompts, by seed and count, if the config names no file of them.
        stored_pictures: reads the store that the config names.

    Raises:
        UserError: for a field, model folder or checkpoint that does not fit.
    """
    lessons = gather_lessons(config, sample_prompts, stored_pictures)
    return train(config, PictureDrafterTask(config, lessons), lessons.identity)
