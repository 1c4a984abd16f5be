"""The asyncio transport, the fastest one: asyncio's protocols and TLS with the llhttp parser. Also for uvloop.

Each connection is a protocol that writes a request, head and body at once, and sets the result of one future; there is no
task, lock or stream in between. Each origin has a stack of idle connections, and each connection has one timer. Without
httptools (``python -m pip install "rbim[fast]"``) h11 is the parser, which httpx brings.
"""

from __future__ import annotations

import asyncio
import base64
import re
import time
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from rbim.errors import InvalidRequest, NotSent, Unanswered
from rbim.http import Response
from rbim.transports._shared.base import BaseTransport
from rbim.transports._shared.connecting import no_connection, too_late
from rbim.transports._shared.head_cache import HeadCache
from rbim.transports._shared.link import MAX_IDLE, MAX_TIMER, Links, take
from rbim.transports._shared.network import proxy_for, tls_context
from rbim.transports._shared.redaction import sanitized
from rbim.transports.asyncio.answer import KnownHeads
from rbim.transports.asyncio.connection import Broken, Connection

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Iterable

    from rbim.http import Request
    from rbim.transports.asyncio.connection import Idle


__all__ = ["AsyncioTransport", "Proxy", "RequestHead", "Route"]

PORTS = {"http": 80, "https": 443}
OWN_FRAMING = frozenset({"content-length", "transfer-encoding"})  # the transport sets these itself
SUCCESS = range(200, 300)
TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FIELD = re.compile(r"[\t\x20-\x7e]*")
PATH = re.compile(r"[\x21-\x7e]+")


def _address(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port. Raises ValueError; its message does not show the address."""
    parts = urlsplit(url)
    host = parts.hostname
    if parts.scheme not in PORTS or not host:
        raise ValueError("invalid address: use http://host:port or https://host:port")
    if not host.isascii():
        host = host.encode("idna").decode()
    return parts.scheme, host, PORTS[parts.scheme] if parts.port is None else parts.port


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class Proxy:
    """An HTTP proxy: ``http://user:password@host:port``; only the host is required.

    Raises InvalidRequest for any other address.
    """

    def __init__(self, address: str) -> None:
        url = address if "://" in address else f"http://{address}"
        try:
            scheme, self.host, self.port = _address(url)
            valid = scheme == "http" and PATH.fullmatch(self.host) is not None
        except ValueError:
            valid = False
        if not valid:
            raise InvalidRequest(
                "proxy: AsyncioTransport supports http:// proxies only: use HttpxTransport for other kinds",
                field="proxy",
            ) from None
        self.url = f"http://{_authority(self.host, self.port)}"
        """The address without user and password."""
        parts = urlsplit(url)
        user_info = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}".encode()
        self._authorization = "" if parts.username is None else f"Basic {base64.b64encode(user_info).decode()}"

    @property
    def headers(self) -> dict[str, str]:
        """The headers for the proxy: ``Proxy-Authorization``, if the address has a user."""
        return {"Proxy-Authorization": self._authorization} if self._authorization else {}


class RequestHead:
    """The prepared bytes of requests that differ only in their body. The repr shows no value (they are signed)."""

    __slots__ = ("_begin",)

    def __init__(self, request: Request, prefix: str, fixed: dict[str, str]) -> None:
        given = {name.lower() for name in request.headers}
        own = {name: value for name, value in fixed.items() if name.lower() not in given}
        lines = "".join(
            f"{name}: {value}\r\n" for name, value in {**own, **request.headers}.items() if name.lower() not in OWN_FRAMING
        )
        self._begin = f"{request.method} {prefix}{request.target} HTTP/1.1\r\n{lines}Content-Length: ".encode("ascii")

    def message(self, body: bytes) -> bytes:
        """Return the bytes of a request: head and ``body``."""
        return b"%b%d\r\n\r\n%b" % (self._begin, len(body), body)


class Route:
    """The route to one origin, with its idle connections.

    Raises ValueError for an invalid origin.
    """

    def __init__(self, origin: str, proxy: Proxy | None, uds: str | None) -> None:
        parts = urlsplit(origin)
        scheme, self.host, self.port = _address(origin)
        self.secure = scheme == "https"
        self.idle: Idle = {}
        self.proxy = proxy
        self._uds = uds
        authority = _authority(self.host, self.port)
        host = authority.removesuffix(f":{PORTS[scheme]}") if self.port == PORTS[scheme] else authority
        self._authority = authority
        self._fixed = {"Host": host}
        self._prefix = parts.path.rstrip("/")
        if proxy is not None and not self.secure:
            self._prefix = f"http://{host}{self._prefix}"
            self._fixed |= proxy.headers
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
        return self._heads.keep(request, RequestHead(request, self._prefix, self._fixed))

    async def open(self, connection: Connection, deadline: float, context: Callable[[], ssl.SSLContext]) -> None:
        """Open a connection up to the origin. If this fails or is cancelled, the connection is closed."""
        secure = context() if self.secure else None
        proxy = self.proxy
        await connection.connect(*((proxy.host, proxy.port) if proxy else (self.host, self.port)), self._uds)
        if secure is not None:
            try:
                if proxy is not None:
                    await self._tunnel(connection, proxy, deadline)
            except BaseException:
                connection.abort()
                raise
            await connection.secure(secure, self.host)

    async def _tunnel(self, connection: Connection, proxy: Proxy, deadline: float) -> None:
        lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": self._authority, **proxy.headers}.items())
        message = f"CONNECT {self._authority} HTTP/1.1\r\n{lines}\r\n".encode("ascii")
        outcome = await connection.ask(message, deadline, tunnel=True)
        if isinstance(outcome, Broken):
            raise ConnectionError(
                f"the proxy opened no tunnel: {outcome.reason or 'no response in time'}"
            ) from outcome.error
        if outcome.status not in SUCCESS or connection.closing:
            raise ConnectionError(f"the proxy opened no tunnel: HTTP {outcome.status}")


ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0


class AsyncioTransport(BaseTransport):
    """A transport built on asyncio itself: HTTP/1.1, on asyncio and uvloop.

    - ``verify``: an ``ssl.SSLContext``, the path of a CA bundle, or False for no verification. Default: verify against the
      machine's certificates.
    - ``cert``: the path of a client certificate with its key, or a pair of paths.
    - ``proxy``: the address of an HTTP proxy (``http://`` only). Without it, ``trust_env`` (default: True) reads
      ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``.
    - ``uds``: the path of a UNIX socket; all origins are reached through it, without a proxy.
    - ``keepalive_expiry``: seconds (default: 5). A connection that was idle for longer is not used for a request that must
      not be repeated, because the server may be closing it.
    - ``max_idle``: seconds (default: 60) after which an idle connection is closed.
    - ``answer_limit``: bytes (default: 8 MiB). A longer response body raises AnswerTooLarge.

    A response with a head longer than 64 KiB raises Unanswered, as does every response that is not HTTP/1.1. With httptools
    that includes folded headers, a length that is stated twice, and lines without a carriage return; h11 accepts these.

    Raises InvalidRequest for an invalid or ``https://`` proxy, or if both ``proxy`` and ``uds`` are given.
    """

    keeps_timeouts = True
    """Requests end in time, by a timer of each connection: a client adds no scope."""

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        uds: str | None = None,
        keepalive_expiry: float = KEEPALIVE,
        max_idle: float = MAX_IDLE,
        answer_limit: int = ANSWER_LIMIT,
    ) -> None:
        if proxy is not None and uds is not None:
            raise InvalidRequest(
                "proxy: a proxy and a UNIX socket exclude each other: give proxy or uds, not both", field="proxy"
            )
        self.keepalive_expiry = keepalive_expiry
        self.max_idle = max_idle
        self._verify = verify
        self._cert = cert
        self._proxy = None if proxy is None else Proxy(proxy)
        self._trust_env = trust_env
        self._uds = uds
        self._context: ssl.SSLContext | None = None
        self._routes: dict[str, Route] = {}
        self._links: Links | None = None
        self._known = KnownHeads(answer_limit)

    @property
    def answer_limit(self) -> int:
        """The longest response body in bytes."""
        return self._known.limit

    async def _open(self) -> None:
        try:
            self._links = Links(self.max_idle)
        except RuntimeError:
            raise RuntimeError("AsyncioTransport runs on asyncio and uvloop only: on trio, use HttpxTransport") from None

    async def _close(self) -> None:
        links, self._links = self._links, None
        self._routes.clear()
        if links is not None:
            await links.close()

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced here
        """Send one request and return its response; ``timeout`` is in seconds.

        Raises NotSent, Unanswered or AnswerTooLarge.
        """
        now = time.monotonic()
        deadline = now + timeout
        try:
            links = self._links
            if links is None or asyncio.get_running_loop() is not links.loop:  # its connections share one buffer
                raise self._not_open()
            route = self._routes.get(request.origin) or self._new_route(request.origin)
            head = route.head(request)
        except ValueError as error:
            raise NotSent(f"invalid request: {error}") from sanitized(error, request.secrets)
        if timeout <= 0:
            raise NotSent(too_late(request, timeout))
        oldest = -1.0 if request.repeatable else now - self.keepalive_expiry
        kept = take(route.idle, oldest)
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
        if outcome.late:
            raise Unanswered(f"no complete response within {timeout:g} s")
        raise outcome.to_error(request, new=kept is None)

    def _not_open(self) -> NotSent:
        return NotSent(
            "the transport is not open: use it inside 'async with'"
            if self._links is None
            else "the transport is open in another event loop: use one transport per event loop"
        )

    def _new_route(self, origin: str) -> Route:
        proxy = self._proxy
        if proxy is None and self._uds is None:
            address = proxy_for(origin, None, trust_env=self._trust_env)
            proxy = None if address is None else Proxy(address)
        self._routes[origin] = route = Route(origin, proxy, self._uds)
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
            proxy = None if route.proxy is None else route.proxy.url
            if scope.expired():
                raise NotSent(too_late(request, seconds, proxy=proxy, uds=self._uds)) from cause
            raise NotSent(no_connection(request, error, proxy=proxy, uds=self._uds)) from cause
        finally:
            links.opening.discard(scope)
        if connection.closing or self._links is None:
            connection.abort()
            raise NotSent("the connection was closed before the request was sent")
        connection.register()
        return connection

    def _prepare(self, origins: Iterable[str], *, secure: bool) -> None:
        for origin in origins:
            if origin not in self._routes:
                self._new_route(origin)
        if secure:
            self._secure_context()

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = tls_context(self._verify, self._cert)
        return self._context
