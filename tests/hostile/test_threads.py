"""The same pictures whatever the number of threads, up to one grey level: what docs/reliability.md promises, with the
project's own kernels and without.

The first tokens of a picture, and the pixels of a whole one: a whole one drawn three times would take a minute.
"""

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from specdecode import RandomStreams, SamplingConfig, decode
from vargen.base.resources import find_model
from vargen.models.llamagen.llamagen_target import LlamaGenTarget
from vargen.pipelines.llamagen import LlamaGenPipeline

THREADS = (1, 2, 4)
NUM_TOKENS = 8


@pytest.fixture(scope="module")
def shipped() -> LlamaGenPipeline:
    return LlamaGenPipeline.from_pretrained(find_model())


@pytest.fixture(autouse=True)
def _threads_afterwards() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kernels", [False, True], ids=["torch", "kernels"])
def test_tokens_are_the_same(shipped, kernels, request):
    if kernels:
        request.getfixturevalue("own_kernels")

    def draw() -> list[list[int]]:
        prompts = ["a large shiny red sphere on sand", "a small matte blue cube"]
        embeds, mask = shipped.encode_prompt(prompts)
        condition = shipped.transformer.embed_condition(caption_embeds=embeds)
        target = LlamaGenTarget(shipped.transformer, condition, mask, guidance_scale=3.0)
        assert shipped.transformer.fast_pass.serves(target.kv_cache) is kernels
        sampling, streams = SamplingConfig(1.0, 100), RandomStreams.from_seeds([0, 1])
        return decode(target, max_new_tokens=NUM_TOKENS, sampling=sampling, streams=streams).tokens.tolist()

    drawn = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        with torch.no_grad():
            drawn.append(draw())
    assert drawn[1] == drawn[0] and drawn[2] == drawn[0]


def test_pixels_differ_by_one_grey_level_at_most(shipped):
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(shipped.transformer.config.vocab_size, (1, 256), generator=generator)
    levels = []
    for threads in THREADS:
        torch.set_num_threads(threads)
        levels.append(np.asarray(shipped.decode_tokens(tokens)[0]).astype(int))
    assert np.abs(levels[1] - levels[0]).max() <= 1 and np.abs(levels[2] - levels[0]).max() <= 1
    assert levels[0].std() > 10
