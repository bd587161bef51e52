"""How a picture was made: the token grid coloured by the origin of each token, and the passes in time.

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
"""Grey, blue, orange, red, which colour-blind people can tell apart."""
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
_FLIGHT_PITCH = 6
_INK, _PAPER = (40, 40, 40), (255, 255, 255)


def draw_trace(
    image: Image.Image, trace: DecodeTrace, row: int, grid: tuple[int, int], beside_grid: Collection[int] = ()
) -> Image.Image:
    """The picture, its token grid, and a timeline of its steps.

    The timeline has one bar for each target pass, prefill included. Its height is the number of tokens that the pass
    added, in their colours. Tokens that were taken unverified before the pass stand below its own. Where rows of the
    grid are drawn side by side, each row has a line below that: the passes from its first token to its last.

    Args:
        image: the picture, of any size; it is drawn in the shape of the grid.
        trace, row: of the call that made it, and which picture of that call it is.
        grid: tokens down and across.
        beside_grid: places of tokens outside the grid, which stand in the timeline alone.

    Raises:
        ValueError: the row has another number of tokens than the grid.
    """
    origins = trace.token_origins[row]
    in_grid = [origin for place, origin in enumerate(origins) if place not in beside_grid]
    rows, columns = grid
    if len(in_grid) != (tokens := rows * columns):
        raise ValueError(f"grid: one of {rows} x {columns} has {tokens} tokens, but row {row} has {len(in_grid)}")
    size = round(columns * _SIDE / max(grid)), round(rows * _SIDE / max(grid))
    width = 3 * _MARGIN + 2 * _SIDE
    legend_top = 2 * _MARGIN + size[1]
    timeline_top = legend_top + _LINE * 2 + _MARGIN
    passes_of = trace.token_passes[row]
    in_flight = passes_of != sorted(passes_of)  # rows of the grid, side by side
    flights_top = timeline_top + _TIMELINE_HEIGHT + _LINE + _MARGIN
    sheet = Image.new("RGB", (width, flights_top + in_flight * (rows * _FLIGHT_PITCH + _LINE + _MARGIN)), _PAPER)
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(12)
    picture = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    sheet.paste(picture, (_MARGIN, _MARGIN))
    _draw_grid(sheet, picture, in_grid, grid, (2 * _MARGIN + _SIDE, _MARGIN))
    for number, (origin, label) in enumerate(ORIGIN_LABELS.items()):
        left, top = _MARGIN + (number % 2) * (width // 2 - _MARGIN), legend_top + (number // 2) * _LINE
        draw.rectangle((left, top + 3, left + 11, top + 14), fill=ORIGIN_COLOURS[origin])
        draw.text((left + 18, top), f"{label}: {origins.count(origin)}", fill=_INK, font=font)
    bars = _bars(passes_of, origins)
    _draw_timeline(draw, bars, (_MARGIN, timeline_top), width - 2 * _MARGIN)
    passes = f"{len(bars)} target passes, one bar each, for {len(origins)} tokens"
    draw.text((_MARGIN, timeline_top + _TIMELINE_HEIGHT + 3), passes, fill=_INK, font=font)
    if in_flight:
        of_grid = [number for place, number in enumerate(passes_of) if place not in beside_grid]
        _draw_flights(draw, of_grid, columns, (_MARGIN, flights_top), width - 2 * _MARGIN)
        label = "rows of the grid from the top: from the pass that draws the first token to that of the last"
        draw.text((_MARGIN, flights_top + rows * _FLIGHT_PITCH + 3), label, fill=_INK, font=font)
    return sheet


def _draw_grid(
    sheet: Image.Image, picture: Image.Image, origins: list[TokenOrigin], grid: tuple[int, int], corner: tuple[int, int]
) -> None:
    """The picture in grey under the colours of its tokens."""
    rows, columns = grid
    colours = Image.new("RGB", (columns, rows))
    colours.putdata([ORIGIN_COLOURS[origin] for origin in origins])
    colours = colours.resize(picture.size, Image.Resampling.NEAREST)
    sheet.paste(Image.blend(picture.convert("L").convert("RGB"), colours, 0.62), corner)
    draw = ImageDraw.Draw(sheet)
    (left, top), (width, height) = corner, picture.size
    for x in (left + round(line * width / columns) for line in range(columns + 1)):
        draw.line((x, top, x, top + height), fill=_PAPER)
    for y in (top + round(line * height / rows) for line in range(rows + 1)):
        draw.line((left, y, left + width, y), fill=_PAPER)


def _bars(passes: list[int], origins: list[TokenOrigin]) -> list[list[TokenOrigin]]:
    """The origins of the tokens that each pass of the row added, the prefill's one first."""
    bars: list[list[TokenOrigin]] = [[] for _ in range(max(passes) + 1)]
    for number, origin in zip(passes, origins, strict=True):
        bars[number].append(origin)
    return bars


def _draw_flights(
    draw: ImageDraw.ImageDraw, passes: list[int], columns: int, corner: tuple[int, int], width: int
) -> None:
    """One line for each row of the grid, from the pass that drew its first token to the one that drew its last."""
    pitch = width / (max(passes) + 1)
    for number, start in enumerate(range(0, len(passes), columns)):
        of_row = passes[start : start + columns]
        left, right = corner[0] + min(of_row) * pitch, corner[0] + (max(of_row) + 1) * pitch
        top = corner[1] + number * _FLIGHT_PITCH
        draw.rectangle((left, top, right - 1, top + _FLIGHT_PITCH - 2), fill=ORIGIN_COLOURS[TokenOrigin.TARGET])


def _draw_timeline(
    draw: ImageDraw.ImageDraw, bars: list[list[TokenOrigin]], corner: tuple[int, int], width: int
) -> None:
    left, bottom = corner[0], corner[1] + _TIMELINE_HEIGHT
    unit = _TIMELINE_HEIGHT / max(map(len, bars))
    pitch = width / len(bars)
    gap = 1 if pitch >= 4 else 0
    for number, bar in enumerate(bars):
        for height, origin in enumerate(bar):
            x, y = left + number * pitch, bottom - (height + 1) * unit + 1
            box = (x, y, max(x, x + pitch - 1 - gap), max(y, bottom - height * unit - 1))
            draw.rectangle(box, fill=ORIGIN_COLOURS[origin])
    draw.line((left, bottom, left + width, bottom), fill=_INK)
