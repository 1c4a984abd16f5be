"""Subclasses of aiohttp: safe reuse of connections, deadlines, no automatic headers or cookies."""

# States of a connection (ConnectionHandler), and what moves it between them:
#
#   new        owner None, idle_since None: aiohttp has just opened it
#   busy       owner is a request: ``RequestProgress.attach``, called by ``Connector.connect``
#   returned   still the same owner: aiohttp put it back into its pool, but the sender has not run since
#   idle       owner None, idle_since set: ``RequestProgress.finish(whole=True)``
#   closed     by ``finish(whole=False)`` (error, time-out, cancellation), by data that comes while idle, by
#              ``Connector.connect`` when it is not usable, or by aiohttp after max(MAX_IDLE, ``expiry``) seconds idle
#
# Always true: one request owns a connection at a time, and only the owner may end it (``owns_connection``: a returned
# connection can have a new owner before the sender runs again). A request is attached to a connection at most once: a
# second try would send it twice. An idle connection has no unread data when it is used again.

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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

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
    "RequestProgress",
]

MAX_IDLE = 60.0  # seconds after which an idle connection is closed, at the earliest
READ_SIZE = 64 * 1024  # bytes per read
TICK = 0.002  # seconds, at least, between two checks of the deadlines
AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # headers that aiohttp adds if they are missing


class ConnectionHandler(ResponseHandler):
    """aiohttp's protocol of one connection; it closes the connection if data comes while it is idle."""

    idle_since: float | None = None
    owner: RequestProgress | None = None
    _readable: Callable[[], object] | None = None

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
        """Read a response; close the connection if it is idle."""
        if self.idle_since is None:
            super().data_received(data)
        else:
            self.abort()


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

    def update_auth(self, auth: Any, trust_env: bool = False) -> None:  # noqa: FBT001, FBT002  # as aiohttp calls it
        """Raise ValueError if the origin contains a user and the request has its own Authorization header."""
        if auth is not None and "Authorization" in self.headers:
            raise ValueError("the origin contains a user, but the request has its own Authorization: remove the user")
        super().update_auth(auth, trust_env)


class RequestProgress:
    """One request in progress: its deadline, whether sending may have begun, and its connection."""

    __slots__ = ("deadline", "headers", "protocol", "repeatable", "sent", "timed_out", "transport")

    def __init__(self, request: Request, deadline: float) -> None:
        self.deadline = deadline
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

    def __init__(self, expiry: float) -> None:
        super().__init__(limit=0, keepalive_timeout=max(expiry, MAX_IDLE))  # pyright: ignore[reportUnknownMemberType]
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
            if protocol is None or self._usable(protocol, repeatable=progress.repeatable):
                break
            connection.close()
        early = self._time() < progress.deadline
        if not early or connection.transport is None:
            connection.close()
            raise aiohttp.ClientConnectionError(
                "the connection closed at once" if early else "the connection was opened too late"
            )
        progress.attach(connection)
        return connection

    def _usable(self, protocol: ResponseHandler, *, repeatable: bool) -> bool:
        if not isinstance(protocol, ConnectionHandler):
            return True
        since, protocol.idle_since = protocol.idle_since, None
        if since is None and protocol.owner is None:
            return True  # new
        if protocol.should_close or not protocol.is_connected() or protocol.has_unread_data:
            return False
        # no time: state "returned", so it was used just now
        return since is None or repeatable or time.monotonic() - since <= self._expiry


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
