"""A real server in a process of its own is asked to end while it has a request."""

import http.client
import json
import signal
import socket
import sys

import pytest
from background import process, wait_for

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")


def test_sigterm_lets_a_request_end_takes_no_other_and_is_no_failure(_saved_tiny_pipelines, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vargen", "serve", "--model", str(_saved_tiny_pipelines["text"]), "--port"]
    log = tmp_path / "log"
    body = json.dumps({"prompt": "a red cube", "n": 2}).encode()

    def health() -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False

    def asks() -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.putrequest("POST", "/v1/images/generations")
        connection.putheader("Content-Length", str(len(body)))
        connection.putheader("Content-Type", "application/json")
        connection.endheaders(body[:10])  # the rest comes after the signal
        return connection

    with process([*command, str(port)], log) as server:
        wait_for(health, server, log)
        connection = asks()
        assert health(), "the server has read what was sent before"
        server.send_signal(signal.SIGTERM)
        wait_for(lambda: not health(), server, log)
        connection.send(body[10:])
        answer = connection.getresponse()
        assert answer.status == 200 and len(json.loads(answer.read())["data"]) == 2
        assert server.wait(600) == 0, log.read_text()
    told = log.read_text()
    assert told.startswith("vargen: ") and "Traceback" not in told and "ERROR" not in told
