"""A real server in a process of its own is asked to end while it has requests."""

import http.client
import json
import resource
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from background import process, wait_for
from warm import python

for package in ("starlette", "uvicorn", "prometheus_client"):
    pytest.importorskip(package, reason="needs the extra serve")


PLACE = "/v1/images/generations"


def connected(port: int) -> http.client.HTTPConnection:
    return http.client.HTTPConnection("127.0.0.1", port, timeout=600)


def lives(port: int) -> bool:
    try:
        connection = connected(port)
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False


@contextmanager
def serving(model: Path, log: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A server and its port. At the end it must have ended well."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = python("-m", "vargen", "serve", "--model", model, "--port", str(port), *options)
    with process(command, log) as server:
        wait_for(lambda: lives(port), server, log)
        yield server, port
        assert server.wait(600) == 0, log.read_text()
    told = log.read_text()
    assert told.startswith("vargen: ") and "Traceback" not in told and "ERROR" not in told
    assert all(line.isprintable() and line.startswith(("vargen: ", "WARNING: ")) for line in told.splitlines()), told
    assert ("rows-batch with guided_tokens 96" in told) != ("--quiet" in options)


FORGED = "\n\rvargen: forged\x1b[2J\x9b31m\u202e"
ODD: list[tuple[str, str, dict[str, Any], dict[str, str]]] = [
    *(("POST", PLACE, body, {}) for body in ({"prompt": FORGED}, {FORGED: 1}, {"prompt": "a", "method": FORGED})),
    *(("GET", path, {}, {}) for path in (f"/{quote(FORGED)}", f"/v1/models/{quote(FORGED)}", "/\x1b[2J")),
    ("POST", PLACE, {"prompt": "a"}, {"Content-Type": "\x9b31m"}), ("GET", "/health", {}, {"a": "\x1b[2J"}),
]  # fmt: skip


def test_sigterm_lets_a_request_end_takes_no_other_and_is_no_failure(_saved_tiny_pipelines, tmp_path):
    body, log = json.dumps({"prompt": "a red cube", "n": 2}).encode(), tmp_path / "log"
    with serving(_saved_tiny_pipelines["text"], log, "--quiet") as (server, port):
        for way, path, asked, headers in ODD:  # nothing of which the log shows as it is
            odd = connected(port)
            odd._validate_path = lambda _: None  # type: ignore[attr-defined]
            odd.request(way, path, json.dumps(asked), {"Content-Type": "application/json", **headers})
            answer = odd.getresponse()
            assert answer.status < 500 and b"\x1b" not in answer.read()
        connection = connected(port)
        connection.putrequest("POST", "/v1/images/generations")
        connection.putheader("Content-Length", str(len(body)))
        connection.putheader("Content-Type", "application/json")
        connection.endheaders(body[:10])  # the rest comes after the signal
        assert lives(port), "the server has read what was sent before"
        server.send_signal(signal.SIGTERM)
        wait_for(lambda: not lives(port), server, log)
        connection.send(body[10:])
        answer = connection.getresponse()
        assert answer.status == 200 and len(json.loads(answer.read())["data"]) == 2


def test_a_server_under_load_answers_what_it_took_and_ends(_saved_tiny_pipelines, tmp_path):
    """200 requests of 16 clients beside 1,500 that are half sent; SIGTERM comes when most are answered."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, limits[1]), limits[1]))

    def ask(number: int) -> int:
        connection, status = connected(port), 0
        try:
            connection.connect()
            connection.request("POST", "/v1/images/generations", json.dumps({"prompt": "a cone", "seed": number}),
                               {"Content-Type": "application/json"})  # fmt: skip
            answer = connection.getresponse()
            status = answer.status if answer.read() else 0
        except (OSError, http.client.HTTPException):
            pass
        if number == 150:
            server.send_signal(signal.SIGTERM)
        return status

    with serving(_saved_tiny_pipelines["text"], tmp_path / "log") as (server, port):
        halves = [socket.create_connection(("127.0.0.1", port)) for _ in range(1500)]
        for half in halves:
            half.send(b"POST /v1/images/generations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
        with ThreadPoolExecutor(16) as clients:
            answers = list(clients.map(ask, range(200)))
    for half in halves:
        half.close()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    taken = 150 - 16  # when a client has its answer, the other fifteen ask for no earlier ones
    assert {*answers[:taken]} == {200} and {*answers} <= {200, 0}
