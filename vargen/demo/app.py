"""The page as a whole: its settings, its tabs, its looks, and the server behind it.

Belongs here: the frame around all tabs. Does not belong here: any tab.
"""

from __future__ import annotations

import gc
import importlib
import importlib.util
import os
import signal
import sys
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vargen.base.errors import UserError
from vargen.base.http_clients import OwnMachineOnly, bounded_protocol, is_own_machine
from vargen.base.options import option
from vargen.base.path_roles import MODEL
from vargen.checkpoints.options import ModelOptions
from vargen.demo import compare, pictures, videos
from vargen.demo.models import Models

MAX_WAITING = 16
"""Requests that may wait; more are refused."""

_HEADER = """
<header class="top"><h1>vargen</h1>
<p>Pictures and answers from autoregressive models, in a fraction of the forward passes.</p></header>
"""


@dataclass(frozen=True)
class DemoConfig(ModelOptions):
    """What to show, and to whom."""

    model: str | None = None
    """Folder, hub name or shipped name of a picture model that is offered before the shipped ones."""
    video_model: str | None = option(None, path=MODEL)
    """Folder of a Qwen2-VL, Qwen2.5-VL, Qwen3-VL, LLaVA-OneVision or LLaVA-NeXT-Video model; null for the shipped
    one."""
    video_draft_model: str | None = option(None, path=MODEL)
    """Folder of its draft model; null for the one shipped with the shipped model."""
    host: str = "127.0.0.1"
    """Address of the page. 127.0.0.1 is for this machine alone, 0.0.0.0 for everybody on the network."""
    port: int | None = option(None, least=1, most=65_535)
    """Number of its port; null for the first free one from 7860."""
    share: bool = False
    """Also open a public address at gradio.live, for everybody who knows it."""


def check_gradio() -> None:
    """Raises UserError where Gradio is not installed."""
    if importlib.util.find_spec("gradio") is None:
        raise UserError('vargen demo needs Gradio; run: pip install "vargen[demo]"')


def build_page(models: Models, folder: Path) -> Any:
    """All tabs, as Gradio's Blocks: they offer `models`, and `folder` is for downloads."""
    gr = importlib.import_module("gradio")
    with gr.Blocks(title="vargen", analytics_enabled=False, fill_width=True, delete_cache=(3600, 3600)) as blocks:
        gr.HTML(_HEADER)
        with gr.Tab("Pictures"):
            pictures.build(gr, models)
        with gr.Tab("Videos") as tab:
            videos.build(gr, models, tab)
        with gr.Tab("Compare"):
            compare.build(gr, models, folder)
    blocks.queue(max_size=MAX_WAITING)
    return blocks


def serve(models: Models, folder: Path, config: DemoConfig | None = None) -> Any:
    """Open the page on a port, and return it as Gradio's Blocks: `local_url`, `share_url` (or None), `close()`.

    Args:
        models, folder: the models that it offers, and a folder for downloads.
        config: gives host, port and share; None for the defaults.

    Raises:
        UserError: Gradio is not installed, or the port or host cannot be used.
    """
    check_gradio()
    config = DemoConfig() if config is None else config
    blocks = build_page(models, folder)
    try:
        blocks.launch(
            server_name=config.host,
            server_port=config.port,
            share=config.share,
            prevent_thread_lock=True,
            quiet=True,
            max_file_size=videos.MAX_BYTES,
            footer_links=[],
            ssr_mode=False,
            pwa=False,
            app_kwargs={"middleware": _own_hosts(config), "exception_handlers": _handlers()},
            theme=_theme(importlib.import_module("gradio")),
            css_paths=Path(__file__).with_name("page.css"),
        )
    except OSError as error:
        address = f"{config.host}:{config.port or 7860}"
        raise UserError(f"port: {address} cannot be used ({error}); give another --port or --host") from error
    blocks.server.config.http_protocol_class = bounded_protocol()  # of connections from now on
    return blocks


def _own_hosts(config: DemoConfig) -> list[Any]:
    """Let a page of this machine alone answer only under the machine's own names and to its own pages, so that a
    foreign page, whose name may lead here (DNS rebinding), reads nothing and starts nothing."""
    if config.share or not is_own_machine(config.host):
        return []
    from starlette.middleware import Middleware

    return [Middleware(OwnMachineOnly)]


def _handlers() -> dict[type[Exception], Any]:
    """Gradio looks up the function that a request names, by number or by name, and fails where the page has none
    such."""
    from starlette.responses import JSONResponse

    async def no_such_function(request: Any, error: Exception) -> Any:
        return JSONResponse({"detail": "the page has no such function; load it again"}, 404)

    by_name = importlib.import_module("gradio.route_utils").FnIndexInferError
    return dict.fromkeys((KeyError, by_name), no_such_function)


def _theme(gr: Any) -> Any:
    """A quiet theme with fonts that every machine has."""
    return gr.themes.Base(
        primary_hue="blue",
        neutral_hue="slate",
        font=("system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"),
        font_mono=("ui-monospace", "SFMono-Regular", "Menlo", "monospace"),
    ).set(body_text_color_subdued="*neutral_500")  # Gradio's own is too pale to read on white


def run_until_interrupted(config: DemoConfig) -> None:
    """Load the first model, serve the page until Ctrl+C, and print its address. Raises UserError as `Models` and
    `serve`, or where the model cannot be loaded."""
    check_gradio()
    models = Models(config, config.video_model, config.video_draft_model)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # after cleaning up: that it was asked to end is no failure
    with tempfile.TemporaryDirectory(prefix="vargen_demo_") as folder, closing(models):
        os.environ["GRADIO_TEMP_DIR"] = folder  # uploads: for this user alone, and gone at the end
        # Imports make millions of objects that stay. Garbage collection would take a third of the start.
        gc.disable()
        try:
            models.pipeline(models.default)
            page = serve(models, Path(folder), config)
            gc.freeze()
        finally:
            gc.enable()
        print(f"vargen demo: {page.local_url} (Ctrl+C ends it)", flush=True)
        if page.share_url is not None:
            print(f"vargen demo: {page.share_url} is open to everybody who knows it", flush=True)
        try:
            page.block_thread()
        finally:
            page.close(verbose=False)
