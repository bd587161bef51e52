"""Pictures that are not finished: every column goes on downwards, and what is not decided is not shown."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vargen.drawing.unfinished import continue_downwards, hide_undecided


@given(grid=st.integers(1, 5), data=st.data())
def test_below_the_last_of_a_column_that_one_goes_on(grid, data):
    """Rows of the grid may be in flight side by side, none of them ahead of the one above."""
    counts = data.draw(st.lists(st.lists(st.integers(0, grid), min_size=grid, max_size=grid), min_size=1, max_size=3))
    counts = [[max(max(each), 1), *sorted(each, reverse=True)[1:]] for each in counts]
    decided = torch.tensor([[[column < count for column in range(grid)] for count in each] for each in counts])
    tokens = torch.arange(1, grid**2 + 1).expand(len(counts), -1)
    whole = continue_downwards(tokens, decided.flatten(1), grid)
    for row, known in zip(whole.tolist(), decided.flatten(1).tolist(), strict=True):
        for place, token in enumerate(row):
            while not known[place] and place >= grid:
                place -= grid
            assert token == (place + 1 if known[place] else 1)


def test_what_is_not_decided_is_transparent():
    shown = hide_undecided(Image.new("RGB", (8, 8), (10, 20, 30)), torch.arange(16) < 6, 4)
    opaque = [[shown.getpixel((2 * column, 2 * row))[3] == 255 for column in range(4)] for row in range(4)]
    assert opaque == [[True] * 4, [True, True, False, False], [False] * 4, [False] * 4]
    assert shown.getpixel((0, 0))[:3] == (10, 20, 30)
