"""How a head recognises its target: a few of the target's hidden states for a fixed text, kept in the head's settings.

Belongs here: the text, which numbers are kept, and comparing them. Does not belong here: computing the states, which
the code does that feeds the head.

Other weights or another layer give other numbers. Another dtype changes them by a few hundredths at most, and
quantization by a tenth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from specdecode.kernels.quantized import quantization_of

_NUM_TOKENS, _LAST_TOKENS, _CHANNELS = 12, 4, 16  # not the first tokens: their states hardly differ by layer
# Relative distances that are accepted: for another dtype, and for layers rounded to integers (0.03 to 0.11).
_MOST_DIFFERENT, _MOST_DIFFERENT_ROUNDED = 0.1, 0.3


def fixed_tokens(vocab_size: int, device: torch.device) -> Tensor:
    """[1, n] int64: the text."""
    return (torch.arange(1, _NUM_TOKENS + 1, device=device) * vocab_size // (_NUM_TOKENS + 1))[None]


def sample_states(states: Tensor) -> list[float]:
    """A few numbers of hidden states [n, dim]."""
    channels = torch.arange(_CHANNELS, device=states.device) * states.shape[1] // _CHANNELS
    return [round(value, 4) for value in states[-_LAST_TOKENS:, channels].float().flatten().tolist()]


def are_alike(stored: Sequence[float], found: Sequence[float], model: Any) -> bool:
    """Whether the numbers in a head's settings are those that were found with a model."""
    is_rounded = quantization_of(model) is not None or getattr(model, "is_quantized", False)
    most = _MOST_DIFFERENT_ROUNDED if is_rounded else _MOST_DIFFERENT
    kept = torch.tensor(list(stored))
    return len(kept) == len(found) and bool((kept - torch.tensor(list(found))).norm() <= most * kept.norm())
