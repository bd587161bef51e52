"""Pictures: plain decoding and a method draw the same prompt side by side.

Belongs here: what is on the tab, and what happens when a visitor draws. Does not belong here: drawing side by side
(`race.py`), markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.demo import markup
from vargen.demo.models import Models
from vargen.demo.requests import QUIET, WAITS, Requests, begin, read_seed
from vargen.demo.settings import read_settings, write_settings
from vargen.demo.tickets import Tickets

if TYPE_CHECKING:
    from PIL.Image import Image

    from vargen.demo.race import Commission, Lane, Race

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
"""Prompts with seeds. Plain decoding, and so `jacobi`, draws what they ask for: the judge says so, and people do."""

_ALIKE = 0.5
"""Least share of equal tokens of two pictures that one slider shows. With fewer they are two different scenes."""


@dataclass(frozen=True)
class Drawn:
    """Pictures of a finished race for a closer look.

    Attributes:
        plain, chosen: pictures by the two methods.
        traces: drawings of how the chosen method's pictures came about.
        alike: by picture, whether the two methods drew nearly, but not exactly, the same.
    """

    plain: list[Image]
    chosen: list[Image]
    traces: list[Image]
    alike: list[bool]


def read_commission(
    models: Models, model: str, prompt: str, seed: float | None, guidance: float | None, count: float
) -> Commission:
    """The pictures that a visitor asks for. Raises UserError naming what cannot be drawn."""
    from vargen.demo.race import Commission

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
    seeds = tuple(range(first, first + int(count)))
    return Commission(prompt if num_classes is None else int(prompt), seeds, guidance)


def draw(
    models: Models, tickets: Tickets, ticket: str, model: str, method: str, settings: str, *asked: Any
) -> Iterator[tuple[str, Drawn | None]]:
    """Draw. Yields the HTML of the stage, with None; with the last one the pictures for a closer look, if all is well.

    Args:
        ticket: of this request.
        model, method: by name.
        settings: of the method, as text.
        asked: prompt, seed, guidance and number of pictures.
    """

    def prepare() -> Race:
        commission = read_commission(models, model, *asked)
        if method not in models.methods(model):
            raise UserError(f"method {method!r} does not fit {model}; choose another")
        config = read_settings(models.methods(model)[method], settings)
        pipeline = models.pipeline(model)
        from vargen.demo.race import Race

        plain, chosen = pipeline.resolve_method("ar"), pipeline.resolve_method(config)
        return Race(pipeline, commission, {PLAIN: plain, method: chosen})

    race = begin(tickets, ticket, prepare)
    if isinstance(race, str):
        yield markup.waiting_stage((PLAIN, method), race), None
        return
    num_tokens = models.description(model).num_tokens
    notes = _notes(models.pipeline(model), race.commission.prompt)
    lanes: list[Lane] = []
    for lanes in race.run():
        yield markup.stage(lanes, num_tokens, notes), None
    if all(lane.finished for lane in lanes):
        yield markup.stage(lanes, num_tokens, notes + verdict(*lanes)), _keep(race, lanes)
    elif race.stopped and not any(lane.error for lane in lanes):
        yield markup.stage(lanes, num_tokens, notes + markup.notice("Stopped.")), None


def _notes(pipeline: Any, prompt: str | int) -> str:
    problems = [] if isinstance(prompt, int) else pipeline.prompt_problems(prompt)
    return "".join(markup.notice(f"Note: {problem}") for problem in problems)


def _keep(race: Race, lanes: list[Lane]) -> Drawn:
    from vargen.drawing.trace_image import draw_trace

    plain, chosen = lanes
    assert chosen.trace is not None and plain.tokens is not None and chosen.tokens is not None
    traces = [draw_trace(image, chosen.trace, row, (race.grid_size,) * 2) for row, image in enumerate(chosen.images)]
    equal = plain.tokens.eq(chosen.tokens).float().mean(1).tolist()
    return Drawn(plain.images, chosen.images, traces, [_ALIKE <= share < 1 for share in equal])


def verdict(plain: Lane, chosen: Lane) -> str:
    """HTML that says what the method saved, and at what price."""
    assert plain.trace is not None and chosen.trace is not None and plain.tokens is not None
    fewer, faster = plain.passes / chosen.passes, plain.seconds / chosen.seconds
    pace = f"{faster:.1f} times faster" if faster >= 1 else f"{1 / faster:.1f} times slower"
    saved = (
        f"{fewer:.1f} times fewer passes ({chosen.passes:,} instead of {plain.passes:,}), "
        f"{pace} here ({chosen.seconds:.1f} s instead of {plain.seconds:.1f} s)."
    )
    return f'<p class="verdict" role="status"><b>{saved}</b> {_price(plain, chosen)}</p>'


def _price(plain: Lane, chosen: Lane) -> str:
    assert chosen.trace is not None and plain.tokens is not None and chosen.tokens is not None
    if plain.tokens.equal(chosen.tokens):
        return "Token for token the same picture."
    if chosen.method.exact:
        return "It is another picture for the same seed, from exactly the same distribution."
    tokens = chosen.trace.tokens
    shares = [
        f"{100 * count / tokens:.0f} % of the tokens {what}"
        for count, what in (
            (chosen.trace.skipped_tokens, "were never verified"),
            (chosen.trace.relaxed_tokens, "were accepted by relaxation"),
        )
        if count
    ]
    return f"Relaxed: {' and '.join(shares) or 'no token was relaxed'}."


def build(requests: Requests, models: Models) -> None:
    """Build the tab; `requests` draws what visitors ask for."""
    gr = requests.gr
    first = models.default
    methods = models.methods(first)
    method_name = next(iter(methods))
    drawn = gr.State(None)
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320, elem_classes="controls"):
            prompt = gr.Textbox(
                label="Prompt", lines=2, max_lines=5, autofocus=True, elem_id="prompt", **_prompt(models, first)
            )
            with gr.Row(elem_classes="tight"):
                start = gr.Button("Draw", variant="primary", elem_id="draw", scale=3)
                stop = gr.Button("Stop", interactive=False, elem_id="stop", scale=1, min_width=90)
            examples = gr.Dataset(
                components=["textbox"],
                samples=[[text] for text, _ in EXAMPLES],
                type="index",
                label="Examples",
                elem_id="examples",
                visible=models.draws_scenes(first),
            )
            method = gr.Dropdown(
                markup.choices(methods), value=method_name, label="Method", elem_id="method", filterable=False
            )
            hint = gr.HTML(markup.method_hint(methods[method_name]))
            with gr.Row(elem_classes="tight"):
                seed = gr.Number(EXAMPLES[0][1], label="Seed", precision=0, min_width=120, elem_id="seed")
                count = gr.Slider(1, MAX_PICTURES, 1, step=1, label="Pictures", min_width=220, elem_id="count")
            with gr.Accordion("More", open=False, elem_id="more"):
                model = gr.Dropdown(models.names, value=first, label="Model", filterable=False)
                guidance = gr.Number(models.description(first).guidance_scale, label="Guidance")
                settings = gr.Textbox(
                    write_settings(methods[method_name]),
                    label="Settings of the method, one a line",
                    lines=4,
                    max_lines=16,
                    elem_classes="code",
                    elem_id="settings",
                )
        with gr.Column(scale=8, min_width=340):
            shown = gr.HTML(_opening(method_name), elem_id="stage")
            with gr.Column(visible=False, elem_id="closer") as closer:
                which = gr.Radio(["1"], value="1", label="Picture", visible=False, elem_id="which")
                slider = gr.ImageSlider(
                    label="Drag to compare: plain decoding on the left, the method on the right",
                    interactive=False,
                    buttons=["fullscreen"],
                    elem_id="slider",
                    max_height=420,
                    format="png",
                )
                gr.HTML("<h3>Where each token came from</h3>")
                trace = gr.Image(
                    show_label=False, interactive=False, buttons=["download", "fullscreen"], elem_id="trace"
                )

    def choose_model(model: str) -> tuple[Any, ...]:
        description, offered = models.description(model), models.methods(model)
        name = next(iter(offered))
        return (
            gr.update(choices=markup.choices(offered), value=name),
            gr.update(value=description.guidance_scale),
            gr.update(**_prompt(models, model)),
            gr.update(visible=models.draws_scenes(model)),
        )

    def choose_method(model: str, method: str) -> tuple[str, str]:
        config = models.methods(model)[method]
        return markup.method_hint(config), write_settings(config)

    def opened(kept: Drawn) -> tuple[Any, ...]:
        rows = [str(1 + row) for row in range(len(kept.chosen))]
        return (
            gr.update(visible=True),
            kept,
            gr.update(choices=rows, value="1", visible=len(rows) > 1),
            *closely(kept, "1"),
        )

    def closely(kept: Drawn | None, which: str) -> tuple[Any, ...]:
        if kept is None:
            return gr.skip(), gr.skip()
        row = int(which) - 1
        pair = (_enlarged(kept.plain[row]), _enlarged(kept.chosen[row]))
        return gr.update(value=pair, visible=kept.alike[row]), kept.traces[row]

    model.change(choose_model, model, [method, guidance, prompt, examples], queue=False, **QUIET)
    gr.on(
        [method.change, model.change],
        choose_method,
        [model, method],
        [hint, settings],
        queue=False,
        **QUIET,
    )
    examples.click(lambda index: EXAMPLES[index], examples, [prompt, seed], queue=False, **QUIET)
    prompt.submit(None, js=markup.press("draw"))
    requests.connect(
        start,
        stop,
        draw,
        [model, method, settings, prompt, seed, guidance, count],
        shown,
        [closer, drawn, which, slider, trace],
        opened,
        lambda _, method, *__: markup.waiting_stage((PLAIN, method), WAITS),
    )
    which.input(closely, [drawn, which], [slider, trace], queue=False, **QUIET)


def _prompt(models: Models, model: str) -> dict[str, Any]:
    num_classes = models.description(model).num_classes
    if num_classes is not None:
        return {"placeholder": f"a class, 0 to {num_classes - 1}", "value": ""}
    if models.draws_scenes(model):
        return {"placeholder": "spheres, cubes, cylinders and cones on grass, sand or wood", "value": EXAMPLES[0][0]}
    return {"placeholder": "what to draw", "value": ""}


def _opening(method: str) -> str:
    return markup.waiting_stage(
        (PLAIN, method),
        markup.notice("Both draw the same prompt at the same time; rows appear as their tokens are decided."),
    )


def _enlarged(image: Image) -> Image:
    """The picture at the size of the slider."""
    from PIL import Image as Pillow

    factor = max(1, 512 // image.width)
    return image.resize((image.width * factor, image.height * factor), Pillow.Resampling.LANCZOS)
