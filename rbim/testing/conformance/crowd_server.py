"""A server for thousands of requests, in one thread.

It shares no code with the rest of rbim or with any HTTP library. It responds to each request with the request's own body,
after a random delay, with random framing and splits.
"""

from __future__ import annotations

import heapq
import random
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

__all__ = ["CrowdServer"]


@dataclass
class _Connection:
    sock: socket.socket
    buffer: bytes = b""
    last: bool = False
    closed: bool = False


@dataclass(order=True)
class _Due:
    """Bytes to send at the time ``when`` of the monotonic clock."""

    when: float
    number: int
    data: bytes = field(compare=False)
    connection: _Connection = field(compare=False)
    last: bool = field(compare=False, default=False)


class CrowdServer:
    """A server on a free port of 127.0.0.1 that returns the body of each request after up to ``latency`` seconds."""

    def __init__(self, *, latency: float, seed: int) -> None:
        self.latency = latency
        self.requests = 0
        self.accepted = 0
        self.open = 0
        self._chance = random.Random(seed)  # noqa: S311  # no secret
        self._due: list[_Due] = []
        self._number = 0
        self._selector = selectors.DefaultSelector()
        self._ending, self._end = socket.socketpair()

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.origin = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._listener.settimeout(0)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._ending, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.close()
        self._thread.join(10.0)
        for key in [*self._selector.get_map().values()]:
            self._selector.unregister(key.fileobj)
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()

    def _serve(self) -> None:
        while True:
            wait = max(0.0, self._due[0].when - time.monotonic()) if self._due else None
            for key, _ in self._selector.select(wait):
                if key.fileobj is self._ending:
                    return
                if isinstance(key.data, _Connection):
                    self._read(key.data)
                else:
                    ready: Callable[[], None] = key.data
                    ready()
            now = time.monotonic()
            while self._due and self._due[0].when <= now:
                self._send(heapq.heappop(self._due))

    def _accept(self) -> None:
        try:
            while True:
                sock, _ = self._listener.accept()
                sock.settimeout(0)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._selector.register(sock, selectors.EVENT_READ, _Connection(sock))
                self.accepted += 1
                self.open += 1
        except BlockingIOError:
            return

    def _close(self, connection: _Connection) -> None:
        if not connection.closed:
            connection.closed = True
            self._selector.unregister(connection.sock)
            connection.sock.close()
            self.open -= 1

    def _read(self, connection: _Connection) -> None:
        try:
            data = connection.sock.recv(65536)
        except OSError:
            data = b""
        if not data:
            self._close(connection)
            return
        connection.buffer += data
        while (parts := connection.buffer.partition(b"\r\n\r\n"))[1]:
            lines = parts[0].lower().split(b"\r\n")
            length = next(int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:"))
            if len(parts[2]) < length:
                return
            connection.buffer = parts[2][length:]
            self._plan(connection, parts[2][:length])

    def _plan(self, connection: _Connection, body: bytes) -> None:
        """Schedule the writes of a response."""
        self.requests += 1
        chance = self._chance
        when = time.monotonic() + chance.random() * self.latency
        last = chance.random() < 0.05  # noqa: PLR2004  # one in twenty closes its connection
        close = b"Connection: close\r\n" if last else b""
        if chance.random() < 0.3:  # noqa: PLR2004  # three in ten come in chunks
            half = chance.randrange(1, len(body))
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:], b""))
            data = b"HTTP/1.1 200 OK\r\n%bTransfer-Encoding: chunked\r\n\r\n%b" % (close, chunks)
        else:
            data = b"HTTP/1.1 200 OK\r\n%bContent-Length: %d\r\n\r\n%b" % (close, len(body), body)
        if chance.random() < 0.3:  # noqa: PLR2004  # three in ten come in two writes
            cut = chance.randrange(1, len(data))
            self._put(when, data[:cut], connection)
            when, data = when + chance.random() * self.latency / 4, data[cut:]
        self._put(when, data, connection, last=last)

    def _put(self, when: float, data: bytes, connection: _Connection, *, last: bool = False) -> None:
        self._number += 1
        heapq.heappush(self._due, _Due(when, self._number, data, connection, last))

    def _send(self, due: _Due) -> None:
        if due.connection.closed:
            return
        try:
            due.connection.sock.sendall(due.data)
        except OSError:
            self._close(due.connection)
            return
        if due.last:
            self._close(due.connection)
