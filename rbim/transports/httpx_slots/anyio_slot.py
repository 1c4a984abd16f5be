"""A slot on trio: one connection that httpcore drives, over a network stream of anyio.

Like the slot on asyncio it writes head and body at once, and knows which bytes are pending, also over TLS. It has no timer:
its exchanges run in a cancel scope.
"""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import SocketAttribute

from rbim.transports._shared.network import readable
from rbim.transports.httpx_slots.exchange import Exchange, Stale

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from typing import ParamSpec, TypeVar

    from anyio.abc import ByteStream

    P = ParamSpec("P")
    R = TypeVar("R")
    from types import ModuleType
    from typing import Self

__all__ = ["AnyioSlot", "SocketBytes", "TlsBytes"]

# TLS on trio, between a socket and a slot: shows without waiting whether anything but TLS's own messages has come.
#
# anyio's TLS stream does not show it: the bytes that it has read, and not decrypted, are its own.

READ_SIZE = 64 * 1024


class SocketBytes:
    """The bytes of a socket; ``raw`` is the socket of the stream, which does not block."""

    def __init__(self, stream: ByteStream, raw: socket) -> None:
        self._stream = stream
        self._raw = raw

    async def send(self, data: bytes) -> None:
        """Send all bytes. Raises anyio's errors of closed streams."""
        await self._stream.send(data)

    async def receive(self, size: int) -> bytes:
        """Return the next bytes. Raises anyio's EndOfStream, or its errors of closed streams."""
        return await self._stream.receive(size)

    def ready(self) -> bytes | None:
        """Return bytes that can be read at once, none if there are none, or None at the end."""
        try:
            return self._raw.recv(READ_SIZE) or None
        except (BlockingIOError, InterruptedError):
            return b""
        except OSError:
            return None


class TlsBytes:
    """The bytes of a TLS connection over other bytes, which may be those of a TLS connection to a proxy."""

    def __init__(self, below: SocketBytes | TlsBytes, context: ssl.SSLContext, host: str | None) -> None:
        self._below = below
        self._in = ssl.MemoryBIO()
        self._out = ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._in, self._out, server_hostname=host)

    async def handshake(self) -> None:
        """Do the handshake. Raises SSLError, and what receiving and sending raise."""
        await self._done(self.tls.do_handshake)

    async def send(self, data: bytes) -> None:
        """Send all bytes. Raises SSLError, or anyio's errors of closed streams."""
        await self._done(self.tls.write, data)

    async def receive(self, size: int) -> bytes:
        """Return the next bytes. Raises anyio's EndOfStream after a close_notify, SSLError, or its other errors."""
        try:
            data = await self._done(self.tls.read, size)
        except ssl.SSLZeroReturnError:
            data = b""
        except anyio.EndOfStream:  # anyone on the path can close the connection below
            raise ssl.SSLEOFError("the connection was closed without close_notify") from None
        if not data:
            raise anyio.EndOfStream
        return data

    def ready(self) -> bytes | None:
        """Return a byte that can be read at once, none if there is none, or None at the end."""
        while True:
            try:
                return self.tls.read(1) or None
            except ssl.SSLWantReadError:
                data = self._below.ready()
                if not data:
                    return data
                self._in.write(data)
            except ssl.SSLError:
                return None

    def has_more(self) -> bool:
        """Return whether data or an end has come. It may take a byte: the connection is then of no use."""
        return self.ready() != b""

    async def _done(self, step: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return the result of a step of TLS, after the bytes that it needs have come and those it made have left."""
        while True:
            try:
                result = step(*args, **kwargs)
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


CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError)


class AnyioSlot:
    """A slot on trio. Only one task uses it at a time."""

    def __init__(self, core: ModuleType) -> None:
        self._core = core
        self._open_stream: SocketBytes | TlsBytes | None = None
        self._socket: socket | None = None
        self._readable: Callable[[], bool] | None = None
        self.exchange = Exchange()
        self.http: Any = None
        """The connection of httpcore, or a pool for this one connection."""
        self.idle_since = 0.0

    def keeps_deadline(self, deadline: float) -> bool:  # noqa: ARG002  # as the slot on asyncio
        """Return False: the exchange needs a cancel scope."""
        return False

    def rest(self) -> bool:
        """End the exchange; return whether the slot can serve another one."""
        self.idle_since = time.monotonic()
        return self.exchange.complete and not self.stale

    @property
    def stale(self) -> bool:
        """Whether the connection was closed or has unread data, also data that TLS has read but not delivered.

        A session ticket of TLS is read here, and is no data.
        """
        if self._readable is None:
            return True
        if isinstance(self._open_stream, TlsBytes):
            return self._open_stream.has_more()
        return self._readable()

    def abort(self) -> None:
        """Close the connection at once."""
        self._readable = None
        if self._socket is not None:
            self._socket.close()

    close = abort

    # A network stream of httpcore.

    async def connect_to(self, host: str, port: int, uds: str | None) -> None:
        """Connect. Raises httpcore's ConnectError."""
        try:
            stream = await (anyio.connect_tcp(host, port) if uds is None else anyio.connect_unix(uds))
        except OSError as error:
            self.exchange.failed = error
            raise self._core.ConnectError(str(error)) from error
        self._socket = stream.extra(SocketAttribute.raw_socket)  # noqa: S610  # anyio's, not Django's
        self._open_stream = SocketBytes(stream, self._socket)
        self._readable = readable(self._socket.fileno())

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ARG002, ASYNC109  # httpcore's signature; the exchange has a deadline
    ) -> Self:
        """Start TLS. Raises httpcore's ConnectError."""
        try:
            self._open_stream = secure = TlsBytes(self._stream, ssl_context, server_hostname)
            await secure.handshake()
        except (OSError, anyio.EndOfStream, *CLOSED) as error:
            self.exchange.failed = error if isinstance(error, OSError) else ssl.SSLEOFError(str(error))
            raise self._core.ConnectError(str(error) or "the connection was closed in the TLS handshake") from error
        return self

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ARG002, ASYNC109  # as above
        """Keep the bytes: they leave with those that follow, before the next read."""
        self.exchange.add(buffer)

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ARG002, ASYNC109  # as above
        """Return the next bytes, or none at the end of the server's data. Raises httpcore's ReadError, or Stale."""
        if self.exchange.kept and self.stale:
            raise Stale
        message = self.exchange.message()
        try:
            if message:
                await self._stream.send(message)
        except (ssl.SSLError, *CLOSED):
            pass  # a server may close early, and still have answered
        try:
            data = await self._stream.receive(max_bytes)
        except anyio.EndOfStream:
            return b""
        except (ssl.SSLError, *CLOSED) as error:
            raise self._core.ReadError(str(error) or "the connection was lost") from error
        self.exchange.read_bytes.append(data)
        return data

    async def aclose(self) -> None:
        """Close the connection at once."""
        self.abort()

    def get_extra_info(self, info: str) -> Any:
        """Return the TLS object (``ssl_object``), or whether the idle connection has ended (``is_readable``)."""
        if info == "is_readable":
            return self.stale
        return self._open_stream.tls if info == "ssl_object" and isinstance(self._open_stream, TlsBytes) else None

    @property
    def _stream(self) -> SocketBytes | TlsBytes:
        assert self._open_stream is not None  # noqa: S101  # only used when it is connected
        return self._open_stream
