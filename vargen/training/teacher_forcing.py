"""What a finished model says of a picture that is given to it: its hidden states at every token, without gradients.

Belongs here: one pass over condition and picture, in both halves of guidance. Does not belong here: the trainers that
learn from it (`drafter.py`, `decoder.py`), and training the transformer itself, which has passes of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vargen.models.llamagen.transformer import LlamaGenTransformer
from vargen.models.transformer_layers import CONDITION_POSITION, condition_attention_mask


@torch.no_grad()
def target_features(
    transformer: LlamaGenTransformer,
    condition_embeds: Tensor,
    condition_mask: Tensor,
    codes: Tensor,
    feature_layers: Sequence[int] = (),
) -> Tensor:
    """Hidden states of the condition and of all image tokens but the last, under teacher forcing.

    Args:
        condition_embeds: [B, T, dim]. condition_mask: [B, T] bool. codes: int64 [B, N].
        feature_layers: after which blocks; none: the final ones alone.

    Returns:
        [B, T + N - 1, F], F = dim for each layer.
    """
    length, num_tokens = condition_embeds.shape[1], codes.shape[1]
    embeds = torch.cat((condition_embeds, transformer.token_embedding(codes[:, :-1])), dim=1)
    positions = torch.arange(-length, num_tokens - 1, device=codes.device).clamp(min=CONDITION_POSITION)
    mask = condition_attention_mask(condition_mask, num_tokens - 1)
    return transformer(
        inputs_embeds=embeds,
        positions=positions[None],
        attention_mask=mask,
        logits_to_keep=1,
        feature_layers=feature_layers,
    ).features


@torch.no_grad()
def guided_features(
    pipeline: Any, prompts: list[str], codes: Tensor, feature_layers: Sequence[int] = ()
) -> tuple[Tensor, Tensor, int]:
    """`target_features` of both halves of guidance, as the pipeline itself would see them.

    Args:
        pipeline: a text-conditional `LlamaGenPipeline`.
        prompts: B of them.
        codes: int64 [B, N], their pictures.
        feature_layers: as for `target_features`.

    Returns:
        Features [2B, T + N - 1, F], conditional half first; the condition's mask [2B, T]; and T.
    """
    transformer = pipeline.transformer
    embeds, mask = pipeline.encode_prompt(prompts)
    condition = transformer.embed_condition(caption_embeds=embeds)
    null = transformer.null_condition(len(prompts), condition.shape[1]).to(condition.dtype)
    condition, mask = torch.cat((condition, null)), torch.cat((mask, mask))
    return target_features(transformer, condition, mask, codes.repeat(2, 1), feature_layers), mask, condition.shape[1]
