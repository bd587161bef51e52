"""The server's application, called in this process by the official client. Skips where one of them is missing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

for package in ("starlette", "prometheus_client"):
    pytest.importorskip(package, reason="needs the extra serve")
httpx = pytest.importorskip("httpx", reason="the client needs it")
openai = pytest.importorskip("openai", reason="the official client")


class Called(httpx.BaseTransport):
    """Answers each request by a call of the application, in an event loop of its own."""

    def __init__(self, app: Any) -> None:
        self.inner = httpx.ASGITransport(app=app)

    def handle_request(self, request: Any) -> Any:
        async def answered() -> Any:
            answer = await self.inner.handle_async_request(request)
            return httpx.Response(answer.status_code, headers=answer.headers, content=await answer.aread())

        return asyncio.run(answered())


def client_of(app: Any, key: str = "none") -> Any:
    """The official client, whose `_client` asks for any place."""
    http = httpx.Client(transport=Called(app), base_url="http://localhost")
    return openai.OpenAI(api_key=key, base_url="http://localhost/v1", http_client=http, max_retries=0)
