"""Attention that trains at full speed on a CPU.

The backward of torch's attention is three times slower on a CPU in bfloat16 than in float32. Models of transformers
choose their attention by name; the one registered here leaves autocast and is otherwise the library's. A LlamaGen's
attention is replaced by plain matrix products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from vargen.drafters.transformer_layers import scaled_dot_product_attention

FLOAT32_ATTENTION = "sdpa_float32"
"""The name that importing this makes known to transformers."""


def _attention_in_float32(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any
) -> Any:
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), *rest, **named)


AttentionInterface.register(FLOAT32_ATTENTION, _attention_in_float32)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A bool mask as numbers to be added, in `dtype` or autocast's on a CPU."""
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else dtype
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, float("-inf"))


def attention_in_chunks(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, chunk_size: int = 96
) -> Tensor:
    """Attention for training on a CPU: explicit products over chunks of queries, each with the keys up to its end.

    The CPU kernel behind `scaled_dot_product_attention` is fast forward, but its backward takes most of a training
    step; plain matrix products are faster for both together. Without gradients, where the mask is not additive, this is
    PyTorch's attention.

    Args:
        query: `[B, H, n, D]`; key, value: `[B, H_kv, n, D]`.
        attention_mask: additive mask broadcastable to `[B, 1, n, n]`, minus infinity above the diagonal at least.
        chunk_size: queries per chunk.

    Returns:
        `[B, H, n, D]`.
    """
    if attention_mask is None or not attention_mask.is_floating_point():
        return scaled_dot_product_attention(query, key, value, attention_mask)
    groups = query.shape[1] // key.shape[1]
    if groups > 1:
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    query = query * query.shape[-1] ** -0.5
    num_tokens = query.shape[2]
    chunks = []
    for begin in range(0, num_tokens, chunk_size):
        end = min(begin + chunk_size, num_tokens)
        scores = query[:, :, begin:end] @ key[:, :, :end].mT  # [B, H, c, end]
        chunks.append(scores.add_(attention_mask[:, :, begin:end, :end]).softmax(dim=-1) @ value[:, :, :end])
    return torch.cat(chunks, dim=2)
