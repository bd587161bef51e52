"""Lines of several sizes in one batch, and where lines lie among places: a map between places and cells.

Belongs here: which cell of [lines, columns] a place is. Not here: when lines open (`row_windows.py`).

A *cell* is a column of a line. All rows have the cells of the largest lines; a row whose lines are shorter or fewer has
cells that are no place.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from specdecode.grid.positions import Lines


class MixedGrids:
    """Lines whose number and length differ from row to row of a batch.

    Args:
        rows: Lines of each row.
        others: Lines that rows may be given later.

    Attributes:
        num_places, num_lines, line_length, stride: The greatest of all. num_slots: See `Lines.num_slots`.
        sizes: The lines of all.
        row_end: The token between two lines; None: there is none.

    Raises:
        ValueError: Lines with different end-of-row tokens, or no lines.
    """

    def __init__(self, rows: Sequence[Lines], others: Sequence[Lines] = ()) -> None:
        if not rows:
            raise ValueError("rows must be at least one")
        self.sizes = (*rows, *others)
        if any(lines.row_end != rows[0].row_end for lines in self.sizes):
            raise ValueError("rows must have the same end-of-row token between lines, or none")
        self.rows, self.row_end = tuple(rows), rows[0].row_end
        self.has_row_ends = rows[0].has_row_ends
        self.num_places, self.num_lines, self.line_length, self.stride = (
            max(getattr(lines, name) for lines in self.sizes)
            for name in ("num_places", "num_lines", "line_length", "stride")
        )
        self.num_slots = self.num_places + (0 if self.has_row_ends else self.num_lines - 1)

    @property
    def forced_tokens(self) -> Tensor | None:
        """[B, num_places] int64, the end-of-row tokens of each row, and -1 elsewhere; None without them."""
        known = [lines.forced_tokens for lines in self.rows]
        padded = [F.pad(each, (0, self.num_places - len(each)), value=-1) for each in known if each is not None]
        return torch.stack(padded) if padded else None


class GridLayout:
    """Where the cells of each row of a batch lie among places. Tensors have one row where lines are of one size.

    Args:
        lines: The lines.
        device: Of its tensors.

    Attributes:
        geometry: [1 or B, 4] int64: tokens of a line, lines, places from line to line, and places.
        line_length: [1 or B, 1] int64.
        num_places: [1 or B] int64.
        firsts: [1 or B, R] int64, the first place of each line.
        is_fed: [1 or B, R, S] bool, cells whose tokens are fed at some time: all places but the last.
        is_end: [1 or B, R, S] bool, the last cell of each line but the last line: of the end-of-row token, or without
            these of the line's last token.
        line_of, position_of: [1 or B, W] int64, of what lies in each slot.
        placeholders: [s] int64, lines with a placeholder.
    """

    graph_state = (
        *("geometry", "line_length", "num_places", "firsts", "is_fed", "is_end", "placeholders", "line_of"),
        *("position_of", "_cell_of", "_place_of"),
    )

    def __init__(self, lines: Lines | MixedGrids, device: torch.device) -> None:
        rows = lines.rows if isinstance(lines, MixedGrids) else (lines,)
        lengths, heights, strides, ends = (
            torch.tensor([[getattr(each, name)] for each in rows], device=device)
            for name in ("line_length", "num_lines", "stride", "num_places")
        )
        self.geometry = torch.cat((lengths, heights, strides, ends), 1)
        self._count, self._shape = lines.num_places, (lines.num_lines, lines.stride)
        places, numbers, columns = (
            torch.arange(count, device=device) for count in (lines.num_places, lines.num_lines, lines.stride)
        )
        self.line_length, self.num_places, self.firsts = lengths, ends[:, 0], numbers * strides
        own = self.firsts[..., None] + columns  # [B, R, S]
        is_place = (columns < strides[..., None]) & (own < ends[..., None])
        self.is_fed = is_place & (own < ends[..., None] - 1)
        self.is_end = (columns == strides[..., None] - 1) & (numbers < heights - 1)[..., None]
        self.placeholders = numbers[1:][: lines.num_slots - lines.num_places]
        before = (self.firsts[:, self.placeholders] - 1).clamp(max=lines.num_places - 1)
        self.line_of = torch.cat((places // strides, self.placeholders.expand(len(rows), -1)), 1)
        self.position_of = torch.cat((places.expand(len(rows), -1), before), 1)
        self._cell_of: Tensor | None = None  # by place
        self._place_of: Tensor | None = None  # by cell
        if isinstance(lines, MixedGrids):
            cells = places // strides * lines.stride + places % strides
            no_place, no_cell = lines.num_places, lines.num_lines * lines.stride
            self._cell_of = cells.where(places < ends, no_cell)
            self._place_of = own.where(is_place, no_place).flatten(1)

    def by_line(self, values: Tensor) -> Tensor:
        """[B, R, S] of values [B, N + 1], whose last column is no place. Write to neither afterwards."""
        if self._place_of is not None:
            values = values.gather(1, self._place_of)
        height, stride = self._shape
        return values[:, : height * stride].view(len(values), height, stride)

    def by_place(self, cells: Tensor) -> Tensor:
        """[B, N] of cells [B, R, S]; 0 at what is no place of a row."""
        flat = cells.flatten(1)
        if self._cell_of is not None:
            return F.pad(flat, (0, 1)).gather(1, self._cell_of)
        return flat[:, : self._count]

    def replace_rows(self, rows: Tensor, other: GridLayout) -> None:
        """Give rows [k] the lines of another layout of the same greatest sizes."""
        if self._cell_of is None or other._cell_of is None:
            return  # all are alike
        for name in self.graph_state:
            if name != "placeholders":
                getattr(self, name).index_copy_(0, rows, getattr(other, name))
