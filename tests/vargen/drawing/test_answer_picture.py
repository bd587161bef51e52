"""The picture of an answer: every token where a reader expects it, in the colours of what is said about it."""

import itertools
import math

import pytest
import torch
from PIL import Image, ImageFont
from refusals import raised

import vargen.drawing.answer as module
from specdecode.trace import TokenOrigin
from vargen.drawing.answer import draw_answer, relevance_colour
from vargen.drawing.trace_image import ORIGIN_COLOURS

FRAMES = torch.stack([torch.full((3, 20, 30), value) for value in (0.0, 0.5, 1.0)])
PIECES = ["The", " red", " cyl", "inder", " rolls", ".", "\n\n", "It", " stops", "."]
WORDS = ["the", "red", "cube", "turns", "blue", ",", "then", "green", "."]
TARGET, ACCEPTED, RELAXED, UNVERIFIED = TokenOrigin


def flow(tokens: list[str]) -> list[module._Box]:
    return module._flow(tokens, ImageFont.load_default(module._FONT_SIZE))


def text_top(image: Image.Image, tokens: list[str]) -> int:
    """Where the words begin: bars are the first pixels of an origin's colour in the left margin's column."""
    column = [image.getpixel((module._MARGIN + 1, y)) for y in range(image.height)]
    return next(y for y, pixel in enumerate(column) if pixel in ORIGIN_COLOURS.values()) - module._WORD_HEIGHT - 2


@pytest.mark.parametrize("tokens", [PIECES, WORDS])
def test_every_token_has_the_colours_of_its_origin_and_relevance(tokens):
    origins = [TokenOrigin(number % 4) for number in range(len(tokens))]
    relevance = [5.0 + number * number for number in range(len(tokens))]
    relevance[4] = math.nan
    image = draw_answer(FRAMES, tokens, origins, relevance, "a title")
    top = text_top(image, tokens)
    for box in flow(tokens):
        left, line = module._MARGIN + box.left, top + box.line * module._LINE_HEIGHT
        assert image.getpixel((left + 1, line + module._WORD_HEIGHT + 4)) == ORIGIN_COLOURS[origins[box.token]]
        share = 0.0 if box.token == 4 else (relevance[box.token] - 5) / (relevance[-1] - 5)
        assert image.getpixel((left, line + module._WORD_HEIGHT)) == relevance_colour(share), box
    assert relevance_colour(0.0) == (255, 255, 255) != relevance_colour(1.0)


def test_without_relevance_there_are_bars_only():
    plain = draw_answer(FRAMES, WORDS, [TARGET] * len(WORDS), None, "a title")
    coloured = draw_answer(FRAMES, WORDS, [TARGET] * len(WORDS), [1.0] * len(WORDS), "a title")
    assert plain.height < coloured.height  # one line of the legend less
    top = text_top(plain, WORDS)
    for image in (plain, coloured):  # all alike is nothing more relevant than the rest
        assert image.getpixel((module._MARGIN, top + module._WORD_HEIGHT)) == (255, 255, 255)


def test_words_are_put_together_as_they_were_written():
    boxes = flow(PIECES)
    assert [box.text for box in boxes] == ["The", "red", "cyl", "inder", "rolls", ".", "\\n", "It", "stops", "."]
    assert [box.line for box in boxes] == [0] * 7 + [1] * 3
    gaps = [b.left - a.left - a.width for a, b in itertools.pairwise(boxes) if a.line == b.line]
    gap = module._WORD_GAP
    assert gaps == [gap, gap, 0, gap, 0, gap, gap, 0]
    font, padding = ImageFont.load_default(module._FONT_SIZE), module._PADDING
    for box, ends in ((boxes[1], 2), (boxes[2], 1), (boxes[3], 1)):  # only the ends of a word are padded
        assert box.width == math.ceil(font.getlength(box.text)) + ends * padding
    # words without spaces: marks belong to the word before
    boxes = flow(WORDS)
    gaps = [b.left - a.left - a.width for a, b in itertools.pairwise(boxes)]
    assert gaps == [gap, gap, gap, gap, 0, gap, gap, 0]
    # spaces as some tokenizers spell them
    assert [box.left for box in flow(["\u0120a", "b", "\u0120c"])] == [box.left for box in flow([" a", "b", " c"])]


def test_everything_stays_inside():
    for tokens in (WORDS * 40, [" extraordinarily", "long"] * 30, ["nospace"] + [" x"] + ["glued"] * 200, [" "] * 3):
        boxes = flow(tokens)
        assert all(box.left + box.width <= module._WIDTH - 2 * module._MARGIN for box in boxes)
        assert [box.token for box in boxes] == list(range(len(tokens)))
        spans = sorted((box.line, box.left, box.left + box.width) for box in boxes)
        assert all(a[0] < b[0] or a[2] <= b[1] for a, b in itertools.pairwise(spans))
        image = draw_answer(FRAMES, tokens, [ACCEPTED] * len(tokens), None, "many words " * 40)
        margins = [image.crop((0, 0, module._MARGIN - 1, image.height)), image.crop((module._WIDTH - 8, 0, 1080, 400))]
        assert all(margin.getextrema() == ((255, 255),) * 3 for margin in margins)


def test_the_frames_are_on_top_in_order():
    image = draw_answer(FRAMES, WORDS, [TARGET] * len(WORDS), None, "")
    width = (module._WIDTH - 2 * module._MARGIN) // 4
    for number, value in enumerate((0, 128, 255)):
        assert image.getpixel((module._MARGIN + number * (width + module._FRAME_GAP) + 9, 60)) == (value,) * 3
    many = torch.linspace(0, 1, 40)[:, None, None, None].expand(-1, 3, 8, 8)
    strip = module._frame_strip(module.to_pil(many))
    pitch = (strip.height - module._FRAME_GAP) // 2 + module._FRAME_GAP
    shown = [strip.getpixel((column * pitch + 20, row * pitch + 20))[0] for row in range(2) for column in range(8)]
    assert len(set(shown)) == module.MAX_FRAMES and shown == sorted(shown)
    assert shown[0] == 0 and shown[-1] > 230


def test_numbers_must_match():
    raised(ValueError, "origins: 1 given for 2 tokens; give one", draw_answer, FRAMES, ["a", "b"], [TARGET], None, "")
    assert draw_answer(FRAMES, [], [], [], "nothing was said").width == module._WIDTH
    raised(ValueError, "relevance: 3 given for 2 tokens", draw_answer, FRAMES, ["a", "b"], [TARGET] * 2, [0.0] * 3, "")
    assert set(module.ORIGIN_LABELS) == set(TokenOrigin) == set(ORIGIN_COLOURS)
