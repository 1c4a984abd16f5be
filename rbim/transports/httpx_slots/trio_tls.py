"""TLS on trio, between a socket and a slot: shows without waiting whether anything but TLS's own messages has come.

anyio's TLS stream does not show it: the bytes that it has read, and not decrypted, are its own.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Callable
    from socket import socket
    from typing import ParamSpec, TypeVar

    from anyio.abc import ByteStream

    P = ParamSpec("P")
    R = TypeVar("R")

__all__ = ["SocketBytes", "TlsBytes"]

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
