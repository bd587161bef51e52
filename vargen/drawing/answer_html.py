"""The words of an answer as HTML, coloured by how each token was decided, for pages that show it while it appears.

Belongs here: markup of tokens and its legend. Does not belong here: the finished answer as a picture
(`answer_picture.py`).
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from specdecode.trace import TokenOrigin
from vargen.drawing.answer_picture import ORIGIN_LABELS, spaced
from vargen.drawing.trace_image import ORIGIN_COLOURS


def answer_html(tokens: Sequence[str], origins: Sequence[TokenOrigin]) -> str:
    """A paragraph of the tokens, each with a bar under it in the colour of its origin, and a legend with counts.

    Args:
        tokens: the texts of the answer's tokens, as `vargen.drawing.answer_picture.draw_answer` takes them.
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
