"""The server of the client benchmarks: a separate process that does as little as possible.

It finds the end of a request by its head and ``Content-Length``, and answers each request with the same bytes, at once or
after a latency. It runs on uvloop if that is installed::

    python -m benchmarks.target [--latency SECONDS]

It prints its port first. It answers each line on standard input with the CPU seconds used so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import socket
import time
from collections import deque
from typing import cast

from benchmarks.httpload import keep_to_core, tell_time

__all__ = ["ANSWER", "BODY", "Late", "Target", "main"]

CORE = 1
BODY = b'{"statusCode":"000000","statusMsg":"fifty invited"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json;charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
TICK = 0.001  # seconds between checks for answers that are due
REMEMBERED = 1000  # cached lengths by head; a new signature changes the heads each second
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)", re.IGNORECASE)

_lengths: dict[bytes, int] = {}


class Late:
    """A queue of answers with the same latency, and one timer while it is not empty."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._due: deque[tuple[float, asyncio.Transport]] = deque()

    def answer(self, transport: asyncio.Transport) -> None:
        """Answer this connection after the latency."""
        if not self._due:
            self._loop.call_later(TICK, self._look)
        self._due.append((time.monotonic() + self._seconds, transport))

    def _look(self) -> None:
        now, due = time.monotonic(), self._due  # not the loop's clock: uvloop's does not move within one iteration
        while due and due[0][0] <= now:
            due.popleft()[1].write(ANSWER)
        if due:
            self._loop.call_later(TICK, self._look)


class Target(asyncio.Protocol):
    """One connection."""

    def __init__(self, late: Late | None) -> None:
        self._late = late
        self._begun: bytes = b""  # the first bytes of an incomplete request
        self._missing = 0  # bytes of the body that have not arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer each complete request."""
        if self._missing:
            if len(data) < self._missing:
                self._missing -= len(data)
                return
            data, self._missing = data[self._missing :], 0
            self._answer()
        elif self._begun:
            data, self._begun = self._begun + data, b""
        while data:
            end = data.find(b"\r\n\r\n") + 4
            if end < len(b"\r\n\r\n"):
                self._begun = data
                return
            end += _length(data[:end])
            if end > len(data):
                self._missing = end - len(data)
                return
            self._answer()
            data = data[end:]

    def _answer(self) -> None:
        if self._late is None:
            self._transport.write(ANSWER)
        else:
            self._late.answer(self._transport)


def _length(head: bytes) -> int:
    length = _lengths.get(head)
    if length is None:
        if len(_lengths) >= REMEMBERED:
            _lengths.clear()
        found = LENGTH.search(head)
        length = _lengths[head] = int(found[1]) if found else 0
    return length


async def _serve(latency: float) -> None:
    late = Late(latency) if latency else None
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        server = await asyncio.get_running_loop().create_server(lambda: Target(late), sock=bound, backlog=4096)
        print(bound.getsockname()[1], flush=True)
        await server.serve_forever()


def main() -> None:
    """Serve on a free port until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before an answer (default: 0)")
    latency = parser.parse_args().latency
    keep_to_core(CORE)
    tell_time()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            import uvloop
        except ImportError:
            asyncio.run(_serve(latency))
        else:
            uvloop.run(_serve(latency))


if __name__ == "__main__":
    main()
