"""A picture of how a picture was made: the token grid coloured by where each token came from, and the steps in time.

Belongs here: drawing from a `DecodeTrace`. Does not belong here: recording, and any figure over several pictures.
"""

from __future__ import annotations

from collections.abc import Collection

from PIL import Image, ImageDraw, ImageFont

from specdecode.trace import DecodeTrace, TokenOrigin

ORIGIN_COLOURS = {
    TokenOrigin.TARGET: (120, 124, 130),
    TokenOrigin.ACCEPTED: (44, 123, 182),
    TokenOrigin.RELAXED: (253, 174, 97),
    TokenOrigin.UNVERIFIED: (202, 40, 60),
}
"""Grey, blue, orange, red: told apart by people with colour-blindness too."""
ORIGIN_LABELS = {
    TokenOrigin.TARGET: "drawn by the target",
    TokenOrigin.ACCEPTED: "drafted, verified",
    TokenOrigin.RELAXED: "drafted, accepted by relaxation",
    TokenOrigin.UNVERIFIED: "drafted, never verified",
}

_SIDE = 384
_MARGIN = 12
_LINE = 18
_TIMELINE_HEIGHT = 96
_INK, _PAPER = (40, 40, 40), (255, 255, 255)


def draw_trace(
    image: Image.Image, trace: DecodeTrace, row: int, grid_size: int, beside_grid: Collection[int] = ()
) -> Image.Image:
    """The picture, its token grid, and a timeline of its steps.

    The timeline has one bar per target pass, prefill included: as high as the tokens it added, in their colours from
    the bottom up; tokens taken unverified before a pass stand below the pass's own.

    Args:
        image: the picture, of any size.
        trace: of the call that made it.
        row: which picture of the call.
        grid_size: tokens along a side.
        beside_grid: places of tokens that are none of the grid's; they stand in the timeline alone.

    Raises:
        ValueError: the row has not exactly `grid_size ** 2` tokens in the grid.
    """
    origins = trace.token_origins[row]
    in_grid = [origin for place, origin in enumerate(origins) if place not in beside_grid]
    if len(in_grid) != grid_size**2:
        raise ValueError(
            f"grid_size: a grid of {grid_size} has {grid_size**2} tokens, but row {row} has {len(in_grid)}"
        )
    width = 3 * _MARGIN + 2 * _SIDE
    legend_top = 2 * _MARGIN + _SIDE
    timeline_top = legend_top + _LINE * 2 + _MARGIN
    sheet = Image.new("RGB", (width, timeline_top + _TIMELINE_HEIGHT + _LINE + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    picture = image.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    sheet.paste(picture, (_MARGIN, _MARGIN))
    _draw_grid(sheet, picture, in_grid, grid_size, (2 * _MARGIN + _SIDE, _MARGIN))
    for number, (origin, label) in enumerate(ORIGIN_LABELS.items()):
        left = _MARGIN + (number % 2) * (width // 2 - _MARGIN)
        top = legend_top + (number // 2) * _LINE
        draw.rectangle((left, top + 3, left + 11, top + 14), fill=ORIGIN_COLOURS[origin])
        draw.text((left + 18, top), f"{label}: {origins.count(origin)}", fill=_INK, font=font)
    bars = _bars(trace, row, origins)
    _draw_timeline(draw, bars, (_MARGIN, timeline_top), width - 2 * _MARGIN)
    passes = f"{len(bars)} target passes, one bar each, for {len(origins)} tokens"
    draw.text((_MARGIN, timeline_top + _TIMELINE_HEIGHT + 3), passes, fill=_INK, font=font)
    return sheet


def _draw_grid(
    sheet: Image.Image, picture: Image.Image, origins: list[TokenOrigin], grid_size: int, corner: tuple[int, int]
) -> None:
    """The picture in grey under the colours of its tokens."""
    colours = Image.new("RGB", (grid_size, grid_size))
    colours.putdata([ORIGIN_COLOURS[origin] for origin in origins])
    colours = colours.resize(picture.size, Image.Resampling.NEAREST)
    sheet.paste(Image.blend(picture.convert("L").convert("RGB"), colours, 0.62), corner)
    draw = ImageDraw.Draw(sheet)
    for line in range(grid_size + 1):
        at = round(line * _SIDE / grid_size)
        left, top = corner
        draw.line((left + at, top, left + at, top + _SIDE), fill=_PAPER)
        draw.line((left, top + at, left + _SIDE, top + at), fill=_PAPER)


def _bars(trace: DecodeTrace, row: int, origins: list[TokenOrigin]) -> list[list[TokenOrigin]]:
    """The origins of the tokens that each pass of the row added, the prefill's one first."""
    bars, taken = [origins[:1]], 1
    for step in trace.steps:
        count = step["skipped"][row] + step["emitted"][row]
        if count:
            bars.append(origins[taken : taken + count])
            taken += count
    return bars


def _draw_timeline(
    draw: ImageDraw.ImageDraw, bars: list[list[TokenOrigin]], corner: tuple[int, int], width: int
) -> None:
    left, top = corner
    bottom = top + _TIMELINE_HEIGHT
    unit = _TIMELINE_HEIGHT / max(map(len, bars))
    pitch = width / len(bars)
    gap = 1 if pitch >= 4 else 0
    for number, bar in enumerate(bars):
        x = left + number * pitch
        for height, origin in enumerate(bar):
            y = bottom - (height + 1) * unit + 1
            box = (x, y, max(x, x + pitch - 1 - gap), max(y, bottom - height * unit - 1))
            draw.rectangle(box, fill=ORIGIN_COLOURS[origin])
    draw.line((left, bottom, left + width, bottom), fill=_INK)
