"""The lower bound of an HTTP client in Python: asyncio, prepared bytes, an answer of known length, and no HTTP."""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from benchmarks.work import ACCOUNTS, GROUP, HEADERS, PATH, document, signature, together

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["Floor", "Wire", "answer_length", "message"]


READ = 64 * 1024  # bytes


class Wire(asyncio.BufferedProtocol):
    """One connection: it writes bytes, and counts the bytes of the answer."""

    def __init__(self, length: int, buffer: bytearray) -> None:
        self._length = length
        self._buffer = buffer  # shared: asyncio.Protocol allocates one per read, which costs page faults
        self._missing = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> bytearray:  # noqa: ARG002  # the buffer has a fixed size
        """Return the buffer to read into."""
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Count the bytes, and complete the future when the answer is complete."""
        self._missing -= nbytes
        if self._missing <= 0 and not self._waiter.done():
            self._waiter.set_result(None)

    def ask(self, message: bytes) -> asyncio.Future[None]:
        """Write a message; the future is done when the answer is complete."""
        self._missing = self._length
        self._waiter = self._loop.create_future()
        self.transport.write(message)
        return self._waiter


class Floor:
    """``in_flight`` connections; each one sends the same message again when its answer is complete.

    Every answer must have the length of the first one; its content is not read. With ``ca``, the path of a certificate, the
    connections are TLS.
    """

    def __init__(self, origin: str, in_flight: int, ca: str | None = None) -> None:
        self._address = cast(str, urlsplit(origin).hostname), cast(int, urlsplit(origin).port)
        self._message = message(urlsplit(origin).netloc)
        self._in_flight = in_flight
        self._context = ssl.create_default_context(cafile=ca) if ca else None
        self._wires: list[Wire] = []

    async def __aenter__(self) -> Self:
        length = await answer_length(*self._address, self._message, self._context)
        loop, buffer = asyncio.get_running_loop(), bytearray(READ)
        for _ in range(self._in_flight):
            connected = loop.create_connection(lambda: Wire(length, buffer), *self._address, ssl=self._context)
            self._wires.append((await connected)[1])
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        for wire in self._wires:
            wire.transport.abort()  # TLS would wait for the server to say goodbye, too
        await asyncio.sleep(0)

    async def run(self, more: Callable[[], bool], /) -> None:
        """Send over each connection once, and again while ``more`` returns True."""
        wires, message = self._wires, self._message
        await together(lambda number: wires[number].ask(message), self._in_flight, more)


async def answer_length(host: str, port: int, message: bytes, context: ssl.SSLContext | None = None) -> int:
    """Return the length of the answer to this message, in bytes."""
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.transport.abort()
    return len(head) + int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])


def message(host: str) -> bytes:
    """Return the bytes of a request, the same as the other clients send."""
    sig, authorization = signature()
    body = json.dumps(document(GROUP, ACCOUNTS), separators=(",", ":")).encode()
    headers = {"Host": host, **HEADERS, "Authorization": authorization, "Content-Length": str(len(body))}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST {PATH}?sig={sig} HTTP/1.1\r\n{lines}\r\n".encode() + body
