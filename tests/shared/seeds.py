"""Generators of torch by their seeds."""

import torch


def seeded(*seeds: int) -> list[torch.Generator]:
    """A generator for each seed."""
    return [torch.Generator().manual_seed(seed) for seed in seeds]
