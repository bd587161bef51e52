"""The page's own HTML: pictures with their counts while they are drawn, accounts, notices. Every text that came from a
visitor or a model is escaped.

Belongs here: markup. Does not belong here: its looks (`page.css`), Gradio.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from PIL import Image

if TYPE_CHECKING:
    from vargen.demo.race import Lane
    from vargen.methods.base import MethodConfig


def notice(text: str, kind: str = "note") -> str:
    """One line: a "note", or an "error"."""
    return f'<p class="notice {kind}" role="{"alert" if kind == "error" else "status"}">{html.escape(text)}</p>'


def method_hint(config: MethodConfig) -> str:
    """The description of a method, in one line."""
    return f'<p class="hint">{_exactness(config)} {html.escape(config.summary)}</p>'


def _exactness(config: MethodConfig) -> str:
    return "<em>exact</em>" if config.exact else '<em class="relaxed">relaxed</em>'


def choices(methods: Mapping[str, MethodConfig]) -> list[tuple[str, str]]:
    """Methods for a list: each name with the mark exact or relaxed, and the name itself as the value."""
    return [(f"{name} ({'exact' if config.exact else 'relaxed'})", name) for name, config in methods.items()]


def empty(title: str, text: str) -> str:
    """A card where a result will be."""
    return f'<div class="empty"><b>{html.escape(title)}</b><p>{html.escape(text)}</p></div>'


def stage(lanes: Sequence[Lane], num_tokens: int, below: str = "") -> str:
    """Methods side by side.

    Args:
        lanes: their state now.
        num_tokens: tokens of a picture.
        below: HTML under the pictures.
    """
    return f'<div class="lanes">{"".join(_lane(lane, num_tokens) for lane in lanes)}</div>{below}'


def waiting_stage(labels: Sequence[str], below: str) -> str:
    """The same before anything is drawn."""
    inside = _canvases([""])
    lanes = [f'<figure class="lane"><figcaption>{html.escape(each)}</figcaption>{inside}</figure>' for each in labels]
    return f'<div class="lanes">{"".join(lanes)}</div>{below}'


def _canvases(insides: Sequence[str], kind: str = "canvas") -> str:
    canvases = "".join(f'<div class="{kind}">{inside}</div>' for inside in insides)
    return f'<div class="canvases n{min(len(insides), 4)}">{canvases}</div>'


def _lane(lane: Lane, num_tokens: int) -> str:
    count = max(len(lane.lengths), 1)
    if lane.error is not None:
        inside = _canvases([notice(lane.error, "error")], "canvas failed")
    else:
        inside = _canvases([_img(image, lane.label) for image in lane.images] or [""] * count)
    decided = sum(lane.lengths)
    share = 100 * decided / (num_tokens * count)
    figures = {"passes": f"{lane.passes:,}", "seconds": f"{lane.seconds:.1f}", "tokens": f"{decided:,}"}
    entries = "".join(f"<div><dd>{value}</dd><dt>{name}</dt></div>" for name, value in figures.items())
    return (
        f'<figure class="lane{" finished" if lane.finished else ""}">'
        f"<figcaption>{html.escape(lane.label)} {_exactness(lane.method)}</figcaption>{inside}"
        f'<div class="bar"><i style="width:{share:.1f}%"></i></div><dl class="figures">{entries}</dl></figure>'
    )


def account(figures: Mapping[str, str]) -> str:
    """Figures in a column, each with its name."""
    rows = [f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in figures.items()]
    return f'<table class="account">{"".join(rows)}</table>'


def progress(done: int, total: int, seconds_left: float | None, what: str) -> str:
    """A bar and a line for the progress of work."""
    left = "" if seconds_left is None else ", about {}:{:02d} left".format(*divmod(round(seconds_left), 60))
    return (
        f'<div class="progress" role="status"><div class="bar"><i style="width:{100 * done / total:.1f}%"></i></div>'
        f"<p>{done} of {total} {html.escape(what)}{left}</p></div>"
    )


def moving(frames: Sequence[Image.Image], seconds_a_frame: float, description: str) -> str:
    """Pictures one after the other, repeated."""
    buffer = io.BytesIO()
    milliseconds = round(1000 * seconds_a_frame)
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
    return f'<div class="clip">{_inline(buffer, description)}</div>'


def scroll_to(element: str) -> str:
    """JavaScript: on a phone, bring the element of this id into view, since the controls stand above it."""
    scroll = f"document.getElementById('{element}').scrollIntoView({{behavior: 'smooth'}})"
    return f"() => window.innerWidth < 700 && {scroll}"


def press(button: str) -> str:
    """JavaScript: press the button of this id. It does nothing while the button is disabled."""
    return f"() => document.getElementById('{button}').click()"


def _img(image: Image.Image, description: str) -> str:
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=92, method=0)
    return _inline(buffer, description)


def _inline(buffer: io.BytesIO, description: str) -> str:
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img decoding="sync" alt="{html.escape(description, quote=True)}" src="data:image/webp;base64,{data}">'
