"""Streams of pictures: every method's picture is that of its seed alone, whoever had its row before."""

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from refusals import raised, refused
from streamed import FIGURES, check_stream, streamed

from vargen.base.errors import NotFiniteError
from vargen.methods.base import ImageMethodConfig
from vargen.methods.catalogue import methods_for, resolve_method
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = [
    "a cone",
    "a small shiny blue sphere left of a large green cone on grass",
    "a red cube",
    "two cones",
    "a large matte yellow cylinder behind a red cube and a small blue cone",
]
SEEDS = range(100, 105)
SKIPPING = {"total_tokens": 10, "depth": 3}
CASES: list[tuple[str, dict[str, Any]]] = [
    *((config.name, {}) for config in methods_for("image").values()),
    ("jacobi", {"window": 5, "branches": 3, "branch_depth": 2}),
    ("scd", {"window": 5, "coupling": "maximal", "keep_overlap": 0.5}),
    *(("scd", {"window": 5, "corrected_by": by, "branches": 2}) for by in ("head", "draft_model")),
    ("eagle", {"tree": "mc_sim_7b_63", "children": "sampled"}),
    ("vvs", {**SKIPPING, "schedule": "uniform", "interval": 3}),
    ("vvs", {**SKIPPING, "schedule": "dynamic", "threshold": -0.5}),
    ("vvs", {**SKIPPING, "schedule": "likeness", "threshold": 0.1}),
    *(("vvs-jacobi", {"window": 5, "schedule": "uniform", "corrected_by": by}) for by in (None, "head")),
]


@pytest.fixture(scope="module")
def pipeline(drafting_pipeline: LlamaGenPipeline) -> LlamaGenPipeline:
    """In float64, so that no tie is so near that another batch's rounding decides it."""
    return copy.deepcopy(drafting_pipeline).to(torch.float64)


def check(
    pipeline: LlamaGenPipeline, method: str | ImageMethodConfig, seeds: Sequence[int], batch_size: int, **other: Any
) -> None:
    timed = len(pipeline.resolve_method(method).sizes(16)) > 1  # what is drafted, and how much of it stays
    prompts = [PROMPTS[seed % len(PROMPTS)] for seed in seeds]
    check_stream(pipeline, prompts, seeds, batch_size, () if timed else FIGURES, method=method, **other)


@pytest.mark.parametrize(
    ("name", "options", "temperature"),
    [(*case, 1.0) for case in CASES] + [(name, {}, 0.0) for name in ("eagle", "vvs-jacobi")],
    ids=str,
)
def test_a_picture_of_a_stream_is_that_of_its_seed(pipeline, name, options, temperature):
    check(pipeline, resolve_method(name, options), SEEDS, 2, temperature=temperature)


@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seeds=st.lists(st.integers(0, 30), min_size=1, max_size=7),
    batch_size=st.integers(1, 4),
    method=st.sampled_from(["jacobi", "vvs", "draft-model"]),
    scale=st.sampled_from([1.0, 3.0]),
)
def test_no_order_of_the_queue_changes_a_picture(pipeline, seeds, batch_size, method, scale):
    check(pipeline, method, seeds, batch_size, guidance_scale=scale)


def test_fixed_batches_give_the_same_pictures_in_more_passes(pipeline):
    passes = {}
    for continuous in (True, False):
        stream = pipeline.stream(
            PROMPTS * 3, batch_size=3, generator=torch.Generator().manual_seed(3), method="sjd", continuous=continuous
        )
        passes[continuous] = {picture.index: picture.trace.accepted_lengths for picture in stream}, stream.trace
    assert passes[True][0] == passes[False][0]
    assert set(passes[True][1].phase_seconds) == {"encode_prompt", "prefill", "decode", "decode_images"}
    assert passes[False][1].target_passes >= 5 * 2


@pytest.mark.parametrize("continuous", [True, False])
def test_who_looks_on_sees_which_picture_a_row_is_of(pipeline, continuous):
    seen: list[tuple[int, list[int | None]]] = []

    def look(pipeline: Any, step: int, lengths: torch.Tensor, tensors: dict[str, Any]) -> None:
        rows = len(tensors["pictures"])
        assert tensors["tokens"].shape == (rows, 16) and lengths.shape == (rows,)
        seen.append((step, list(tensors["pictures"])))

    watched = {"callback_on_step_end": look, "continuous": continuous, "output_type": "latent"}
    streamed(pipeline, PROMPTS, SEEDS, batch_size=2, method="jacobi", **watched)
    assert {picture for _, pictures in seen for picture in pictures} - {None} == set(range(5))
    if continuous:
        assert [step for step, _ in seen] == list(range(len(seen)))
        assert all(len(pictures) == 2 for _, pictures in seen)
        return
    for _, pictures in seen:  # batches of 0 and 1, of 2 and 3, and of 4 alone
        (batch,) = {picture // 2 for picture in pictures if picture is not None}
        assert len(pictures) == (2, 2, 1)[batch]
    assert [step for step, _ in seen].count(0) == 3, "every batch begins anew"


def test_bad_numbers_and_bad_arguments_are_told(pipeline, monkeypatch):
    refused("batch_size must", pipeline.stream, PROMPTS, batch_size=0)
    refused("generator must be one per picture, 2 here", pipeline.stream, PROMPTS[:2], generator=[torch.Generator()])
    refused("class_labels cannot be used", pipeline.stream, PROMPTS, class_labels=[1])
    broken = copy.copy(pipeline)
    broken.transformer = copy.deepcopy(pipeline.transformer)
    broken.transformer.lm_head.weight.data[3] = torch.inf
    raised(NotFiniteError, "picture [12] of the stream", streamed, broken, PROMPTS, SEEDS, batch_size=2, method="ar")
