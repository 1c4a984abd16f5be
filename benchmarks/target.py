"""The server of the client benchmarks: a separate process that does as little as possible.

It finds the end of a request by its head and ``Content-Length``, and answers each request, at once or after a latency. Each
answer has a head of its own, with the date and a new request id, as platforms send them; with ``--constant`` all answers are
the same bytes. With ``--certificate`` it serves TLS 1.3. It runs on uvloop if that is installed::

    python -m benchmarks.target [--latency SECONDS] [--constant] [--certificate FILE]

It prints its port first. It answers each line on standard input with the CPU seconds used so far.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import re
import socket
import ssl
import time
from collections import deque
from email.utils import formatdate
from functools import lru_cache
from itertools import count
from typing import TYPE_CHECKING, cast

from benchmarks.httpload import keep_to_core, tell_time

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ANSWER", "BODY", "Late", "Target", "constant", "main", "unique"]

CORE = 1
BODY = b'{"statusCode":"000000","statusMsg":"fifty invited"}'
STATUS = b"HTTP/1.1 200 OK\r\n"
REST = b"Content-Type: application/json;charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
ANSWER = STATUS + REST
TICK = 0.001  # seconds between checks for answers that are due
REMEMBERED = 1000  # cached lengths by head; a new signature changes the heads each second
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)", re.IGNORECASE)

_lengths: dict[bytes, int] = {}
_ids = count(1)


def constant() -> bytes:
    """Return the same answer each time."""
    return ANSWER


def unique() -> bytes:
    """Return an answer with the date and a request id that no other answer has; all have the same length."""
    return b"%bDate: %b\r\nX-Request-Id: %032x\r\n%b" % (STATUS, _date(int(time.time())), next(_ids), REST)


@lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


class Late:
    """A queue of answers with the same latency, and one timer while it is not empty."""

    def __init__(self, seconds: float, answer: Callable[[], bytes]) -> None:
        self._seconds = seconds
        self._make = answer
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
            due.popleft()[1].write(self._make())
        if due:
            self._loop.call_later(TICK, self._look)


class Target(asyncio.Protocol):
    """One connection."""

    def __init__(self, answer: Callable[[], bytes], late: Late | None = None) -> None:
        self._make = answer
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
            self._transport.write(self._make())
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


async def _serve(options: argparse.Namespace) -> None:
    make = constant if options.constant else unique
    late = Late(options.latency, make) if options.latency else None
    context = None
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(options.certificate)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Target(make, late), sock=bound, backlog=4096, ssl=context)
        print(bound.getsockname()[1], flush=True)
        await server.serve_forever()


def main() -> None:
    """Serve on a free port until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before an answer (default: 0)")
    parser.add_argument("--constant", action="store_true", help="answer the same bytes each time")
    parser.add_argument("--certificate", help="serve TLS 1.3 with the key and the certificates of this PEM file")
    options = parser.parse_args()
    keep_to_core(CORE)
    tell_time()
    with contextlib.suppress(KeyboardInterrupt):
        try:
            import uvloop
        except ImportError:
            asyncio.run(_serve(options))
        else:
            uvloop.run(_serve(options))


if __name__ == "__main__":
    main()
