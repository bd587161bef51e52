"""Requests and settings that a server cannot serve: a status and one line, and the next request is drawn."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hostile import Case, check_case, each
from hypothesis import assume, given
from hypothesis import strategies as st
from tiny_pipelines import build_tiny_pipeline

from vargen.base.errors import UserError
from vargen.base.options import options_of
from vargen.serve.app import KEY, WITHOUT_EFFECT, GenerationBody, build_app
from vargen.serve.engine import Engine

pytest.importorskip("starlette", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="the client needs it")

PLACE, PROMPT = "/v1/images/generations", "a red cube"
GOOD = json.dumps({"prompt": PROMPT, "seed": 3}).encode()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    made = Engine(build_tiny_pipeline())
    yield made
    made.close()


def ask(
    engine: Engine, content: bytes, headers: Mapping[str, str] | None = None, key: str | None = None, path: str = PLACE
) -> Any:
    async def sent() -> Any:
        transport = httpx.ASGITransport(app=build_app(engine, "tiny", key))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(path, content=content, headers=headers)

    return asyncio.run(sent())


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
def test_a_body_is_refused(engine: Engine, body: Any, status: int, message: str) -> None:
    check_answer(ask(engine, json.dumps(body).encode()), status, message)
    assert engine.alive and engine.waiting == 0


@given(st.text())
def test_a_field_that_is_not_known_is_named(name: str) -> None:
    assume(name not in {*WITHOUT_EFFECT, *options_of(GenerationBody)})
    with pytest.raises(UserError) as refused:
        GenerationBody.read({"prompt": PROMPT, name: 1}, 8, True)
    assert str(refused.value).startswith(f"{name!r:.40} is no field")
    assert GenerationBody.read({"prompt": PROMPT, name: None}, 8, True) == GenerationBody(PROMPT), "null is not given"


def test_a_refusal_has_the_fields_name_apart(engine: Engine) -> None:
    for field in ("sed", "size"):
        answer = ask(engine, json.dumps({"prompt": PROMPT, field: "1x1"}).encode())
        assert answer.json()["error"]["param"] == field


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000, b"9" * 100_000], ids=range(5))
def test_a_body_that_is_no_json(engine: Engine, content: bytes) -> None:
    check_answer(ask(engine, content), 400, "body must be JSON")


def test_a_key_that_is_there_twice(engine: Engine) -> None:
    check_answer(ask(engine, b'{"prompt": "a", "n": 1, "n": 2}'), 400, "send each key once")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "10.0.0.1", "", "[", "127.0.0.1.evil.example"])
def test_a_foreign_host_needs_a_key(engine: Engine, host: str) -> None:
    """A page in a browser on this machine may have a name that leads here."""
    check_answer(ask(engine, GOOD, {"host": host}), 403, "Host must name this machine")
    assert ask(engine, GOOD, {"host": host, "authorization": "Bearer secret"}, "secret").status_code == 200


@pytest.mark.parametrize("host", ["localhost:8000", "127.0.0.1:8000", "127.9.9.9", "[::1]:8000"])
def test_this_machine_needs_none(engine: Engine, host: str) -> None:
    assert ask(engine, GOOD, {"host": host}).status_code == 200


@pytest.mark.parametrize(
    "sent", ["", "Bearer ", "Bearer wrong", "Basic secret", "Bearer secre", "Bearer " + "x" * 50_000]
)
def test_a_wrong_key(engine: Engine, sent: str) -> None:
    check_answer(ask(engine, GOOD, {"authorization": sent}, "secret"), 401, "the key is missing or wrong")


def test_other_places_and_ways(engine: Engine) -> None:
    paths = (
        "/docs",
        "/v1",
        "/v1/images/edits",
        "//",
        "/%00",
        "/v1/images/generations/../../etc/passwd",
        "/" + "x" * 999,
    )
    ways = [("GET", PLACE, "POST"), ("PUT", PLACE, "POST"), ("POST", "/health", "GET"), ("X" * 999, "/metrics", "GET")]

    async def look() -> None:
        async with httpx.AsyncClient(
            transport=httpx.ASGITransport(app=build_app(engine, "tiny")), base_url="http://localhost"
        ) as client:
            for path in paths:
                check_answer(
                    await client.post(path, content=GOOD), 404, "is no place of this server; it has /v1/images"
                )
            for method, path, allowed in ways:
                answer = await client.request(method, path)
                check_answer(answer, 405, f"is no method of {path}; use ")
                assert allowed in answer.headers["allow"] and allowed in answer.json()["error"]["message"]
            counted = (await client.get("/metrics")).text
            assert f'vargen_requests_total{{status="404"}} {len(paths)}.0' in counted
            assert f'vargen_requests_total{{status="405"}} {len(ways)}.0' in counted

    asyncio.run(look())
    assert engine.alive and ask(engine, GOOD).status_code == 200


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
def test_settings_are_refused(
    case: Case,
    tmp_path: Path,
    _saved_tiny_pipelines: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(KEY, raising=False)
    with socket.create_server(("127.0.0.1", 0)) as used:
        with socket.create_server(("127.0.0.1", 0)) as other:
            free = other.getsockname()[1]
        places = {"work": tmp_path, "port": used.getsockname()[1], "free": free}
        places["classes"] = _saved_tiny_pipelines["class"]
        check_case(case, places, capsys)
