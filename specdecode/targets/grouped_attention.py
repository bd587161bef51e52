"""Attention over shared key/value heads that does not repeat them.

Belongs here: one attention function, under a name of its own in transformers. Does not belong here: models, caches.

With a mask, transformers' "sdpa" copies every key and value for each of the query heads that share them, and draft
tokens always need a mask: in every layer of every pass the whole cache is copied several times. Here the queries that
share a key/value head become rows of that head. Without a mask, in training, or where the mask would be larger than the
copies, the library's own function runs.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED_ATTENTION = "sdpa_grouped"
"""The name in transformers."""


def use_grouped_attention(model: Any) -> None:
    """Make a model's text layers use this attention, where they use "sdpa"; others stay as they are."""
    config = model.config.get_text_config()
    if config._attn_implementation == "sdpa":
        config._attn_implementation = GROUPED_ATTENTION


def grouped_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **named: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention with the signature of transformers' attention functions.

    Args:
        query: [B, H, n, D]. key, value: [B, H_kv, S, D]. attention_mask: [B, 1, n, S] bool or additive.

    Returns:
        [B, n, H, D], and None.
    """
    batch_size, num_heads, count, _ = query.shape
    num_shared, length, head_dim = key.shape[1:]
    groups = num_heads // num_shared
    is_stock = attention_mask is None or groups == 1 or module.training or attention_mask.shape[1] != 1
    if is_stock or groups * count > 2 * (groups - 1) * num_shared * head_dim:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **named)
    assert attention_mask is not None
    rows = query.reshape(batch_size, num_shared, groups * count, head_dim)
    mask = attention_mask[..., :length].repeat(1, 1, groups, 1)
    output = F.scaled_dot_product_attention(rows, key, value, attn_mask=mask, scale=scaling)
    return output.reshape(batch_size, num_heads, count, -1).transpose(1, 2).contiguous(), None


AttentionInterface.register(GROUPED_ATTENTION, grouped_attention)
AttentionMaskInterface.register(GROUPED_ATTENTION, sdpa_mask)
