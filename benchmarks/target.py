"""The server of the client benchmarks: a separate process that does as little as possible.

It finds the end of a request by its head and ``Content-Length``, and answers each request at once. Each answer has a head of
its own, with the date and a new request id, as platforms send them. With ``--certificate`` it serves TLS 1.3. It runs on
uvloop if that is installed::

    python -m benchmarks.target [--certificate FILE]

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
from email.utils import formatdate
from functools import lru_cache
from itertools import count
from typing import cast

from benchmarks.httpload import keep_to_core, tell_time

__all__ = ["BODY", "Target", "main", "unique"]

CORE = 1
BODY = b'{"statusCode":"000000","statusMsg":"fifty invited"}'
STATUS = b"HTTP/1.1 200 OK\r\n"
REST = b"Content-Type: application/json;charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY
REMEMBERED = 1000  # cached lengths by head; a new signature changes the heads each second
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)", re.IGNORECASE)

_lengths: dict[bytes, int] = {}
_ids = count(1)


def unique() -> bytes:
    """Return an answer with the date and a request id that no other answer has; all have the same length."""
    return b"%bDate: %b\r\nX-Request-Id: %032x\r\n%b" % (STATUS, _date(int(time.time())), next(_ids), REST)


@lru_cache(maxsize=2)
def _date(second: int) -> bytes:
    return formatdate(second, usegmt=True).encode()


class Target(asyncio.Protocol):
    """One connection."""

    def __init__(self) -> None:
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
        self._transport.write(unique())


def _length(head: bytes) -> int:
    length = _lengths.get(head)
    if length is None:
        if len(_lengths) >= REMEMBERED:
            _lengths.clear()
        found = LENGTH.search(head)
        length = _lengths[head] = int(found[1]) if found else 0
    return length


async def _serve(options: argparse.Namespace) -> None:
    context = None
    if options.certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(options.certificate)
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Target, sock=bound, backlog=4096, ssl=context)
        print(bound.getsockname()[1], flush=True)
        await server.serve_forever()


def main() -> None:
    """Serve on a free port until killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
