"""Compare: several methods on the same prompts, by the code of `vargen bench`.

Belongs here: the tab's components, and a visitor's comparison. Does not belong here: measuring
(`vargen.jobs.benchmark`), tables and plots (`metrics`), markup.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.world import find_world
from vargen.demo import controls, markup
from vargen.demo.models import Models
from vargen.demo.requests import AT_ONCE, connect, read_seed
from vargen.demo.work import follow
from vargen.runs.progress import Progress

if TYPE_CHECKING:
    from vargen.methods.base import ImageMethodConfig

MAX_METHODS = 6
MAX_PROMPTS = 32
MAX_CHARACTERS = 500
"""The most characters of a prompt."""

_TICKED = ("jacobi", "likeness-quality")
"""Methods that are compared unless the visitor chooses others."""


def read_prompts(text: str) -> list[str]:
    """A visitor's own prompts, one a line. Raises UserError for too many or too long ones."""
    prompts = [line.strip() for line in text.splitlines() if line.strip()]
    if len(prompts) > MAX_PROMPTS:
        raise UserError(f"prompts: {len(prompts)} are too many; this page compares on {MAX_PROMPTS} at most")
    if any(len(prompt) > MAX_CHARACTERS for prompt in prompts):
        raise UserError(f"prompts: one has more than {MAX_CHARACTERS} characters; shorten it")
    return prompts


def compare(
    models: Models, model: str, names: Sequence[str], *asked: Any
) -> Iterator[tuple[str, list[dict[str, Any]] | None]]:
    """Compare. Yields the HTML of the progress, with None; last the rows, as `vargen bench --json` prints them.

    Args:
        models, model: that the page offers, and a model's name.
        names: of methods; plain decoding is added.
        asked: own prompts, one a line; the number of example prompts otherwise; seed.

    Raises:
        UserError: a comparison that cannot be made.
    """
    from vargen.jobs.benchmark import run_benchmark

    pipeline, methods, options = _prepare(models, model, names, *asked)
    shown = Progress(total=len(methods) * len(options["cases"]), file=StringIO())

    def measure(check: Callable[[], None]) -> list[dict[str, Any]]:
        return run_benchmark(pipeline, methods, shown=shown, callback_on_step_end=lambda *_: check(), **options)

    def page() -> tuple[str, None]:
        told, what = shown.format_dict, "pictures" if shown.n else "pictures, warming up"
        left = told["elapsed"] / shown.n * (told["total"] - shown.n) if shown.n else None
        return markup.progress(int(shown.n), told["total"], left, what), None

    rows = yield from follow(measure, page)
    shared = {"batch_size": 1, "dtype": str(pipeline.dtype).removeprefix("torch."), "model": model}
    yield "", [{**row, **shared} for row in rows]


def _prepare(
    models: Models, model: str, names: Sequence[str], own: str, count: float, seed: float | None
) -> tuple[Any, dict[str, ImageMethodConfig], dict[str, Any]]:
    """The pipeline, the methods, and further arguments of `run_benchmark`. Raises UserError for what cannot be."""
    from vargen.jobs.cases import BenchmarkCase, fitting_judge, written_cases

    description, world = models.description(model), find_world()
    if not 1 <= len(names) <= MAX_METHODS:
        raise UserError(f"methods: choose 1 to {MAX_METHODS}")
    first = read_seed(seed, MAX_PROMPTS)
    prompts = read_prompts(own)
    if description.num_classes is not None:
        cases = [BenchmarkCase(class_label=number % description.num_classes) for number in range(int(count))]
    elif prompts:
        cases = written_cases(prompts, world)
    elif description.draws_scenes and world is not None:
        cases = world.sample_cases(min(max(int(count), 1), MAX_PROMPTS))
    else:
        raise UserError(f"prompts: write your own, one a line; {model} does not draw this project's world")
    pipeline: Any = models.pipeline(model)
    methods = {name: pipeline.resolve_method(name) for name in ["ar", *names]}
    can_be_judged = any(case.claims is not None for case in cases)
    judge = fitting_judge(description, world.judge) if can_be_judged else None
    return pipeline, methods, {"cases": cases, "seed": first, "judge": judge}


def plot(rows: Sequence[Mapping[str, Any]]) -> Any | None:
    """The plot of `vargen bench`, as a picture; None where nothing was judged, since quality is unknown then."""
    from PIL import Image

    from metrics.plots import plot_tradeoff

    title = f"{rows[0]['model']}, batch {rows[0]['batch_size']}, {rows[0]['images']} prompts"
    try:
        return Image.open(BytesIO(plot_tradeoff(rows, title=title)))
    except ValueError:
        return None


def write_rows(rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """The path of a new file with the rows, as `vargen bench` writes results.json."""
    path = Path(tempfile.mkdtemp(dir=folder)) / "results.json"
    path.write_text(json.dumps(rows, indent=1) + "\n")
    return str(path)


def build(gr: Any, models: Models, folder: Path) -> None:
    """Build the tab, with the module `gradio` as `gr`; `folder` is for files that are downloaded."""
    from metrics.tables import format_table

    first = models.default
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320, elem_classes="controls"):
            count = gr.Slider(1, MAX_PROMPTS, 4, step=1, label="Number of example prompts", elem_id="prompts")
            options = {"placeholder": "a large green cone on grass", "elem_id": "comparison-prompts"}
            own = gr.Textbox(label="Or your own prompts, one a line", lines=3, max_lines=8, **options)
            buttons = controls.start_and_stop(gr, "Compare")
            label = "Methods, beside plain decoding; recommended ones first"
            names = gr.CheckboxGroup(label=label, elem_id="methods", **_offer(models, first))
            with gr.Accordion("More", open=False):
                model = gr.Dropdown(models.names, value=first, label="Model", filterable=False)
                seed = gr.Number(0, label="Seed of the first picture", precision=0)
        with gr.Column(scale=8, min_width=340):
            order = "Every method draws every prompt with the same seeds, in turns."
            shown = gr.HTML(markup.empty("The comparison appears here", order), elem_id="comparison")
            with gr.Column(visible=False, elem_id="compared") as compared:
                table = gr.Markdown(elem_id="table")
                picture = controls.picture(gr, "plot")
                download = gr.DownloadButton("Download as JSON", size="sm", elem_id="download")

    def reported(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
        drawn = plot(rows)
        shown_plot = gr.update(value=drawn, visible=drawn is not None)
        return gr.update(visible=True), format_table(rows), shown_plot, write_rows(rows, folder)

    model.change(lambda model: gr.update(**_offer(models, model)), model, names, **AT_ONCE)
    asked, results = [model, names, own, count, seed], [compared, table, picture, download]
    connect(gr, buttons, partial(compare, models), asked, shown, results, reported)


def _offer(models: Models, model: str) -> dict[str, Any]:
    """The methods of a model, and which of them are ticked."""
    offered = models.methods(model)
    return {"choices": markup.choices(offered), "value": [name for name in _TICKED if name in offered]}
