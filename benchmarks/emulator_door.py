"""What the emulator's server door costs: requests per second, against a constant answer by the same uvicorn.

Run: python benchmarks/emulator_door.py [--seconds 2] [--repeats 5] [--connections 16]

Each server is a process of its own; the client, an asyncio protocol that knows nothing but bytes, is this one. Turns are
interleaved (constant, door, constant, ...), a ratio compares neighbours, and the medians are shown. Both servers run
uvicorn's h11 protocol with the same settings; the constant one answers with as many bytes as the emulator does.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import socket
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta, timezone
from typing import TYPE_CHECKING

from uvicorn import Config, Server

from rbim.emulator import Emulator
from rbim.emulator.server import IDLE, serve
from rbim.signing import Credentials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

APP_ID, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"
GROUP_ID = "g80000049837291"
WORK = {
    "QueryGroupDetail": {"groupId": GROUP_ID},
    "SearchPublicGroups": {"groupId": GROUP_ID},
    "InviteJoinGroup (50 accounts)": {"groupId": GROUP_ID, "members": [f"user-{n:05d}" for n in range(50)]},
    "CreateGroup": {"name": "产品公告", "type": "1", "declared": "欢迎"},
}
GOAL = 0.5


class Client(asyncio.Protocol):
    """One connection that asks the same thing again as soon as it is answered."""

    def __init__(self, request: bytes, ended: asyncio.Future) -> None:
        self.request = request
        self.ended = ended
        self.going = True
        self.answers = 0
        self.sample = b""
        self._buffer = b""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Ask."""
        self.transport = transport
        transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        """Ask again, once the answer is whole."""
        self._buffer += data
        head, blank, body = self._buffer.partition(b"\r\n\r\n")
        if not blank:
            return
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        if len(body) < length:
            return
        assert head.startswith(b"HTTP/1.1 200")
        self.answers += 1
        self.sample, self._buffer = body, b""
        if self.going:
            self.transport.write(self.request)
        else:
            self.transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        """Tell that it is over."""
        if not self.ended.done():
            self.ended.set_result(None)


async def measure(port: int, request: bytes, seconds: float, connections: int) -> tuple[float, bytes]:
    """Return answers per second and the last answer."""
    loop = asyncio.get_running_loop()
    clients = [Client(request, loop.create_future()) for _ in range(connections)]
    began = time.perf_counter()
    for client in clients:
        await loop.create_connection(lambda made=client: made, "127.0.0.1", port)
    await asyncio.sleep(seconds)
    for client in clients:
        client.going = False
    await asyncio.gather(*(client.ended for client in clients))
    taken = time.perf_counter() - began
    return sum(client.answers for client in clients) / taken, clients[0].sample


def signed(name: str, document: dict) -> bytes:
    """Return the bytes of a signed request."""
    operation = name.split(maxsplit=1)[0]
    stamp = datetime.now(UTC).astimezone(timezone(timedelta(hours=8))).strftime("%Y%m%d%H%M%S")
    sig = hashlib.md5(f"{APP_ID}{TOKEN}{stamp}".encode()).hexdigest().upper()
    body = json.dumps(document, ensure_ascii=False).encode()
    head = (
        f"POST /2013-12-26/Application/{APP_ID}/IM/Group/{operation}?sig={sig} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {base64.b64encode(f'{APP_ID}:{stamp}'.encode()).decode()}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json;charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def serve_door() -> None:
    """Serve the emulator until killed."""
    emulator = Emulator(credentials=Credentials(app_id=APP_ID, app_token=TOKEN))
    async with serve(emulator) as server:
        print(server.port, flush=True)
        await asyncio.Event().wait()


async def serve_constant(length: int) -> None:
    """Serve so many bytes until killed."""
    start = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"application/json;charset=utf-8"), (b"content-length", str(length).encode())],
    }
    body = {"type": "http.response.body", "body": b" " * length}

    async def app(_scope: object, _receive: object, send: Callable[..., Awaitable[None]]) -> None:
        await send(start)
        await send(body)

    config = Config(
        app,
        http="h11",
        interface="asgi3",
        lifespan="off",
        ws="none",
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=IDLE,
    )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        print(bound.getsockname()[1], flush=True)
        await Server(config).serve(sockets=[bound])


@contextmanager
def process(*arguments: str) -> Iterator[int]:
    """Give the port of a server in a process of its own."""
    with subprocess.Popen([sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True) as server:
        try:
            yield int(server.stdout.readline())
        finally:
            server.kill()


async def compare(door: int, name: str, options: argparse.Namespace) -> float:
    """Print one line of the table and return the ratio."""
    request = signed(name, WORK[name])
    _, sample = await measure(door, request, 0.2, options.connections)
    rates: list[tuple[float, float]] = []
    with process("--constant", str(len(sample))) as constant:
        await measure(constant, request, 0.2, options.connections)
        for _ in range(options.repeats):
            plain, _ = await measure(constant, request, options.seconds, options.connections)
            emulated, _ = await measure(door, request, options.seconds, options.connections)
            rates.append((plain, emulated))
    ratio = statistics.median(emulated / plain for plain, emulated in rates)
    plain, emulated = (statistics.median(column) for column in zip(*rates, strict=True))
    print(f"{name:<32} {plain:>10,.0f} {emulated:>10,.0f} {ratio:>7.2f}", flush=True)
    return ratio


async def main(options: argparse.Namespace) -> bool:
    """Print the table and tell whether the goal is reached."""
    print(f"{'requests per second':<32} {'constant':>10} {'door':>10} {'ratio':>7}")
    with process("--door") as door:
        made = await measure(door, signed("CreateGroup", WORK["CreateGroup"]), 0, 1)
        assert json.loads(made[1])["groupId"] == GROUP_ID
        ratios = [await compare(door, name, options) for name in WORK]
    reached = min(ratios) >= GOAL
    print(f"lowest ratio {min(ratios):.2f}, goal {GOAL}: {'reached' if reached else 'NOT reached'}")
    return reached


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the emulator's server door costs.")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each turn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--door", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--constant", type=int, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.door:
        asyncio.run(serve_door())
    elif told.constant is not None:
        asyncio.run(serve_constant(told.constant))
    else:
        sys.exit(not asyncio.run(main(told)))
