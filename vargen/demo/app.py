"""The page as a whole: its settings, its tabs, its looks, and the server behind it.

Belongs here: what all tabs share. Does not belong here: any tab.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import signal
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vargen.base.bounds import check_number
from vargen.base.errors import UserError
from vargen.demo import compare, pictures, videos
from vargen.demo.models import Models
from vargen.demo.requests import Requests
from vargen.demo.tickets import Tickets
from vargen.demo.worker import LocalWorker, Worker, WorkerProcess
from vargen.models.options import ModelOptions

MAX_WAITING = 16
"""Requests that may wait; more are refused."""

_ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
"""Options of everything that computes. Two computations at once would slow each other down and falsify seconds."""

_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_HEADER = """
<header class="top"><h1>vargen</h1>
<p>Pictures and answers from autoregressive models, in a fraction of the forward passes.</p></header>
"""


@dataclass(frozen=True)
class DemoConfig(ModelOptions):
    """What to show, and to whom.

    Args:
        model: folder, hub name or shipped name of a picture model that is offered before the shipped ones.
        video_model: folder of a Qwen2.5-VL or LLaVA-OneVision model; null for the shipped one.
        video_draft_model: folder of its draft model; null for the one shipped with the shipped model.
        host: address of the page. 127.0.0.1 is for this machine alone, 0.0.0.0 for everybody on the network.
        port: number of its port; null for the first free one from 7860.
        share: also open a public address at gradio.live, for everybody who knows it.
    """

    video_model: str | None = None
    video_draft_model: str | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    share: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.port is not None:
            check_number("port", self.port, 1, 65_535)


@dataclass(frozen=True)
class Served:
    """A page that is open.

    Args:
        blocks: Gradio's.
        url: on this machine.
        share_url: for others; None for a page that is not shared.
    """

    blocks: Any
    url: str
    share_url: str | None

    def close(self) -> None:
        """Close the page."""
        self.blocks.close(verbose=False)


def check_gradio() -> None:
    """Raises UserError where Gradio is not installed."""
    if importlib.util.find_spec("gradio") is None:
        raise UserError('vargen demo needs Gradio; run: pip install "vargen[demo]"')


def build_page(models: Models, worker: Worker, folder: Path) -> Any:
    """All tabs, as Gradio's Blocks.

    Args:
        models: the models that they offer.
        worker: computes.
        folder: for files that are downloaded.
    """
    gr = importlib.import_module("gradio")
    requests = Requests(gr, worker, Tickets(), _ONE_AT_A_TIME)
    with gr.Blocks(title="vargen", analytics_enabled=False, fill_width=True, delete_cache=(3600, 3600)) as blocks:
        gr.HTML(_HEADER)
        with gr.Tab("Pictures"):
            pictures.build(requests, models)
        with gr.Tab("Videos") as tab:
            videos.build(requests, models, tab)
        with gr.Tab("Compare"):
            compare.build(requests, models, folder)
    blocks.queue(max_size=MAX_WAITING)
    return blocks


def serve(
    models: Models,
    folder: Path,
    host: str = "127.0.0.1",
    port: int | None = None,
    share: bool = False,
    worker: Worker | None = None,
) -> Served:
    """Open the page on a port, and return.

    Args:
        models, folder: as for `build_page`.
        host, port, share: as in `DemoConfig`.
        worker: computes; None for this process.

    Raises:
        UserError: Gradio is not installed, or the port or host cannot be used.
    """
    from vargen.demo.uploads import MAX_BYTES

    check_gradio()
    gr = importlib.import_module("gradio")
    blocks = build_page(models, LocalWorker(models) if worker is None else worker, folder)
    try:
        _, url, share_url = blocks.launch(
            server_name=host,
            server_port=port,
            share=share,
            prevent_thread_lock=True,
            quiet=True,
            max_file_size=MAX_BYTES,
            footer_links=[],
            ssr_mode=False,
            pwa=False,
            theme=_theme(gr),
            css_paths=Path(__file__).with_name("page.css"),
        )
    except OSError as error:
        raise UserError(
            f"port: {host}:{port or 7860} cannot be used ({error}); give another --port or --host"
        ) from error
    return Served(blocks, url, share_url)


def _theme(gr: Any) -> Any:
    """A quiet theme with fonts that every machine has."""
    sizes = gr.themes.sizes
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size=sizes.radius_md,
        spacing_size=sizes.spacing_md,
        font=_FONT,
        font_mono=("ui-monospace", "SFMono-Regular", "Menlo", "monospace"),
    ).set(body_text_color_subdued="*neutral_500")  # Gradio's own is too pale to read on white


def run_until_interrupted(config: DemoConfig) -> None:
    """Serve the page until Ctrl+C, and print its address. Another process loads the first model meanwhile.

    Raises:
        UserError: as `Models` and `serve`.
    """
    check_gradio()
    models = (config, config.video_model, config.video_draft_model)
    offered = Models(*models)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # after cleaning up, as after Ctrl+C
    with tempfile.TemporaryDirectory(prefix="vargen_demo_") as folder:
        worker = WorkerProcess(Path(folder), *models)
        try:
            # Importing Gradio makes a million objects that stay. Collecting garbage among them takes a third of the
            # start.
            gc.disable()
            served = serve(offered, Path(folder), config.host, config.port, config.share, worker)
            gc.freeze()
            gc.enable()
            print(f"vargen demo: {served.url} (Ctrl+C ends it)", flush=True)
            if served.share_url is not None:
                print(f"vargen demo: {served.share_url} is open to everybody who knows it", flush=True)
            try:
                served.blocks.block_thread()
            finally:
                served.close()
        finally:
            gc.enable()
            worker.close()
