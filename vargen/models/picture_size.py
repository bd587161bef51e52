"""Sizes of pictures as users ask for them, in pixels or as a ratio, and the grids of tokens that make them.

Belongs here: arithmetic and refusals, without torch. Does not belong here: which sizes a family can draw
(`vargen.models.description`), and what a processor is told.
"""

from __future__ import annotations

from vargen.base import bounds
from vargen.base.errors import UserError

Grid = tuple[int, int]
"""Tokens down and across."""


def grid_of_sides(height: int, width: int, pixels_a_token: int) -> Grid:
    """The grid of a picture of so many pixels. Raises UserError for a side that is no multiple of a token's."""
    for name, side in (("height", height), ("width", width)):
        bounds.check_number(name, side, pixels_a_token, bounds.MAX_PIXELS)
        if side % pixels_a_token:
            raise UserError(f"{name} must be a multiple of {pixels_a_token}, got {side}")
    return height // pixels_a_token, width // pixels_a_token


def grid_of_ratio(ratio: str, area: int, pixels_a_token: int) -> Grid:
    """The grid of a picture of about so many pixels, rounded as Emu3Processor rounds.

    Args:
        ratio: of width and height, such as "16:9".
        area: pixels altogether.
        pixels_a_token: of a side.

    Raises:
        UserError: it is no ratio, or so uneven that no line or column is left.
    """
    across, colon, down = ratio.partition(":")
    if not (colon and across.isdecimal() and down.isdecimal() and int(across) and int(down)):
        raise UserError(f'ratio must be WIDTH:HEIGHT in whole numbers, such as "16:9", got {ratio!r}')
    scale = (area / (int(across) * int(down))) ** 0.5 / pixels_a_token
    grid = round(int(down) * scale), round(int(across) * scale)
    if not all(grid):
        raise UserError(f"ratio must leave a line and a column of {area} pixels, got {ratio!r}")
    return grid


def asked_grid(height: int | None, width: int | None, ratio: str | None, area: int, pixels_a_token: int) -> Grid:
    """The grid of a picture of which either both sides are given, or a ratio.

    Raises:
        UserError: a side alone, a ratio beside sides, or a size that cannot be drawn.
    """
    if (height is None) != (width is None):
        raise UserError("height and width must be given both, or none of them; ratio stands for both")
    if height is None or width is None:
        return grid_of_ratio(ratio or "1:1", area, pixels_a_token)
    if ratio is not None:
        raise UserError("ratio cannot be given beside height and width, which say it already; leave one out")
    return grid_of_sides(height, width, pixels_a_token)
