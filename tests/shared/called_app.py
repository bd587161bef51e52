"""The server's application, called in this process by the official client. Skips where one of them is missing."""

from __future__ import annotations

from typing import Any

import pytest

for package in ("starlette", "prometheus_client"):
    pytest.importorskip(package, reason="needs the extra serve")
openai = pytest.importorskip("openai", reason="the official client")

from starlette.testclient import TestClient  # noqa: E402


def client_of(app: Any, key: str = "none") -> Any:
    """The official client, whose `_client` asks for any place."""
    http = TestClient(app, "http://localhost")
    return openai.OpenAI(api_key=key, base_url="http://localhost/v1", http_client=http, max_retries=0)
