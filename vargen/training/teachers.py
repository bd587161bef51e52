"""Lessons of a finished picture model for its drafter: hidden states under teacher forcing, logits, and a first head.

Belongs here: one teacher for LlamaGen and one for all families of transformers. Does not belong here: learning from
them (`drafter.py`), and training a transformer itself (`scenes.training`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.roles import TargetOutput
from specdecode.sampling import apply_guidance
from specdecode.targets.transformers import TransformersTarget
from vargen.base.errors import UserError
from vargen.drafters.eagle_head import EagleHead
from vargen.drafters.transformer_layers import CONDITION_POSITION, condition_attention_mask
from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.pipelines.llamagen import LlamaGenPipeline


class LlamaGenTeacher:
    """A LlamaGen, with guidance.

    Args:
        pipeline: with its text encoder.

    Attributes:
        halves: rows that are computed for each picture; of two the conditional ones come first.
        num_layers: of the model.

    Raises:
        UserError: it is class-conditional, or has no text encoder.
    """

    halves = 2

    def __init__(self, pipeline: LlamaGenPipeline) -> None:
        if pipeline.transformer.config.condition_type != "text" or pipeline.text_encoder is None:
            raise UserError("model is not text-conditional with its text encoder, which this trainer needs")
        self.pipeline, self.transformer = pipeline, pipeline.transformer
        self.transformer.requires_grad_(False)
        self.num_layers = int(self.transformer.config.num_layers)

    def new_head(self, intermediate_size: int | None, feature_layers: Sequence[int]) -> EagleHead:
        """An untrained head that reads states after these layers; without a size, its feed-forward layer is as wide as
        the model's."""
        target = self.transformer.config
        drafter = EagleHead(
            dim=target.dim,
            num_attention_heads=target.num_attention_heads,
            intermediate_size=intermediate_size or target.intermediate_size,
            vocab_size=target.vocab_size,
            grid_size=target.grid_size,
            rope_base=target.rope_base,
            condition_rotary=target.condition_rotary,
            position_scale=target.position_scale,
            feature_layers=list(feature_layers) or None,
        )
        return _initialised(drafter, self.transformer.token_embedding.weight)

    def features(self, prompts: list[str], codes: Tensor, feature_layers: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        """Hidden states after some layers, or the final ones if none is named, as decoding computes them.

        Args:
            codes: int64 [B, N], the pictures of B prompts of T tokens.

        Returns:
            States [halves * B, T + N - 1, F] at the prompts and all codes but the last; bool [halves * B, T], false at
            padding of prompts; and T.
        """
        return guided_features(self.pipeline, prompts, codes, feature_layers)

    def token_losses(self, prompts: list[str], codes: Tensor, dropped: Tensor) -> Tensor:
        """Losses [n] in nats of the drawn ones among codes [B, N], each given the prompt and those before it.

        Args:
            dropped: bool [B], whose prompts are not read: guidance leads away from what is learned there.
        """
        condition, mask = guided_condition(self.pipeline, prompts)
        rows = torch.arange(len(codes), device=codes.device) + len(codes) * dropped
        seen = condition_attention_mask(mask[rows], codes.shape[1] - 1)
        states = masked_features(self.transformer, condition[rows], seen, codes)
        logits = self.logits(states[:, condition.shape[1] - 1 :])
        return F.cross_entropy(logits.flatten(0, 1), codes.flatten(), reduction="none")

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[rows, n, V] float32 of hidden states [rows, n, dim]."""
        return self.transformer.lm_head(hidden_states).float()

    def guided(self, logits: Tensor) -> Tensor:
        """[B, n, V] of the logits of all rows."""
        conditional, unconditional = logits.chunk(2)
        return apply_guidance(conditional, unconditional, self.pipeline.config["default_guidance_scale"])


class TransformersTeacher:
    """The same as `LlamaGenTeacher` for every family of transformers, with the pipeline's default settings.

    Args:
        pipeline: has `target_of(prompts, max_draft_nodes)`, which gives a `TransformersTarget` with a decoder.
    """

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._any = self._target(["a"], 1)  # every batch has the same output head and guidance
        self._any.model.requires_grad_(False)
        self.halves = self._any.rows_per_sequence
        self.num_layers = int(self._any.model.config.get_text_config().num_hidden_layers)

    def new_head(self, intermediate_size: int | None, feature_layers: Sequence[int]) -> EagleHead:
        text, target = self._any.model.config.get_text_config(), self._any
        dim, heads = int(text.hidden_size), int(text.num_attention_heads)
        while heads > 1 and (dim % heads or dim // heads % 4):
            heads -= 1
        drafter = EagleHead(
            dim=dim,
            num_attention_heads=heads,
            intermediate_size=intermediate_size or int(text.intermediate_size),
            vocab_size=target.vocab_size,
            grid_size=math.isqrt(target.max_new_tokens - 1) + 1,  # the smallest square with room for all tokens
            feature_layers=list(feature_layers) or None,
        )
        assert target.embed is not None
        with torch.no_grad():
            return _initialised(drafter, target.embed(torch.arange(target.vocab_size, device=target.device)[None])[0])

    def features(self, prompts: list[str], codes: Tensor, feature_layers: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        target = self._target(prompts, codes.shape[1] - 1)
        target.feature_layers = tuple(feature_layers)
        states = target.hidden_states_of(codes[:, :-1])  # [B, T + N - 1, halves * F]
        rows = torch.cat(states.chunk(self.halves, dim=-1))
        mask = target.prompt_mask
        if mask is None:
            mask = torch.ones(len(rows), target.prompt_length, dtype=torch.bool, device=rows.device)
        return rows, mask, target.prompt_length

    def token_losses(self, prompts: list[str], codes: Tensor, dropped: Tensor) -> Tensor:
        target = self._target(prompts, 1)
        null = (self.halves - 1) * len(codes)  # the last kind of rows
        rows = torch.arange(len(codes), device=codes.device) + null * dropped
        forced = getattr(target, "forced_tokens", None)
        drawn = torch.ones_like(codes, dtype=torch.bool) if forced is None else forced.expand_as(codes) < 0
        return F.cross_entropy(target.forced_logits(codes, rows)[drawn], codes[drawn], reduction="none")

    def logits(self, hidden_states: Tensor) -> Tensor:
        return self._any.logits(hidden_states.to(self._any.model.dtype))

    def guided(self, logits: Tensor) -> Tensor:
        return self._any.combine(TargetOutput(logits)).logits

    def _target(self, prompts: Sequence[str], max_draft_nodes: int) -> TransformersTarget:
        return self.pipeline.target_of(list(prompts), max_draft_nodes)


Teacher = LlamaGenTeacher | TransformersTeacher


def teacher_of(pipeline: Any) -> Teacher:
    """The teacher in a pipeline of any family. Raises UserError for a model that reads no prompts."""
    return LlamaGenTeacher(pipeline) if isinstance(pipeline, LlamaGenPipeline) else TransformersTeacher(pipeline)


def _initialised(drafter: EagleHead, embeddings: Tensor) -> EagleHead:
    """The head with the target's token embeddings, see `PairHead.start_from_features`."""
    drafter.start_from_features()
    with torch.no_grad():
        drafter.token_embedding.weight.copy_(embeddings)
    return drafter


def forced_inputs(
    transformer: LlamaGenTransformer, condition_embeds: Tensor, input_ids: Tensor
) -> tuple[Tensor, Tensor]:
    """Embeddings `[B, T + N - 1, dim]` of a condition `[B, T, dim]` and of all but the last of image tokens `[B, N]`,
    and positions `[1, T + N - 1]`."""
    length, num_image_tokens = condition_embeds.shape[1], input_ids.shape[1]
    embeds = torch.cat((condition_embeds, transformer.token_embedding(input_ids[:, :-1])), dim=1)
    positions = torch.arange(-length, num_image_tokens - 1, device=input_ids.device)
    return embeds, positions.clamp(min=CONDITION_POSITION)[None]


def masked_features(
    transformer: LlamaGenTransformer,
    condition_embeds: Tensor,
    attention_mask: Tensor,
    codes: Tensor,
    feature_layers: Sequence[int] = (),
) -> Tensor:
    """Hidden states of a condition and of all image tokens but the last, under teacher forcing.

    Args:
        condition_embeds: [B, T, dim]. codes: int64 [B, N].
        attention_mask: bool [B, 1, T + N - 1, T + N - 1], which tokens see each other.
        feature_layers: numbers of blocks; none: the final states alone.

    Returns:
        [B, T + N - 1, F], F = dim for each layer.
    """
    embeds, positions = forced_inputs(transformer, condition_embeds, codes)
    output = transformer(
        inputs_embeds=embeds,
        positions=positions,
        attention_mask=attention_mask,
        logits_to_keep=1,
        feature_layers=feature_layers,
    )
    return output.features


@torch.no_grad()
def guided_condition(pipeline: LlamaGenPipeline, prompts: list[str]) -> tuple[Tensor, Tensor]:
    """Condition tokens [2B, T, dim] of both halves of guidance, conditional half first, and their mask [2B, T] bool."""
    embeds, mask = pipeline.encode_prompt(prompts)
    condition = pipeline.transformer.embed_condition(caption_embeds=embeds)
    null = pipeline.transformer.null_condition(len(prompts), condition.shape[1]).to(condition.dtype)
    return torch.cat((condition, null)), torch.cat((mask, mask))


@torch.no_grad()
def guided_features(
    pipeline: LlamaGenPipeline, prompts: list[str], codes: Tensor, feature_layers: Sequence[int] = ()
) -> tuple[Tensor, Tensor, int]:
    """States of both halves of guidance, conditional half first; see `LlamaGenTeacher.features`."""
    condition, mask = guided_condition(pipeline, prompts)
    seen = condition_attention_mask(mask, codes.shape[1] - 1)
    states = masked_features(pipeline.transformer, condition, seen, codes.repeat(2, 1), feature_layers)
    return states, mask, condition.shape[1]
