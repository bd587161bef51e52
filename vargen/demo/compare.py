"""Compare: several methods on the same prompts, by the code of `vargen bench`.

Belongs here: what is on the tab, and what happens when a visitor compares. Does not belong here: measuring
(`vargen.jobs.benchmark`), tables and plots (`metrics`), markup.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vargen.base.errors import UserError
from vargen.base.world import find_world
from vargen.demo import markup
from vargen.demo.models import Models
from vargen.demo.requests import QUIET, Requests, begin, read_seed
from vargen.demo.tickets import Tickets
from vargen.demo.work import Work

if TYPE_CHECKING:
    from vargen.jobs.cases import BenchmarkCase, Judge
    from vargen.methods.base import ImageMethodConfig
    from vargen.pipelines.loading import ImagePipeline

MAX_METHODS = 6
MAX_PROMPTS = 32
MAX_CHARACTERS = 500
"""Of a prompt."""

_TICKED = ("jacobi", "likeness-quality")
"""Methods that are compared unless the visitor chooses others."""


class Comparing(Work):
    """One comparison and its progress. It counts calls, as `vargen.runs.progress` does for a terminal.

    Attributes:
        done, total: calls.
        rows: of `vargen.jobs.benchmark.run_benchmark`, at the end.
    """

    def __init__(
        self,
        pipeline: ImagePipeline,
        methods: Mapping[str, ImageMethodConfig],
        cases: Sequence[BenchmarkCase],
        seed: int,
        judge: Judge | None,
    ) -> None:
        super().__init__()
        self.done, self.total = 0, len(methods) * len(cases)
        self._calls, self._all_calls = 0, len(methods) * (len(cases) + 1)  # the first of each is warm-up
        self.rows: list[dict[str, Any]] | None = None
        self._began = 0.0
        self._call = (pipeline, methods, cases, seed, judge)

    def run(self) -> Iterator[Comparing]:
        """Compare, and yield itself whenever there is news."""
        return self.watch([lambda: self.attempt(self._compare)], lambda: self)

    @property
    def seconds_left(self) -> float | None:
        """Estimated from the calls so far, warm-up included; None before the first is over."""
        over = self._calls - 1 if self.done < self.total else self._all_calls
        if over < 1:
            return None
        return (time.perf_counter() - self._began) / over * (self._all_calls - over)

    def update(self) -> None:
        """Count a call."""
        self.done += 1
        self.tell()

    def _step(self, _pipeline: Any, step: int, *_: Any) -> None:
        self._calls += step == 0
        self.check()

    def _compare(self) -> None:
        from vargen.jobs.benchmark import run_benchmark

        pipeline, methods, cases, seed, judge = self._call
        self._began = time.perf_counter()
        self.rows = run_benchmark(
            pipeline,
            methods,
            cases,
            seed=seed,
            judge=judge,
            shown=self,  # type: ignore[arg-type]  # only counts
            callback_on_step_end=self._step,
        )


def read_prompts(text: str) -> list[str]:
    """A visitor's own prompts, one a line. Raises UserError for too many or too long ones."""
    prompts = [line.strip() for line in text.splitlines() if line.strip()]
    if len(prompts) > MAX_PROMPTS:
        raise UserError(f"prompts: {len(prompts)} are too many; this page compares on {MAX_PROMPTS} at most")
    if any(len(prompt) > MAX_CHARACTERS for prompt in prompts):
        raise UserError(f"prompts: one has more than {MAX_CHARACTERS} characters; shorten it")
    return prompts


def compare(
    models: Models, tickets: Tickets, ticket: str, model: str, names: Sequence[str], *asked: Any
) -> Iterator[tuple[str, list[dict[str, Any]] | None]]:
    """Compare. Yields the HTML of the progress, with None; last the rows, as `vargen bench --json` prints them.

    Args:
        ticket: of this request.
        model: by name.
        names: of methods; plain decoding is added.
        asked: own prompts, one a line; the number of example prompts otherwise; seed.
    """
    own, count, seed = asked
    comparing = begin(tickets, ticket, lambda: _prepare(models, model, names, own, int(count), seed))
    if isinstance(comparing, str):
        yield comparing, None
        return
    for _ in comparing.run():
        what = "pictures" if comparing.done else "pictures, warming up"
        yield markup.progress(comparing.done, comparing.total, comparing.seconds_left, what), None
    if comparing.error is not None:
        yield markup.notice(comparing.error, "error"), None
    elif comparing.rows is None:
        yield markup.notice(f"Stopped after {comparing.done} of {comparing.total} pictures."), None
    else:
        shared = {"batch_size": 1, "dtype": _dtype(comparing), "model": model}
        yield "", [{**row, **shared} for row in comparing.rows]


def _prepare(models: Models, model: str, names: Sequence[str], own: str, count: int, seed: float | None) -> Comparing:
    from vargen.jobs.cases import BenchmarkCase, fitting_judge, written_cases

    description, world = models.description(model), find_world()
    if not 1 <= len(names) <= MAX_METHODS:
        raise UserError(f"methods: choose 1 to {MAX_METHODS}")
    first = read_seed(seed, MAX_PROMPTS)
    prompts = read_prompts(own)
    if description.num_classes is not None:
        cases = [BenchmarkCase(class_label=number % description.num_classes) for number in range(count)]
    elif prompts:
        cases = written_cases(prompts, world)
    elif description.draws_scenes and world is not None:
        cases = world.sample_cases(min(max(count, 1), MAX_PROMPTS))
    else:
        raise UserError(f"prompts: write your own, one a line; {model} does not draw this project's world")
    pipeline: Any = models.pipeline(model)
    methods = {name: pipeline.resolve_method(name) for name in ["ar", *names]}
    can_be_judged = any(case.claims is not None for case in cases)
    judge = fitting_judge(description, world.judge) if can_be_judged else None
    return Comparing(pipeline, methods, cases, first, judge)


def _dtype(comparing: Comparing) -> str:
    return str(comparing._call[0].dtype).removeprefix("torch.")


def plot(rows: Sequence[Mapping[str, Any]]) -> Any | None:
    """The plot of `vargen bench`, as a picture; None where nothing was judged, since there is no quality then."""
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


def build(requests: Requests, models: Models, folder: Path) -> None:
    """Build the tab.

    Args:
        requests: computes what visitors ask for.
        folder: for files that are downloaded.
    """
    from metrics.tables import format_table

    gr = requests.gr
    first = models.default
    offered = models.methods(first)
    with gr.Row(equal_height=False):
        with gr.Column(scale=4, min_width=320, elem_classes="controls"):
            names = gr.CheckboxGroup(
                markup.choices(offered),
                value=[name for name in _TICKED if name in offered],
                label="Methods, beside plain decoding",
                elem_id="methods",
            )
            count = gr.Slider(1, MAX_PROMPTS, 4, step=1, label="Number of example prompts", elem_id="prompts")
            own = gr.Textbox(
                label="Or your own prompts, one a line",
                lines=3,
                max_lines=8,
                placeholder="a large green cone on grass",
                elem_id="comparison-prompts",
            )
            with gr.Accordion("More", open=False):
                model = gr.Dropdown(models.names, value=first, label="Model", filterable=False)
                seed = gr.Number(0, label="Seed of the first picture", precision=0)
            with gr.Row(elem_classes="tight"):
                start = gr.Button("Compare", variant="primary", elem_id="compare", scale=3)
                stop = gr.Button("Stop", interactive=False, elem_id="stop-comparing", scale=1, min_width=90)
        with gr.Column(scale=8, min_width=340):
            nothing = markup.empty(
                "The comparison appears here",
                "Every method draws every prompt with the same seeds, in turns.",
            )
            shown = gr.HTML(nothing, elem_id="comparison")
            with gr.Column(visible=False, elem_id="compared") as compared:
                table = gr.Markdown(elem_id="table")
                picture = gr.Image(
                    show_label=False, interactive=False, buttons=["download", "fullscreen"], elem_id="plot"
                )
                download = gr.DownloadButton("Download as JSON", size="sm", elem_id="download")

    def choose_model(model: str) -> Any:
        offered = models.methods(model)
        return gr.update(choices=markup.choices(offered), value=[name for name in _TICKED if name in offered])

    def reported(rows: Sequence[Mapping[str, Any]]) -> tuple[Any, ...]:
        drawn = plot(rows)
        return (
            gr.update(visible=True),
            format_table(rows),
            gr.update(value=drawn, visible=drawn is not None),
            write_rows(rows, folder),
        )

    model.change(choose_model, model, names, queue=False, **QUIET)
    requests.connect(
        start, stop, compare, [model, names, own, count, seed], shown, [compared, table, picture, download], reported
    )
