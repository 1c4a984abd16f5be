"""The lateness of deadlines: how long after its deadline a call ends whose request gets no response.

400 calls begin together, over new connections; the server, in another process, reads the requests and is silent.
All deadlines end within a moment. Milliseconds between the deadline of a call and its error: medians of the rounds.

Run by others: python -m benchmarks.lateness. It prints its port, and serves until it is killed.
"""

from __future__ import annotations

import asyncio
import gc
import selectors
import socket
import time
from functools import partial
from importlib import import_module
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

from benchmarks.httpload import on_cores, process
from benchmarks.results import Goal, Result, Table
from benchmarks.turns import CORE
from benchmarks.work import APP_ID, APP_TOKEN
from rbim import AsyncClient, CreateGroup, Credentials, DeadlineExceeded, GroupType, Limits

if TYPE_CHECKING:
    from benchmarks.results import Options
    from rbim import Transport

__all__ = ["lateness", "main", "run"]

MODULE = "benchmarks.lateness"
CALLS = 400
GOAL = 250.0  # ms
TRANSPORTS = {
    "httpx": "HttpxTransport",
    "httpx2": "Httpx2Transport",
    "aiohttp": "AiohttpTransport",
    "asyncio": "AsyncioTransport",
}
WITH_GOAL = ("httpx", "asyncio")


def run(options: Options) -> Result:
    """Measure the lateness over each transport that is installed."""
    calls, deadline = (10, 0.2) if options.quick else (CALLS, 1.0)
    rounds: dict[str, list[tuple[float, float, float]]] = {}
    notes: list[str] = []
    with process(MODULE) as served, on_cores(CORE):
        origin = f"http://127.0.0.1:{served.port}"
        for _ in range(options.rounds):
            for module, name in TRANSPORTS.items():
                try:
                    make = partial(getattr(import_module(f"rbim.transports.{module}"), name))
                except ImportError as error:
                    if module not in rounds and str(error) not in notes:
                        notes.append(str(error))
                    continue
                rounds.setdefault(name, []).append(lateness(make(), origin, calls, deadline))
    rows = tuple((name, *(median(column) for column in zip(*found, strict=True))) for name, found in rounds.items())
    table = Table(
        title=f"Milliseconds after the deadline at which {calls} calls without an answer end",
        columns=("", "median", "p99", "last"),
        rows=rows,
    )
    p99 = {str(row[0]): float(row[2]) for row in rows}
    goals = tuple(
        Goal(name=f"p99 over {name}", value=p99[name], at_most=GOAL) for name in map(TRANSPORTS.__getitem__, WITH_GOAL)
    )
    return Result(part="lateness", tables=(table,), goals=goals, notes=tuple(notes))


def lateness(transport: Transport, origin: str, calls: int, deadline: float) -> tuple[float, float, float]:
    """Return the median, the 99th percentile and the greatest lateness in milliseconds."""
    late: list[float] = []
    operation = CreateGroup(name="group", type=GroupType.TEMPORARY)

    async def call(client: AsyncClient) -> None:
        until = time.perf_counter() + deadline
        try:
            await client.send(operation)
        except DeadlineExceeded:
            late.append((time.perf_counter() - until) * 1000)

    async def all_calls() -> None:
        client = AsyncClient(
            base_url=origin,
            credentials=Credentials(app_id=APP_ID, app_token=APP_TOKEN),
            transport=transport,
            limits=Limits(concurrency=calls),
            deadline=deadline,
        )
        async with client:
            gc.collect()
            async with asyncio.TaskGroup() as tasks:
                for _ in range(calls):
                    tasks.create_task(call(client))

    asyncio.run(all_calls())
    if len(late) != calls:
        raise RuntimeError(f"lateness: {calls - len(late)} of {calls} calls did not end by their deadline")
    return median(late), quantiles(late, n=100)[98], max(late)


def main() -> None:
    """Accept connections, read, and never answer."""
    selector = selectors.DefaultSelector()
    listener = socket.create_server(("127.0.0.1", 0), backlog=2 * CALLS)
    listener.settimeout(0)
    selector.register(listener, selectors.EVENT_READ)
    print(listener.getsockname()[1], flush=True)
    while True:
        for key, _ in selector.select():
            ready: Any = key.fileobj
            if ready is listener:
                accepted, _ = listener.accept()
                accepted.settimeout(0)
                selector.register(accepted, selectors.EVENT_READ)
                continue
            try:
                data = ready.recv(65536)
            except OSError:
                data = b""
            if not data:
                selector.unregister(ready)
                ready.close()


if __name__ == "__main__":
    main()
