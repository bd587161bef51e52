"""ZipAR through the pipeline: pictures, passes, batches, streams, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emu3_models import Emu3Components
from tiny_pipelines import GRID

from vargen.base.errors import UserError
from vargen.base.resources import find_model
from vargen.methods.catalogue import resolve_method
from vargen.models.llamagen.target import LlamaGenTarget
from vargen.pipelines.components.base import ModelComponents
from vargen.pipelines.components.janus import JanusComponents
from vargen.pipelines.llamagen import LlamaGenPipeline

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on grass", "two cones"]


def arguments(rows: list[int], window: int) -> dict[str, Any]:
    return {
        "prompt": [PROMPTS[row] for row in rows],
        "generator": [torch.Generator().manual_seed(row) for row in rows],
        "method": resolve_method("zipar", {"window": window}),
        "output_type": "latent",
    }


@pytest.mark.parametrize("window", range(1, GRID + 1))
def test_pictures_take_the_passes_of_the_formula_whatever_the_batch(
    tiny_pipeline: LlamaGenPipeline, window: int
) -> None:
    together = tiny_pipeline(**arguments([0, 1, 2], window))
    assert together.trace.target_passes == GRID + (GRID - 1) * window
    stand_ins = GRID - 1 if window < GRID else 0
    assert together.trace.rows_fed == [GRID**2 - 1 + stand_ins] * 3
    for row in range(3):
        assert torch.equal(tiny_pipeline(**arguments([row], window)).tokens[0], together.tokens[row])


def test_a_window_of_a_row_is_plain_decoding(tiny_pipeline: LlamaGenPipeline) -> None:
    plain = tiny_pipeline(**{**arguments([0, 1, 2], 1), "method": "ar"})
    assert torch.equal(tiny_pipeline(**arguments([0, 1, 2], GRID)).tokens, plain.tokens)


@pytest.mark.parametrize("continuous", [True, False])
def test_a_stream_draws_the_same_pictures(tiny_pipeline: LlamaGenPipeline, continuous: bool) -> None:
    together = tiny_pipeline(**arguments([0, 1, 2], 2)).tokens
    stream = tiny_pipeline.stream(**arguments([0, 1, 2], 2), batch_size=2, continuous=continuous)
    drawn = {picture.index: picture for picture in stream}
    assert len(drawn) == 3
    for number, picture in drawn.items():
        assert torch.equal(picture.tokens, together[number])
        assert picture.trace.target_passes == GRID + (GRID - 1) * 2


@pytest.mark.parametrize(
    ("window", "message"),
    [
        (0, "zipar.window must be at least 1, got 0"),
        (2.5, "zipar.window must be an integer from 1 to"),
        (GRID + 1, "zipar.window must be between 1 and 4, the tokens of a row of this model's grid, got 5"),
    ],
)
def test_a_window_that_does_not_fit_is_one_line(tiny_pipeline: LlamaGenPipeline, window: Any, message: str) -> None:
    with pytest.raises(UserError) as caught:
        tiny_pipeline(**arguments([0], window))
    assert str(caught.value) == message


@pytest.mark.parametrize("family", [JanusComponents, Emu3Components])
def test_a_model_that_offers_no_grid_is_refused_by_name(family: type[ModelComponents]) -> None:
    components = family.__new__(family)  # its weights do not matter
    with pytest.raises(UserError, match=f"because {family.family} offers no grid"):
        resolve_method("zipar").build(components)


def test_compiled_passes_are_refused(tiny_pipeline: LlamaGenPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    start = LlamaGenTarget.__init__

    def compiled(target: LlamaGenTarget, *given: Any, **named: Any) -> None:
        start(target, *given, **named)
        target.compiler = object()  # type: ignore[assignment]

    monkeypatch.setattr(LlamaGenTarget, "__init__", compiled)
    with pytest.raises(UserError, match="compile: passes over places of the grid are not compiled"):
        tiny_pipeline(**arguments([0], 2))


def test_the_shipped_model_takes_the_passes_of_the_published_rule() -> None:
    pipeline = LlamaGenPipeline.from_pretrained(find_model())
    pipeline.set_progress_bar_config(disable=True)
    for window, passes in ((1, 31), (2, 46), (4, 76)):
        trace = pipeline(**arguments([0], window)).trace
        assert (trace.target_passes, trace.rows_fed, trace.row_tokens) == (passes, [270], [256])
