"""Tokens are drawn in an order of their own: several in one pass, each after the places that it may see.

Belongs here: lines of places, windows between them, and tokens known by their place. Not here: `row_windows.py`.

A *place* is the position of a token in the result, counted from 0. Slot `p` behind the prompt holds the token of place
`p` and never moves. A *placeholder* holds the place before a line's first one until the real token is known. It has a
slot of its own behind those of all places, and its own line alone sees it. A slot whose token is not decided is masked.
An *end-of-row token* is always the same and stands between two lines. A line behind one needs no placeholder: the token
is fed when the line opens.

Each place is drawn with the random numbers that plain decoding uses for it. So the tokens of a seed are the same in
every batch, and an order that feeds what plain decoding feeds gives plain decoding's tokens.

Source: He et al. 2024, arXiv 2412.04062 (the order). Its released code lets undecided places be seen as zeros, and a
placeholder shares the slot of the place that it holds; here neither is so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from specdecode import ragged
from specdecode.checks import check_counts

Window = int | tuple[int, ...]
"""Tokens of the line before when a line opens: of all lines, or several that are spread evenly over the lines."""


def fill_forced(buffer: Tensor, forced_tokens: Tensor | None) -> None:
    """Write known tokens [num_places] or [B, num_places] to a buffer of tokens [B, num_places or more]."""
    if forced_tokens is not None:
        known = forced_tokens.to(buffer.device)
        first = buffer[:, : known.shape[-1]]
        first.copy_(known.where(known >= 0, first))


def or_forced(drawn: Tensor, forced_tokens: Tensor | None, places: Tensor) -> Tensor:
    """Tokens drawn [B, n] for places [B, n], or the forced ones where [B, N] has any."""
    if forced_tokens is None:
        return drawn
    wanted = ragged.at_places(forced_tokens, places)
    return torch.where(wanted >= 0, wanted, drawn)


@dataclass(frozen=True)
class Lines:
    """Lines of equal length, one behind the other.

    Args:
        num_places: Tokens of a row: whole lines, and the end-of-row tokens between them.
        line_length: Tokens of a line that are drawn.
        row_end: The token between two lines; None: there is none.

    Raises:
        ValueError: Places that do not fill whole lines.
    """

    num_places: int
    line_length: int
    row_end: int | None = None

    def __post_init__(self) -> None:
        check_counts(num_places=self.num_places, line_length=self.line_length)
        if (self.num_places + self.has_row_ends) % self.stride:
            marked = " with an end-of-row token between two" if self.has_row_ends else ""
            raise ValueError(
                f"num_places must be those of whole lines of line_length ({self.line_length}){marked}, got "
                f"{self.num_places}"
            )

    @property
    def sizes(self) -> tuple[Lines, ...]:
        """The lines that rows of the batch may have."""
        return (self,)

    @property
    def has_row_ends(self) -> bool:
        """Whether an end-of-row token stands between two lines."""
        return self.row_end is not None

    @property
    def stride(self) -> int:
        """Places from the first of a line to the first of the next."""
        return self.line_length + self.has_row_ends

    @property
    def num_lines(self) -> int:
        """R."""
        return (self.num_places + self.has_row_ends) // self.stride

    @property
    def num_slots(self) -> int:
        """Slots behind the prompt: of every place, and of the placeholders before all lines but the first."""
        return self.num_places + (0 if self.has_row_ends else self.num_lines - 1)

    @property
    def forced_tokens(self) -> Tensor | None:
        """[num_places] int64, the end-of-row tokens, and -1 elsewhere; None without them."""
        if self.row_end is None:
            return None
        known = torch.full((self.num_places,), -1)
        known[self.line_length :: self.stride] = self.row_end
        return known

    def windows(self, window: Window) -> tuple[int, ...]:
        """The window of each line; 0 of the first, which nothing precedes."""
        given, count = each_window(window), self.num_lines
        return (0, *(given[line * len(given) // count] for line in range(1, count)))


def each_window(window: Window) -> tuple[int, ...]:
    """All that are given. Raises ValueError for none, or for one below 1."""
    given = window if isinstance(window, tuple) else (window,)
    if not given:
        raise ValueError("window must be a number, or at least one")
    for each in given:
        check_counts(window=each)
    return given


def in_proportion(count: int, line_length: int, of_length: int | None) -> int:
    """Tokens of a line, meant for lines of `of_length`, for one of `line_length`, rounded up; None: as given."""
    return count if of_length is None else -(-count * line_length // of_length)


def scaled_window(window: Window, line_length: int, of_length: int | None) -> tuple[int, ...]:
    """All of a window by `in_proportion`."""
    return tuple(in_proportion(each, line_length, of_length) for each in each_window(window))
