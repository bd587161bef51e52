"""Lines of several sizes: where cells lie among places, row by row, and what does not fit together."""

import pytest
import torch
from placed_pictures import COUNT, LINES, make_placed_model, run_of
from refusals import value_error

from specdecode.grid.mixed_grids import GridLayout, MixedGrids
from specdecode.grid.positions import Lines
from specdecode.grid.row_windows import RowWindows

CPU = torch.device("cpu")
MARKED = [Lines(3 * 3 - 1, 2, row_end=9), Lines(2 * 5 - 1, 4, row_end=9), Lines(1, 1, row_end=9)]
PLAIN = [Lines(6, 2), Lines(8, 4), Lines(1, 1)]


def cells_of(rows: list[Lines], height: int, stride: int) -> list[dict[int, tuple[int, int]]]:
    """By row, the cell of each place, counted out."""
    made = []
    for lines in rows:
        cells = [(line, column) for line in range(height) for column in range(stride) if column < lines.stride]
        made.append(dict(enumerate(cells[: lines.num_places])))
    return made


@pytest.mark.parametrize("rows", [MARKED, PLAIN], ids=["end-of-row tokens", "no end-of-row tokens"])
def test_each_row_has_its_own_cells(rows):
    lines = MixedGrids(rows)
    layout, height, stride = GridLayout(lines, CPU), lines.num_lines, lines.stride
    assert (height, stride, lines.num_places) == ((3, 5, 9) if lines.has_row_ends else (3, 4, 8))
    values = torch.arange(1, lines.num_places + 1).repeat(3, 1)
    by_line = layout.by_line(torch.cat((values, torch.zeros(3, 1, dtype=torch.int64)), 1))
    placeholders = [] if lines.has_row_ends else [1, 2]
    for row, (own, cells) in enumerate(zip(rows, cells_of(rows, height, stride), strict=True)):
        expected = torch.zeros(height, stride, dtype=torch.int64)
        fed, end = torch.zeros(2, height, stride).bool()
        for place, cell in cells.items():
            expected[cell] = place + 1
            fed[cell] = place < own.num_places - 1
            end[cell] = cell[1] == own.stride - 1 and cell[0] < own.num_lines - 1
            assert layout.line_of[row, place] == cell[0]
        assert torch.equal(by_line[row], expected)
        assert torch.equal(layout.is_fed[row], fed) and torch.equal(layout.is_end[row] & fed, end & fed)
        assert layout.num_places[row] == own.num_places and layout.line_length[row] == own.line_length
        before = [min(line * own.stride - 1, lines.num_places - 1) for line in placeholders]
        assert layout.position_of[row].tolist() == [*range(lines.num_places), *before]
    there = torch.arange(lines.num_places) < layout.num_places[:, None]
    assert torch.equal(layout.by_place(by_line), values * there)


def test_a_row_takes_the_lines_of_another():
    mine, theirs = GridLayout(MixedGrids(PLAIN), CPU), GridLayout(MixedGrids([PLAIN[2], PLAIN[0]], PLAIN), CPU)
    mine.replace_rows(torch.tensor([0, 2]), theirs)
    now = GridLayout(MixedGrids([PLAIN[2], PLAIN[1], PLAIN[0]]), CPU)
    values = torch.arange(9).expand(3, -1)
    assert torch.equal(mine.by_line(values), now.by_line(values))
    assert torch.equal(mine.by_place(mine.by_line(values)), now.by_place(now.by_line(values)))
    for name in ("line_length", "num_places", "firsts", "is_fed", "is_end", "line_of", "position_of"):
        assert torch.equal(getattr(mine, name), getattr(now, name)), name


def test_lines_of_one_size_need_no_map():
    one, several = GridLayout(LINES, CPU), GridLayout(MixedGrids([LINES] * 2), CPU)
    values = torch.arange(COUNT + 1).expand(2, -1)
    assert torch.equal(one.by_line(values), several.by_line(values))
    assert torch.equal(one.by_place(one.by_line(values)), values[:, :COUNT])


def test_what_does_not_fit_together_is_named():
    value_error("rows must be at least one", MixedGrids, [])
    value_error("rows must have the same end-of-row token between lines", MixedGrids, [PLAIN[0]], MARKED)
    value_error("window must be", RowWindows, MixedGrids(PLAIN), 0)
    rule = RowWindows(MixedGrids([LINES] * 2), 2)
    value_error("row_tokens must be the places of each row", run_of, make_placed_model(), range(2), rule)


def test_windows_and_guesses_fit_each_rows_lines():
    narrow, wide = Lines(6, 2), Lines(8, 4)
    given = RowWindows(MixedGrids([narrow, wide]), (3, 4), guessed_columns=3)
    assert given.windows(narrow) == (0, 2, 2) and given.windows(wide) == (0, 4)
    assert given.guessable(narrow) == 1 and given.guessable(wide) == 3
    part = RowWindows(MixedGrids([narrow, wide]), (7, 3), guessed_columns=4, of_length=8)
    assert part.windows(narrow) == (0, 2, 1) and part.windows(wide) == (0, 2)
    assert part.guessable(narrow) == 1 and part.guessable(wide) == 2
    assert part.passes_between_lines == 1 and given.passes_between_lines == 2


def test_the_shortest_lines_bound_what_a_pass_gains():
    rule = RowWindows(MixedGrids(PLAIN[:2]), 4)
    assert rule.passes_between_lines == 2 and rule.least_passes == 5  # those of plain decoding
    assert MixedGrids(PLAIN).forced_tokens is None
    known = MixedGrids(MARKED).forced_tokens
    assert known is not None and (known == 9).nonzero().tolist() == [[0, 2], [0, 5], [1, 4]]
