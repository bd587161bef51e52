"""The page as a whole: its tabs, its looks, and the server behind it.

Belongs here: what all tabs share. Does not belong here: any tab, arguments (`vargen.commands.demo`).
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

from vargen.base.errors import UserError
from vargen.demo import compare, pictures, videos
from vargen.demo.models import Models
from vargen.demo.requests import Requests
from vargen.demo.tickets import Tickets
from vargen.demo.worker import LocalWorker, Worker, WorkerProcess

MAX_WAITING = 16
"""Requests; more are refused."""

_ONE_AT_A_TIME: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
"""Everything that computes: two at once would only slow each other down, and their seconds would mean nothing."""

_FONT = ("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
_HEADER = """
<header class="top"><h1>vargen</h1>
<p>Pictures and answers from autoregressive models, in a fraction of the forward passes.</p></header>
"""


@dataclass(frozen=True)
class Served:
    """A page that is there.

    Args:
        blocks: Gradio's.
        url: here.
        share_url: for others; None where nobody asked for one.
    """

    blocks: Any
    url: str
    share_url: str | None

    def close(self) -> None:
        """Take it away."""
        self.blocks.close(verbose=False)


def check_gradio() -> None:
    """Raises UserError where it is not installed."""
    if importlib.util.find_spec("gradio") is None:
        raise UserError('vargen demo needs Gradio; run: pip install "vargen[demo]"')


def build_page(models: Models, worker: Worker, folder: Path) -> Any:
    """All tabs, as Gradio's Blocks.

    Args:
        models: what they offer.
        worker: who computes.
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
    """Put the page on a port, and go on.

    Args:
        models, folder: as for `build_page`.
        host: who may reach it; "0.0.0.0" for everybody on the network.
        port: None: the first free one from 7860.
        share: also by a public address of gradio.live, which lets anybody in who knows it.
        worker: who computes; None: this process.

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
    """Quiet, with fonts that every machine has."""
    sizes = gr.themes.sizes
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        radius_size=sizes.radius_md,
        spacing_size=sizes.spacing_md,
        font=_FONT,
        font_mono=("ui-monospace", "SFMono-Regular", "Menlo", "monospace"),
    ).set(body_text_color_subdued="*neutral_500")  # Gradio's own is too pale to read on white


def run_until_interrupted(host: str, port: int | None, share: bool, *models: Any) -> None:
    """Serve the page until Ctrl+C, and say where it is. A process of its own loads the first model meanwhile.

    Args:
        host, port, share: as for `serve`.
        models: arguments of `Models`.

    Raises:
        UserError: as `Models` and `serve`.
    """
    check_gradio()
    offered = Models(*models)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # after cleaning up, as after Ctrl+C
    with tempfile.TemporaryDirectory(prefix="vargen_demo_") as folder:
        worker = WorkerProcess(Path(folder), *models)
        try:
            # Importing Gradio makes a million objects that stay; looking for garbage among them, again and again, would
            # take a third of the start.
            gc.disable()
            served = serve(offered, Path(folder), host, port, share, worker)
            gc.freeze()
            gc.enable()
            print(f"vargen demo: {served.url} (Ctrl+C ends it)", flush=True)
            if served.share_url is not None:
                print(f"vargen demo: anybody may come by {served.share_url}", flush=True)
            try:
                served.blocks.block_thread()
            finally:
                served.close()
        finally:
            gc.enable()
            worker.close()
