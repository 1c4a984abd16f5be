"""What the emulator's server door costs: requests per second and CPU time, against a constant answer by the same uvicorn.

Run: python benchmarks/emulator_door.py [--seconds 2] [--repeats 5] [--connections 16]

Each server is a process of its own; the client, an asyncio protocol that knows nothing but bytes, is this one. Turns are
interleaved (constant, door, constant, ...), a ratio compares neighbours, and the medians are shown. Both servers run
uvicorn's h11 protocol with the same settings; the constant one answers with as many bytes as the emulator does.

The ratio of rates flatters the door where the client, or a busy machine, holds both servers up; that of the servers' CPU
time for each request does not. The goal holds for both.
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
import threading
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
WARM_UP = 0.2  # seconds


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


async def measure(port: int, request: bytes, seconds: float, connections: int) -> tuple[float, int, bytes]:
    """Return answers per second, how many there were, and the last one."""
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
    count = sum(client.answers for client in clients)
    return count / taken, count, clients[0].sample


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


def tell_time() -> None:
    """Answer each line on standard input with the CPU time of this process so far, in a thread of its own."""

    def answer() -> None:
        for _ in sys.stdin:
            print(time.process_time(), flush=True)

    threading.Thread(target=answer, daemon=True).start()


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


class Served:
    """A server in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.port = int(process.stdout.readline())

    @property
    def cpu(self) -> float:
        """Its CPU time so far, in seconds."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    async def turn(self, request: bytes, seconds: float, connections: int) -> tuple[float, float, bytes]:
        """Return requests per second, CPU seconds for each, and the last answer."""
        before = self.cpu
        rate, count, sample = await measure(self.port, request, seconds, connections)
        return rate, (self.cpu - before) / count, sample


@contextmanager
def process(*arguments: str) -> Iterator[Served]:
    """Give a server that ends with the block."""
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield Served(started)
        finally:
            started.kill()


async def compare(door: Served, name: str, options: argparse.Namespace) -> float:
    """Print one line of the table and return the lower ratio."""
    request, connections = signed(name, WORK[name]), options.connections
    _, _, sample = await door.turn(request, WARM_UP, connections)
    rates: list[tuple[float, float]] = []
    costs: list[tuple[float, float]] = []
    with process("--constant", str(len(sample))) as constant:
        await constant.turn(request, WARM_UP, connections)
        for _ in range(options.repeats):
            turns = [await each.turn(request, options.seconds, connections) for each in (constant, door)]
            rates.append((turns[0][0], turns[1][0]))
            costs.append((turns[0][1], turns[1][1]))
    of_rates = statistics.median(emulated / plain for plain, emulated in rates)
    of_costs = statistics.median(plain / emulated for plain, emulated in costs)
    rate = [statistics.median(column) for column in zip(*rates, strict=True)]
    cost = [statistics.median(column) * 1e6 for column in zip(*costs, strict=True)]
    print(
        f"{name:<30} {rate[0]:>8,.0f} {rate[1]:>8,.0f} {of_rates:>6.2f} {cost[0]:>9.0f} {cost[1]:>9.0f} {of_costs:>6.2f}",
        flush=True,
    )
    return min(of_rates, of_costs)


async def main(options: argparse.Namespace) -> bool:
    """Print the table and tell whether the goal is reached."""
    print(f"{'':<30} {'requests per second':>24} {'CPU us per request':>26}")
    print(f"{'':<30} {'constant':>8} {'door':>8} {'ratio':>6} {'constant':>9} {'door':>9} {'ratio':>6}")
    with process("--door") as door:
        _, _, made = await door.turn(signed("CreateGroup", WORK["CreateGroup"]), 0, 1)
        assert json.loads(made)["groupId"] == GROUP_ID
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
    if told.door or told.constant is not None:
        tell_time()
    if told.door:
        asyncio.run(serve_door())
    elif told.constant is not None:
        asyncio.run(serve_constant(told.constant))
    else:
        sys.exit(not asyncio.run(main(told)))
