"""What AiohttpTransport adds to aiohttp's own classes: what a pool gives out, whose time is over, what is not sent along."""

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

__all__ = ["UNDER_WAY", "BareRequest", "ConnectionHandler", "Connector", "DeadlineTimer", "NoCookies", "RequestProgress"]

SPARE = 60.0  # seconds after which an idle connection is closed
READ = 64 * 1024  # bytes read at once
TICK = 0.002  # seconds between two looks at what is late
MADE_UP = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")  # headers that aiohttp makes up where there are none


class ConnectionHandler(ResponseHandler):
    """aiohttp's end of a connection, which closes it when something comes while it is idle."""

    idle_since: float | None = None
    user: RequestProgress | None = None
    _spoken: Callable[[], object] | None = None

    @property
    def spoken(self) -> bool:
        """Whether something waits to be read, which on an idle connection is its end, or nothing for us."""
        if self._spoken is None:
            sock = None if self.transport is None else self.transport.get_extra_info("socket")
            if sock is None:
                return False
            self._spoken = _look_at(sock.fileno())
        return bool(self._spoken())

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin; and have asyncio make less room for each read, which malloc else gives back to the system every time."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):  # of asyncio's own transports, without TLS
            cast("Any", transport).max_size = READ

    def data_received(self, data: bytes) -> None:
        """Take what came for a request; else close."""
        if self.idle_since is None:
            super().data_received(data)
        else:
            self.abort()


class BareRequest(aiohttp.ClientRequest):
    """A request with the headers of what is under way, to which aiohttp adds none of its own.

    They do not go through the session, which would copy them one by one, twice.
    """

    def update_headers(self, headers: Any) -> None:  # noqa: ARG002  # the session has none
        """Say which host is meant, then what the request says."""
        super().update_headers(None)
        self.headers.update(UNDER_WAY.get().headers)

    def update_auto_headers(self, skip_auto_headers: Iterable[str] | None) -> None:  # noqa: ARG002  # none are told
        """Add nothing; where some are missing, say so, lest they are added later."""
        headers = self.headers
        if not ("Accept" in headers and "Accept-Encoding" in headers and "Content-Type" in headers):
            super().update_auto_headers(MADE_UP)

    def update_cookies(self, cookies: Any) -> None:
        """Do nothing: there are none."""

    def update_content_encoding(self, data: Any) -> None:
        """Do nothing: the body goes as it is."""

    def update_auth(self, auth: Any, trust_env: bool = False) -> None:  # noqa: FBT001, FBT002  # as aiohttp calls it
        """Refuse an origin that names a user where the request says itself who sends it."""
        if auth is not None and "Authorization" in self.headers:
            raise ValueError("the origin names a user, and the request has an Authorization of its own")
        super().update_auth(auth, trust_env)


class RequestProgress:
    """What is known of one request under way: when its time is over, whether it may have begun to be sent, and over what."""

    __slots__ = ("deadline", "headers", "late", "protocol", "repeatable", "sent", "wire")

    def __init__(self, request: Request, deadline: float) -> None:
        self.deadline = deadline
        self.headers = request.headers
        self.late = False
        self.repeatable = request.repeatable
        self.sent = False
        self.protocol: ConnectionHandler | None = None
        self.wire: asyncio.Transport | None = None

    def take(self, connection: Connection) -> None:
        """Note the connection that the request has from now on."""
        self.sent = True
        self.wire = connection.transport
        if isinstance(connection.protocol, ConnectionHandler):
            self.protocol = connection.protocol
            self.protocol.user = self

    @property
    def holds(self) -> bool:
        """Whether the connection is still this request's: aiohttp gives it back before the sender runs again."""
        return self.wire is not None and (self.protocol is None or self.protocol.user is self)

    def finish(self, *, whole: bool) -> None:
        """Note since when the connection is idle; where the answer is not whole, close it without waiting for anybody."""
        if not self.holds:
            return
        if self.protocol is not None:
            self.protocol.user = None
            self.protocol.idle_since = time.monotonic()
        if not whole and self.wire is not None:
            self.wire.abort()


# The request for which a connection is being looked for; aiohttp does so in the task that sends.
UNDER_WAY: ContextVar[RequestProgress] = ContextVar("UNDER_WAY")


class DeadlineTimer:
    """Ends the connection of each request whose time is over, with one timer for all of them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._under_way: set[RequestProgress] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._next = math.inf

    def begin(self, progress: RequestProgress) -> None:
        """Watch a request."""
        self._under_way.add(progress)
        if progress.deadline < self._next:
            self._wake_at(progress.deadline)

    def end(self, progress: RequestProgress) -> None:
        """Watch it no longer. The timer stays as it is: it finds out by itself what is left to do."""
        self._under_way.discard(progress)

    def close(self) -> None:
        """Stop, and end the connections of what is under way: nobody else would look after the time of that."""
        self._stop()
        for progress in self._under_way:
            progress.finish(whole=False)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wake_at(self, when: float) -> None:
        self._stop()
        self._next = when
        self._timer = self.loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer, self._next = None, math.inf
        now = self.loop.time()
        for progress in self._under_way:
            if progress.deadline <= now and progress.holds:
                progress.late = True
                progress.finish(whole=False)
        # What is late and holds no connection ends by itself: it waits for one, which aiohttp's own timer ends and
        # Connector.connect gives to nobody whose time is over; or it has given it back, since its answer is there.
        waiting = [progress.deadline for progress in self._under_way if not progress.late]
        if waiting:
            self._wake_at(max(min(waiting), now + TICK))


class Connector(aiohttp.TCPConnector):
    """A pool that gives out no connection which its server ended or spoke on, nor an old one where that matters."""

    def __init__(self, expiry: float) -> None:
        super().__init__(limit=0, keepalive_timeout=max(expiry, SPARE))  # pyright: ignore[reportUnknownMemberType]
        self._expiry = expiry
        self._time = asyncio.get_running_loop().time
        self._factory = cast("partial[ResponseHandler]", partial(ConnectionHandler, loop=asyncio.get_running_loop()))

    async def connect(self, req: Any, traces: Any, timeout: Any) -> Connection:  # noqa: ASYNC109  # as aiohttp calls it
        """Return a connection for the request under way."""
        progress = UNDER_WAY.get()
        if progress.sent:
            raise aiohttp.ClientConnectionError(
                "the connection ended before an answer, and a second try is not the library's to make"
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
            raise aiohttp.ClientConnectionError("the connection ended at once" if early else "the connection came too late")
        progress.take(connection)
        return connection

    def _usable(self, protocol: ResponseHandler, *, repeatable: bool) -> bool:
        if not isinstance(protocol, ConnectionHandler):
            return True
        since, protocol.idle_since = protocol.idle_since, None
        if since is None and protocol.user is None:
            return True  # it is new
        if protocol.should_close or not protocol.is_connected() or protocol.spoken:
            return False
        # without a time, it was given back while its answer was being read, and its user has not run since
        return since is None or repeatable or time.monotonic() - since <= self._expiry


class NoCookies(aiohttp.DummyCookieJar):
    """Keeps no cookies, and does not read them either: what cannot be read would be logged."""

    def update_cookies_from_headers(self, headers: Any, response_url: URL) -> None:
        """Do nothing."""


def _look_at(file: int) -> Callable[[], object]:
    """Return what tells whether something can be read from a file, without waiting."""
    if not hasattr(select, "poll"):  # Windows
        return lambda: select.select([file], [], [], 0)[0]
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return partial(poll.poll, 0)
