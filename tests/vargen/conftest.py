"""Pipelines of the tiny models of `tests/shared/tiny_pipelines.py`, for all tests of the package."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tiny_pipelines import (  # noqa: F401  # the fixtures are for the tests below
    _plots_without_lines,
    _saved_tiny_pipelines,
    build_drafting_pipeline,
    build_tiny_pipeline,
    tiny_class_model_folder,
    tiny_model_folder,
)

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
    """A text-conditional pipeline with a random draft head and a random draft model; measured costs stay here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VARGEN_CACHE", str(tmp_path_factory.mktemp("costs")))
        yield build_drafting_pipeline()
