"""Grids of tokens for sizes of pictures in pixels or as a ratio.

Belongs here: arithmetic and errors, without torch. Does not belong here: the sizes that a family can draw
(`vargen.models.description`), and inputs of processors.
"""

from __future__ import annotations

from collections.abc import Callable

from vargen.base import bounds
from vargen.base.errors import UserError

Grid = tuple[int, int]
"""Tokens down and across."""


def grid_of_sides(height: int, width: int, pixels_a_token: int) -> Grid:
    """The grid of a picture of this size. Raises UserError for a side that is not a multiple of a token's side."""
    for name, side in (("height", height), ("width", width)):
        bounds.check_number(name, side, pixels_a_token, bounds.MAX_PIXELS)
        if side % pixels_a_token:
            raise UserError(f"{name} must be a multiple of {pixels_a_token}, got {side}")
    return height // pixels_a_token, width // pixels_a_token


def grid_of_ratio(ratio: str, area: int, pixels_a_token: int) -> Grid:
    """The grid of a picture of about `area` pixels, rounded as in Emu3Processor.

    Args:
        ratio: of width and height, such as "16:9".
        area: pixels altogether.
        pixels_a_token: along a side.

    Raises:
        UserError: the text is not a ratio, or the grid would have no line or column.
    """
    across, colon, down = ratio.partition(":")
    if not (colon and across.isdecimal() and down.isdecimal() and int(across) and int(down)):
        raise UserError(f'ratio must be WIDTH:HEIGHT in whole numbers, such as "16:9", got {ratio!r}')
    scale = (area / (int(across) * int(down))) ** 0.5 / pixels_a_token
    grid = round(int(down) * scale), round(int(across) * scale)
    if not all(grid):
        raise UserError(f"ratio must leave a line and a column of {area} pixels, got {ratio!r}")
    return grid


def asked_grid(
    height: int | None, width: int | None, ratio: str | None, pixels_a_token: int, of_ratio: Callable[[str], Grid]
) -> Grid:
    """The grid of a picture, given by both sides or by a ratio, of which `of_ratio` makes one. Raises UserError for one
    side alone, a ratio beside sides, or an invalid size."""
    if (height is None) != (width is None):
        raise UserError("height and width must be given both, or none of them; ratio stands for both")
    if height is None or width is None:
        return of_ratio(ratio or "1:1")
    if ratio is not None:
        raise UserError("ratio cannot be given beside height and width, which say it already; leave one out")
    return grid_of_sides(height, width, pixels_a_token)
