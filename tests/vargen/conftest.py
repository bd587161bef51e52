"""Pipelines of the tiny models of `tests/shared/tiny_pipelines.py`, for all tests of the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny_pipelines import (  # noqa: F401  # the fixtures are for the tests below
    GRID,
    VOCAB,
    _saved_tiny_pipelines,
    build_tiny_pipeline,
    build_tiny_transformer,
    randomise,
    tiny_class_model_folder,
    tiny_model_folder,
)

from vargen.drafters.eagle_head import EagleHead
from vargen.pipelines.llamagen import LlamaGenPipeline


@pytest.fixture(scope="module")
def tiny_pipeline() -> LlamaGenPipeline:
    """A text-conditional pipeline; tests must leave it as it is."""
    return build_tiny_pipeline()


@pytest.fixture(scope="module")
def identity_pipeline() -> LlamaGenPipeline:
    """The same, but its image tokens attend to words by content."""
    return build_tiny_pipeline(condition_rotary="identity")


@pytest.fixture(scope="module")
def drafting_pipeline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaGenPipeline]:
    """A text-conditional pipeline with a random drafter and a random smaller transformer; measured costs stay here."""
    base = build_tiny_pipeline()
    shared = {"vocab_size": VOCAB, "grid_size": GRID}
    drafter = EagleHead(dim=16, num_attention_heads=2, intermediate_size=20, **shared)
    smaller = build_tiny_transformer(2, dim=8, num_layers=1, num_attention_heads=1, intermediate_size=16)
    randomise(drafter, 1)
    pipeline = LlamaGenPipeline(
        base.transformer,
        base.vqvae,
        base.text_encoder,
        base.tokenizer,
        drafter=drafter.eval(),
        draft_model=smaller,
        default_guidance_scale=3.0,
        default_top_k=0,
    )
    pipeline.set_progress_bar_config(disable=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VARGEN_CACHE", str(tmp_path_factory.mktemp("costs")))
        yield pipeline
