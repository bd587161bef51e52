"""The same pictures whatever the number of threads, up to one grey level: what docs/reliability.md promises."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from vargen.pipelines.llamagen import LlamaGenPipeline
from vargen.resources import find_model

PROMPTS = ["a large shiny red sphere on sand", "a small matte blue cube"]


@pytest.fixture(autouse=True)
def _threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_whole_pictures_of_the_shipped_model_are_the_same() -> None:
    """By a method that takes few passes; its tokens are plain decoding's."""
    pipeline = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    tokens, levels = [], []
    for threads in (1, 2, 4):
        torch.set_num_threads(threads)
        generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
        output = pipeline(PROMPTS, method="jacobi", generator=generators)
        tokens.append(output.tokens)
        levels.append(np.stack([np.asarray(image).astype(int) for image in output.images]))
    assert torch.equal(tokens[1], tokens[0]) and torch.equal(tokens[2], tokens[0])
    assert np.abs(levels[1] - levels[0]).max() <= 1 and np.abs(levels[2] - levels[0]).max() <= 1
    assert levels[0].std() > 10 and not np.array_equal(levels[0][0], levels[0][1])
