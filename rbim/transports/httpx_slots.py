"""What the transports of httpx and of httpx2 share: one single-connection transport per request in flight.

The gate of rbim's client decides how many requests are in flight; here each of them has a slot, an ``AsyncHTTPTransport``
limited to one connection, taken from and put back on top of a stack per origin. All slots share one ``SSLContext``. Why not
the library's pool: see the modules of the two.
"""

from __future__ import annotations

import ssl
import time
from collections import defaultdict, deque
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import anyio

from rbim.errors import AnswerTooLarge, InvalidRequest, NotSent, TransportError, Unanswered
from rbim.http import Request, Response
from rbim.transports._shared.head_cache import HeadCache
from rbim.transports._shared.network import proxy_for, tls_context
from rbim.transports._shared.redaction import LogRedactor, redacted, unframed, untraced

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import ModuleType, TracebackType
    from typing import Self

__all__ = ["Body", "HttpxSlots"]

C = TypeVar("C")

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
SPARE = 60.0  # a slot at the bottom of its stack that was idle for so many seconds is closed
READ_AHEAD = 256 * 1024  # bytes past the limit that may have been read when a connection is closed; httpcore reads 64 KiB

PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # for plain origins, which need no certificates: loading them takes time

# What the library raises although the request began to be sent, as far as is known, and that means NotSent all the same.
NOT_SENT = (
    "ConnectTimeout",
    "ConnectError",
    "PoolTimeout",
    "ProxyError",
    "UnsupportedProtocol",
    "LocalProtocolError",
    "InvalidURL",
)


class _Slot:
    """One connection to one origin, or the promise of one."""

    def __init__(self, carrier: Any) -> None:
        self.carrier = carrier
        self.idle_since = 0.0


class _Progress:
    """What is known of one request under way: whether it began to be sent, and the stream that was opened for it."""

    def __init__(self, *, sent: bool) -> None:
        self.sent = sent
        self.opened: Any = None  # of httpcore, by the trace alone
        self.more = False  # came than the answer

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Be told by httpcore."""
        if name.endswith(("connect_tcp.complete", "connect_unix_socket.complete")):
            self.opened = info["return_value"]
        elif name.endswith("send_request_headers.started") and info["request"].method != b"CONNECT":
            self.sent = True

    async def close(self) -> None:
        """Close what httpcore leaves open where a TLS handshake is cancelled."""
        if self.opened is not None:
            await self.opened.aclose()


class _Head:
    """Address and headers of requests as the library made them of the first; it shows nothing of them."""

    __slots__ = ("counts", "headers", "url")

    def __init__(self, request: Request, first: Any) -> None:
        self.url = first.url
        self.headers = first.headers
        told = any(name.lower() == "content-length" for name in request.headers)
        self.counts = bool(request.body) and not told and "content-length" in first.headers

    def headers_for(self, body: bytes) -> Any:
        """Return the headers of a request with another body; if this one has none, neither has that."""
        headers = self.headers.copy()
        if self.counts:
            headers["Content-Length"] = str(len(body))
        return headers


class Body:
    """The bytes of a request, to be mixed into the library's AsyncByteStream.

    No generator as the library's own is: trio warns of those that a failure leaves in their middle.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._given = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._given = False
        return self

    async def __anext__(self) -> bytes:
        if self._given:
            raise StopAsyncIteration
        self._given = True
        return self._body


class HttpxSlots(Generic[C]):
    """Carries requests with httpx or httpx2 over HTTP/1.1, on asyncio and trio; ``C`` is the library's AsyncBaseTransport.

    TLS is verified against the machine's or certifi's certificates; ``verify`` takes an ``ssl.SSLContext``, the path of a CA
    bundle, or False; ``cert`` the path of a client certificate with its key, or a pair of paths. ``proxy`` is the address
    of an HTTP proxy; without one, ``trust_env`` takes it from ``HTTP_PROXY``, ``HTTPS_PROXY``, ``ALL_PROXY`` and
    ``NO_PROXY``. ``uds`` is the path of a UNIX socket behind which every origin is, in the place of any proxy. A connection
    idle for more than ``keepalive_expiry`` seconds is not used for a request that must not be repeated, since the server
    may be closing it. An answer of more than ``answer_limit`` bytes is AnswerTooLarge.

    ``carrier`` is a transport of the library's and one's own, such as a ``MockTransport``, in place of the slots.

    Raises InvalidRequest for a ``proxy`` together with ``uds``.
    """

    library: ClassVar[ModuleType]
    core: ClassVar[str]
    body: ClassVar[type[Body]]

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
        carrier: C | None = None,
    ) -> None:
        if proxy is not None and uds is not None:
            raise InvalidRequest("proxy: there is none behind a UNIX socket", field="proxy")
        self.keepalive_expiry = keepalive_expiry
        self.answer_limit = answer_limit
        self._verify = verify
        self._cert = cert
        self._proxy = proxy
        self._trust_env = trust_env
        self._uds = uds
        self._carrier: Any = carrier
        self._context: ssl.SSLContext | None = None
        self._proxies: dict[str, str | None] = {}
        self._heads: HeadCache[_Head] = HeadCache()
        self._idle: defaultdict[str, deque[_Slot]] = defaultdict(deque)
        self._open = False
        self._log = LogRedactor(*(f"{self.core}.{name}" for name in ("http11", "connection", "proxy", "socks")))

    async def __aenter__(self) -> Self:
        if self._carrier is not None:
            await self._carrier.__aenter__()
        self._log.attach()
        self._open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._open = False
        self._heads.clear()
        self._log.detach()
        if self._carrier is not None:
            await self._carrier.__aexit__(kind, error, trace)
        for stack in self._idle.values():
            while stack:
                await self._close(stack.pop())

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # kept here
        """Carry one request. Raises NotSent, Unanswered or AnswerTooLarge."""
        try:
            return await self._exchange(request, timeout)
        except Exception:
            raise
        except BaseException as interruption:
            unframed(interruption)
            raise

    async def _exchange(self, request: Request, seconds: float) -> Response:
        if not self._open:
            raise NotSent("the transport is not open")
        try:
            slot = await self._lease(request)
        except Exception as error:  # a CA bundle that is not there, a proxy that is no address
            raise NotSent(f"no connection can be made: {error}") from untraced(error)
        self._log.mind(request)
        progress = _Progress(sent=self._carrier is not None)
        whole = False
        try:
            with anyio.move_on_after(seconds):
                response = await self._carry(request, slot, progress)
                whole = not progress.more
                return response
        except TransportError:
            raise
        except Exception as error:
            raise self._translated(error, request, sent=progress.sent) from untraced(error, request.secrets)
        finally:
            await self._release(request.origin, slot, progress, reuse=whole)
        if progress.sent:
            raise Unanswered(f"no whole answer within {seconds:g} s")
        raise NotSent(f"no connection within {seconds:g} s")

    async def _carry(self, request: Request, slot: _Slot, progress: _Progress) -> Response:
        # The signed address is bound to no name here: a traceback that shows locals shows none of it.
        extensions = {} if self._carrier is not None else {"trace": progress.trace}
        answer = await slot.carrier.handle_async_request(self._message(request, extensions))
        try:
            body = await self._body(answer)
        finally:
            await answer.aclose()
        progress.more = self._carrier is None and _came_with_more(answer)
        if body is None:
            raise AnswerTooLarge(f"the answer is longer than {self.answer_limit} bytes", limit=self.answer_limit)
        headers: dict[str, str] = {}
        for name, value in answer.headers.multi_items():
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return Response(answer.status_code, headers, body)

    async def _body(self, answer: Any) -> bytes | None:
        """Return the whole body, or None where it is too long.

        Then the connection is closed, and what was read from it is read out to where it ends: left in their middle,
        httpcore's generators would make trio warn.
        """
        parts: list[bytes] = []
        size = 0
        try:
            async for part in answer.stream:
                size += len(part)
                if size <= self.answer_limit:
                    parts.append(part)
                elif not answer.is_closed:
                    parts.clear()
                    await answer.aclose()
                elif size > self.answer_limit + READ_AHEAD:
                    break
        except Exception:
            if size <= self.answer_limit:
                raise
        if size > self.answer_limit:
            return None
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _lease(self, request: Request) -> _Slot:
        if self._carrier is not None:
            return _Slot(self._carrier)
        stack = self._idle[request.origin]
        if stack:
            slot = stack.pop()
            if request.repeatable or slot.idle_since >= time.monotonic() - self.keepalive_expiry:
                return slot
            await self._close(slot)
        return _Slot(self._slot_carrier(request.origin))

    async def _release(self, origin: str, slot: _Slot, progress: _Progress, *, reuse: bool) -> None:
        """Put the slot back on its stack, or close it; close the one that has been at the bottom for long."""
        if self._carrier is not None:
            return
        if not reuse or not self._open:
            with anyio.CancelScope(shield=True):
                await slot.carrier.aclose()
                await progress.close()
            return
        stack = self._idle[origin]
        slot.idle_since = time.monotonic()
        stack.append(slot)
        if stack[0].idle_since <= slot.idle_since - SPARE:
            await self._close(stack.popleft())

    @staticmethod
    async def _close(slot: _Slot) -> None:
        with anyio.CancelScope(shield=True):
            await slot.carrier.aclose()

    def _slot_carrier(self, origin: str) -> Any:
        library, proxy = self.library, self._proxy_for(origin)
        private = proxy is not None and proxy.startswith("https:")
        context = self._secure_context() if private or origin.startswith("https:") else PLAIN
        return library.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=library.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None),
            uds=self._uds,
            proxy=None if proxy is None else library.Proxy(proxy, ssl_context=context if private else None),
        )

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            usual = self._verify is True
            verify = self.library.create_ssl_context(trust_env=self._trust_env) if usual else self._verify
            self._context = tls_context(verify, self._cert)
        return self._context

    def _proxy_for(self, origin: str) -> str | None:
        if self._uds is not None:
            return None
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(origin, self._proxy, trust_env=self._trust_env)
        return self._proxies[origin]

    def _message(self, request: Request, extensions: dict[str, Any]) -> Any:
        # the library takes an eighth of a call to read an address and headers
        if self._carrier is not None:
            return self._new_message(request, extensions)
        head = self._heads.get(request, not request.body)
        if head is None:
            head = self._heads.keep(request, _Head(request, self._new_message(request, {})), not request.body)
        body, headers = self.body(request.body), head.headers_for(request.body)
        return self.library.Request(request.method, head.url, headers=headers, stream=body, extensions=extensions)

    def _new_message(self, request: Request, extensions: dict[str, Any]) -> Any:
        message = self.library.Request(
            request.method,
            request.origin + request.target,
            headers=[*request.headers.items()],
            content=request.body,
            extensions=extensions,
        )
        message.stream = self.body(request.body)
        return message

    def _translated(self, error: Exception, request: Request, *, sent: bool) -> TransportError:
        before = tuple(getattr(self.library, name) for name in NOT_SENT)
        kind = Unanswered if sent and not isinstance(error, before) else NotSent
        said = redacted(str(error), request.secrets)
        return kind(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _came_with_more(answer: Any) -> bool:
    """Whether more was read than the answer: httpcore keeps it, and takes it for the answer to the next request.

    Nothing public tells: h11 knows, at the end of a chain of streams. Where another httpcore has none of that chain, no
    connection is used twice.
    """
    h11: Any = answer.stream
    for name in ("_httpcore_stream", "_stream", "_connection", "_h11_state"):
        h11 = getattr(h11, name, None)
    return h11 is None or bool(h11.trailing_data[0])
