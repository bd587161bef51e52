"""The page is built and served; what it lets in and who may come."""

from __future__ import annotations

import json
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from vargen.base.errors import UserError
from vargen.cli import main
from vargen.commands.arguments import build_parser, fill, parse
from vargen.demo import app
from vargen.demo.app import DemoConfig
from vargen.demo.models import Models
from vargen.models.options import ModelOptions


def test_nobody_else_is_let_in_by_default() -> None:
    assert (DemoConfig().host, DemoConfig().share) == ("127.0.0.1", False)
    parser = build_parser("demo", "", DemoConfig)
    assert fill(DemoConfig, parse(parser, ["--share", "--port", "1"])) == DemoConfig(share=True, port=1)
    assert not fill(DemoConfig, parse(parser, ["--share", "false"])).share


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "0"], "port"),
        (["--dtype", "int8"], "dtype"),
        (["--model", "no/such/folder"], "model"),
        (["--wings", "2"], "wings"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "check_gradio", lambda: None)
    assert main(["demo", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_without_gradio_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo"]) == 2
    assert 'pip install "vargen[demo]"' in capsys.readouterr().err


def test_the_page_and_its_limits(tmp_path: Path, tiny_model_folder: Path) -> None:
    pytest.importorskip("gradio", reason='the page needs the extra "demo"')
    models = Models(ModelOptions(str(tiny_model_folder)))
    page = app.serve(models, tmp_path)
    try:
        port = int(page.local_url.rstrip("/").rsplit(":", 1)[1])
        text = urllib.request.urlopen(page.local_url).read().decode()
        assert "vargen" in text and page.share_url is None
        assert page._queue.max_size == app.MAX_WAITING
        foreign = urllib.request.Request(page.local_url, headers={"Host": "foreign.example"})
        with pytest.raises(urllib.error.HTTPError, match="400"):
            urllib.request.urlopen(foreign)
        body = json.dumps({"data": [], "fn_index": -1, "session_hash": "x"}).encode()
        for route in ("queue/join", "run/predict"):
            nobody = urllib.request.Request(
                f"{page.local_url}gradio_api/{route}", body, {"Content-Type": "application/json"}
            )
            with pytest.raises(urllib.error.HTTPError, match="40"):
                urllib.request.urlopen(nobody)
        computing = [fn for fn in page.fns.values() if fn.concurrency_id == "model"]
        assert len(computing) == 3 and all(fn.concurrency_limit == 1 for fn in computing)
        with pytest.raises(UserError, match="port"):
            app.serve(models, tmp_path, DemoConfig(port=port))
    finally:
        page.close(verbose=False)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as every server does
        free.bind(("127.0.0.1", port))
