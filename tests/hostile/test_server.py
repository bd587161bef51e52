"""Requests and settings that a server cannot serve: a status and one line, and the next request is drawn."""

import asyncio
import gc
import json
import operator
import os
import re
import socket
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

import pytest
from called_app import client_of
from hostile import Case, check_case, each
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL.Image import Image
from refusals import refused
from tiny_pipelines import build_tiny_pipeline

from vargen.base import http_clients
from vargen.base.errors import UserError
from vargen.base.options import options_of
from vargen.serve.app import KEY, WITHOUT_EFFECT, GenerationBody, ServeConfig, build_app, check_serving
from vargen.serve.engine import Engine, Job

pytest.importorskip("uvicorn", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="asks the server")

PLACE, PROMPT = "/v1/images/generations", "a red cube"
GOOD = json.dumps({"prompt": PROMPT, "seed": 3}).encode()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine(build_tiny_pipeline())
    yield made
    made.close()


def ask(engine: Engine, content: bytes, headers: Any = None, key: str | None = None, path: str = PLACE) -> Any:
    return client_of(build_app(engine, "tiny", key))._client.post(path, content=content, headers=headers)


def check_answer(answer: Any, status: int, message: str) -> None:
    said = answer.json()["error"]
    assert (answer.status_code, said["type"]) == (status, "invalid_request_error")
    assert message in said["message"] and "\n" not in said["message"] and len(said["message"]) < 300


BODIES: list[tuple[Any, int, str]] = [
    ({"prompt": PROMPT, "size": "1024x1024"}, 400, "size must be 8x8"),
    ({"prompt": PROMPT, "size": 3}, 400, "size must be 8x8"),
    ({"prompt": PROMPT, "size": ["8x8"]}, 400, "size must be 8x8"),
    ({"prompt": PROMPT, "size": "8" * 100_000}, 400, "size must be 8x8"),
    ({"prompt": "x" * 1_000_000}, 413, "more than 262,144 bytes"),
    ({"prompt": "x" * 20_000}, 400, "prompt has 20,000 characters"),
    ({"prompt": "\0"}, 400, "prompt"),
    ({"prompt": "a \ud800"}, 400, "prompt is not UTF-8 text"),
    ({"prompt": " "}, 400, "prompt must be a text"),
    ({"prompt": ["a"]}, 400, "prompt must be a text"),
    ({"n": 2}, 400, "prompt must be a text"),
    ({"prompt": PROMPT, "n": 1000}, 400, "n must be at most 10, got 1000"),
    ({"prompt": PROMPT, "n": True}, 400, "n must be an integer from 1 to 10, got True"),
    ({"prompt": PROMPT, "n": 1.0}, 400, "n must be an integer from 1 to 10"),
    ({"prompt": PROMPT, "n": -(10**400)}, 400, "n must be at least 1, got -1000"),
    ({"prompt": PROMPT, "seed": -1}, 400, "seed must be at least 0"),
    ({"prompt": PROMPT, "seed": 2**64}, 400, "seed must be at most"),
    ({"prompt": PROMPT, "seed": float("nan")}, 400, "seed must be an integer"),
    ({"prompt": PROMPT, "response_format": "jpeg"}, 400, "response_format must be one of b64_json, url"),
    ({"prompt": PROMPT, "response_format": {}}, 400, "response_format must be one of b64_json, url"),
    ({"prompt": PROMPT, "output_format": "gif"}, 400, "output_format must be one of png, jpeg, webp"),
    ({"prompt": PROMPT, "output_compression": 101}, 400, "output_compression must be at most 100"),
    ({"prompt": PROMPT, "temperature": -1}, 400, "temperature must be"),
    ({"prompt": PROMPT, "negative_prompt": "x" * 20_000}, 400, "negative_prompt has 20,000 characters"),
    ({"prompt": PROMPT, "method": "ar"}, 400, "method cannot be chosen"),
    ({"prompt": PROMPT, "stream": "yes"}, 400, "stream must be true or false"),
    ({"prompt": PROMPT, "stream": True, "n": 2}, 400, "n must be 1 where stream is true"),
    ({"prompt": PROMPT, "partial_images": 1}, 400, "partial_images needs stream true"),
    ({"prompt": PROMPT, "stream": True, "partial_images": 9}, 400, "partial_images must be at most 3"),
    ({"prompt": PROMPT, "background": "transparent"}, 400, "background must be one of auto, opaque, got 'transparent'"),
    ({"prompt": PROMPT, "background": ["auto"]}, 400, "background must be one of auto, opaque"),
    ({"prompt": PROMPT, "sed": 3}, 400, "'sed' is no field of this server (did you mean 'seed'?); leave it out"),
    ({"prompt": PROMPT, "frame_count": 2}, 400, "'frame_count' is no field of this server; leave it out"),
    ({"prompt": PROMPT, "a\n\ud800": 1}, 400, r"'a\n\ud800' is no field"),
    ({"prompt": PROMPT, "x" * 100_000: 1}, 400, "is no field"),
    ([1], 400, "body must be a JSON object"),
]


@pytest.mark.parametrize(("body", "status", "message"), BODIES, ids=range(len(BODIES)))
def test_a_body_is_refused(engine, body, status, message):
    check_answer(ask(engine, json.dumps(body).encode()), status, message)
    assert engine.alive and engine.waiting == 0


@settings(max_examples=25, deadline=None)
@given(st.text())
def test_a_field_that_is_not_known_is_named(name):
    assume(name not in {*WITHOUT_EFFECT, *options_of(GenerationBody)})
    with pytest.raises(UserError) as refused:
        GenerationBody.read({"prompt": PROMPT, name: 1}, 8, True)
    assert str(refused.value).startswith(f"{name!r:.40} is no field")
    assert GenerationBody.read({"prompt": PROMPT, name: None}, 8, True) == GenerationBody(PROMPT), "null is not given"


def test_a_refusal_has_the_fields_name_apart(engine):
    for field in ("sed", "size"):
        answer = ask(engine, json.dumps({"prompt": PROMPT, field: "1x1"}).encode())
        assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 100_000], ids=range(5))
def test_a_body_that_is_no_json(engine, content):
    check_answer(ask(engine, content), 400, "body must be JSON")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
def test_json_of_another_encoding_is_read(engine, encoding):
    check_answer(ask(engine, '{"prompt": "a", "n": 0}'.encode(encoding)), 400, "n must be at least 1, got 0")


def test_a_key_that_is_there_twice(engine):
    check_answer(ask(engine, b'{"prompt": "a", "n": 1, "n": 2}'), 400, "send each key once")


FOREIGN = [
    *({"host": host} for host in ("evil.example", "evil.example:8000", "10.0.0.1", "", "[", "127.0.0.1.evil.example")),
    *({"host": host} for host in ("localhost/evil.example", "evil@localhost", "x/health?", "localhost:8000:1")),
    [("host", "localhost"), ("host", "evil.example")],
    *({"origin": origin} for origin in ("http://evil.example", "null", "http://localhost.evil.example", "http://[")),
    {"sec-fetch-site": "cross-site"},
]
PLACES = (PLACE, "/v1/models", "/metrics", "/nowhere", "/v1/models/", "/v1/images/generations/")


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_whoever_is_not_of_this_machine_needs_a_key(engine, headers):
    """A page in a browser on this machine may have a name that leads here, or send what it cannot read. It is refused
    before anything else answers: a place that there is not, a method, a redirect."""
    named = "Host" if "host" in dict(headers) else "Origin"
    for path in PLACES:
        check_answer(ask(engine, GOOD, headers, path=path), 403, f"{named} must ")
        check_answer(ask(engine, GOOD, headers, "secret", path), 401, "the key is missing or wrong")
    sent = [*(headers if isinstance(headers, list) else headers.items()), ("authorization", "Bearer secret")]
    assert ask(engine, GOOD, sent, "secret").status_code == 200


def test_a_page_of_this_machine_may_ask_and_a_form_may_not(engine):
    for origin in ("http://localhost:3000", "http://127.0.0.1", "https://[::1]:8"):
        assert ask(engine, GOOD, {"origin": origin, "sec-fetch-site": "same-site"}).status_code == 200
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        check_answer(ask(engine, GOOD, {"content-type": kind}), 415, "Content-Type must be application/json")
    assert ask(engine, GOOD, {"content-type": "Application/JSON; charset=utf-8"}).status_code == 200


@pytest.mark.parametrize("sent", ["Bearer secret", "bearer secret", "BEARER  secret", "bEaReR secret "])
def test_the_scheme_of_a_key_has_any_case(engine, sent):
    assert ask(engine, GOOD, {"authorization": sent}, "secret").status_code == 200


@pytest.mark.parametrize("key", ["s\u00e9cret", " secret", "secret ", "secret\n", "sec\tret", "\u2603"])
def test_a_key_that_no_header_can_carry_is_refused_at_the_start(key, monkeypatch):
    monkeypatch.setenv(KEY, key)
    refused(f"{KEY} must be printable ASCII", check_serving, ServeConfig())


def test_a_request_that_can_never_fit_is_no_overload():
    engine = Engine(build_tiny_pipeline(), queue=4)
    answer = ask(engine, json.dumps({"prompt": PROMPT, "n": 5}).encode())
    check_answer(answer, 400, "n must be at most 4")
    assert answer.json()["error"]["param"] == "n"
    assert ask(engine, json.dumps({"prompt": PROMPT, "n": 4}).encode()).status_code == 200
    engine.close()


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"])
def test_this_machine_needs_none(engine, host):
    assert ask(engine, GOOD, {"host": host}).status_code == 200


def test_a_wrong_key(engine):
    for sent in ("", "secret", "Bearer ", "Bearer wrong", "Basic secret", "Bearer secre", "Bearer " + "x" * 50_000):
        answer = ask(engine, GOOD, {"authorization": sent}, "secret")
        check_answer(answer, 401, "the key is missing or wrong")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_other_places_and_ways(engine):
    paths = (
        "/docs", "/v1", "/v1/images/variations", "//", "/%00", "/v1/images/generations/../../etc/passwd",
        "/" + "x" * 999,
    )  # fmt: skip
    ways = [("GET", PLACE, "POST"), ("PUT", PLACE, "POST"), ("POST", "/health", "GET"), ("X" * 999, "/metrics", "GET")]

    client = client_of(build_app(engine, "tiny"))._client
    for path in paths:
        check_answer(client.post(path, content=GOOD), 404, "is no place of this server; it has /v1/images")
    for method, path, allowed in ways:
        answer = client.request(method, path)
        check_answer(answer, 405, f"is no method of {path}; use ")
        assert allowed in answer.headers["allow"] and allowed in answer.json()["error"]["message"]
    assert client.get("/health", headers={"host": "any.example"}).status_code == 200, "documented"
    counted = client.get("/metrics").text
    assert client.get("/metrics/").status_code == 404, "and no redirect"
    assert f'vargen_requests_total{{status="404"}} {len(paths)}.0' in counted
    assert f'vargen_requests_total{{status="405"}} {len(ways)}.0' in counted
    assert engine.alive and ask(engine, GOOD).status_code == 200


HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\n"
WHOLE = HEAD + b"Content-Length: 0\r\n\r\n"
UNDONE = {
    "nothing": b"", "half a head": HEAD, "half a body": HEAD + b"Content-Length: 9\r\n\r\n{",
    "no chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n", "a second head": WHOLE + HEAD,
    "an answer that nobody takes": WHOLE, "and goes on asking": WHOLE * 50,
}  # fmt: skip


async def large(scope: Any, receive: Any, send: Any) -> None:
    """An answer that no buffer between two sockets holds, as pictures in base64 are."""
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for _ in range(4):
        await send({"type": "http.response.body", "body": b"x" * (1 << 24), "more_body": True})
    await send({"type": "http.response.body", "body": b"x"})


@asynccontextmanager
async def running(app: Any) -> AsyncIterator[tuple[Any, int]]:
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(app, port=0, http=http_clients.bounded_protocol(), ws="none", lifespan="off", log_level="error")
    )
    task = asyncio.create_task(server._serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield server, server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


def connected(port: int, sent: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port))
    made.setblocking(False)
    made.send(sent)
    return made


ASK = HEAD.replace(b"/", PLACE.encode(), 1) + b"Content-Type: application/json\r\n"
SIZED, CHUNKED = ASK + b"Content-Length: ", ASK + b"Transfer-Encoding: chunked\r\n"
MALFORMED = {
    "TLS": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(200), "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": SIZED + b"2\r\nContent-Length: 20\r\n\r\n" + GOOD, "a length below 0": SIZED + b"-1\r\n\r\n",
    "a huge length": SIZED + b"9" * 20 + b"\r\n\r\n{", "a length in words": SIZED + b"0x1\r\n\r\n{",
    "a length and chunks": CHUNKED + b"Content-Length: 4\r\n\r\n0\r\n\r\n", "no size": CHUNKED + b"\r\nx\r\n{}\r\n",
    "a longer chunk": CHUNKED + b"\r\n1\r\n{}}\r\n0\r\n\r\n", "a zero byte": ASK + b"a\0: b\r\n\r\n",
    "2 MB": ASK + b"a: " + b"x" * 2_000_000 + b"\r\n\r\n", "many headers": ASK + b"a: b\r\n" * 10_000 + b"\r\n",
    "a WebSocket": ASK.replace(b"POST", b"GET") + b"Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "HTTP/2 later": ASK + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n",
}  # fmt: skip


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_request_is_refused_and_holds_no_server(engine, name, monkeypatch):
    monkeypatch.setattr(http_clients, "PATIENCE", 0.3)
    drawn, answer = engine.totals.pictures, b""

    async def work() -> None:
        nonlocal answer
        async with running(build_app(engine, "tiny")) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(MALFORMED[name])
            with suppress(ConnectionError):
                while part := await reader.read(1 << 16):
                    answer += part
            writer.close()
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"http://127.0.0.1:{port}/health")).status_code == 200

    asyncio.run(asyncio.wait_for(work(), 60))
    assert {*re.findall(rb"HTTP/1.1 (\d)", answer)} == {b"4"} and b"Traceback" not in answer, answer[:200]
    assert engine.alive and engine.totals.pictures == drawn


def test_clients_that_reset_their_connection_leave_nothing(engine):
    """Before, while and after they are answered, with a stream and without: no descriptor, no job, no picture."""
    asked = [GOOD, json.dumps({"prompt": "a cone", "stream": True, "partial_images": 3}).encode()]

    async def left(client: Any, url: str) -> tuple[int, int, int]:
        metrics = (await client.get(f"{url}/metrics")).text.count("\n")
        gc.collect()
        kept = sum(isinstance(each, Job | Image) for each in gc.get_objects())
        return len(os.listdir("/proc/self/fd")), kept, metrics

    async def work() -> None:
        before: Any = ()
        async with running(build_app(engine, "tiny")) as (_, port), httpx.AsyncClient() as client:
            url = f"http://127.0.0.1:{port}"
            for number in range(5):
                for content in asked:
                    for part in (HEAD, SIZED + b"%d\r\n\r\n" % len(content) + content):
                        one = connected(port, part)
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        await asyncio.sleep(0.01 * number)  # so that some are drawn and some are not
                        one.close()
                said = {"prompt": f"a zq{number}x cube", "negative_prompt": f"z{number}q"}  # that nobody has seen
                answer = await client.post(url + PLACE, json=said)
                assert answer.status_code == 200 and f"z{number}q" in "".join(answer.json()["warnings"])
                if number == 2:  # the least of some, when no wave is about to end
                    before = [*map(min, zip(*[await left(client, url) for _ in range(4)], strict=True))]
                while number > 2 and any(map(operator.gt, await left(client, url), before)):
                    await asyncio.sleep(0.01)  # for ever, where something is left

    asyncio.run(asyncio.wait_for(work(), 120))


@pytest.mark.parametrize("undone", UNDONE)
def test_a_client_that_leaves_something_undone_holds_no_server(undone, monkeypatch):
    """Neither its connection nor the end: all stay connected, and the server ends."""
    monkeypatch.setattr(http_clients, "PATIENCE", 0.2)

    async def work(ends: bool) -> None:
        async with running(large) as (server, port):
            clients = [connected(port, UNDONE[undone]) for _ in range(3)]
            await asyncio.sleep(0.05)
            while server.server_state.connections and not ends:  # during work
                await asyncio.sleep(0.05)
        for client in clients:
            client.close()

    for ends in (False, True):
        asyncio.run(asyncio.wait_for(work(ends), 300))


def test_clients_that_send_half_a_request_take_nobodys_place(monkeypatch):
    monkeypatch.setattr(http_clients, "most_undone", lambda: 8)
    monkeypatch.setattr(http_clients, "PATIENCE", 3600.0)

    async def health(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})

    async def work() -> None:
        async with running(health) as (server, port):
            halves = [connected(port, HEAD if number % 2 else b"") for number in range(60)]
            while len(server.server_state.connections) < 9:  # until the server has taken them
                await asyncio.sleep(0)
            while len(server.server_state.connections) > 8:
                await asyncio.sleep(0.05)
            assert len(server.server_state.connections) == 8, "no more are closed than need be"
            async with httpx.AsyncClient() as client:
                assert (await client.get(f"http://127.0.0.1:{port}/")).text == "ok"
            for half in halves:
                half.close()

    asyncio.run(asyncio.wait_for(work(), 60))


class _Protocol:
    """uvicorn's, as far as a look at a client needs it."""

    loop = SimpleNamespace(call_later=lambda *_: None, time=lambda: 0.0)
    cycle = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport


@pytest.mark.parametrize(
    ("is_complete", "unsent"), [(False, [2 << 20, 1 << 20, 1 << 20]), (True, [3 << 20, 2 << 20, 1 << 20, 0])]
)
def test_a_client_that_takes_its_answer_is_left_alone_until_it_stops(is_complete, unsent, monkeypatch):
    monkeypatch.setattr("uvicorn.protocols.http.auto.AutoHTTPProtocol", _Protocol)
    made, sizes, ended = http_clients.bounded_protocol()(), iter(unsent), list[int]()
    made.connection_made(SimpleNamespace(get_write_buffer_size=lambda: next(sizes), abort=lambda: ended.append(1)))
    made.cycle = SimpleNamespace(response_complete=is_complete, more_body=False)
    for _ in unsent:
        assert not ended
        made._look()
    assert ended


def test_undone_connections_are_a_share_of_what_may_be_open(monkeypatch):
    monkeypatch.setattr("resource.getrlimit", lambda which: (4000, 1_000_000))
    assert http_clients.most_undone() == 1000


def test_a_request_that_a_second_signal_ends_has_its_answer(engine):
    async def work() -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": PLACE, "headers": [(b"host", b"localhost")]}
        task = asyncio.create_task(build_app(engine, "tiny")(scope, asyncio.Event().wait, send))
        await asyncio.sleep(0.05)
        task.cancel()
        await task
        return sent

    assert asyncio.run(work())[0]["status"] == 503


CASES = [
    Case("a port that is none", "serve --port 0", "port must"),
    Case("a port beyond all", "serve --port 65536", "port must"),
    Case("a queue of none", "serve --queue 0", "queue must"),
    Case("a batch of none", "serve --batch_size 0", "batch_size must"),
    Case("no such method", "serve --method teleport", "method 'teleport' is not known"),
    Case("a setting of another method", "serve --method ar --method_options.depth 3", "no option 'depth'"),
    Case("other machines without a key", "serve --host 0.0.0.0", "lets other machines in; set a key"),
    Case("a host of bytes", "serve --host '\x07'", "host"),
    Case("a port in use", "serve --port {port}", "cannot be used"),
    Case("no such model", "serve --model {work}/nowhere --port {free}", "nowhere"),
    Case("a model of classes", "serve --model {classes} --port {free}", "cannot be served"),
]


@each(CASES)
def test_settings_are_refused(case, tmp_path, _saved_tiny_pipelines, capsys, monkeypatch):
    monkeypatch.delenv(KEY, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as used:
        with socket.create_server(("127.0.0.1", 0)) as other:
            free = other.getsockname()[1]
        places = {"work": tmp_path, "port": used.getsockname()[1], "free": free}
        places["classes"] = _saved_tiny_pipelines["class"]
        check_case(case, places, capsys)
