"""The memory of rbim: after import, per call in flight, per idle connection, and over many calls.

Run: python -m benchmarks.memory [--calls 20000] [--in-flight 1000]

Each figure is the resident memory of one process, or its growth. *In flight* is measured while a server in another process
holds back all answers: the call, its connection, the task that the caller made for it. The connections are *idle* after
all these calls are answered and gone. The process does not return their memory to the system, so the table also has the
*objects in use* (by tracemalloc, in another process). *Growth* is over N calls, a hundred of them in flight at any time,
after a warm-up of N / 5 calls. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import statistics
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from benchmarks.httpload import ROOT, process
from benchmarks.results import Goal, Result, Table, shown
from benchmarks.target import unique

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.results import Options
    from rbim import AsyncClient

__all__ = ["Platform", "main", "measured", "run"]

MODULE = "benchmarks.memory"
KIB = 1024
CONCURRENCY = 100
ROUNDS = 3  # memory varies little
GROWTH_GOAL = 256  # KiB

TELL = "\nfrom pathlib import Path; print(Path('/proc/self/statm').read_text().split()[1])"
CLIENT = """
from rbim import AsyncClient, Credentials, InviteJoinGroup
from rbim.transports.asyncio import AsyncioTransport

client = AsyncClient(
    base_url="https://im.example.com",
    credentials=Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"),
    transport=AsyncioTransport(),
)
"""
STARTS = {"python": "", "python, httpx imported": "import httpx", "python, a client made with AsyncioTransport": CLIENT}


def resident() -> float:
    """Return the resident memory of this process, in KiB."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / KIB


def started(code: str) -> float:
    """Return the resident memory of a new interpreter after some code, in KiB."""
    pages = subprocess.run([sys.executable, "-c", code + TELL], check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout
    return int(pages) * resource.getpagesize() / KIB


# The server.


class Platform:
    """Answers each request at once, or holds back the answers between the commands ``hold`` and ``go``."""

    def __init__(self) -> None:
        self.holding = False
        self.held: list[asyncio.Transport] = []

    def take(self, transport: asyncio.Transport) -> None:
        """Answer a request, now or later."""
        if self.holding:
            self.held.append(transport)
        else:
            transport.write(unique())

    def command(self, line: str) -> None:
        """Run the command ``hold`` or ``go``, or none; print the number of answers that are held back."""
        if line:
            self.holding = line == "hold"
        held, self.held = self.held, self.held if self.holding else []
        if not self.holding:
            for transport in held:
                transport.write(unique())
        print(len(self.held), flush=True)

    async def serve(self) -> None:
        """Serve on a free port until killed; print the port; answer each line on standard input."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Line(self), "127.0.0.1", 0, backlog=4096)
        print(server.sockets[0].getsockname()[1], flush=True)

        def listen() -> None:
            for line in cast(IO[str], sys.stdin):
                loop.call_soon_threadsafe(self.command, line.strip())

        threading.Thread(target=listen, daemon=True).start()
        await server.serve_forever()


class Line(asyncio.Protocol):
    """One connection, with one request at a time, whose body has a Content-Length."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Add the bytes, and answer the request when it is complete."""
        self._received += data
        head, blank, body = self._received.partition(b"\r\n\r\n")
        if blank and len(body) >= int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]):
            self._received = b""
            self._platform.take(self._transport)


# The client.


def client_of(port: int, concurrency: int) -> AsyncClient:
    """Return a client of the server on a port."""
    from rbim import AsyncClient, Credentials, Limits
    from rbim.transports.asyncio.transport import AsyncioTransport

    return AsyncClient(
        base_url=f"http://127.0.0.1:{port}",
        credentials=Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"),
        transport=AsyncioTransport(trust_env=False),
        limits=Limits(concurrency=concurrency),
        timeout=60,
        deadline=60,
    )


def objects() -> float:
    """Return the traced memory of Python objects, in KiB."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0] / KIB


def enough_files(number: int) -> None:
    """Raise the limit of open files for ``number`` connections, for this process and its children, if allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = number + 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted if hard < 0 else min(wanted, hard)), hard))


async def traced(number: int) -> dict[str, float]:
    """Return the KiB of objects per waiting call, and per idle connection."""
    tracemalloc.start()
    return await in_flight(number, objects)


async def in_flight(number: int, size: Callable[[], float] = resident) -> dict[str, float]:
    """Return the KiB per waiting call, and per idle connection."""
    from rbim import InviteJoinGroup

    op = InviteJoinGroup(group_id="g80000049837291", members=[f"user-{each:05d}" for each in range(50)])
    enough_files(number)
    with process(MODULE, "--serve") as server:
        async with client_of(server.port, number) as client:
            for _ in range(100):
                await client.send(op)
            server.ask("hold")
            before = size()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(number):
                    tasks.create_task(client.send(op))
                while int(server.ask()) < number:  # noqa: ASYNC110  # only the server knows
                    await asyncio.sleep(0.01)
                waiting = size()
                server.ask("go")
            del tasks
            idle = size()
    return {"calls": (waiting - before) / number, "connections": (idle - before) / number}


async def growth(calls: int) -> dict[str, float]:
    """Return the growth of a process over ``calls`` calls, in KiB, after a warm-up of a fifth of them."""
    from rbim import InviteJoinGroup

    op = InviteJoinGroup(group_id="g80000049837291", members=[f"user-{each:05d}" for each in range(50)])

    async def some(client: AsyncClient, number: int) -> None:
        for _ in range(number):
            await client.send(op)

    with process(MODULE, "--serve") as server:
        async with client_of(server.port, CONCURRENCY) as client:
            sizes: list[float] = []
            for number in (calls // 5, calls):
                async with asyncio.TaskGroup() as tasks:
                    for _ in range(CONCURRENCY):
                        tasks.create_task(some(client, number // CONCURRENCY))
                sizes.append(resident())
    return {"growth": sizes[1] - sizes[0]}


CHILDREN = {"in-flight": in_flight, "traced": traced, "growth": growth}


def child(name: str, number: int) -> dict[str, float]:
    """Run a part in a separate process, and return its figures."""
    command = [sys.executable, "-m", MODULE, "--child", name, str(number)]
    figures: dict[str, float] = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
    return figures


def measured(calls: int, number: int, rounds: int) -> Result:
    """Measure all parts; figures that vary are medians of ``rounds`` rounds."""
    sizes = {name: statistics.median(started(code) for _ in range(rounds)) for name, code in STARTS.items()}
    waits = [child("in-flight", number) for _ in range(rounds)]
    calls_size, idle_size = (statistics.median(each[name] for each in waits) for name in ("calls", "connections"))
    of_objects = child("traced", number)
    more = child("growth", calls)["growth"]
    rows = (
        *((name, size, None) for name, size in sizes.items()),
        (f"each of {number:,} calls in flight, with its connection", calls_size, of_objects["calls"]),
        (f"each of {number:,} idle connections, thereafter", idle_size, of_objects["connections"]),
        (f"growth over {calls:,} calls, {CONCURRENCY} in flight", more, None),
    )
    title = "Resident memory, KiB; calls are those of a client with AsyncioTransport"
    return Result(
        part="memory",
        tables=(Table(title=title, columns=("", "resident", "objects in use"), rows=rows),),
        goals=(Goal(name=f"growth over {calls:,} calls, KiB", value=more, at_most=GROWTH_GOAL),),
    )


def run(options: Options) -> Result:
    """Measure memory, as one part of the benchmarks."""
    return measured(1000, 200, 1) if options.quick else measured(20_000, 1000, min(options.rounds, ROUNDS))


def main(calls: int, number: int) -> bool:
    """Print the table, and return whether the goal is met."""
    result = measured(calls, number, ROUNDS)
    print(shown(result))
    return result.met


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Measure the memory of rbim.")
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--in-flight", type=int, default=1000)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(Platform().serve())
    elif options.child:
        name, number = options.child
        print(json.dumps(asyncio.run(CHILDREN[name](int(number)))))
    else:
        sys.exit(not main(options.calls, options.in_flight))
