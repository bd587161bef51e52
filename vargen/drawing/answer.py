"""An answer about a video: its words, and how each was decided, as HTML for pages that show it while it appears; and as
a picture with the video's frames, and how much each word depends on the video.

Belongs here: drawing. Does not belong here: measuring relevance (`answering.py`), recording origins
(`specdecode.trace`), the trace of a generated picture (`vargen.drawing.trace_image`).
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from specdecode.trace import TokenOrigin
from vargen.drawing.sheet import to_pil, wrap_text
from vargen.drawing.trace_image import ORIGIN_COLOURS
from vargen.drawing.trace_image import ORIGIN_LABELS as PICTURE_LABELS

ORIGIN_LABELS = {**PICTURE_LABELS, TokenOrigin.TARGET: "the target's own"}
"""Labels of `vargen.drawing.trace_image`, but for greedy decoding, which draws no token."""

MAX_FRAMES = 16
"""Largest number of frames that are shown. They are evenly spread over a longer video."""

_WIDTH = 1080
_MARGIN = 28
_INNER = _WIDTH - 2 * _MARGIN
_FRAMES_A_ROW = 8
_FRAME_GAP = 6
_FONT_SIZE, _SMALL_FONT_SIZE, _TITLE_FONT_SIZE = 21, 15, 18
_LINE_HEIGHT, _TITLE_LINE = 44, 26
_WORD_HEIGHT = 28
_WORD_GAP = 5
_PADDING = 4
_BAR_HEIGHT = 5
_LEGEND_LINE = 26
_INK, _FAINT_INK, _PAPER, _RULE = (34, 34, 38), (105, 108, 114), (255, 255, 255), (222, 224, 228)
_RELEVANT = (112, 196, 130)
_MARKS = tuple(".,;:!?)]}%'\u2019\u201d\u2026")
# Two conventions of writing a space, and one of writing a line break, in the tokens themselves.
_SPELLINGS = str.maketrans({"\u0120": " ", "\u2581": " ", "\u010a": "\n"})

_Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class _Box:
    """A token in its place: `left` and `width` in pixels, `line` of the text, `offset` of the text in the box."""

    token: int
    text: str
    left: int
    line: int
    width: int
    offset: int


def draw_answer(
    frames: Tensor, tokens: Sequence[str], origins: Sequence[TokenOrigin], relevance: Sequence[float] | None, title: str
) -> Image.Image:
    """The frames of a video above the words of an answer.

    The colour of the bar under a token says how it was decided. A greener background means a token more relevant
    to the video: white for the least relevant of this answer, full green for the most.

    Args:
        frames: [F, 3, H, W], float in [0, 1], F at least 1.
        tokens: the texts of the answer's tokens; a space at the start of a token begins a word. Where no token has one,
            every token is a word.
        origins: one for each token.
        relevance: one for each token, on any scale, nan where it is unknown; None for no backgrounds.
        title: of the picture, such as the question, the method and its figures; line breaks are kept.

    Raises:
        ValueError: the number of origins or relevances differs from that of tokens.
    """
    for name, given in (("origins", origins), ("relevance", relevance)):
        if given is not None and len(given) != len(tokens):
            raise ValueError(f"{name}: {len(given)} given for {len(tokens)} tokens; give one each")
    font, small, title_font = map(ImageFont.load_default, (_FONT_SIZE, _SMALL_FONT_SIZE, _TITLE_FONT_SIZE))
    strip = _frame_strip(to_pil(frames))
    boxes = _flow(tokens, font)
    shares = [None] * len(tokens) if relevance is None else _within_answer(relevance)
    title_lines = wrap_text(title, title_font, _INNER)

    title_top = _MARGIN + strip.height + _MARGIN // 2
    text_top = title_top + len(title_lines) * _TITLE_LINE + _MARGIN // 2
    legend_top = text_top + (max((box.line for box in boxes), default=0) + 1) * _LINE_HEIGHT + _MARGIN // 2
    legend_height = _LEGEND_LINE * (2 + (relevance is not None)) + _MARGIN // 2
    sheet = Image.new("RGB", (_WIDTH, legend_top + legend_height + _MARGIN), _PAPER)
    draw = ImageDraw.Draw(sheet)

    sheet.paste(strip, (_MARGIN, _MARGIN))
    for number, line in enumerate(title_lines):
        place = (_MARGIN, title_top + number * _TITLE_LINE)
        draw.text(place, line, fill=_FAINT_INK if number else _INK, font=title_font)
    for box in boxes:
        left, top = _MARGIN + box.left, text_top + box.line * _LINE_HEIGHT
        right, share = left + box.width - 1, shares[box.token]
        if share is not None:
            draw.rectangle((left, top, right, top + _WORD_HEIGHT), fill=relevance_colour(share))
        # Two pixels of white between bars show where a token ends within a word.
        bar = (left, top + _WORD_HEIGHT + 2, right - 2, top + _WORD_HEIGHT + 1 + _BAR_HEIGHT)
        draw.rectangle(bar, fill=ORIGIN_COLOURS[origins[box.token]])
        draw.text((left + box.offset, top + 1), box.text, fill=_INK, font=font)
    draw.line((_MARGIN, legend_top, _WIDTH - _MARGIN, legend_top), fill=_RULE)
    _draw_legend(draw, legend_top + _MARGIN // 2, origins, relevance is not None, small)
    return sheet


def relevance_colour(share: float) -> tuple[int, int, int]:
    """The background of a token that lies this share, 0 to 1, of the way from the least relevant to the most."""
    red, green, blue = (round(white + share * (full - white)) for white, full in zip(_PAPER, _RELEVANT, strict=True))
    return red, green, blue


def _within_answer(relevance: Sequence[float]) -> list[float | None]:
    """Shares between the least and the most; None for what is not known."""
    known = [value for value in relevance if not math.isnan(value)]
    low, high = min(known, default=0.0), max(known, default=0.0)
    return [None if math.isnan(value) else (value - low) / (high - low) if high > low else 0.0 for value in relevance]


def _frame_strip(frames: Sequence[Image.Image]) -> Image.Image:
    """The frames in rows as wide as the text; at most `MAX_FRAMES`."""
    count = min(len(frames), MAX_FRAMES)
    chosen = [frames[number * len(frames) // count] for number in range(count)]
    across = min(count, _FRAMES_A_ROW)
    # Few frames are not blown up: no wider than a quarter of the picture.
    width = min((_INNER - (across - 1) * _FRAME_GAP) // across, _INNER // 4)
    height = max(1, round(width * chosen[0].height / chosen[0].width))
    rows = math.ceil(count / across)
    strip = Image.new("RGB", (_INNER, rows * (height + _FRAME_GAP) - _FRAME_GAP), _PAPER)
    for number, frame in enumerate(chosen):
        row, column = divmod(number, across)
        picture = frame.resize((width, height), Image.Resampling.LANCZOS)
        strip.paste(picture, (column * (width + _FRAME_GAP), row * (height + _FRAME_GAP)))
    return strip


def spaced(tokens: Sequence[str]) -> list[str]:
    """The texts of tokens with plain spaces before words; where no token has one, every token is a word."""
    texts = [token.translate(_SPELLINGS) for token in tokens]
    if any(text[:1].isspace() for text in texts):
        return texts
    return [text if number == 0 or text.startswith(_MARKS) else f" {text}" for number, text in enumerate(texts)]


def _flow(tokens: Sequence[str], font: _Font) -> list[_Box]:
    """Tokens in lines, broken between words and after line breaks; the tokens of a word stay together if they can."""
    texts = spaced(tokens)
    boxes: list[_Box] = []
    left, line = 0, 0
    for word in _words(texts):
        shown = [texts[number].strip() or ("\\n" if "\n" in texts[number] else "") for number in word]
        widths = [math.ceil(font.getlength(text)) for text in shown]
        widths[0] += _PADDING  # only the ends of a word are padded, so that its tokens join
        widths[-1] += _PADDING
        if left and left + sum(widths) > _INNER:
            left, line = 0, line + 1
        for number, text, width in zip(word, shown, widths, strict=True):
            if left and left + width > _INNER:  # a word longer than a line
                left, line = 0, line + 1
            boxes.append(_Box(number, text, left, line, width, _PADDING if number == word[0] else 0))
            left += width
        left += _WORD_GAP
        if "\n" in texts[word[-1]]:
            left, line = 0, line + 1
    return boxes


def _words(texts: Sequence[str]) -> list[list[int]]:
    """Numbers of tokens, word by word; a token that is a line break is a word."""
    words: list[list[int]] = []
    for number, text in enumerate(texts):
        if not words or text[:1].isspace() or "\n" in texts[number - 1]:
            words.append([])
        words[-1].append(number)
    return words


def _draw_legend(
    draw: ImageDraw.ImageDraw, top: int, origins: Sequence[TokenOrigin], with_relevance: bool, font: _Font
) -> None:
    """What bars and backgrounds mean, with counts."""
    column = _INNER // 2
    for number, (origin, label) in enumerate(ORIGIN_LABELS.items()):
        left, height = _MARGIN + number % 2 * column, top + number // 2 * _LEGEND_LINE
        draw.rectangle((left, height + 8, left + 25, height + 8 + _BAR_HEIGHT - 1), fill=ORIGIN_COLOURS[origin])
        draw.text((left + 36, height), f"{label}: {origins.count(origin)}", fill=_INK, font=font)
    if not with_relevance:
        return
    height, steps = top + 2 * _LEGEND_LINE, 100
    before = "background: least"
    draw.text((_MARGIN, height), before, fill=_INK, font=font)
    left = _MARGIN + math.ceil(font.getlength(before)) + 8
    for step in range(steps):
        draw.rectangle((left + step, height + 2, left + step, height + 16), fill=relevance_colour(step / (steps - 1)))
    draw.rectangle((left, height + 2, left + steps - 1, height + 16), outline=_RULE)
    draw.text((left + steps + 8, height), "most relevant to what is seen, within this answer", fill=_INK, font=font)


def answer_html(tokens: Sequence[str], origins: Sequence[TokenOrigin]) -> str:
    """A paragraph of the tokens, each with a bar under it in the colour of its origin, and a legend with counts.

    Args:
        tokens: the texts of the answer's tokens, as `draw_answer` takes them.
        origins: one for each token.

    Raises:
        ValueError: the numbers of origins and tokens differ.
    """
    if len(origins) != len(tokens):
        raise ValueError(f"origins: {len(origins)} given for {len(tokens)} tokens; give one each")
    words = "".join(_token(text, origin) for text, origin in zip(spaced(tokens), origins, strict=True))
    bar = "display:inline-block;width:1.4em;height:4px;vertical-align:middle;background"
    legend = "".join(
        f'<span style="white-space:nowrap;margin-right:1.2em"><i style="{bar}:{colour(origin)}"></i> '
        f"{label}: {origins.count(origin)}</span> "
        for origin, label in ORIGIN_LABELS.items()
        if origin in origins
    )
    return (
        f'<p class="answer" style="line-height:2.1;white-space:pre-wrap;margin:0 0 .6em">{words}</p>'
        f'<p class="legend" style="font-size:.85em;margin:0">{legend}</p>'
    )


def colour(origin: TokenOrigin) -> str:
    """The colour of an origin in CSS."""
    return "rgb({}, {}, {})".format(*ORIGIN_COLOURS[origin])


def _token(text: str, origin: TokenOrigin) -> str:
    bare = text.lstrip(" ")  # the space before a word stays outside, so that bars of two words do not run into one
    style = f"border-bottom:3px solid {colour(origin)};margin-right:1px"
    return f'{" " * (len(text) - len(bare))}<span style="{style}">{html.escape(bare)}</span>'
