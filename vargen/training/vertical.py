"""Training of a vertical branch, which lets a LlamaGen draw its pictures in diagonals.

The model's states are computed under teacher forcing with the mask that drawing in diagonals has, so that the branch
learns from what it will see. It learns what the model itself says of each token in raster order, where the model sees
more. The loss is the soft cross-entropy of the guided mixture. Its best value is the mean of the model's distributions
over all that a diagonal does not show.

At first the model stays as it is, and the branch is saved alone. With `model_rate` a copy of the model's blocks learns
beside the branch, which is FlashAR's second stage (arXiv 2605.09430), and the two are saved as a model of their own.

Belongs here: the loss and figures. Does not belong here: the network and its masks
(`vargen.models.llamagen.vertical_branch`), and pictures (`pictures.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vargen.base.errors import UserError
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.models.llamagen.vertical_branch import VerticalBranch, default_feature_layer, diagonal_masks
from vargen.models.transformer_layers import CONDITION_POSITION, Attention, condition_attention_mask
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.training.config import check, check_fraction, check_positive, check_weights
from vargen.training.cpu_attention import additive_mask, attention_in_chunks
from vargen.training.drafter import soft_cross_entropy, total_variation
from vargen.training.drafter_task import DrafterTask
from vargen.training.initial_weights import fill_from
from vargen.training.pictures import Lessons, PictureRunConfig, StoredPictures, gather_lessons
from vargen.training.run import RunResult, autocast, train
from vargen.training.teachers import LlamaGenTeacher, guided_condition, masked_features


@dataclass
class VerticalTrainingConfig(PictureRunConfig):
    """Settings of `vargen train vertical`, beside those of every run that learns from a picture model.

    Args:
        guided_loss_weight: weight of the soft cross-entropy of the guided mixture.
        feature_layer: the layer of the model after which the branch reads it; null for five eighths up.
        gate_size: width inside the gate.
        model_rate: share of the branch's learning rate with which the model's own blocks learn, too: FlashAR's second
            stage, which has 0.2. The export is then a whole model. 0: the model stays, and the export is the branch.
    """

    feature_noise: float = 0.0
    guided_loss_weight: float = 1.0
    feature_layer: int | None = None
    gate_size: int = 64
    model_rate: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(self, "gate_size")
        check_fraction(self, "model_rate")
        check_weights(self, "token_loss_weight", "guided_loss_weight")

    def architecture(self) -> dict[str, Any]:
        learns = {"model_learns": True} if self.model_rate else {}
        return {"feature_layer": self.feature_layer, "gate_size": self.gate_size, **learns}


class VerticalTask(DrafterTask):
    """A vertical branch as the training loop sees it. Raises UserError for a model that is no LlamaGen, a layer that it
    does not have, or initial weights of another shape."""

    not_muon = ("gate", "branch.gate")

    def __init__(self, config: VerticalTrainingConfig, lessons: Lessons) -> None:
        teacher = lessons.teacher
        if not isinstance(teacher, LlamaGenTeacher):
            raise UserError("model must be a LlamaGen: a vertical branch reads the layers of its transformer")
        self.config, self.lessons, self.teacher = config, lessons, teacher
        self.transformer = teacher.transformer
        last, layer = teacher.num_layers, config.feature_layer
        layer = default_feature_layer(last) if layer is None else layer
        check(1 <= layer < last, "feature_layer", layer, f"must be at least 1 and below {last}, the model's layers")
        branch = VerticalBranch.beside(self.transformer, layer, config.gate_size)
        if config.initial_weights and not config.goes_on:
            fill_from(config.initial_weights, branch, "branch", "the model and gate_size say")
        super().__init__(config, branch.to(lessons.codes.device))
        self.branch: VerticalBranch = self.drafter
        self.model = self._learning_copy() if config.model_rate else self.transformer
        if config.model_rate:
            self.module = nn.ModuleDict({"branch": self.branch, "model": self.model})
        if self.device.type == "cpu":
            for module in (*self.transformer.modules(), *self.model.modules(), *self.branch.modules()):
                if isinstance(module, Attention):
                    module.attend = attention_in_chunks

    def _learning_copy(self) -> LlamaGenTransformer:
        """The model with blocks that learn. Embeddings and the output head stay those of the teacher, and there is no
        dropout, since the teacher's distributions are the truth."""
        model = copy.deepcopy(self.transformer).requires_grad_(False).eval()
        model.transformer_blocks.requires_grad_(True)
        model.norm_out.requires_grad_(True)
        return model

    def rate_shares(self) -> dict[nn.Parameter, float]:
        return dict.fromkeys(self.model.parameters(), self.config.model_rate) if self.config.model_rate else {}

    def mixed(
        self, prompts: list[str], codes: Tensor, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What drawing in diagonals says of every token below the first row, under teacher forcing.

        Args:
            codes: int64 [B, N].
            generator: of the noise on features; None: there is none.

        Returns:
            Logits [2B, N - G, V] each, conditional halves first: of the mixture; of the model alone, without meaning in
            the first column; and of the model in raster order.
        """
        grid, both = self.transformer.config.grid_size, codes.repeat(2, 1)
        condition, mask = guided_condition(self.teacher.pipeline, prompts)
        length, layer = condition.shape[1], self.branch.config.feature_layer
        below = slice(length - 1 + grid, None)  # the token before each that is drawn below the first row
        masks = (condition_attention_mask(mask, codes.shape[1] - 1), *diagonal_masks(mask, grid))
        in_raster, in_diagonals, of_branch = (additive_mask(each, condition.dtype) for each in masks)
        with torch.no_grad():
            wanted = self.teacher.logits(masked_features(self.transformer, condition, in_raster, both)[:, below])
        states = masked_features(self.model, condition, in_diagonals, both, (layer, self.teacher.num_layers))
        inner, final = states.split(condition.shape[2], dim=-1)
        left = final[:, below]
        alone = self.teacher.logits(left)
        if generator is not None:
            inner = self.noised(inner, codes.shape[1], generator)
        positions = torch.arange(-length, codes.shape[1] - 1, device=codes.device).clamp(min=CONDITION_POSITION)
        states = self.branch(inner, positions[None], of_branch)
        above = states[:, length : length + left.shape[1]]
        # One gate for both halves, that of the conditional one: so guidance and mixing may change places.
        weight = self.branch.weight_of_left(left.chunk(2)[0], above.chunk(2)[0])  # [B, N - G, 1]
        weight = torch.where(self._first_column(grid, weight), 0.0, weight)
        down = self.branch.logits(above, self.transformer.lm_head)
        return down.lerp(alone, weight.repeat(2, 1, 1)), alone, wanted

    def _first_column(self, grid: int, like: Tensor) -> Tensor:
        """[1, N - G, 1] bool."""
        return (torch.arange(like.shape[1], device=like.device) % grid == 0)[None, :, None]

    def loss(self, step: int, progress: float) -> tuple[Tensor, dict[str, Tensor]]:
        config, generator = self.config, self.generator(step)
        prompts, codes = self.lessons.draw(config.batch_size, generator)
        mixture, _, wanted = self.mixed(prompts, codes, generator if config.feature_noise else None)
        guided, guided_wanted = self.teacher.guided(mixture), self.teacher.guided(wanted)
        parts = {"tokens": soft_cross_entropy(mixture, wanted), "guided": soft_cross_entropy(guided, guided_wanted)}
        loss = config.token_loss_weight * parts["tokens"] + config.guided_loss_weight * parts["guided"]
        return loss, {name: value.detach() for name, value in parts.items()}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Means over held-out pictures that the model drew, below the first row.

        `guided_loss` is the soft cross-entropy of the guided mixture, `overlap` the probability that it shares with
        the model in raster order. `overlap_right` is that of the mixture right of the first column, `overlap_alone`
        that of the model without a branch there, `overlap_first` that of the branch in the first column.
        """
        sums: dict[str, float] = {}
        for prompts, codes in self.lessons.heldout(self.config.batch_size):
            with autocast(self.config):
                mixture, alone, wanted = (self.teacher.guided(each) for each in self.mixed(prompts, codes))
            grid = self.transformer.config.grid_size
            is_first = self._first_column(grid, mixture)[0, :, 0]
            measured = {
                "guided_loss": soft_cross_entropy(mixture, wanted),
                "overlap": 1 - total_variation(mixture, wanted),
                "overlap_right": 1 - total_variation(mixture[:, ~is_first], wanted[:, ~is_first]),
                "overlap_alone": 1 - total_variation(alone[:, ~is_first], wanted[:, ~is_first]),
                "overlap_first": 1 - total_variation(mixture[:, is_first], wanted[:, is_first]),
            }
            for name, value in measured.items():
                sums[name] = sums.get(name, 0.0) + len(codes) * value.item()
        return {name: value / len(self.lessons.heldout_codes) for name, value in sums.items()}

    def export(self, folder: Path) -> None:
        """Write the branch in bfloat16, alone or as a part of the model that learned with it. That has no drafters:
        those of the model before would no longer fit."""
        branch = copy.deepcopy(self.branch).bfloat16()
        if not self.config.model_rate:
            branch.save_pretrained(folder)
            return
        pipeline, model = self.teacher.pipeline, copy.deepcopy(self.model).bfloat16()
        others = {"transformer": model, "vertical_branch": branch, "drafter": None, "draft_model": None}
        length = pipeline.config["max_sequence_length"]
        LlamaGenPipeline(**(pipeline.components | others), max_sequence_length=length).save_pretrained(folder)


def train_vertical(
    config: VerticalTrainingConfig,
    sample_prompts: Callable[[int, int], list[str]],
    stored_pictures: StoredPictures | None = None,
) -> RunResult:
    """Make pictures with the model, then train a vertical branch on them; arguments as for `train_drafter`.

    Raises:
        UserError: for a field, model folder or checkpoint that does not fit.
    """
    lessons = gather_lessons(config, sample_prompts, stored_pictures)
    return train(config, VerticalTask(config, lessons), lessons.identity)
