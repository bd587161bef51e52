"""Pictures that are not finished: every column goes on downwards, and what is not decided is not shown."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vargen.drawing.unfinished import continue_downwards, hide_undecided


@given(grid=st.integers(1, 5), data=st.data())
def test_below_the_last_of_a_column_that_one_goes_on(grid: int, data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, grid**2), min_size=1, max_size=3))
    tokens = torch.arange(1, grid**2 + 1).expand(len(lengths), -1)
    whole = continue_downwards(tokens, torch.tensor(lengths), grid)
    for row, length in zip(whole.tolist(), lengths, strict=True):
        for place, token in enumerate(row):
            while place >= length and place >= grid:
                place -= grid
            assert token == (place + 1 if place < length else 1)


def test_what_is_not_decided_is_transparent() -> None:
    shown = hide_undecided(Image.new("RGB", (8, 8), (10, 20, 30)), 6, 4)
    opaque = [[shown.getpixel((2 * column, 2 * row))[3] == 255 for column in range(4)] for row in range(4)]
    assert opaque == [[True] * 4, [True, True, False, False], [False] * 4, [False] * 4]
    assert shown.getpixel((0, 0))[:3] == (10, 20, 30)
