"""The physical limit of an HTTP client in Python: asyncio, prepared bytes, an answer whose length is known, and no HTTP.

``floor`` is for other benchmarks to compare themselves with. Run as a script, this prints CPU ms per 1000 requests of it and
of ``AsyncioTransport``, against a server in a process of its own, medians of interleaved rounds::

    python benchmarks/floor.py [--requests N] [--rounds N] [--uvloop]
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

sys.path.insert(0, str(Path(__file__).parent))

from attrs import evolve
from httpload import constant, keep_to_core, process, serve_app, tell_time

from rbim.message import Request
from rbim.transports.asyncio import AsyncioTransport

__all__ = ["Wire", "answer_length", "carried", "floor", "main", "measured", "message", "together"]

IN_FLIGHT = (1, 10, 100, 1000)
TIMEOUT = 30.0
ANSWER = 51  # bytes of a body, as short as most answers are
REQUEST = Request(
    origin="",
    path="/2013-12-26/Application/20150314000000110000000000000010/IM/Group/InviteJoinGroup",
    query={"sig": "C1F20E7A9733CE94F680C70A1DBABCDE"},
    headers={
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json;charset=utf-8",
        "Authorization": "MjAxNTAzMTQwMDAwMDAxMTAwMDAwMDAwMDAwMDAwMTA6MjAyNjExMjExMjAwMDA=",
    },
    body=b'{"groupId":"gg80000001","members":[' + b",".join(b'"account%04d"' % n for n in range(50)) + b"]}",
)


class Wire(asyncio.Protocol):
    """One connection: it writes bytes, and counts those that come back."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._missing = 0
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Count, and wake who waits when the answer is whole."""
        self._missing -= len(data)
        if self._missing <= 0 and not self._waiter.done():
            self._waiter.set_result(None)

    def ask(self, message: bytes) -> asyncio.Future[None]:
        """Write; the future ends with the answer."""
        self._missing = self._length
        self._waiter = self._loop.create_future()
        self.transport.write(message)
        return self._waiter


async def answer_length(host: str, port: int, message: bytes) -> int:
    """Return how many bytes the answer to this message has."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(message)
    head = await reader.readuntil(b"\r\n\r\n")
    writer.close()
    return len(head) + int(head.lower().partition(b"content-length:")[2].partition(b"\r")[0])


async def floor(host: str, port: int, message: bytes, *, requests: int, in_flight: int) -> float:
    """Send the message so many times, over so many connections at once; return the CPU seconds from first to last.

    The connections are opened before. Every answer must have as many bytes as the first.
    """
    length = await answer_length(host, port, message)
    loop = asyncio.get_running_loop()
    wires = [(await loop.create_connection(lambda: Wire(length), host, port))[1] for _ in range(in_flight)]
    began = time.process_time()
    await together(lambda number: wires[number].ask(message), requests, in_flight)
    took = time.process_time() - began
    for wire in wires:
        wire.transport.close()
    return took


async def together(ask: Callable[[int], Awaitable[object]], requests: int, in_flight: int) -> None:
    """Ask so many times; each of so many tasks asks the next thing, with its own number, as soon as it is answered."""
    left = requests

    async def one(number: int) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await ask(number)

    await asyncio.gather(*[one(number) for number in range(in_flight)])


async def carried(transport: AsyncioTransport, origin: str, *, requests: int, in_flight: int) -> float:
    """Return the CPU seconds of so many requests over a transport whose connections are open."""
    request = evolve(REQUEST, origin=origin)
    await together(lambda _: transport.send(request, timeout=TIMEOUT), in_flight, in_flight)
    began = time.process_time()
    await together(lambda _: transport.send(request, timeout=TIMEOUT), requests, in_flight)
    return time.process_time() - began


def message(host: str) -> bytes:
    """Return the bytes of the request that all send."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in {"Host": host, **REQUEST.headers}.items())
    return f"POST {REQUEST.target} HTTP/1.1\r\n{lines}Content-Length: {len(REQUEST.body)}\r\n\r\n".encode() + REQUEST.body


async def measured(port: int, requests: int, rounds: int) -> None:
    """Print the table."""
    print(f"{'in flight':>10} {'floor':>8} {'transport':>10} {'ratio':>6}   (CPU ms per 1000 requests)")
    for in_flight in IN_FLIGHT:
        figures: list[tuple[float, float]] = []
        for _ in range(rounds):
            lowest = await floor("127.0.0.1", port, message(f"127.0.0.1:{port}"), requests=requests, in_flight=in_flight)
            async with AsyncioTransport(trust_env=False) as transport:
                ours = await carried(transport, f"http://127.0.0.1:{port}", requests=requests, in_flight=in_flight)
            figures.append((lowest / requests * 1e6, ours / requests * 1e6))
        lowest, ours = (statistics.median(column) for column in zip(*figures, strict=True))
        ratio = statistics.median(ours / lowest for lowest, ours in figures)
        print(f"{in_flight:>10} {lowest:>8.1f} {ours:>10.1f} {ratio:>6.2f}")


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        keep_to_core(1)
        tell_time()
        asyncio.run(serve_app(constant(ANSWER), http="httptools"))
        return
    keep_to_core(0)
    with process(__file__, "--serve") as server:
        measuring = measured(server.port, told.requests, told.rounds)
        if told.uvloop:
            import uvloop

            uvloop.run(measuring)
        else:
            asyncio.run(measuring)


if __name__ == "__main__":
    main()
