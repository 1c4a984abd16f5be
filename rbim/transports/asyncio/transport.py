"""asyncio's own protocols and TLS with the llhttp parser: the fastest transport, for asyncio and uvloop.

Each connection is a protocol that writes a request, head and body at once, and gives its answer to one future; no task,
lock or stream stands between. Connections are kept in a stack for each origin and have one timer each. Needs httptools:
``python -m pip install "rbim[fast]"``.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from rbim.errors import InvalidRequest, NotSent, Unanswered
from rbim.http import Response
from rbim.transports._shared.network import proxy_for, tls_context
from rbim.transports._shared.redaction import redacted, untraced
from rbim.transports.asyncio.answer import Known
from rbim.transports.asyncio.connection import LONGEST_NAP, Connection
from rbim.transports.asyncio.route import Proxy, Route

if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import Self

    from rbim.http import Request

__all__ = ["AsyncioTransport"]

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
READ = 64 * 1024  # bytes at once: more makes asyncio's reads cost page faults
LEAVING = 10  # turns of the loop; closed connections are gone within two or three of them


class AsyncioTransport:
    """Carries requests over HTTP/1.1 with what asyncio itself has, on asyncio and uvloop.

    TLS is verified against the machine's certificates; ``verify`` takes an ``ssl.SSLContext``, the path of a CA bundle, or
    False; ``cert`` the path of a client certificate with its key, or a pair of paths. ``proxy`` is the address of an HTTP
    proxy (``http://`` only); without one, ``trust_env`` takes it from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and
    ``NO_PROXY``. ``uds`` is the path of a UNIX socket behind which every origin is, in the place of any proxy. A connection
    idle for more than ``keepalive_expiry`` seconds is not used for a request that must not be repeated, since the server
    may be closing it; after a minute it is closed. An answer of more than ``answer_limit`` bytes is AnswerTooLarge; one
    whose head is longer than 64 KiB is Unanswered, as is all that is not HTTP/1.1 by the letter (folded headers, two
    lengths, lines that end without a carriage return).

    Raises InvalidRequest for a ``proxy`` that is none or needs TLS itself, or together with ``uds``.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        uds: str | None = None,
        keepalive_expiry: float = KEEPALIVE,
        answer_limit: int = ANSWER_LIMIT,
    ) -> None:
        if proxy is not None and uds is not None:
            raise InvalidRequest("proxy: there is none behind a UNIX socket", field="proxy")
        self.keepalive_expiry = keepalive_expiry
        self._verify = verify
        self._cert = cert
        self._proxy = None if proxy is None else Proxy(proxy)
        self._trust_env = trust_env
        self._uds = uds
        self._context: ssl.SSLContext | None = None
        self._routes: dict[str, Route] = {}
        self._everyone: set[Connection] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._buffer = memoryview(b"")
        self._known = Known(answer_limit)

    @property
    def answer_limit(self) -> int:
        """Bytes that the body of an answer may have."""
        return self._known.limit

    async def __aenter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("the transport is open: it is entered once, in one event loop")
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError("AsyncioTransport runs on asyncio and uvloop only; on trio, use HttpxTransport") from None
        self._buffer = memoryview(bytearray(READ))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._loop = None
        self._routes.clear()
        for connection in [*self._everyone]:
            connection.fail("the transport was closed")
        for _ in range(LEAVING):
            if self._everyone:
                await asyncio.sleep(0)

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # kept here
        """Carry one request. Raises NotSent, Unanswered or AnswerTooLarge."""
        now = time.monotonic()
        deadline = now + timeout
        try:
            if asyncio.get_running_loop() is not self._loop:  # whose connections read into one buffer
                raise self._elsewhere()
            route = self._routes.get(request.origin) or self._new_route(request.origin)
            head = route.head(request)
        except ValueError as error:
            raise NotSent(f"no such request can be sent: {error}") from untraced(error, request.secrets)
        if timeout <= 0:
            raise NotSent(f"no connection can come about within {timeout:g} s")
        oldest = -1.0 if request.repeatable else now - self.keepalive_expiry
        connection = route.idle_connection(oldest) or await self._connected(route, request, deadline)
        waiter = connection.expect(deadline)
        try:
            connection.write(head.message(request.body))
            outcome = await waiter
        except Exception as error:
            connection.forsake(waiter)
            raise Unanswered(f"the request could not be written: {type(error).__name__}") from untraced(
                error, request.secrets
            )
        except BaseException:
            connection.forsake(waiter)
            raise
        if isinstance(outcome, Response):
            return outcome
        if outcome.late:
            raise Unanswered(f"no whole answer within {timeout:g} s")
        raise outcome.said(request)

    def _elsewhere(self) -> NotSent:
        return NotSent("the transport is not open" if self._loop is None else "the transport is open in another event loop")

    def _new_route(self, origin: str) -> Route:
        proxy = self._proxy
        if proxy is None and self._uds is None:
            address = proxy_for(origin, None, trust_env=self._trust_env)
            proxy = None if address is None else Proxy(address)
        self._routes[origin] = route = Route(origin, proxy, self._uds)
        return route

    async def _connected(self, route: Route, request: Request, deadline: float) -> Connection:
        connection = Connection(asyncio.get_running_loop(), self._buffer_of_one(), self._known, route.idle, self._everyone)
        scope = asyncio.timeout(min(deadline - time.monotonic(), LONGEST_NAP))
        try:
            async with scope:
                await route.open(connection, deadline, self._secure_context)
        except Exception as error:
            cause = untraced(error, request.secrets)
            if scope.expired():
                raise NotSent("no connection came about in time") from cause
            raise NotSent(
                f"no connection came about: {type(cause).__name__}: {redacted(str(cause), request.secrets)}"
            ) from cause
        if connection.closing or self._loop is None:
            connection.abort()
            raise NotSent("the connection was closed before anything was sent")
        connection.enlist()
        return connection

    def _buffer_of_one(self) -> memoryview:
        """Return where a connection reads into: one buffer for all, unless the loop reads into several at once."""
        return memoryview(bytearray(READ)) if sys.platform == "win32" else self._buffer

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = tls_context(self._verify, self._cert)
        return self._context
