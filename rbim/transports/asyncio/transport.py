"""The asyncio transport, the fastest one: asyncio's protocols and TLS with the llhttp parser. Also for uvloop.

Each connection is a protocol that writes a request, head and body at once, and sets the result of one future; there is no
task, lock or stream in between. Each origin has a stack of idle connections, and each connection has one timer. Without
httptools (``python -m pip install "rbim[fast]"``) h11 is the parser, which httpx brings.
"""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from attrs import field, frozen

from rbim.errors import AnswerTooLarge, InvalidRequest, NotSent, Unanswered
from rbim.http import Response
from rbim.transports._shared.base import NOT_OPEN, OTHER_LOOP, BaseTransport, Options
from rbim.transports._shared.connecting import no_answer, no_connection, too_late
from rbim.transports._shared.heads import HeadCache
from rbim.transports._shared.link import MAX_TIMER, DeadlinePassed, LinkProtocol, Links
from rbim.transports._shared.proxies import login_headers
from rbim.transports._shared.redaction import redacted, sanitized
from rbim.transports.asyncio.answer import AnswerReader, KnownHeads

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from typing import Unpack

    from rbim.http import Request

__all__ = ["AsyncioTransport", "Connection", "RequestHead", "Route"]

PORTS = {"http": 80, "https": 443}
OWN_FRAMING = frozenset({"content-length", "transfer-encoding"})  # the transport sets these itself
SUCCESS = range(200, 300)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FIELD = re.compile(r"[\t\x20-\x7e]*")
PATH = re.compile(r"[\x21-\x7e]+")


class Connection(LinkProtocol):
    """One connection to one origin, idle or with one request in flight.

    The result of a request is its response, or why there is none: DeadlinePassed, AnswerTooLarge, or a ConnectionError,
    whose cause is the exception from below, if there is one.
    """

    def __init__(self, links: Links, idle: dict[Any, None], known: KnownHeads) -> None:
        super().__init__(links, idle)
        self._known = known
        self._reader = AnswerReader(known)
        self._waiter: asyncio.Future[Response | Exception] | None = None

    # Called by the transport.

    def ask(self, message: bytes, deadline: float, *, tunnel: bool = False) -> asyncio.Future[Response | Exception]:
        """Write one complete request and return the future of its response.

        ``deadline`` is a time of the monotonic clock. The frames of an exception from here contain ``message``.
        """
        self._reader.begin(tunnel=tunnel)
        self.expect(deadline)
        self._waiter = waiter = self._loop.create_future()
        self.transport.write(message)
        return waiter

    def abandon(self, waiter: asyncio.Future[Response | Exception]) -> None:
        """Close the connection if it still works for this future, whose caller has stopped waiting."""
        if self._waiter is waiter:
            self._waiter = None
            self.abort()

    async def secure(self, context: ssl.SSLContext, host: str | None) -> None:
        """Start TLS on the open connection. Raises ConnectionResetError if it is closed before the handshake ends."""
        await super().secure(context, host)
        self._reader = AnswerReader(self._known)  # the last one has read the response of a proxy

    # Called by asyncio, and what ends an exchange.

    def buffer_updated(self, nbytes: int) -> None:
        """Read a part of the response; without a request, close the connection."""
        if self._waiter is None:
            self.abort()
        elif self._reader.feed(self._buffer[:nbytes]):
            if nbytes == len(self._buffer):  # TLS may hold more bytes, and nothing shows it
                self._reader.reusable = False
            self._conclude()

    def late(self) -> None:
        """Tell the caller that the deadline has passed."""
        self._settle(DeadlinePassed("no response in time"))

    def lost(self, error: Exception | None, reason: str = "") -> None:
        """Tell the caller that the connection was lost, or why it is closed."""
        where = "within" if self._reader.begun else "before"
        failure = ConnectionError(reason or f"the connection was lost {where} the response")
        failure.__cause__ = error
        self._settle(failure)

    def ended(self) -> None:
        """Conclude: the end of the server's data may be the end of the response."""
        self._reader.end()
        self._conclude()

    def _conclude(self) -> None:
        reader = self._reader
        if reader.whole:
            self._settle(reader.response(), reusable=reader.reusable)
        elif reader.too_large:
            self._settle(AnswerTooLarge(reader.fault, limit=self._known.limit))
        else:
            self._settle(ConnectionError(reader.fault))

    def _settle(self, outcome: Response | Exception, *, reusable: bool = False) -> None:
        """Set the result of the future; then put the connection on its stack (but not a new tunnel), or close it."""
        waiter, self._waiter = self._waiter, None
        assert waiter is not None  # noqa: S101  # only a busy connection can be settled
        if waiter.done():  # cancelled
            reusable = False
        else:
            waiter.set_result(outcome)
        if not reusable:
            self.abort()
        elif self.rest() and self in self._links:
            self._idle[self] = None


def _address(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises ValueError; its message does not show the address."""
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme not in PORTS or not host:
        raise ValueError("invalid address: use http://host:port or https://host:port")
    if not host.isascii():
        host = host.encode("idna").decode()
    return parts.scheme, host, PORTS[parts.scheme] if parts.port is None else parts.port


def _http_only(proxy: str | None) -> str | None:
    if proxy is not None and not proxy.startswith("http:"):
        raise InvalidRequest(
            "proxy: AsyncioTransport supports http:// proxies only: use HttpxTransport for other kinds", field="proxy"
        )
    return proxy


@frozen
class RequestHead:
    """The prepared bytes of requests that differ only in their body. The repr does not show them: they are signed."""

    _begin: bytes = field(repr=False)

    def message(self, body: bytes) -> bytes:
        """Return the bytes of a request: head and ``body``."""
        return b"%b%d\r\n\r\n%b" % (self._begin, len(body), body)


class Route:
    """The route to one origin, with its idle connections; ``proxy`` is the address of an HTTP proxy, or None.

    Raises ValueError for an invalid origin.
    """

    def __init__(self, origin: str, proxy: str | None, uds: str | None) -> None:
        parts = urlsplit(origin)
        scheme, self._host, self._port = _address(origin)
        self._secure = scheme == "https"
        self.idle: dict[Connection, None] = {}  # a stack that can lose any of its items
        self.proxy = proxy
        self._to_proxy = {} if proxy is None else login_headers(proxy)
        self._uds = uds
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._authority = f"{host}:{self._port}"
        host = host if self._port == PORTS[scheme] else self._authority
        self._fixed = {"Host": host}
        self._prefix = parts.path.rstrip("/")
        if proxy is not None and not self._secure:
            self._prefix = f"http://{host}{self._prefix}"
            self._fixed |= self._to_proxy
        if "@" in parts.netloc or parts.query or parts.fragment or not PATH.fullmatch(f"{host}{self._prefix}"):
            raise ValueError("invalid origin: it must be ASCII without white space, user, query and fragment")
        self._heads: HeadCache[RequestHead] = HeadCache()

    def head(self, request: Request) -> RequestHead:
        """Return the prepared head. Raises ValueError if it cannot be sent; the message shows no value."""
        return self._heads.get(request) or self._new_head(request)

    def _new_head(self, request: Request) -> RequestHead:
        if not (request.path.startswith("/") and PATH.fullmatch(request.path) and TOKEN.fullmatch(request.method)):
            raise ValueError("the method or path must be ASCII without white space")
        if not all(TOKEN.fullmatch(name) and FIELD.fullmatch(value) for name, value in request.headers.items()):
            raise ValueError("header names and values must be printable ASCII")
        given = {name.lower() for name in request.headers}
        own = {name: value for name, value in self._fixed.items() if name.lower() not in given}
        lines = "".join(
            f"{name}: {value}\r\n" for name, value in {**own, **request.headers}.items() if name.lower() not in OWN_FRAMING
        )
        begin = f"{request.method} {self._prefix}{request.target} HTTP/1.1\r\n{lines}Content-Length: "
        return self._heads.keep(request, RequestHead(begin.encode("ascii")))

    def take(self, oldest: float) -> Connection | None:
        """Take the connection used last, if that was after ``oldest`` (monotonic clock) and it is not stale, or None."""
        while self.idle:
            connection, _ = self.idle.popitem()
            if connection.stale:
                connection.abort()
            elif connection.idle_since > oldest:
                return connection
            else:
                connection.close()
                break  # the others were idle for even longer
        return None

    async def open(self, connection: Connection, deadline: float, context: Callable[[], ssl.SSLContext]) -> None:
        """Open a connection up to the origin. If this fails or is cancelled, the connection is closed."""
        secure = context() if self._secure else None
        host, port = (self._host, self._port) if self.proxy is None else _address(self.proxy)[1:]
        await connection.connect(host, port, self._uds)
        if secure is not None:
            try:
                if self.proxy is not None:
                    await self._tunnel(connection, deadline)
            except BaseException:
                connection.abort()
                raise
            await connection.secure(secure, self._host)

    async def _tunnel(self, connection: Connection, deadline: float) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": self._authority, **self._to_proxy}.items())
        message = f"CONNECT {self._authority} HTTP/1.1\r\n{lines}\r\n".encode("ascii")
        outcome = await connection.ask(message, deadline, tunnel=True)
        if isinstance(outcome, Exception):
            raise ConnectionError(f"the proxy opened no tunnel: {outcome}") from outcome.__cause__
        if outcome.status not in SUCCESS or connection.closing:
            raise ConnectionError(f"the proxy opened no tunnel: HTTP {outcome.status}")


class AsyncioTransport(BaseTransport):
    """A transport built on asyncio itself: HTTP/1.1, on asyncio and uvloop.

    The options are those of all transports; a proxy must be ``http://``.

    A response with a head longer than 64 KiB raises Unanswered, as does every response that is not HTTP/1.1. With httptools
    that includes folded headers, a length that is stated twice, and lines without a carriage return; h11 accepts these.

    Raises InvalidRequest for an invalid or ``https://`` proxy, or if both ``proxy`` and ``uds`` are given.
    """

    library_version = "asyncio"
    keeps_timeouts = True

    def __init__(self, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        _http_only(self._proxy)
        self._links: Links | None = None
        self._known = KnownHeads(self.answer_limit)

    async def _open(self) -> None:
        self._asyncio_loop()
        self._links = Links(self.max_idle)

    async def _close(self) -> None:
        links, self._links = self._links, None
        self._routes.clear()
        if links is not None:
            await links.close()

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced here
        """Send one request, as :meth:`rbim.Transport.send` says."""
        now = time.monotonic()
        deadline = now + timeout
        try:
            links = self._links
            if links is None or asyncio.get_running_loop() is not links.loop:  # its connections share one buffer
                raise NotSent(NOT_OPEN if links is None else OTHER_LOOP)
            route = self._routes.get(request.origin) or self._new_route(request.origin)
            head = route.head(request)
        except ValueError as error:
            raise NotSent(f"invalid request: {error}") from sanitized(error, request.secrets)
        if timeout <= 0:
            raise NotSent(too_late(request, timeout))
        oldest = -1.0 if request.repeatable else now - self.keepalive_expiry
        kept = route.take(oldest)
        connection = kept or await self._connect(links, route, request, deadline, timeout)
        try:
            waiter = connection.ask(head.message(request.body), deadline)
        except Exception as error:
            connection.abort()
            raise Unanswered(f"the request could not be written: {type(error).__name__}") from sanitized(
                error, request.secrets
            )
        try:
            outcome = await waiter
        except BaseException:
            connection.abandon(waiter)
            raise
        if isinstance(outcome, Response):
            return outcome
        if isinstance(outcome, DeadlinePassed):
            raise Unanswered(f"no complete response within {timeout:g} s")
        if isinstance(outcome, AnswerTooLarge):
            raise outcome
        text, cause = str(outcome), outcome.__cause__
        if isinstance(cause, Exception):
            cause = sanitized(cause, request.secrets)
            text += f": {type(cause).__name__}: {redacted(str(cause), request.secrets)}"
        raise Unanswered(no_answer(request, text, new=kept is None)) from cause

    def _new_route(self, origin: str) -> Route:
        self._routes[origin] = route = Route(origin, _http_only(self._proxy_address(origin)), self._uds)
        return route

    async def _connect(  # the state of one attempt
        self, links: Links, route: Route, request: Request, deadline: float, seconds: float
    ) -> Connection:
        connection = Connection(links, route.idle, self._known)
        scope = asyncio.timeout(min(deadline - time.monotonic(), MAX_TIMER))
        try:
            async with scope:
                links.opening.add(scope)
                await route.open(connection, deadline, self._secure_context)
        except Exception as error:
            cause = sanitized(error, request.secrets)
            if self._links is None:
                raise NotSent("cannot connect: the transport was closed") from cause
            if scope.expired():
                raise NotSent(too_late(request, seconds, proxy=route.proxy, uds=self._uds)) from cause
            raise NotSent(no_connection(request, error, proxy=route.proxy, uds=self._uds)) from cause
        finally:
            links.opening.discard(scope)
        if connection.closing or self._links is None:
            connection.abort()
            raise NotSent("the connection was closed before the request was sent")
        connection.register()
        return connection
