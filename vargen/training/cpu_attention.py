"""Attention that trains at full speed on a CPU.

The backward of torch's attention is three times slower on a CPU in bfloat16 than in float32. Models of transformers
choose their attention by name; the one registered here leaves autocast and is otherwise the library's.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

FLOAT32_ATTENTION = "sdpa_float32"
"""The name, once `register` has been called."""


def register() -> None:
    """Make the name known to transformers."""
    AttentionInterface.register(FLOAT32_ATTENTION, _attention_in_float32)


def _attention_in_float32(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **named: Any
) -> Any:
    with torch.autocast("cpu", enabled=False):
        return sdpa_attention_forward(module, query.float(), key.float(), value.float(), *rest, **named)
