"""Methods that draw rows of the grid side by side: pictures, passes, batches, streams, and what they refuse."""

from typing import Any

import pytest
import torch
from refusals import refused
from seeds import seeded
from tiny_pipelines import GRID

from vargen.methods.catalogue import resolve_method
from vargen.models.glm_image.glm_image_components import GlmImageComponents

PROMPTS = ["a red cube", "a small shiny blue sphere left of a large green cone on grass", "two cones"]


def draw(pipeline: Any, rows: list[int], name: str, options: dict[str, Any] | None = None) -> Any:
    method, prompts = resolve_method(name, options), [PROMPTS[row] for row in rows]
    return pipeline(prompts, generator=seeded(*rows), method=method, output_type="latent")


@pytest.mark.parametrize("window", range(1, GRID + 1))
def test_zipar_takes_the_passes_of_the_formula_whatever_the_batch(tiny_pipeline, window):
    together = draw(tiny_pipeline, [0, 1, 2], "zipar", {"window": window})
    assert together.trace.target_passes == GRID + (GRID - 1) * window
    stand_ins = GRID - 1 if window < GRID else 0
    assert together.trace.rows_fed == [GRID**2 - 1 + stand_ins] * 3
    for row in range(3):
        assert torch.equal(draw(tiny_pipeline, [row], "zipar", {"window": window}).tokens[0], together.tokens[row])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("zipar", {"window": GRID}),
        ("zipar", {"window": GRID, "adaptive": True}),
        ("pjd", {"opens_after": GRID, "guesses": 3}),
        ("pjd", {}),  # a row opens after 5 tokens, or after all that it has
        ("vvs-rows", {"max_visits": GRID}),
    ],
    ids=str,
)
def test_a_row_that_waits_for_the_whole_row_above_is_plain_decoding(tiny_pipeline, name, options):
    plain = draw(tiny_pipeline, [0, 1, 2], "ar")
    assert torch.equal(draw(tiny_pipeline, [0, 1, 2], name, options).tokens, plain.tokens)


def test_settings_for_rows_of_so_many_columns_grow_and_shrink_with_the_grid(tiny_pipeline):
    """The grid has 4 columns, so a quarter of 16 is one token."""
    for name, given, as_if in (
        ("zipar", {"columns": 16, "window": 9}, {"window": 3}),
        ("zipar", {"columns": 16, "window": [16, 4], "adaptive": True}, {"window": [4, 1], "adaptive": True}),
        ("pjd", {"columns": 2, "opens_after": [1, 2]}, {"opens_after": [2, 4]}),
        ("pjd", {"columns": 16}, {"opens_after": 2}),  # 5 of 16
        (
            "vvs-rows",
            {"columns": 16, "opens_after": [4, 12], "guesses": 2, "guessed_columns": 9},
            {"opens_after": [1, 3], "guesses": 2, "guessed_columns": 3},
        ),
    ):
        one, other = (draw(tiny_pipeline, [0, 1], name, each) for each in (given, as_if))
        assert torch.equal(one.tokens, other.tokens) and one.trace.row_passes == other.trace.row_passes


def test_settings_that_do_not_fit_are_one_line(tiny_pipeline):
    least = "must be between 1 and 4, the tokens of a row of this model's grid, got 5$"
    for name, options, message in (
        ("zipar", {"window": []}, "^zipar.window must be an integer or a list of some, got an empty list$"),
        ("zipar", {"window": [2, GRID + 1]}, f"^zipar.window {least}"),
        ("vvs-rows", {"columns": 16, "opens_after": [4, 17]}, r"opens_after must be at most .*columns \(16\), got 17$"),
        ("vvs-rows", {"opens_after": GRID + 1}, f"^vvs-rows.opens_after {least}"),
    ):
        refused(message, draw, tiny_pipeline, [0], name, options)


def test_a_model_that_offers_no_grid_is_refused_by_name():
    components = GlmImageComponents.__new__(GlmImageComponents)  # its weights do not matter
    for name in ("zipar", "pjd", "vvs-rows"):
        refused("because GLM-Image offers no grid", resolve_method(name).build, components)
