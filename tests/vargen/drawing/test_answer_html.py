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


def test_text_is_read_as_it_stands_and_words_without_spaces_are_spaced():
    for words, shown in (
        (["<b>", " it's ", "un", "done"], "&lt;b&gt; it&#x27;s undone"),
        (["a", "cube", "."], "a cube."),
    ):
        page = answer_html(words, [TokenOrigin.TARGET] * len(words))
        assert "<b>" not in page and re.sub(r"<[^>]*>", "", page.split("</p>")[0]) == shown
    raised(ValueError, "origins", answer_html, ["a"], [])
