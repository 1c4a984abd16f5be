"""The asyncio transport, the fastest one: asyncio's protocols and TLS with the llhttp parser. Also for uvloop.

Each connection is a protocol that writes a request, head and body at once, and sets the result of one future; there is no
task, lock or stream in between. Each origin has a stack of idle connections, and each connection has one timer. Without
httptools (``python -m pip install "rbim[fast]"``) h11 is the parser, which httpx brings.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from rbim.errors import InvalidRequest, NotSent, Unanswered
from rbim.http import Response
from rbim.transports._shared.base import BaseTransport
from rbim.transports._shared.connecting import no_connection, too_late
from rbim.transports._shared.link import MAX_IDLE, MAX_TIMER, Links, take
from rbim.transports._shared.network import proxy_for, tls_context
from rbim.transports._shared.redaction import sanitized
from rbim.transports.asyncio.answer import KnownHeads
from rbim.transports.asyncio.connection import Connection
from rbim.transports.asyncio.route import Proxy, Route

if TYPE_CHECKING:
    import ssl
    from collections.abc import Iterable

    from rbim.http import Request

__all__ = ["AsyncioTransport"]

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
