"""What a trainer of drafters asks of a finished model of any family: features, logits, and a drafter to begin with.

Belongs here: one teacher for LlamaGen and one for all families of transformers. Does not belong here: what is learned
from them (`drafter.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from specdecode.roles import TargetOutput
from specdecode.sampling import apply_guidance
from specdecode.targets.transformers import TransformersTarget
from vargen.errors import UserError
from vargen.models.llamagen.drafter import LlamaGenDrafter
from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.training.teacher_forcing import guided_features


class Teacher(Protocol):
    """A model that draws, and the rows it computes for a picture: 2 with guidance, the conditional ones first."""

    @property
    def halves(self) -> int:
        """Rows a picture."""
        ...

    @property
    def num_layers(self) -> int:
        """Of the model."""
        ...

    def new_drafter(self, intermediate_size: int | None, feature_layers: Sequence[int]) -> LlamaGenDrafter:
        """An untrained one, which reads states after these layers. No size: a feed-forward layer as wide as the
        model's."""
        ...

    def features(self, prompts: list[str], codes: Tensor, feature_layers: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        """Hidden states after some layers, or the final ones if none is named, at prompts and codes [B, N] but the
        last, [halves * B, T + N - 1, F], as decoding sees them; which tokens of prompts are none of padding, bool
        [halves * B, T]; and T."""
        ...

    def logits(self, hidden_states: Tensor) -> Tensor:
        """[rows, n, V] float32 of hidden states [rows, n, dim]."""
        ...

    def guided(self, logits: Tensor) -> Tensor:
        """[B, n, V] of the logits of all rows."""
        ...


def teacher_of(pipeline: Any) -> Teacher:
    """The teacher in a pipeline of any family.

    Raises:
        UserError: a model that reads no prompts.
    """
    return LlamaGenTeacher(pipeline) if isinstance(pipeline, LlamaGenPipeline) else TransformersTeacher(pipeline)


class LlamaGenTeacher:
    """Plays `Teacher`.

    Args:
        pipeline: a text-conditional `LlamaGenPipeline` with its text encoder.

    Raises:
        UserError: it is not.
    """

    halves = 2

    def __init__(self, pipeline: LlamaGenPipeline) -> None:
        if pipeline.transformer.config.condition_type != "text" or pipeline.text_encoder is None:
            raise UserError("model is not text-conditional with its text encoder, which this trainer needs")
        self.pipeline, self.transformer = pipeline, pipeline.transformer
        self.transformer.requires_grad_(False)

    @property
    def num_layers(self) -> int:
        return int(self.transformer.config.num_layers)

    def new_drafter(self, intermediate_size: int | None, feature_layers: Sequence[int]) -> LlamaGenDrafter:
        target = self.transformer.config
        drafter = LlamaGenDrafter(
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
        return _begun(drafter, self.transformer.token_embedding.weight)

    def features(self, prompts: list[str], codes: Tensor, feature_layers: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        return guided_features(self.pipeline, prompts, codes, feature_layers)

    def logits(self, hidden_states: Tensor) -> Tensor:
        return self.transformer.lm_head(hidden_states).float()

    def guided(self, logits: Tensor) -> Tensor:
        conditional, unconditional = logits.chunk(2)
        return apply_guidance(conditional, unconditional, self.pipeline.config["default_guidance_scale"])


class TransformersTeacher:
    """Plays `Teacher`, in the settings that the pipeline takes where a call does not say.

    Args:
        pipeline: has `target_of(prompts, max_draft_nodes)`, which gives a `TransformersTarget` with a decoder.
    """

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._any = self._target(["a"], 1)  # its head and guidance are those of every batch
        self._any.model.requires_grad_(False)

    @property
    def halves(self) -> int:
        return self._any.rows_per_sequence

    @property
    def num_layers(self) -> int:
        return int(self._any.model.config.get_text_config().num_hidden_layers)

    def new_drafter(self, intermediate_size: int | None, feature_layers: Sequence[int]) -> LlamaGenDrafter:
        text, target = self._any.model.config.get_text_config(), self._any
        dim, heads = int(text.hidden_size), int(text.num_attention_heads)
        while heads > 1 and (dim % heads or dim // heads % 4):
            heads -= 1
        drafter = LlamaGenDrafter(
            dim=dim,
            num_attention_heads=heads,
            intermediate_size=intermediate_size or int(text.intermediate_size),
            vocab_size=target.vocab_size,
            grid_size=math.isqrt(target.max_new_tokens - 1) + 1,  # the smallest square with room for all tokens
            feature_layers=list(feature_layers) or None,
        )
        assert target.embed is not None
        with torch.no_grad():
            return _begun(drafter, target.embed(torch.arange(target.vocab_size, device=target.device)[None])[0])

    def features(self, prompts: list[str], codes: Tensor, feature_layers: Sequence[int]) -> tuple[Tensor, Tensor, int]:
        target = self._target(prompts, codes.shape[1] - 1)
        target.feature_layers = tuple(feature_layers)
        states = target.hidden_states_of(codes[:, :-1])  # [B, T + N - 1, halves * F]
        rows = torch.cat(states.chunk(self.halves, dim=-1))
        mask = target.prompt_mask
        if mask is None:
            mask = torch.ones(len(rows), target.prompt_length, dtype=torch.bool, device=rows.device)
        return rows, mask, target.prompt_length

    def logits(self, hidden_states: Tensor) -> Tensor:
        return self._any.logits(hidden_states.to(self._any.model.dtype))

    def guided(self, logits: Tensor) -> Tensor:
        return self._any.combine(TargetOutput(logits)).logits

    def _target(self, prompts: Sequence[str], max_draft_nodes: int) -> TransformersTarget:
        return self.pipeline.target_of(list(prompts), max_draft_nodes)


def _begun(drafter: LlamaGenDrafter, embeddings: Tensor) -> LlamaGenDrafter:
    """Tokens mean to the drafter what they mean to the target, and the next feature is at first the last one, which it
    resembles; this start saves most of the training."""
    dim = drafter.config.dim
    with torch.no_grad():
        drafter.token_embedding.weight.copy_(embeddings)
        drafter.fc.weight[:, dim:].copy_(torch.eye(dim))
        if drafter.feature_layers:  # at first what the last layer says, as if nothing else were read
            drafter.fuse.weight.zero_()
            drafter.fuse.weight[:, -dim:].copy_(torch.eye(dim))
    return drafter
