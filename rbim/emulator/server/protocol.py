"""uvicorn's HTTP protocol with control over its connections. Needs the extra ``server``; asyncio only.

It does what no ASGI application can do to a connection: reset it, or close it in the middle of an answer. It adds the
server's own headers to each answer, and reads targets in absolute form.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import struct
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from rbim._support.text import missing_extra
from rbim.emulator.asgi import BODILESS, CONNECTION, failure, write
from rbim.emulator.platform.rules import DependsOnDialect
from rbim.emulator.server.own_headers import OwnHeaders

try:
    import h11
    from uvicorn import Config
    from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
    from uvicorn.server import ServerState
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        missing_extra("serving the emulator", missing.name, "server"),
        name=missing.name,
    ) from None

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from uvicorn.protocols.http.h11_impl import RequestResponseCycle

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.clock import Clock
    from rbim.http import Response

__all__ = ["Config", "Heads", "Protocol", "ServerState"]

logger = logging.getLogger("rbim.emulator")

INTERNAL = "900500"
HEADS = 4096  # made in one second: each length of a response has its own
ABSOLUTE = re.compile(r"https?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)
ABORTING = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)  # SO_LINGER for 0 seconds: closing sends an RST


class Heads:
    """Makes the heads of responses, with the server's own headers, for all connections of a server.

    A head is kept as long as its ``Date`` holds, because h11 checks each name and value of a new one.
    """

    def __init__(self, clock: Clock) -> None:
        self.own = OwnHeaders(clock)
        self._of: tuple[tuple[str, str], ...] = ()
        self._made = lru_cache(HEADS)(_head)

    def of(self, status: int, headers: Iterable[tuple[str, str]], length: int) -> h11.Response:
        """Return the head of a response with these headers and a body of this length."""
        own = self.own()
        if own is not self._of:
            self._of = own
            self._made.cache_clear()
        return self._made(status, (*headers, *own), length)


def _head(status: int, headers: tuple[tuple[str, str], ...], length: int) -> h11.Response:
    framed = headers if status in BODILESS else (*headers, ("content-length", str(length)))
    return h11.Response(status_code=status, headers=list(framed), reason=STATUS_PHRASES[status])


class Protocol(H11Protocol):
    """One connection, as a :class:`~rbim.emulator.asgi.RequestConnection` for the applications that it serves.

    ``accepting`` returns whether connections are accepted now; ``heads`` are those of all connections.
    """

    def __init__(
        self,
        config: Config,
        state: ServerState,
        accepting: Callable[[], bool],
        heads: Heads,
    ) -> None:
        super().__init__(config, state, {})
        self._accepting = accepting
        self._heads = heads
        self._inner: Any = self.app
        self.app = self._answer
        self.access_log = False  # it would log the sig

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Accept the connection, unless the loop accepted it after the server stopped listening."""
        super().connection_made(transport)
        if not self._accepting():
            transport.abort()

    def eof_received(self) -> Any:  # a bool; uvicorn's never keeps the connection
        """Answer a peer that has closed its side, if an answer is due; return whether one is."""
        unread = self.conn.their_state is h11.SEND_BODY
        if self.conn.our_state in (h11.SEND_RESPONSE, h11.SEND_BODY) and not unread:
            self.cycle.keep_alive = False
            return True
        if unread or self.conn.trailing_data[0]:
            self.send_400_response("the request ends too early")
        return False

    def send_400_response(self, msg: str) -> None:
        """Answer a request that is not HTTP, and close."""
        self._end(failure(400, msg))

    def reset(self) -> None:
        """Close the connection with an RST."""
        self.cycle.disconnected = True
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORTING)
            self.transport.abort()

    def cut(self, response: Response, keep: float) -> None:
        """Write the head and less than all of the body, and close."""
        whole = len(response.body)
        self._end(response, max(0, min(int(whole * keep), whole - 1)))

    async def answer(self, response: Response) -> None:
        """Write a whole response at once; an application's events would be written one by one."""
        if self.flow.write_paused:
            await self.flow.drain()
        cycle = self.cycle
        if cycle.disconnected:
            return
        cycle.response_started = cycle.response_complete = True
        bodiless = response.status in BODILESS or self.scope["method"] == "HEAD"
        events = (
            self._heads.of(response.status, response.headers.items(), len(response.body)),
            h11.Data(data=b"" if bodiless else response.body),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
        cycle.message_event.set()
        if self.conn.our_state is h11.MUST_CLOSE or not cycle.keep_alive:
            self.conn.send(h11.ConnectionClosed())
            self.transport.close()
        cycle.on_response()

    def _end(self, response: Response, length: int | None = None) -> None:
        """Close the connection, after up to ``length`` bytes of the response's body if a response can still begin.

        An application that still handles the request cannot answer any more.
        """
        state = self.conn.our_state
        if state in (h11.IDLE, h11.SEND_RESPONSE):
            headers = (*response.headers.items(), ("connection", "close"))
            head = self.conn.send(self._heads.of(response.status, headers, len(response.body)))
            bodiless = state is h11.SEND_RESPONSE and self.scope["method"] == "HEAD"
            self.transport.write((head or b"") + (b"" if bodiless else response.body[:length]))
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        self.transport.close()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the application answer, and answer an error of it with status 500."""
        scope["extensions"] = {CONNECTION: self}
        _read_absolute_form(scope)
        self.cycle.default_headers = [(name.encode(), value.encode()) for name, value in self._heads.own()]
        try:
            await self._inner(scope, receive, send)
        except asyncio.CancelledError:  # the server ends; uvicorn would log an error with a traceback
            self.transport.close()
            self.cycle.disconnected = True
        except Exception as error:
            if self.cycle.response_started:
                raise
            if isinstance(error, DependsOnDialect):
                message = str(error)
            else:
                message = "the emulator failed: see its log"
                logger.exception("the emulator failed")
            await write(send, failure(500, message, INTERNAL))


def _read_absolute_form(scope: Scope) -> None:
    """Take path and host from a target in absolute form, in which the Host header does not count (RFC 9112, 3.2.2)."""
    found = ABSOLUTE.fullmatch(scope["path"])
    if found is not None:
        scope["path"] = found[2] or "/"
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope["headers"] = [*others, (b"host", found[1].encode("latin-1", "replace"))]
