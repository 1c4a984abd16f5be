"""Subclasses of aiohttp: safe reuse of connections, deadlines, no automatic headers or cookies."""

# States of a connection (ConnectionHandler), and what moves it between them:
#
#   new        owner None, idle_since None: aiohttp has just opened it
#   busy       owner is a request: ``RequestProgress.attach``, called by ``Connector.connect``
#   returned   still the same owner: aiohttp put it back into its pool, but the sender has not run since
#   idle       owner None, idle_since set: ``RequestProgress.finish(whole=True)``
#   closed     by ``finish(whole=False)`` (error, time-out, cancellation), by data behind a response or while idle, by
#              ``Connector.connect`` or ``RequestBody`` when it is not usable, or by aiohttp after ``max_idle`` seconds idle
#
# Always true: one request owns a connection at a time, and only the owner may end it (``owns_connection``: a returned
# connection can have a new owner before the sender runs again). A request is attached to a connection at most once: a
# second try would send it twice, unless ``RequestBody`` found the connection stale and wrote nothing. An idle connection has
# no unread data when it is used again.

from __future__ import annotations

import asyncio
import math
import select
import time
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, cast

import aiohttp
from aiohttp.client_proto import ResponseHandler

from rbim.transports._shared.framing import end_of_response

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from aiohttp.abc import AbstractStreamWriter
    from aiohttp.connector import Connection
    from yarl import URL

    from rbim.http import Request

__all__ = [
    "CURRENT_REQUEST",
    "BareRequest",
    "ConnectionHandler",
    "Connector",
    "DeadlineTimer",
    "NoCookies",
    "RequestBody",
    "RequestProgress",
    "Stale",
]

MAX_TIMER = 1e9  # seconds; aiohttp takes no infinite one
READ_SIZE = 64 * 1024  # bytes per read
PIECE = 64 * 1024  # bytes; a longer body is written in pieces of this length
TICK = 0.002  # seconds, at least, between two checks of the deadlines
AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # headers that aiohttp adds if they are missing


class ConnectionHandler(ResponseHandler):
    """aiohttp's protocol of one connection; it closes the connection if data comes while it is idle."""

    idle_since: float | None = None
    owner: RequestProgress | None = None
    _readable: Callable[[], object] | None = None

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._read_bytes: list[bytes] = []

    def begin(self) -> None:
        """Begin to read a response."""
        self._read_bytes.clear()
        self._payload = None  # of the last response

    @property
    def has_unread_data(self) -> bool:
        """Whether there is unread data or an end of file; on an idle connection either one makes it unusable."""
        if self._readable is None:
            sock = None if self.transport is None else self.transport.get_extra_info("socket")
            if sock is None:
                return False
            self._readable = _readable_check(sock.fileno())
        return bool(self._readable())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start, with a smaller read buffer: malloc would return asyncio's default one to the system after every read."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # asyncio's own transports, without TLS
            cast("Any", transport).max_size = READ_SIZE

    def data_received(self, data: bytes) -> None:
        """Read a response; close the connection if it is idle, or if there are bytes behind the response.

        The parser keeps a part of another response, and nothing shows it.
        """
        if self.idle_since is not None:
            self.abort()
            return
        super().data_received(data)
        if not data:  # aiohttp lets its parser continue
            return
        self._read_bytes.append(data)
        payload = self._payload
        if payload is not None and payload.is_eof() and self._has_more_behind(payload.total_bytes):
            self.abort()

    def _has_more_behind(self, length: int) -> bool:
        """Return whether there are bytes behind the response that has just ended, with a body of this length."""
        parts = self._read_bytes
        data = parts[0] if len(parts) == 1 else b"".join(parts)
        end = end_of_response(data, length)
        if end is None:
            self._payload = None  # it was that of an interim response
            return False
        parts.clear()
        return end != len(data)


class BareRequest(aiohttp.ClientRequest):
    """A request with exactly the headers of the current request; aiohttp adds none.

    The headers do not pass through the session, which would copy them twice, one by one.
    """

    def update_headers(self, headers: Any) -> None:  # noqa: ARG002  # the session has none
        """Set the Host header, then the headers of the request."""
        super().update_headers(None)
        self.headers.update(CURRENT_REQUEST.get().headers)

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:  # noqa: ARG002  # none are given
        """Add no header; mark the missing ones as skipped, so that aiohttp does not add them later."""
        headers = self.headers
        if not ("Accept" in headers and "Accept-Encoding" in headers and "Content-Type" in headers):
            super().update_auto_headers(AUTO_HEADERS)

    def update_cookies(self, cookies: Any) -> None:
        """Do nothing: there are no cookies."""

    def update_content_encoding(self, data: Any) -> None:
        """Do nothing: the body is sent as it is."""

    def update_body_from_data(self, body: Any, _stacklevel: int = 3) -> None:
        """Set the body, and the Content-Length unless the request has one; aiohttp would look for a way to write it."""
        if not isinstance(body, RequestBody):
            super().update_body_from_data(body, _stacklevel)
            return
        self._body = body
        if not self.chunked and "Content-Length" not in self.headers:
            self.headers["Content-Length"] = str(body.size)

    def update_auth(self, auth: Any, trust_env: bool = False) -> None:  # noqa: FBT001, FBT002  # as aiohttp calls it
        """Raise ValueError if the origin contains a user and the request has its own Authorization header."""
        if auth is not None and "Authorization" in self.headers:
            raise ValueError("the origin contains a user, but the request has its own Authorization: remove the user")
        super().update_auth(auth, trust_env)


class Stale(Exception):
    """A kept connection was closed, or has unread data, and nothing was written to it."""


class RequestBody(aiohttp.Payload):
    """A request body; aiohttp writes it with the head of the request, which it keeps until then."""

    def __init__(self, body: bytes, progress: RequestProgress) -> None:
        super().__init__(body)
        self._size = len(body)
        self._progress = progress

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Return the body as text."""
        value: bytes = self._value
        return value.decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        """Write the body (see :meth:`write_with_length`)."""
        await self.write_with_length(writer, None)

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:  # noqa: ARG002  # the body's
        """Write the body, in pieces. Raises Stale if the kept connection cannot be used any more."""
        self._progress.check_connection()
        body: bytes = self._value
        if len(body) <= PIECE:
            await writer.write(body)
            return
        view = memoryview(body)
        for place in range(0, len(body), PIECE):
            await writer.write(view[place : place + PIECE])


class RequestProgress:
    """One request in progress: its deadline, whether sending may have begun, and its connection."""

    __slots__ = (
        "deadline",
        "has_body",
        "headers",
        "kept",
        "protocol",
        "repeatable",
        "sent",
        "stale",
        "timed_out",
        "transport",
    )

    def __init__(self, request: Request, deadline: float) -> None:
        self.deadline = deadline
        self.has_body = bool(request.body)
        self.kept = False
        """Whether its connection was used before."""
        self.stale = False
        """Whether its connection was stale, and nothing was written to it."""
        self.headers = request.headers
        self.timed_out = False
        self.repeatable = request.repeatable
        self.sent = False
        self.protocol: ConnectionHandler | None = None
        self.transport: asyncio.Transport | None = None

    def attach(self, connection: Connection) -> None:
        """Give the connection to this request, until :meth:`finish`."""
        self.sent = True
        self.transport = connection.transport
        if isinstance(connection.protocol, ConnectionHandler):
            self.protocol = connection.protocol
            self.protocol.owner = self
            self.protocol.begin()

    def check_connection(self) -> None:
        """Look at the kept connection once more, just before the write. Raises Stale; the request was not sent then."""
        protocol = self.protocol
        if self.kept and protocol is not None and (not protocol.is_connected() or protocol.has_unread_data):
            self.sent = False
            self.stale = True
            raise Stale

    @property
    def owns_connection(self) -> bool:
        """Whether this request still owns its connection: aiohttp returns it to the pool before the sender runs again."""
        return self.transport is not None and (self.protocol is None or self.protocol.owner is self)

    def finish(self, *, whole: bool) -> None:
        """Give the connection up: it is idle from now on, or closed at once if the response is not complete."""
        if not self.owns_connection:
            return
        if self.protocol is not None:
            self.protocol.owner = None
            self.protocol.idle_since = time.monotonic()
        if not whole and self.transport is not None:
            self.transport.abort()


# The request that needs a connection; aiohttp gets one in the task that sends the request.
CURRENT_REQUEST: ContextVar[RequestProgress] = ContextVar("CURRENT_REQUEST")


class DeadlineTimer:
    """Closes the connection of each request whose deadline has passed, with one timer for all requests."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._requests: set[RequestProgress] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def begin(self, progress: RequestProgress) -> None:
        """Start to watch the deadline of a request."""
        self._requests.add(progress)
        if progress.deadline < self._next:
            self._set_timer(progress.deadline)

    def end(self, progress: RequestProgress) -> None:
        """Stop to watch a request. The timer is not moved: when it fires, it looks for the next deadline."""
        self._requests.discard(progress)

    def close(self) -> None:
        """Stop, and close the connections of all requests in progress: nothing else would end them in time."""
        self._stop()
        for progress in self._requests:
            progress.finish(whole=False)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self, when: float) -> None:
        self._stop()
        self._next = when
        self._timer = self.loop.call_at(when, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._timer, self._next = None, math.inf
        now = self.loop.time()
        for progress in self._requests:
            if progress.deadline <= now and progress.owns_connection:
                progress.timed_out = True
                progress.finish(whole=False)
        # A late request without a connection ends by itself. Either it waits for one: aiohttp's own timer ends that, and
        # Connector.connect refuses a request whose deadline has passed. Or its response is complete.
        waiting = [progress.deadline for progress in self._requests if not progress.timed_out]
        if waiting:
            self._set_timer(max(min(waiting), now + TICK))


class Connector(aiohttp.TCPConnector):
    """A pool that reuses no connection that was closed, has unread data, or is too old for the request."""

    def __init__(self, expiry: float, max_idle: float) -> None:
        super().__init__(limit=0, keepalive_timeout=min(max_idle, MAX_TIMER))  # pyright: ignore[reportUnknownMemberType]
        self._expiry = expiry
        self._time = asyncio.get_running_loop().time
        self._factory = cast("partial[ResponseHandler]", partial(ConnectionHandler, loop=asyncio.get_running_loop()))

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Connection:  # noqa: ASYNC109  # as aiohttp calls it
        """Return a connection for the current request."""
        progress = CURRENT_REQUEST.get()
        if progress.sent:
            raise aiohttp.ClientConnectionError(
                "the connection closed before a response; aiohttp must not send the request again"
            )
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = connection.protocol
            if protocol is None or self._usable(protocol, progress):
                break
            connection.close()
        early = self._time() < progress.deadline
        if not early or connection.transport is None:
            connection.close()
            if not early:
                raise aiohttp.ConnectionTimeoutError("the connection was opened too late")
            raise aiohttp.ClientConnectionError("the connection closed at once")
        progress.attach(connection)
        return connection

    def _usable(self, protocol: ResponseHandler, progress: RequestProgress) -> bool:
        if not isinstance(protocol, ConnectionHandler):
            return True
        since, protocol.idle_since = protocol.idle_since, None
        progress.kept = since is not None or protocol.owner is not None
        if not progress.kept:
            return True
        if protocol.should_close or not protocol.is_connected():
            return False
        if not progress.has_body and protocol.has_unread_data:  # otherwise RequestBody looks, just before it writes
            return False
        # no time: state "returned", so it was used just now
        return since is None or progress.repeatable or time.monotonic() - since <= self._expiry


class NoCookies(aiohttp.DummyCookieJar):
    """A cookie jar that stays empty and parses no cookies: aiohttp would log invalid ones."""

    def update_cookies_from_headers(self, headers: Any, response_url: URL) -> None:
        """Do nothing."""


def _readable_check(file: int) -> Callable[[], object]:
    """Return a function that tells, without blocking, whether a file descriptor is readable."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: select.select([file], [], [], 0)[0]
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return partial(poll.poll, 0)
