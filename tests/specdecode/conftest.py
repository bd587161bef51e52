"""What several tests of exactness share: decoded sequences against their true distribution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from specdecode.sampling import SamplingConfig
from specdecode.synthetic import sequence_probabilities

SequenceTest = Callable[[Tensor, Tensor, Tensor, SamplingConfig], float]


def sequence_p_value(tokens: Tensor, table: Tensor, prompt: Tensor, sampling: SamplingConfig) -> float:
    """P-value of a chi-square test of many decoded rows of one prompt.

    Args:
        tokens: [draws, length]. table: [V, V, V] logits of a `MarkovTarget`. prompt: [2]. sampling: as decoded.
    """
    (draws, length), vocab_size = tokens.shape, table.shape[0]
    index = (tokens * vocab_size ** torch.arange(length - 1, -1, -1)).sum(1)
    observed = index.bincount(minlength=vocab_size**length).double()
    expected = sequence_probabilities(table, prompt, length, sampling) * draws
    if bool((observed[expected == 0] > 0).any()):
        return 0.0  # an impossible sequence was decoded
    # Cells too small for the chi-square approximation are counted together.
    small = expected < 8
    observed = torch.cat([observed[~small], observed[small].sum()[None]])
    expected = torch.cat([expected[~small], expected[small].sum()[None]])
    kept = expected > 0
    return float(stats.chisquare(observed[kept].numpy(), expected[kept].numpy()).pvalue)


@pytest.fixture
def p_value() -> SequenceTest:
    return sequence_p_value
