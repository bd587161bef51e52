"""Streams of pictures by models of transformers: each is that of its seed alone, whoever had its row before."""

from typing import Any

import family_pipelines
import pytest
import torch
from random_heads import save_random_head
from seeds import seeded
from streamed import check_stream, streamed

from vargen.methods.catalogue import resolve_method

PROMPTS = ["a dog", "a red cat", "the dog runs on sand", "a red cat runs under the rain", "the rain"]
"""The longest joins a batch of shorter ones."""
SEEDS = range(40, 45)
METHODS: list[tuple[str, dict[str, Any]]] = [
    ("ar", {}), ("jacobi", {"window": 5}), ("scd", {"window": 5}), ("vvs-jacobi", {"window": 5, "schedule": "uniform"}),
    ("eagle", {"total_tokens": 12, "depth": 4, "tree_top_k": 3}),
]  # fmt: skip


@pytest.fixture(scope="module", params=["janus", "emu3", "anole"])
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def pipeline(family: str) -> Any:
    """In float64, so that no tie is so near that another batch's rounding decides it."""
    return family_pipelines.build(family)


@pytest.fixture(scope="module")
def head(family: str, pipeline: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    target = pipeline.target_of(PROMPTS[:1], 1)
    dim = int(pipeline.model.config.get_text_config().hidden_size)
    return save_random_head(tmp_path_factory.mktemp("head"), target.vocab_size, grid_size=5, dim=dim)


@pytest.mark.parametrize(
    ("name", "options", "scale"), [*((*each, 4.0) for each in METHODS), (*METHODS[1], 1.0)], ids=str
)
def test_a_picture_of_a_stream_is_that_of_its_seed(family, pipeline, head, name, options, scale):
    method = resolve_method(name, {**options, **({"drafter": head} if name == "eagle" else {})})
    size = family_pipelines.SIZES.get(family, {})
    check_stream(pipeline, PROMPTS, SEEDS, 2, method=method, guidance_scale=scale, **size)


def test_a_negative_prompt_stays_with_its_picture():
    pipeline = family_pipelines.build("emu3")
    away = ["the rain", "", "a red cat runs on sand", "a dog", ""]
    settings = {"output_type": "latent", **family_pipelines.SIZES["emu3"]}
    pictures = streamed(pipeline, PROMPTS, SEEDS, batch_size=2, negative_prompt=away, **settings)
    for seed, prompt, negative, picture in zip(SEEDS, PROMPTS, away, pictures, strict=True):
        (generator,) = seeded(seed)
        alone = pipeline(prompt, negative_prompt=negative, generator=generator, **settings)
        assert torch.equal(picture.image, alone.images[0])
