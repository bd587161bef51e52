"""Pictures for the networks."""

from __future__ import annotations

import pytest
import torch

SIDE = 32


@pytest.fixture
def pictures() -> torch.Tensor:
    """uint8 [12, 3, 32, 32], smooth blobs of various colours."""
    generator = torch.Generator().manual_seed(1)
    small = torch.rand(12, 3, 4, 4, generator=generator)
    large = torch.nn.functional.interpolate(small, size=SIDE, mode="bicubic").clamp(0, 1)
    return (large * 255).round().to(torch.uint8)
