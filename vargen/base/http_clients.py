"""Which HTTP clients a server on this machine answers, and for how long it waits for one.

Belongs here: the names of this machine, pages of other origins, and clients that leave a request or an answer undone.
Does not belong here: keys, and answers (`vargen.serve`, `vargen.demo`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 10.0
"""Seconds for a request's head, then as many for its body; and for a client to take something of its answer."""
MOST_UNDONE = 4
"""One of so many file descriptors may be a connection whose client has not sent a whole request."""
_SECOND = 1.0
"""How old such a connection must be before it is closed for others."""
_TAKEN = 1 << 16
"""Bytes of a whole answer that a client must take in `PATIENCE`."""
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+)(:\d{1,5})?")


def is_own_machine(host: str) -> bool:
    """Whether a name or an address means the machine that asks."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def foreign_host(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The `Host` of a request, or one of them, that does not name this machine; None: all do, and there is one."""
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    for host in hosts or [""]:
        found = _HOST.fullmatch(host)
        if found is None or not is_own_machine(found[1]):
            return host
    return None


def foreign_page(method: str, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The origin of a page that is none of this machine's and makes a browser here ask; None: no such page asks."""
    said = [(name, value.decode("latin-1")) for name, value in headers]
    for origin in (value for name, value in said if name == b"origin"):
        try:
            named = urlsplit(origin).hostname or ""
        except ValueError:
            named = ""
        if not is_own_machine(named):
            return origin
    return "another site" if (b"sec-fetch-site", "cross-site") in said and method not in ("GET", "HEAD") else None


class OwnMachineOnly:
    """ASGI middleware that refuses other names of the machine than its own, and pages of other origins."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] in ("http", "websocket"):
            headers = scope["headers"]
            if foreign_host(headers) is not None:
                return await self._refuse(400, b"Invalid host header", scope, send)
            if foreign_page(scope.get("method", "POST"), headers) is not None:
                return await self._refuse(403, b"a page of another origin may not ask", scope, send)
        await self.app(scope, receive, send)

    async def _refuse(self, status: int, message: bytes, scope: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            return await send({"type": "websocket.close", "code": 1008})
        length = (b"content-length", str(len(message)).encode())
        await send({"type": "http.response.start", "status": status, "headers": [length]})
        await send({"type": "http.response.body", "body": message})


def most_undone() -> int:
    """How many connections may wait for their clients at once."""
    try:
        import resource
    except ImportError:  # Windows
        return 512
    return max(resource.getrlimit(resource.RLIMIT_NOFILE)[0] // MOST_UNDONE, 16)


def bounded_protocol() -> type[Any]:
    """uvicorn's protocol, for its `http`, with an end to what a client leaves undone: half a head, half a body, an
    answer that it does not take. uvicorn waits for ever, and does not stop before all clients have left."""
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    base: Any = AutoHTTPProtocol
    undone: dict[Any, float] = {}  # connections that wait for their clients, the oldest first, and since when
    most = most_undone()

    class Bounded(base):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._seen, self._unsent = self.cycle, 0
            self._timer = self.loop.call_later(PATIENCE, self._look)
            undone[self] = self.loop.time()
            if len(undone) > most:
                self.loop.call_later(_SECOND, self._make_room)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._waits():
                undone.pop(self, None)

        def connection_lost(self, error: Exception | None) -> None:
            self._timer.cancel()
            undone.pop(self, None)
            super().connection_lost(error)

        def _waits(self) -> bool:
            """Whether it is the client's turn."""
            return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

        def _look(self) -> None:
            unsent, before = self.transport.get_write_buffer_size(), self._unsent
            is_whole = self.cycle is not None and self.cycle.response_complete
            stuck = unsent >= before > 0 or (is_whole and 0 < before < unsent + _TAKEN and unsent > 0)
            moves = 0 < unsent < before and not stuck
            if stuck or (self._waits() and self.cycle is self._seen and not moves):
                self.transport.abort()
                return
            if self._waits():
                undone.setdefault(self, self.loop.time())
            self._seen, self._unsent = self.cycle, unsent
            self._timer = self.loop.call_later(PATIENCE, self._look)

        def _make_room(self) -> None:
            for each, since in [*undone.items()][: max(len(undone) - most, 0)]:
                if self.loop.time() - since >= _SECOND:
                    each.transport.abort()

    return Bounded
