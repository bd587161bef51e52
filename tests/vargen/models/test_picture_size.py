"""Sizes of pictures as users ask for them."""

from functools import partial

import pytest
from emu3_models import processor as emu3_processor
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from vargen.models.picture_size import asked_grid, grid_of_ratio


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from([512 * 512, 720 * 720, 1024 * 1024]))
def test_a_ratio_is_rounded_as_the_processor_of_emu3_rounds(across, down, area):
    expected = emu3_processor().calculate_generate_size(f"{across}:{down}", area, 8)
    assert grid_of_ratio(f"{across}:{down}", area, 8) == tuple(map(int, expected))


def test_both_sides_or_a_ratio_or_neither():
    of_ratio = partial(grid_of_ratio, area=1024 * 1024, pixels_a_token=32)
    assert asked_grid(480, 640, None, 8, of_ratio) == (60, 80)
    assert asked_grid(None, None, "16:9", 32, of_ratio) == (24, 43)
    assert asked_grid(None, None, None, 32, of_ratio) == (32, 32)


@pytest.mark.parametrize(
    ("asked", "line"),
    [
        ((480, None, None), "height and width must be given both"),
        ((480, 640, "4:3"), "ratio cannot be given beside height and width"),
        ((480, 644, None), "width must be a multiple of 8, got 644"),
        ((0, 640, None), "height must be"),
        ((None, None, "wide"), "ratio must be WIDTH:HEIGHT in whole numbers, such as \"16:9\", got 'wide'"),
        ((None, None, "0:3"), "ratio must be WIDTH:HEIGHT"),
        ((None, None, "100000:1"), "ratio must leave a line and a column"),
    ],
)
def test_a_size_that_cannot_be_drawn_is_refused_by_name(asked, line):
    refused(line, asked_grid, *asked, 8, partial(grid_of_ratio, area=720 * 720, pixels_a_token=8))
