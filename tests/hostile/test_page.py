"""Requests to the page that a stranger sends: an answer of the 400s, nothing let out, and the page goes on."""

import json
import os
import re
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from refusals import raised, refused

from vargen.base import http_clients
from vargen.checkpoints.options import ModelOptions
from vargen.demo import app
from vargen.demo.app import DemoConfig
from vargen.demo.models import Models
from vargen.demo.pictures import read_edit


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For downloads."""
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def models(_saved_tiny_pipelines: dict[str, Path]) -> Models:
    return Models(ModelOptions(str(_saved_tiny_pipelines["text"])))


@pytest.fixture(scope="module")
def page(models: Models, folder: Path) -> Iterator[Any]:
    pytest.importorskip("gradio", reason='the page needs the extra "demo"')
    served = app.serve(models, folder)
    port = port_of(served)
    try:
        yield served
    finally:
        served.close(verbose=False)
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as every server does
        free.bind(("127.0.0.1", port))


def port_of(page: Any) -> int:
    return int(page.local_url.rstrip("/").rsplit(":", 1)[1])


def ask(page: Any, path: str, method: str = "GET", body: Any = None, **headers: str) -> tuple[int, str]:
    """The status and the text of an answer."""
    content = None if body is None else json.dumps(body).encode()
    sent = {"Content-Type": "application/json", **headers}
    request = urllib.request.Request(page.local_url + path.lstrip("/"), content, sent, method=method)
    try:
        with urllib.request.urlopen(request, timeout=600) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_is_for_this_machine_alone(page, models, folder):
    """One computes at a time, and few wait."""
    status, text = ask(page, "/")
    assert status == 200 and "vargen" in text and page.share_url is None
    assert page._queue.max_size == app.MAX_WAITING
    computing = [fn for fn in page.fns.values() if fn.concurrency_id == "model"]
    assert len(computing) == 3 and all(fn.concurrency_limit == 1 for fn in computing)
    refused("port", app.serve, models, folder, DemoConfig(port=port_of(page)))


@pytest.mark.parametrize(
    "host", ["foreign.example", "localhost.foreign.example", "127.0.0.1.foreign.example", "10.0.0.1"]
)
def test_a_foreign_host_is_answered_nowhere(page, host):
    """Every path that the page has."""
    paths = page.app.openapi()["paths"]
    assert len(paths) > 30
    for path, methods in [("/", {"get": {}}), *paths.items()]:
        for method in methods:
            asked = re.sub(r"\{.*?\}", "1", path)
            found = ask(page, asked, method.upper(), {} if method == "post" else None, Host=host)
            assert found in ((400, "Invalid host header"), (400, "")), (path, found)


@pytest.mark.parametrize("origin", ["http://foreign.example", "null", "http://localhost.foreign.example"])
def test_a_page_of_another_origin_starts_nothing(page, origin):
    """Every path and method that the page has, with a body that its own page might send."""
    for path, methods in page.app.openapi()["paths"].items():
        for method in methods:
            asked = re.sub(r"\{.*?\}", "1", path)
            assert ask(page, asked, method.upper(), {} if method == "post" else None, Origin=origin)[0] == 403, path
    assert ask(page, "gradio_api/queue/join", "POST", {}, **{"Sec-Fetch-Site": "cross-site"})[0] == 403
    assert ask(page, "/", Origin=page.local_url.rstrip("/"))[0] == 200


def test_half_a_request_holds_no_page(page, monkeypatch):
    monkeypatch.setattr(http_clients, "PATIENCE", 0.2)
    for sent in (b"", b"GET / HTTP/1.1\r\n", b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"):
        with socket.create_connection(("127.0.0.1", port_of(page))) as half:
            half.sendall(sent)
            while half.recv(1 << 16):  # ends when the page closes it
                pass


@pytest.mark.parametrize("number", [-1, 10**6, 10**30, 1.5, "x", [], None])
def test_a_function_that_the_page_does_not_have(page, number):
    """Wherever a request names one, by its number or by its name."""
    for route in ("queue/join", "run/predict", "api/predict", "call/predict"):
        asked = {"data": [], "fn_index": number, "session_hash": "x"}
        status, text = ask(page, f"gradio_api/{route}", "POST", asked)
        assert 400 <= status < 500 and "Traceback" not in text, (route, status, text)


def test_a_body_of_another_shape(page):
    for body in ([], 7, "x", {}, {"data": {}}, {"data": [], "fn_index": 0, "session_hash": 7}):
        for route in ("queue/join", "run/predict"):
            status, text = ask(page, f"gradio_api/{route}", "POST", body)
            assert 400 <= status < 500 and "Traceback" not in text, (route, status, text)


@pytest.mark.parametrize("content", [b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>", b"", b"GIF89a"])
def test_a_picture_of_a_visitor_starts_no_program(page, content, tmp_path, monkeypatch):
    """Pillow's readers of PostScript and others do, and gradio lets it choose by the content."""
    from gradio.components.image_editor import EditorData
    from gradio.data_classes import FileData
    from gradio.exceptions import Error
    from PIL import Image

    monkeypatch.setattr(subprocess, "Popen", lambda *given, **named: pytest.fail(f"{given} was started"))
    (painted,) = [each for each in page.blocks.values() if getattr(each, "elem_id", None) == "painted"]
    path = tmp_path / "0.png"
    path.write_bytes(content)
    sent = FileData(path=str(path), orig_name="0.png")
    for payload in (EditorData(background=sent), EditorData(composite=sent), EditorData(layers=[sent])):
        raised(Error, "picture cannot be read as PNG, JPEG, WEBP", painted.preprocess, payload)
    Image.new("RGBA", (4, 4), (255, 0, 0, 0)).save(path)
    found = painted.preprocess(EditorData(background=sent, layers=[sent]))
    assert found["background"].size == (4, 4) and found["layers"][0].mode == "RGBA"
    assert read_edit(found, 1)["image"].getpixel((0, 0)) == (255, 255, 255), "as it looks"


def test_sigterm_ends_the_page_with_0_and_leaves_no_upload(_saved_tiny_pipelines, monkeypatch, capsys):
    """A visitor's files are for this user alone while it runs."""
    import gradio

    waits, sent = gradio.Blocks.block_thread, list[Path]()

    def visited(page: Any) -> None:
        content = b'--x\r\nContent-Disposition: form-data; name="files"; filename="a.png"\r\n\r\nmine\r\n--x--\r\n'
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        request = urllib.request.Request(f"{page.local_url}gradio_api/upload", content, kind, method="POST")
        with urllib.request.urlopen(request, timeout=600) as answer:
            sent.extend(map(Path, json.loads(answer.read())))
        assert sent[0].read_bytes() == b"mine" and not os.stat(os.environ["GRADIO_TEMP_DIR"]).st_mode & 0o077
        threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGTERM)).start()
        waits(page)

    monkeypatch.setattr(gradio.Blocks, "block_thread", visited)
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            app.run_until_interrupted(DemoConfig(str(_saved_tiny_pipelines["text"])))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 0 and not sent[0].exists() and not any(map(Path.exists, sent[0].parents[:2]))


def test_no_file_of_this_machine_is_let_out(page, tmp_path, folder):
    """But for downloads and what the page is made of."""
    (tmp_path / "secret.txt").write_text("a secret")
    below = "/".join([".."] * 20)
    for name in (tmp_path / "secret.txt", f"{below}{tmp_path}/secret.txt", f"{folder}/../secret.txt", Path(__file__)):
        status, text = ask(page, f"gradio_api/file={name}")
        assert status in (403, 404) and "secret" not in text.replace("secret.txt", ""), (name, status, text)
    assert ask(page, "gradio_api/proxy=http://foreign.example/")[0] == 400
