"""What several tests of exactness share: decoded sequences against their true distribution."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from synthetic import sequence_p_value
from torch import Tensor

from specdecode.sampling import SamplingConfig

SequenceTest = Callable[[Tensor, Tensor, Tensor, SamplingConfig], float]


@pytest.fixture
def p_value() -> SequenceTest:
    return sequence_p_value
