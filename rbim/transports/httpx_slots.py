"""The base of the httpx and httpx2 transports: one single-connection library transport per request in flight.

rbim's client limits the number of requests in flight. Here each request has a slot: an ``AsyncHTTPTransport`` limited to
one connection. All slots share one ``SSLContext``. The modules of the two transports say why the library's pool is not used.
"""

# States of a slot, and what moves it between them:
#
#   new -> busy      ``_acquire`` found no usable idle slot; the library connects when the request is sent
#   idle -> busy     ``_acquire`` takes the top of the origin's stack (the slot used last)
#   busy -> idle     ``_release(reuse=True)``: the whole response was read, nothing came behind it, the transport is open
#   busy -> closed   ``_release``: an error, a time-out, a cancellation, trailing data, or the transport was closed
#   idle -> closed   too old for a request that must not be repeated; idle for MAX_IDLE at the bottom of its stack; or the
#                    transport is closed
#
# A busy slot belongs to one request and is in no stack; an idle slot is in exactly one. A slot whose connection may hold
# bytes of an earlier response is never idle. With ``carrier`` there are no slots: the carrier serves all requests.

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
from rbim.transports._shared.redaction import LogRedactor, redacted, sanitized, strip_frames

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from types import ModuleType, TracebackType
    from typing import Self

__all__ = ["Body", "HttpxSlots"]

C = TypeVar("C")

ANSWER_LIMIT = 8 * 1024 * 1024
KEEPALIVE = 5.0
MAX_IDLE = 60.0  # seconds; a slot at the bottom of its stack that was idle for longer is closed
READ_AHEAD = 256 * 1024  # bytes past the limit that may be read before the connection is closed; httpcore reads 64 KiB

PLAIN_CONTEXT = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # http:// needs no certificates, and loading them is slow

# Exceptions of the library that mean NotSent even if sending seemed to have begun.
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
    """A library transport with at most one connection, to one origin."""

    def __init__(self, carrier: Any) -> None:
        self.carrier = carrier
        self.idle_since = 0.0


class _Progress:
    """The progress of one request: whether sending began, and the stream that was opened for it."""

    def __init__(self, *, sent: bool) -> None:
        self.sent = sent
        self.opened: Any = None  # httpcore shows it in the trace only
        self.trailing_data = False  # whether bytes came behind the response

    async def trace(self, name: str, info: Mapping[str, Any]) -> None:
        """Trace callback of httpcore."""
        if name.endswith(("connect_tcp.complete", "connect_unix_socket.complete")):
            self.opened = info["return_value"]
        elif name.endswith("send_request_headers.started") and info["request"].method != b"CONNECT":
            self.sent = True

    async def close(self) -> None:
        """Close the stream that httpcore leaves open when a TLS handshake is cancelled."""
        if self.opened is not None:
            await self.opened.aclose()


class _Head:
    """URL and headers of similar requests, as the library built them once. The repr shows no value (they are signed)."""

    __slots__ = ("has_length", "headers", "url")

    def __init__(self, request: Request, first: Any) -> None:
        self.url = first.url
        self.headers = first.headers
        given = any(name.lower() == "content-length" for name in request.headers)
        self.has_length = bool(request.body) and not given and "content-length" in first.headers

    def headers_for(self, body: bytes) -> Any:
        """Return the headers for another body. Both bodies must be empty, or neither."""
        headers = self.headers.copy()
        if self.has_length:
            headers["Content-Length"] = str(len(body))
        return headers


class Body:
    """A request body; a mix-in for the library's AsyncByteStream.

    It is not a generator, unlike the library's own: trio warns about generators that a failure leaves unfinished.
    """

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._done = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._done = False
        return self

    async def __anext__(self) -> bytes:
        if self._done:
            raise StopAsyncIteration
        self._done = True
        return self._body


class HttpxSlots(Generic[C]):
    """The base of HttpxTransport and Httpx2Transport; ``C`` is the library's AsyncBaseTransport.

    - ``verify``: an ``ssl.SSLContext``, the path of a CA bundle, or False for no verification. Default: verify against the
      certificates of the machine or of certifi.
    - ``cert``: the path of a client certificate with its key, or a pair of paths.
    - ``proxy``: the address of an HTTP proxy. Without it, ``trust_env`` (default: True) reads ``HTTP_PROXY``,
      ``HTTPS_PROXY``, ``ALL_PROXY`` and ``NO_PROXY``.
    - ``uds``: the path of a UNIX socket; all origins are reached through it, without a proxy.
    - ``keepalive_expiry``: seconds (default: 5). A connection that was idle for longer is not used for a request that must
      not be repeated, because the server may be closing it.
    - ``answer_limit``: bytes (default: 8 MiB). A longer response body raises AnswerTooLarge.
    - ``carrier``: a transport of the library, such as a ``MockTransport``, to use in place of the slots.

    Raises InvalidRequest if both ``proxy`` and ``uds`` are given.
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
            raise InvalidRequest(
                "proxy: a proxy and a UNIX socket exclude each other: give proxy or uds, not both", field="proxy"
            )
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

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # enforced here
        """Send one request and return its response; ``timeout`` is in seconds.

        Raises NotSent, Unanswered or AnswerTooLarge.
        """
        try:
            return await self._exchange(request, timeout)
        except Exception:
            raise
        except BaseException as interruption:
            strip_frames(interruption)
            raise

    async def _exchange(self, request: Request, seconds: float) -> Response:
        if not self._open:
            raise NotSent("the transport is not open: use it inside 'async with'")
        try:
            slot = await self._acquire(request)
        except Exception as error:  # a missing CA bundle, an invalid proxy address
            raise NotSent(f"cannot connect: {error}") from sanitized(error)
        self._log.remember(request)
        progress = _Progress(sent=self._carrier is not None)
        whole = False
        try:
            with anyio.move_on_after(seconds):
                response = await self._carry(request, slot, progress)
                whole = not progress.trailing_data
                return response
        except TransportError:
            raise
        except Exception as error:
            raise self._transport_error(error, request, sent=progress.sent) from sanitized(error, request.secrets)
        finally:
            await self._release(request.origin, slot, progress, reuse=whole)
        if progress.sent:
            raise Unanswered(f"no complete response within {seconds:g} s")
        raise NotSent(f"no connection within {seconds:g} s")

    async def _carry(self, request: Request, slot: _Slot, progress: _Progress) -> Response:
        # No local holds the signed address: a traceback with locals must not show it.
        extensions = {} if self._carrier is not None else {"trace": progress.trace}
        answer = await slot.carrier.handle_async_request(self._library_request(request, extensions))
        try:
            body = await self._body(answer)
        finally:
            await answer.aclose()
        progress.trailing_data = self._carrier is None and _has_trailing_data(answer)
        if body is None:
            raise AnswerTooLarge(f"the response body is longer than {self.answer_limit} bytes", limit=self.answer_limit)
        headers: dict[str, str] = {}
        for name, value in answer.headers.multi_items():
            headers[name] = f"{headers[name]}, {value}" if name in headers else value
        return Response(answer.status_code, headers, body)

    async def _body(self, answer: Any) -> bytes | None:
        """Return the whole body, or None if it is too long.

        If it is too long, the connection is closed, but the bytes already read are consumed to their end: trio would warn
        about unfinished generators of httpcore.
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

    async def _acquire(self, request: Request) -> _Slot:
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
        """Put the slot back on its stack, or close it; also close the bottom slot if it was idle for too long."""
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
        if stack[0].idle_since <= slot.idle_since - MAX_IDLE:
            await self._close(stack.popleft())

    @staticmethod
    async def _close(slot: _Slot) -> None:
        with anyio.CancelScope(shield=True):
            await slot.carrier.aclose()

    def _slot_carrier(self, origin: str) -> Any:
        library, proxy = self.library, self._proxy_for(origin)
        secure_proxy = proxy is not None and proxy.startswith("https:")
        context = self._secure_context() if secure_proxy or origin.startswith("https:") else PLAIN_CONTEXT
        return library.AsyncHTTPTransport(
            verify=context,
            trust_env=False,
            limits=library.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=None),
            uds=self._uds,
            proxy=None if proxy is None else library.Proxy(proxy, ssl_context=context if secure_proxy else None),
        )

    def _secure_context(self) -> ssl.SSLContext:
        if self._context is None:
            default = self._verify is True
            verify = self.library.create_ssl_context(trust_env=self._trust_env) if default else self._verify
            self._context = tls_context(verify, self._cert)
        return self._context

    def _proxy_for(self, origin: str) -> str | None:
        if self._uds is not None:
            return None
        if origin not in self._proxies:
            self._proxies[origin] = proxy_for(origin, self._proxy, trust_env=self._trust_env)
        return self._proxies[origin]

    def _library_request(self, request: Request, extensions: dict[str, Any]) -> Any:
        # parsing the URL and the headers takes an eighth of the time of a call
        if self._carrier is not None:
            return self._new_library_request(request, extensions)
        head = self._heads.get(request, not request.body)
        if head is None:
            head = self._heads.keep(request, _Head(request, self._new_library_request(request, {})), not request.body)
        body, headers = self.body(request.body), head.headers_for(request.body)
        return self.library.Request(request.method, head.url, headers=headers, stream=body, extensions=extensions)

    def _new_library_request(self, request: Request, extensions: dict[str, Any]) -> Any:
        message = self.library.Request(
            request.method,
            request.origin + request.target,
            headers=[*request.headers.items()],
            content=request.body,
            extensions=extensions,
        )
        message.stream = self.body(request.body)
        return message

    def _transport_error(self, error: Exception, request: Request, *, sent: bool) -> TransportError:
        not_sent = tuple(getattr(self.library, name) for name in NOT_SENT)
        kind = Unanswered if sent and not isinstance(error, not_sent) else NotSent
        text = redacted(str(error), request.secrets)
        return kind(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _has_trailing_data(answer: Any) -> bool:
    """Whether bytes came behind the response: httpcore keeps them and reads them as the response to the next request.

    No public API shows this; h11 knows it, at the end of a chain of private streams. If another version of httpcore lacks
    this chain, no connection is reused.
    """
    h11: Any = answer.stream
    for name in ("_httpcore_stream", "_stream", "_connection", "_h11_state"):
        h11 = getattr(h11, name, None)
    return h11 is None or bool(h11.trailing_data[0])
