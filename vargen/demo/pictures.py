"""Pictures: plain decoding and a method draw the same prompt side by side.

Belongs here: the tab's components, and a visitor's drawing. Does not belong here: drawing side by side
(`race.py`), markup.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.picture_files import open_picture
from vargen.base.reading import read_bytes
from vargen.demo import controls, markup
from vargen.demo.models import Models
from vargen.demo.requests import AT_ONCE, WAITS, connect, read_seed
from vargen.methods.advice import FEW, IN_BATCHES, LOSSES

if TYPE_CHECKING:
    from PIL.Image import Image

    from vargen.demo.race import Lane

MAX_PICTURES = 4
MAX_PROMPT = 2000
"""Characters."""

PLAIN = "plain decoding"

EXAMPLES = (
    ("a large green cone on grass", 6),
    ("a shiny red sphere on wood", 6),
    ("a small yellow cone right of a large red sphere on sand", 2),
    ("a purple cylinder on sand", 6),
    ("a large cyan sphere on grass under a cloudy sky", 0),
)
"""Prompts with seeds. Plain decoding, and so `jacobi`, draws the described scene, as the judge and people see it."""

_ALIKE = 0.5
"""Least share of equal tokens of two pictures that one slider shows. With fewer, they are two different scenes."""


@dataclass(frozen=True)
class Drawn:
    """Pictures of a finished race for a closer look: by the two methods, and how the chosen method's came about.
    `alike` says of each whether the two methods drew nearly, but not exactly, the same."""

    plain: list[Image]
    chosen: list[Image]
    traces: list[Image]
    alike: list[bool]


def read_request(models: Models, model: str, prompt: str, seed: float | None, count: float) -> tuple[str | int, range]:
    """The prompt (or class) and the seeds that a visitor asks for. Raises UserError that names what cannot be drawn."""
    prompt, num_classes = prompt.strip(), models.description(model).num_classes
    if not prompt:
        raise UserError("Write what is to be drawn, or choose an example.")
    if len(prompt) > MAX_PROMPT:
        raise UserError(f"prompt: {len(prompt):,} characters are too many; write {MAX_PROMPT:,} at most")
    if num_classes is not None and not (prompt.isdecimal() and int(prompt) < num_classes):
        raise UserError(f"prompt: this model draws classes; write a number between 0 and {num_classes - 1}")
    if not 1 <= count <= MAX_PICTURES:
        raise UserError(f"pictures: 1 to {MAX_PICTURES} can be drawn at once")
    first = read_seed(seed, int(count))
    return prompt if num_classes is None else int(prompt), range(first, first + int(count))


def _opened(gr: Any, file: Any, **settings: Any) -> Image | None:
    """What a visitor sends, opened as a picture that a user names: gradio lets Pillow choose by the content, and some
    readers start programs. Raises gradio's Error."""
    if file is None:
        return None
    try:
        content = read_bytes(Path(file.path), "picture") if hasattr(file, "path") else bytes(file)
        return open_picture(content, "picture").convert("RGBA")
    except UserError as error:
        raise gr.Error(str(error)) from None


def read_edit(painted: Mapping[str, Any] | None = None, rows: float | None = None) -> dict[str, Any]:
    """The arguments of a call that starts from a visitor's picture; none without one.

    Args:
        painted: of an `ImageEditor`: what is painted on the picture is drawn anew.
        rows: where nothing is, so many first rows of codes stay.
    """
    if painted is None or painted["background"] is None:
        return {}
    from PIL import ImageChops

    from metrics.images import to_rgb  # imports torch

    start = {"image": to_rgb(painted["background"]), "paste_back": True}
    layers = [each.getchannel("A").point(lambda level: 255 * (level > 0)) for each in painted["layers"]]
    mask = functools.reduce(ImageChops.lighter, layers) if layers else None
    if mask is not None and mask.getbbox():
        return {**start, "mask_image": mask}
    return {**start, "start_rows": int(rows or 0)}


def draw(models: Models, model: str, method: str, settings: str, *asked: Any) -> Iterator[tuple[str, Drawn | None]]:
    """Draw. Yields the HTML of the stage, with None; with the last one the pictures for a closer look, if all is well.

    Args:
        models: that the page offers.
        model, method, settings: two names, and the method's settings as text.
        asked: prompt, seed, guidance, number of pictures, negative prompt; and what `read_edit` takes, if anything.

    Raises:
        UserError: pictures that cannot be drawn.
    """
    from vargen.demo.race import race

    written, seed, guidance, count, negative, *edited = asked
    prompt, seeds = read_request(models, model, written, seed, count)
    config = controls.read_method(models.methods(model), method, settings)
    pipeline = models.pipeline(model)
    methods = {PLAIN: pipeline.resolve_method("ar"), method: pipeline.resolve_method(config)}
    num_tokens = models.description(model).num_tokens
    problems = [] if isinstance(prompt, int) else pipeline.prompt_problems(prompt)
    notes = "".join(markup.notice(f"Note: {problem}") for problem in problems)
    sampling = {"guidance_scale": guidance, "negative_prompt": (negative or "").strip() or None}
    lanes: list[Lane] = []
    for lanes in race(pipeline, methods, prompt, seeds, **sampling, **read_edit(*edited)):
        yield markup.stage(lanes, num_tokens, notes), None
    if all(lane.finished for lane in lanes):
        yield markup.stage(lanes, num_tokens, notes + verdict(*lanes)), _keep(*lanes)


def _keep(plain: Lane, chosen: Lane) -> Drawn:
    from vargen.drawing.trace_image import draw_trace

    assert chosen.trace is not None and plain.tokens is not None and chosen.tokens is not None
    grid = (math.isqrt(chosen.tokens.shape[1]),) * 2
    traces = [draw_trace(image, chosen.trace, row, grid) for row, image in enumerate(chosen.images)]
    equal = plain.tokens.eq(chosen.tokens).float().mean(1).tolist()
    return Drawn(plain.images, chosen.images, traces, [_ALIKE <= share < 1 for share in equal])


def verdict(plain: Lane, chosen: Lane) -> str:
    """HTML that tells the passes and seconds that the method saved, and their price."""
    fewer, faster = plain.passes / chosen.passes, plain.seconds / chosen.seconds
    passes = f"{fewer:.1f} times fewer passes" if fewer >= FEW else "About as many passes"
    pace = f"{faster:.1f} times faster" if faster >= 1 else f"{1 / faster:.1f} times slower"
    pace = pace if max(faster, 1 / faster) >= 1.05 else "as fast"
    in_batches = f" {IN_BATCHES[0].upper()}{IN_BATCHES[1:]}." if fewer < FEW and len(chosen.images) > 1 else ""
    return (
        f'<p class="verdict" role="status"><b>{passes} ({chosen.passes:,} instead of '
        f"{plain.passes:,}), {pace} here ({chosen.seconds:.1f} s instead of {plain.seconds:.1f} s).</b> "
        f"{_price(plain, chosen)}{in_batches}</p>"
    )


def _price(plain: Lane, chosen: Lane) -> str:
    trace = chosen.trace
    assert trace is not None and plain.tokens is not None and chosen.tokens is not None
    if plain.tokens.equal(chosen.tokens):
        return "Token for token the same picture."
    if chosen.method.exact:
        return "It is another picture for the same seed, from exactly the same distribution."
    taken = (trace.skipped_tokens, "were never verified"), (trace.relaxed_tokens, "were accepted by relaxation")
    shares = [f"{100 * count / trace.tokens:.0f} % of the tokens {how}" for count, how in taken if count]
    known = LOSSES.get(chosen.label)
    loses = "" if known is None else f" Over 1,000 captions on the shipped model: {known}."
    return f"Relaxed: {' and '.join(shares) or 'no token was relaxed'}.{loses}"


def build(gr: Any, models: Models) -> None:
    """Build the tab, with the module `gradio` as `gr`."""
    first = models.default
    methods = models.methods(first)
    method_name = next(iter(methods))
    drawn = gr.State(None)
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320, elem_classes="controls"):
            options = {"elem_id": "prompt", "autofocus": True, **_prompt(models, first)}
            prompt = gr.Textbox(label="Prompt", lines=2, max_lines=5, **options)
            buttons = controls.start_and_stop(gr, "Draw")
            examples = controls.examples(gr, "Examples", [text for text, _ in EXAMPLES], models.draws_scenes(first))
            method, hint = controls.method_list(gr, methods, method_name, "method")
            with gr.Row(elem_classes="tight"):
                seed = gr.Number(EXAMPLES[0][1], label="Seed", precision=0, min_width=120, elem_id="seed")
                count = gr.Slider(1, MAX_PICTURES, 1, step=1, label="Pictures", min_width=220, elem_id="count")
            with gr.Accordion("Start from a picture", open=False, elem_id="edit"):
                gr.HTML(markup.notice("Paint what is drawn anew."))
                shown_tools = {"show_label": False, "sources": ("upload", "clipboard"), "layers": False, "height": 300}
                painted = gr.ImageEditor(type="pil", image_mode="RGBA", elem_id="painted", **shown_tools)
                painted.convert_and_format_image = partial(_opened, gr)
                rows = gr.Number(8, label="Or rows of codes that stay", precision=0, elem_id="rows")
            with gr.Accordion("More", open=False, elem_id="more"):
                model = gr.Dropdown(models.names, value=first, label="Model", filterable=False)
                guidance = gr.Number(models.description(first).guidance_scale, label="Guidance")
                negative = gr.Textbox(label="Negative prompt", elem_id="negative", max_length=MAX_PROMPT)
                settings = controls.settings_box(gr, methods[method_name])
        with gr.Column(scale=8, min_width=340):
            opening = "Both draw the same prompt at the same time; rows appear as their tokens are decided."
            shown = gr.HTML(markup.waiting_stage((PLAIN, method_name), markup.notice(opening)), elem_id="stage")
            with gr.Column(visible=False, elem_id="closer") as closer:
                which = gr.Radio(["1"], value="1", label="Picture", visible=False, elem_id="which")
                label = "Drag to compare: plain decoding on the left, the method on the right"
                options = {"interactive": False, "buttons": ["fullscreen"], "max_height": 420, "format": "png"}
                slider = gr.ImageSlider(label=label, elem_id="slider", **options)
                gr.HTML("<h3>Where each token came from</h3>")
                trace = controls.picture(gr, "trace")

    def choose_model(model: str) -> tuple[Any, ...]:
        offered = models.methods(model)
        return (
            gr.update(choices=markup.choices(offered), value=next(iter(offered))),
            gr.update(value=models.description(model).guidance_scale),
            gr.update(**_prompt(models, model)),
            gr.update(visible=models.draws_scenes(model)),
        )

    def choose_method(model: str, method: str) -> tuple[str, str]:
        return controls.describe(models.methods(model)[method])

    def waiting(_model: str, method: str, *_: Any) -> str:
        return markup.waiting_stage((PLAIN, method), WAITS)

    def opened(kept: Drawn) -> tuple[Any, ...]:
        rows = [str(1 + row) for row in range(len(kept.chosen))]
        numbers = gr.update(choices=rows, value="1", visible=len(rows) > 1)
        return gr.update(visible=True), kept, numbers, *closely(kept, "1")

    def closely(kept: Drawn | None, which: str) -> tuple[Any, ...]:
        if kept is None:
            return gr.skip(), gr.skip()
        row = int(which) - 1
        pair = (_enlarged(kept.plain[row]), _enlarged(kept.chosen[row]))
        return gr.update(value=pair, visible=kept.alike[row]), kept.traces[row]

    model.change(choose_model, model, [method, guidance, prompt, examples], **AT_ONCE)
    gr.on([method.change, model.change], choose_method, [model, method], [hint, settings], **AT_ONCE)
    examples.click(lambda index: EXAMPLES[index], examples, [prompt, seed], **AT_ONCE)
    prompt.submit(None, js=markup.press("draw"))
    asked = [model, method, settings, prompt, seed, guidance, count, negative, painted, rows]
    results = [closer, drawn, which, slider, trace]
    connect(gr, buttons, partial(draw, models), asked, shown, results, opened, waiting)
    which.input(closely, [drawn, which], [slider, trace], **AT_ONCE)


def _prompt(models: Models, model: str) -> dict[str, Any]:
    num_classes = models.description(model).num_classes
    if num_classes is not None:
        return {"placeholder": f"a class, 0 to {num_classes - 1}", "value": ""}
    if models.draws_scenes(model):
        return {"placeholder": "spheres, cubes, cylinders and cones on grass, sand or wood", "value": EXAMPLES[0][0]}
    return {"placeholder": "what to draw", "value": ""}


def _enlarged(image: Image) -> Image:
    """The picture at the size of the slider."""
    from PIL.Image import Resampling

    factor = max(1, 512 // image.width)
    return image.resize((image.width * factor, image.height * factor), Resampling.LANCZOS)
