"""A slot: one connection that httpcore drives, and its turn with one request after the other.

httpcore writes a request and reads its response through the methods of a network stream. Those of a slot write head and body
at once, keep the deadline, and know which bytes are pending, also over TLS. The slot on asyncio is a protocol of the event
loop, whose states are those of :mod:`rbim.transports._shared.link`; the slot on trio is a network stream of anyio, with TLS
over it. It has no timer: its steps run in cancel scopes.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import SocketAttribute
from attrs import define, field, frozen

from rbim.errors import AnswerTooLarge, Unanswered
from rbim.http import answered
from rbim.transports._shared.heads import HeadCache, HeaderNames, fault_of
from rbim.transports._shared.link import GRACE, READ_SIZE, DeadlinePassed, LinkProtocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Awaitable, Callable, Generator
    from socket import socket
    from types import ModuleType
    from typing import Self, TypeVar

    from anyio.abc import ByteStream

    from rbim.http import Request, Response
    from rbim.transports._shared.link import Links

    R = TypeVar("R")

__all__ = [
    "AsyncioSlot",
    "CoreRoute",
    "Slot",
    "StaleConnection",
    "TrioSlot",
    "core_url",
    "end_of_response",
    "message_of",
    "read_body",
]

BLANK = b"\r\n\r\n"
LINE = b"\r\n"
OF_A_PROXY = (b"CONNECT ", b"\x05", b"\x01")  # how handshakes begin: HTTP, SOCKS5, and its login
STATUS = 9  # where the status begins in ``HTTP/1.1 200``
BODILESS = frozenset({204, 304})
FRAMING = frozenset({"content-length", "transfer-encoding"})  # the caller's own, if a request has one
CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError)
READ_AHEAD = 256 * 1024  # bytes past the limit that may be read before the connection is closed; httpcore reads 64 KiB


class _Body:
    """A request body. The library's own are generators: trio warns about those that a failure leaves unfinished."""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        self._done = not self._body
        return self

    async def __anext__(self) -> bytes:
        if self._done:
            raise StopAsyncIteration
        self._done = True
        return self._body


async def read_body(answer: Any, limit: int) -> bytes:
    """Return the whole body of a response of the library or of httpcore. Raises AnswerTooLarge.

    Then the connection is closed, but the bytes already read are consumed to their end:
    trio would warn about unfinished generators of httpcore.
    """
    parts: list[bytes] = []
    size = 0
    try:
        async for part in answer.stream:
            before, size = size, size + len(part)
            if size <= limit:
                parts.append(part)
            elif before <= limit:
                parts.clear()
                await answer.aclose()
            elif size > limit + READ_AHEAD:
                break
    except Exception:
        if size <= limit:
            raise
    finally:
        await answer.aclose()
    if size > limit:
        part = b""  # no local of this frame holds a part of the response, which may repeat the request
        raise AnswerTooLarge(f"the response body is longer than {limit} bytes", limit=limit)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def message_of(library: ModuleType, request: Request) -> Any:
    """Return the request of the library. Raises the library's InvalidURL."""
    message = library.Request(
        request.method, request.origin + request.target, headers=[*request.headers.items()], content=request.body
    )
    message.stream = type("Body", (_Body, library.AsyncByteStream), {})(request.body)
    return message


def core_url(core: ModuleType, url: Any) -> Any:
    """Return a URL of the library as one of httpcore."""
    return core.URL(scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path)


@frozen(repr=False)
class _Head:
    """URL and headers of similar requests, for httpcore; if ``counted``, the length of the body belongs behind them."""

    url: Any
    headers: list[tuple[bytes, bytes]]
    counted: bool


@define(eq=False)
class CoreRoute:
    """The route to an ``origin`` of httpcore, with its idle slots; ``proxy`` is a proxy of the library, or None."""

    library: ModuleType
    core: ModuleType
    names: HeaderNames
    answer_limit: int
    origin: Any
    context: ssl.SSLContext
    proxy: Any
    uds: str | None
    idle: dict[Any, None] = field(factory=dict[Any, None], init=False)
    _heads: HeadCache[_Head] = field(factory=HeadCache[_Head], init=False)

    def core_request(self, request: Request) -> Any:
        """Return the request of httpcore."""
        head = self._heads.get(request)
        if head is None:
            message, given = message_of(self.library, request), {name.lower() for name in request.headers}
            fixed = [
                each for each in message.headers.raw if each[0].lower() != b"content-length" or "content-length" in given
            ]
            head = self._heads.keep(request, _Head(core_url(self.core, message.url), fixed, given.isdisjoint(FRAMING)))
        counted = head.counted and (request.body or request.method != "GET")
        headers = [*head.headers, (b"Content-Length", b"%d" % len(request.body))] if counted else head.headers
        return self.core.Request(request.method, head.url, headers=headers, content=_Body(request.body))


class StaleConnection(Exception):
    """The kept connection was closed, or has unread data, and nothing was written to it. Raised through httpcore."""


class Slot:
    """What a slot on asyncio and one on trio have in common: the turn of a request."""

    connect_tcp: Callable[..., Awaitable[Any]]
    start_tls: Callable[..., Awaitable[Any]]
    abort: Callable[[], None]
    stale: Any

    def __init__(self, route: CoreRoute) -> None:
        core, proxy = route.core, route.proxy
        self.core = core
        self.http: Any
        """The connection of httpcore, or a pool for this one connection."""
        self.failed: Exception | None = None
        """The error that prevented the connection: a proxy's pool of httpcore does not chain it."""
        self.read_bytes: list[bytes] = []
        self.sent = False
        """Whether bytes of the request may have left, in contrast to those of a proxy's handshake."""
        self.complete = False
        """Whether the response was read to its end, and nothing came behind it."""
        self.doubtful = False
        """Whether more may come, or have come, than was read."""
        self.kept = False
        """Whether the connection was used before, and nothing was written to it in this turn."""
        self._route = route
        self._unwritten: list[bytes] = []
        self._deadline = 0.0
        if proxy is None:
            self.http = core.AsyncHTTP11Connection(origin=route.origin, stream=self)
            return
        options: dict[str, Any] = {  # of httpcore's pool for one connection, made of this slot
            "proxy_url": core_url(core, proxy.url),
            "proxy_auth": proxy.raw_auth,
            "ssl_context": route.context,
            "max_connections": 1,
            "network_backend": self,
        }
        if proxy.url.scheme.startswith("socks"):
            self.http = core.AsyncSOCKSProxy(**options)
        else:
            options |= {"proxy_headers": proxy.headers.raw, "proxy_ssl_context": proxy.ssl_context}
            self.http = core.AsyncHTTPProxy(**options)

    async def exchange(self, request: Request, deadline: float, *, kept: bool) -> Response:
        """Send a request and return its response, by ``deadline`` (monotonic clock); ``kept``: the connection is open.

        Raises StaleConnection, DeadlinePassed, TransportError, or errors of httpcore.
        """
        # No local holds the signed address: a traceback with locals must not show it.
        self.busy = True
        self.kept = kept
        self.sent = self.complete = self.doubtful = False
        self._deadline = deadline
        self._unwritten.clear()
        self.read_bytes = []
        route = self._route
        if not kept and route.proxy is None:  # behind a proxy, httpcore connects the slot itself
            host = route.origin.host.decode("ascii")
            await self.connect_tcp(host, route.origin.port, route.uds)
            if route.origin.scheme == b"https":
                await self.start_tls(route.context, host, None)
        answer = await self.http.handle_async_request(route.core_request(request))
        body = await read_body(answer, route.answer_limit)
        headers = route.names.joined(answer.headers)
        chunked, version = "transfer-encoding" in headers, answer.extensions["http_version"]
        if (chunked or version != b"HTTP/1.1") and (fault := fault_of(version.decode("ascii")[len("HTTP/") :], headers)):
            raise Unanswered(fault)
        # Bytes behind the response stay in httpcore's parser, which would read them as the response to the next request.
        data = self.read_bytes[0] if len(self.read_bytes) == 1 else b"".join(self.read_bytes)
        end = end_of_response(data, len(body), chunked=chunked and answer.status not in BODILESS)
        self.complete = end == len(data) and not self.doubtful
        return answered(answer.status, headers, body)

    async def aclose(self) -> None:
        """Close the connection at once."""
        self.abort()

    def get_extra_info(self, info: str) -> Any:
        """Return whether the idle connection has ended (``is_readable``); nothing else: no HTTP/2 was negotiated."""
        return self.stale if info == "is_readable" else None

    async def write(self, buffer: bytes, timeout: object = None) -> None:  # noqa: ARG002, ASYNC109  # httpcore's signature
        """Keep the bytes: httpcore writes head and body separately, and they leave together, before the next read."""
        self._unwritten.append(buffer)

    def message(self) -> bytes:
        """Return the bytes to write now. If they are the request, reading starts anew: what came before was a proxy's."""
        message = self._unwritten[0] if len(self._unwritten) == 1 else b"".join(self._unwritten)
        self._unwritten.clear()
        if message and not message.startswith(OF_A_PROXY):
            self.kept = False
            self.sent = True
            self.read_bytes.clear()
        return message

    @contextmanager
    def opening(self, *errors: type[Exception]) -> Generator[None]:
        """Connect, or start TLS, in the block. Raises DeadlinePassed, or httpcore's ConnectError for one of ``errors``."""
        try:
            with anyio.move_on_after(self._deadline - time.monotonic()) as scope:
                yield
        except errors as error:
            if time.monotonic() < self._deadline:
                self.failed = error
                raise self.core.ConnectError(str(error)) from error
            raise DeadlinePassed from error
        if scope.cancelled_caught:
            raise DeadlinePassed


class AsyncioSlot(LinkProtocol, Slot):
    """A slot on asyncio: the stream that httpcore reads is a protocol of the event loop."""

    def __init__(self, links: Links, route: CoreRoute) -> None:
        LinkProtocol.__init__(self, links, route.idle)
        Slot.__init__(self, route)
        self._arrived: deque[bytes] = deque()
        self._end: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    # A network stream of httpcore.

    async def connect_tcp(self, host: str, port: int, uds: str | None = None, **_: object) -> Self:
        """Connect, but only once. Raises DeadlinePassed, StaleConnection, or httpcore's ConnectError."""
        if self.transport is not None:
            raise StaleConnection  # httpcore's pool has closed it
        with self.opening(OSError):
            await self.connect(host, port, uds)
        self.register()
        return self

    async def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None, timeout: object) -> Self:  # noqa: ARG002, ASYNC109  # httpcore's
        """Start TLS. Raises DeadlinePassed, or httpcore's ConnectError."""
        with self.opening(OSError):
            if self._arrived and self._route.proxy is None:
                raise OSError("the server does not speak TLS: it has spoken first")
            self._arrived.clear()  # a proxy's bytes must not pass for those of the origin
            await self.secure(ssl_context, server_hostname)
        return self

    async def read(self, max_bytes: int, timeout: object = None) -> bytes:  # noqa: ARG002, ASYNC109  # httpcore's signature
        """Return the next bytes; none at the end. Raises DeadlinePassed, StaleConnection, or httpcore's ReadError."""
        transport = self.transport
        if self.kept and (self._arrived or self.stale):
            raise StaleConnection
        if self._unwritten:
            message = self.message()
            self.expect(self._deadline)
            if transport is not None and not transport.is_closing():
                transport.write(message)
        while not self._arrived:
            if isinstance(self._end, EOFError):
                return b""
            if self._end is not None:
                raise self._end
            if transport is None or transport.is_closing():
                raise self.core.ReadError("the connection is closed")
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._arrived.popleft()

    # Called by asyncio, and what ends a turn.

    def buffer_updated(self, nbytes: int) -> None:
        """Keep bytes of the response; without a request, close the connection."""
        if not self.busy:
            self.abort()
            return
        self.doubtful = nbytes == len(self._buffer)  # TLS may hold more bytes, and nothing shows it
        data = bytes(self._buffer[:nbytes])
        self._arrived.append(data)
        self.read_bytes.append(data)
        self._wake()

    def late(self) -> None:
        """End the turn: its deadline has passed."""
        self._stop(DeadlinePassed())

    def lost(self, error: Exception | None, reason: str = "the connection was lost") -> None:
        """End the turn: the connection was lost, or is closed for this reason."""
        end = self.core.ReadError(f"{reason}: {error}" if error else reason)
        end.__cause__ = error
        self._stop(end)

    def ended(self) -> None:
        """Note the end of the server's data."""
        self._end = EOFError()
        self.doubtful = True
        self._wake()

    def _stop(self, error: Exception) -> None:
        self._end = error
        self.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


# TLS on trio shows without waiting whether anything but TLS's own messages has come. anyio's TLS stream does not show it:
# the bytes that it has read, and not decrypted, are its own.


class _SocketBytes:
    """The bytes of a socket; ``raw`` is the socket of the stream, which does not block."""

    def __init__(self, stream: ByteStream, raw: socket) -> None:
        self._raw = raw
        self.send = stream.send
        """Send all bytes. Raises anyio's errors of closed streams."""
        self.receive = stream.receive
        """Return the next bytes. Raises anyio's EndOfStream, or its errors of closed streams."""

    def ready(self, size: int = READ_SIZE) -> bytes | None:
        """Return bytes that can be read at once, none if there are none, or None at the end."""
        try:
            return self._raw.recv(size) or None
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            return None


class _TlsBytes:
    """The bytes of a TLS connection over other bytes, which may be those of a TLS connection to a proxy."""

    def __init__(self, below: _SocketBytes | _TlsBytes, context: ssl.SSLContext, host: str | None) -> None:
        self._below = below
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def send(self, data: bytes) -> None:
        """Send all bytes. Raises SSLError, or anyio's errors of closed streams."""
        await self.step(self.tls.write, data)

    async def receive(self, size: int) -> bytes:
        """Return the next bytes. Raises anyio's EndOfStream after a close_notify, SSLError, or its other errors."""
        try:
            data = await self.step(self.tls.read, size)
        except ssl.SSLZeroReturnError:
            data = b""
        except anyio.EndOfStream:  # anyone on the path can close the connection below
            raise ssl.SSLEOFError("the connection was closed without close_notify") from None
        if not data:
            raise anyio.EndOfStream
        return data

    def ready(self, size: int = READ_SIZE) -> bytes | None:
        """Return bytes that can be read at once, none if there are none, or None at the end."""
        while True:
            try:
                return self.tls.read(size) or None
            except ssl.SSLWantReadError:
                data = self._below.ready()
                if not data:
                    return data
                self._in.write(data)
            except ssl.SSLError:
                return None

    async def step(self, step: Callable[..., R], *args: object) -> R:
        """Return the result of a step of TLS, after the bytes that it needs have come and those it made have left."""
        while True:
            try:
                result = step(*args)
            except ssl.SSLWantReadError:
                await self._flush()
                self._in.write(await self._below.receive(READ_SIZE))
            except ssl.SSLError:
                await self._flush()  # an alert says why
                raise
            else:
                await self._flush()
                return result

    async def _flush(self) -> None:
        if self._out.pending:
            await self._below.send(self._out.read())


class TrioSlot(Slot):
    """A slot on trio. Only one task uses it at a time."""

    def __init__(self, route: CoreRoute) -> None:
        super().__init__(route)
        self._stream: Any = None  # _SocketBytes or _TlsBytes
        self._socket: socket | None = None
        self.idle_since = 0.0

    def rest(self) -> bool:
        """End the turn; return whether the slot can serve another request."""
        self.idle_since = time.monotonic()
        return not self.stale

    @property
    def stale(self) -> bool:
        """Whether the connection was closed or has unread data, also data that TLS has read but not delivered.

        The data is read, since a stale connection is never used again; a session ticket of TLS is no data.
        """
        return self._stream is None or self._stream.ready(1) != b""

    def abort(self) -> None:
        """Close the connection at once."""
        if self._socket is not None:
            self._socket.close()

    close = abort

    # A network stream of httpcore.

    async def connect_tcp(self, host: str, port: int, uds: str | None = None, **_: object) -> Self:
        """Connect, but only once. Raises DeadlinePassed, StaleConnection, or httpcore's ConnectError."""
        if self._socket is not None:
            raise StaleConnection  # httpcore's pool has closed it
        with self.opening(OSError):
            stream = await (anyio.connect_tcp(host, port) if uds is None else anyio.connect_unix(uds))
            self._socket = stream.extra(SocketAttribute.raw_socket)  # noqa: S610  # anyio's, not Django's
            self._stream = _SocketBytes(stream, self._socket)
        return self

    async def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None, timeout: object) -> Self:  # noqa: ARG002, ASYNC109  # httpcore's
        """Start TLS. Raises DeadlinePassed, or httpcore's ConnectError."""
        with self.opening(OSError):
            try:
                self._stream = secure = _TlsBytes(self._stream, ssl_context, server_hostname)
                await secure.step(secure.tls.do_handshake)
            except (anyio.EndOfStream, *CLOSED) as error:
                raise ssl.SSLEOFError("the connection was closed in the TLS handshake") from error
        return self

    async def read(self, max_bytes: int, timeout: object = None) -> bytes:  # noqa: ARG002, ASYNC109  # httpcore's signature
        """Return the next bytes; none at the end. Raises DeadlinePassed, StaleConnection, or httpcore's ReadError."""
        if self.kept and self.stale:
            raise StaleConnection
        message = self.message()
        left = self._deadline - time.monotonic()
        data: bytes | None = None
        with anyio.move_on_after(left) as scope:
            try:
                if message:
                    await self._stream.send(message)
            except (ssl.SSLError, *CLOSED):
                pass  # a server may close early, and still have answered
            try:
                data = await self._stream.receive(max_bytes)
            except anyio.EndOfStream:
                data = b""
            except (ssl.SSLError, *CLOSED) as error:
                raise self.core.ReadError(str(error) or "the connection was lost") from error
        if scope.cancelled_caught:
            data = self._stream.ready() or None  # trio may have looked at its clock before it looked at the socket
        if data is None or left < -GRACE:
            raise DeadlinePassed
        self.read_bytes.append(data)
        return data


def end_of_response(data: bytes, length: int, *, chunked: bool) -> int:
    """Return where the first final response in these bytes ends, whose body has this length; -1 if it is unclear."""
    start = 0
    while (blank := data.find(BLANK, start)) >= 0 and data[start + STATUS : start + STATUS + 1] == b"1":
        start = blank + len(BLANK)  # an interim response
    if blank < 0:
        return -1
    place = blank + len(BLANK)
    if not chunked:
        return place + length
    while (line := data.find(LINE, place)) >= 0:
        size = int(data[place:line].partition(b";")[0], 16)  # the parser has read the same
        place = line + len(LINE)
        if not size:
            if data.startswith(LINE, place):
                return place + len(LINE)
            blank = data.find(BLANK, place)
            return blank + len(BLANK) if blank >= 0 else -1
        place += size + len(LINE)
    return -1
