"""httpx, one single-connection transport per request in flight.

Why not one ``httpx.AsyncClient`` with its pool: httpcore 1.0 looks through its whole list of connections at the start and
the end of each request, which is quadratic in the requests in flight, and requests that queue inside it may leak their
place when they are cancelled. The gate of rbim's client decides how many are in flight; here each of them has a slot, an
``httpx.AsyncHTTPTransport`` limited to one connection, taken from and put back on top of a stack per origin. All slots
share one ``SSLContext``.
"""

from __future__ import annotations

import ssl
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

import anyio
import httpx

from rbim.errors import AnswerTooLarge, NotSent, TransportError, Unanswered
from rbim.message import Request, Response
from rbim.transports.trouble import untraced

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Any, Self

__all__ = ["HttpxTransport"]

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
SPARE = 60.0  # a slot at the bottom of its stack that was idle for so many seconds is closed

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for plain origins, which need no certificates: loading them takes time

# What httpx raises, and what it means; the first that fits counts.
ERRORS: tuple[tuple[type[Exception], type[TransportError]], ...] = (
    (httpx.ConnectTimeout, NotSent),
    (httpx.ConnectError, NotSent),
    (httpx.PoolTimeout, NotSent),
    (httpx.ProxyError, NotSent),
    (httpx.UnsupportedProtocol, NotSent),
    (httpx.LocalProtocolError, NotSent),
    (httpx.InvalidURL, NotSent),
    (ssl.SSLError, NotSent),
    (httpx.HTTPError, Unanswered),
    (OSError, Unanswered),
)


class _Slot:
    """One connection to one origin, or the promise of one."""

    def __init__(self, carrier: httpx.AsyncBaseTransport) -> None:
        self.carrier = carrier
        self.connected = False
        self.idle_since = 0.0


class _Progress:
    """What httpcore tells of one request on a connection that may not have come about yet."""

    def __init__(self, *, sent: bool) -> None:
        self.sent = sent

    async def trace(self, name: str, _: Mapping[str, Any]) -> None:
        if name.endswith("send_request_headers.started"):
            self.sent = True


class HttpxTransport:
    """Carries requests with httpx over HTTP/1.1, on asyncio and trio.

    TLS is verified against the machine's or certifi's certificates; ``verify`` takes an ``ssl.SSLContext``, the path of a CA
    bundle, or False; ``cert`` the path of a client certificate with its key, or a pair of paths. ``proxy`` is the address
    of an HTTP proxy; without one, ``trust_env`` takes it from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and
    ``NO_PROXY``. A connection idle for more than ``keepalive_expiry`` seconds is not used for a request that must not be
    repeated, since the server may be closing it. An answer of more than ``answer_limit`` bytes is AnswerTooLarge.

    ``carrier`` is an ``httpx.AsyncBaseTransport`` of one's own, such as a ``MockTransport``, in place of the slots.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        *,
        verify: ssl.SSLContext | str | bool = True,
        cert: str | tuple[str, str] | None = None,
        proxy: str | None = None,
        trust_env: bool = True,
        keepalive_expiry: float = KEEPALIVE,
        answer_limit: int = ANSWER_LIMIT,
        carrier: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.keepalive_expiry = keepalive_expiry
        self.answer_limit = answer_limit
        self._verify = verify
        self._cert = cert
        self._proxy = proxy
        self._trust_env = trust_env
        self._carrier = carrier
        self._context: ssl.SSLContext | None = None
        self._proxies: dict[str, str | None] = {}
        self._idle: defaultdict[str, deque[_Slot]] = defaultdict(deque)
        self._open = False

    async def __aenter__(self) -> Self:
        if self._carrier is not None:
            await self._carrier.__aenter__()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._open = False
        if self._carrier is not None:
            await self._carrier.__aexit__(kind, error, trace)
        for stack in self._idle.values():
            while stack:
                await self._close(stack.pop())

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # kept here
        """Carry one request. Raises NotSent, Unanswered or AnswerTooLarge."""
        if not self._open:
            reason = "the transport is not open"
            raise NotSent(reason)
        try:
            slot = self._lease(request)
        except (OSError, ValueError, ImportError) as error:  # a CA bundle that is not there, a proxy that is no address
            reason = f"no connection can be made: {error}"
            raise NotSent(reason) from untraced(error)
        progress = _Progress(sent=slot.connected)
        whole = False
        try:
            with anyio.move_on_after(timeout):
                response = await self._carry(request, slot, progress)
                whole = True
                return response
        except TransportError:
            raise
        except Exception as error:
            raise _translated(error) from untraced(error)
        finally:
            await self._release(request.origin, slot, reuse=whole)
        reason = f"no whole answer within {timeout:g} s"
        if not progress.sent:
            reason = f"no connection within {timeout:g} s"
            raise NotSent(reason)
        raise Unanswered(reason)

    async def _carry(self, request: Request, slot: _Slot, progress: _Progress) -> Response:
        # The signed address is bound to no name here: a traceback that shows locals shows none of it.
        extensions = {} if progress.sent else {"trace": progress.trace}
        answer = await slot.carrier.handle_async_request(
            httpx.Request(
                request.method,
                request.origin + request.target,
                headers=[*request.headers.items()],
                content=request.body,
                extensions=extensions,
            )
        )
        try:
            body = await self._body(answer)
        finally:
            await answer.aclose()
        headers: dict[str, str] = {}
        for name, value in answer.headers.multi_items():
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return Response(answer.status_code, headers, body)

    async def _body(self, answer: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in cast("httpx.AsyncByteStream", answer.stream):
            parts.append(part)
            size += len(part)
            if size > self.answer_limit:
                reason = f"the answer is longer than {self.answer_limit} bytes"
                raise AnswerTooLarge(reason, limit=self.answer_limit)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _lease(self, request: Request) -> _Slot:
        if self._carrier is not None:
            return _Slot(self._carrier)
        stack = self._idle[request.origin]
        fresh_since = time.monotonic() - self.keepalive_expiry
        if stack and (request.repeatable or stack[-1].idle_since >= fresh_since):
            return stack.pop()
        return _Slot(self._slot_carrier(request.origin))

    async def _release(self, origin: str, slot: _Slot, *, reuse: bool) -> None:
        """Put the slot back on its stack, or close it; close the one that has been at the bottom for long."""
        if self._carrier is not None:
            return
        stack = self._idle[origin]
        now = time.monotonic()
        if reuse and self._open:
            slot.connected = True
            slot.idle_since = now
            stack.append(slot)
            if stack[0].idle_since > now - SPARE:
                return
            slot = stack.popleft()
        await self._close(slot)

    @staticmethod
    async def _close(slot: _Slot) -> None:
        with anyio.CancelScope(shield=True):
            await slot.carrier.aclose()

    def _slot_carrier(self, origin: str) -> httpx.AsyncHTTPTransport:
        proxy = self._proxy_for(origin)
        secure = any(address is not None and address.startswith("https:") for address in (origin, proxy))
        context = self._secure_context() if secure else PLAIN
        return httpx.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None),
            proxy=None if proxy is None else httpx.Proxy(proxy, ssl_context=context if secure else None),
        )

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = _context(self._verify, self._cert, trust_env=self._trust_env)
        return self._context

    def _proxy_for(self, origin: str) -> str | None:
        if self._proxy is not None or not self._trust_env:
            return self._proxy
        if origin not in self._proxies:
            self._proxies[origin] = _proxy_from_env(origin)
        return self._proxies[origin]


def _translated(error: Exception) -> TransportError:
    kind = next((meaning for raised, meaning in ERRORS if isinstance(error, raised)), Unanswered)
    return kind(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)


def _context(
    verify: ssl.SSLContext | str | bool,  # noqa: FBT001  # httpx's own way to say it
    cert: str | tuple[str, str] | None,
    *,
    trust_env: bool,
) -> ssl.SSLContext:
    if isinstance(verify, str):
        context = ssl.create_default_context(cafile=verify)
    else:
        context = verify if isinstance(verify, ssl.SSLContext) else httpx.create_ssl_context(verify, trust_env=trust_env)
    if cert is not None:
        context.load_cert_chain(*((cert,) if isinstance(cert, str) else cert))
    return context


def _proxy_from_env(origin: str) -> str | None:
    """Return the proxy that the environment names for an origin, by the standard library's reading of it."""
    from urllib.request import getproxies, proxy_bypass

    parts = urlsplit(origin)
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return proxy if "://" in proxy else f"http://{proxy}"
