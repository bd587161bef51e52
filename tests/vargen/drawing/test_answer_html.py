"""Words of an answer as HTML: each in the colour of its origin, nothing of it markup."""

import re

from refusals import raised

from specdecode.trace import TokenOrigin
from vargen.drawing.answer import answer_html, colour

ORIGINS = [TokenOrigin.TARGET, TokenOrigin.ACCEPTED, TokenOrigin.RELAXED]


def test_every_token_has_the_colour_of_its_origin_and_the_legend_counts():
    page = answer_html(["a", "red", "cube"], ORIGINS)
    words = re.findall(r"solid (rgb\([^)]*\));margin-right:1px\">([^<]*)<", page)
    assert words == [(colour(origin), word) for origin, word in zip(ORIGINS, ["a", "red", "cube"], strict=True)]
    assert "drafted, verified: 1" in page and "never verified" not in page


def test_text_is_read_as_it_stands():
    page = answer_html(["<b>", " it's ", "un", "done"], [TokenOrigin.TARGET] * 4)
    text = re.sub(r"<[^>]*>", "", page.split("</p>")[0])
    assert "<b>" not in page and text == "&lt;b&gt; it&#x27;s undone"


def test_words_without_spaces_are_spaced():
    text = re.sub(r"<[^>]*>", "", answer_html(["a", "cube", "."], ORIGINS).split("</p>")[0])
    assert text == "a cube."


def test_another_number_of_origins_is_refused():
    raised(ValueError, "origins", answer_html, ["a"], [])
