"""A slot on trio: a network stream of anyio, and TLS over it. It has no timer: its steps run in cancel scopes."""

from __future__ import annotations

import ssl
import time
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import SocketAttribute

from rbim.transports._shared.link import GRACE, DeadlinePassed
from rbim.transports.httpx_slots.slot import CoreRoute, Slot, StaleConnection

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from typing import Self, TypeVar

    from anyio.abc import ByteStream

    R = TypeVar("R")

__all__ = ["SocketBytes", "TlsBytes", "TrioSlot"]

READ_SIZE = 64 * 1024
CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError)

# TLS on trio shows without waiting whether anything but TLS's own messages has come. anyio's TLS stream does not show it:
# the bytes that it has read, and not decrypted, are its own.


class SocketBytes:
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

    async def _done(self, step: Callable[..., R], *args: object) -> R:
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
        self._stream: Any = None  # SocketBytes or TlsBytes
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
            self._stream = SocketBytes(stream, self._socket)
        return self

    async def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None, timeout: object) -> Self:  # noqa: ARG002, ASYNC109  # httpcore's
        """Start TLS. Raises DeadlinePassed, or httpcore's ConnectError."""
        with self.opening(OSError):
            try:
                self._stream = secure = TlsBytes(self._stream, ssl_context, server_hostname)
                await secure.handshake()
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

    async def aclose(self) -> None:
        """Close the connection at once."""
        self.abort()

    def get_extra_info(self, info: str) -> Any:
        """Return the TLS object (``ssl_object``), or whether the idle connection has ended (``is_readable``)."""
        if info == "is_readable":
            return self.stale
        return self._stream.tls if info == "ssl_object" and isinstance(self._stream, TlsBytes) else None
