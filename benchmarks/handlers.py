"""The answers to deliveries while handlers run: in the loop of the server (default), or in a thread of their own.

Each arrangement has a server process (uvicorn, a SqliteInbox). Deliveries arrive at a steady rate, each over a connection of
its own, whether or not the one before is answered; and handlers wait, as for a database, or block the loop. A platform gives
up after 5 seconds; the receiver's budget is 2. The first rows have full load instead: 32 connections, no pause.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.deliveries import APP_ID, TOKEN, message, messages
from benchmarks.httpload import on_cores, process, serve_app, tell_time
from benchmarks.results import Goal, Result, Table
from rbim.callbacks import Event, Receiver, SqliteInbox
from rbim.credentials import Credentials

if TYPE_CHECKING:
    from benchmarks.httpload import Served
    from benchmarks.results import Options

__all__ = ["run"]

MODULE = "benchmarks.handlers"
RATE = 50  # deliveries per second
FULL = 32  # connections of full load
WAITS = 0.005  # seconds that a good handler waits
BLOCKS = (0.3, 1.5)  # seconds for which others block the loop
ARRANGEMENTS = {"default": False, "own_thread=True": True}
BUDGET, SMALL = 2.0, 0.3  # seconds


async def _ask(port: int, request: bytes) -> float:
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n")
    waited = time.perf_counter() - began
    assert b" 200 " in head, head
    writer.close()
    return waited


async def _steady(port: int, seconds: float) -> list[float]:
    began, asked = time.perf_counter(), []
    for number in range(int(RATE * seconds)):
        await asyncio.sleep(max(0.0, began + number / RATE - time.perf_counter()))
        asked.append(asyncio.create_task(_ask(port, message(number))))
    return sorted(await asyncio.gather(*asked))


def _server(folder: Path, arrangement: str, blocks: float) -> Any:  # a context manager of a Served
    file = folder / f"{arrangement}-{blocks}.db"
    return process(MODULE, "--serve", arrangement, "--blocks", str(blocks), "--inbox", str(file))


def _row(waits: list[float]) -> tuple[float, float, float]:
    return (
        1000 * statistics.median(waits),
        1000 * waits[int(0.99 * (len(waits) - 1))],
        1000 * waits[-1],
    )


def run(options: Options) -> Result:
    """Measure answers while handlers run, as one part of the benchmarks."""
    seconds = 0.5 if options.quick else 8.0
    rows: list[tuple[str | float | None, ...]] = []
    longest: dict[str, float] = {}
    with on_cores(0), tempfile.TemporaryDirectory() as folder:
        for blocks in (None, 0.0, *BLOCKS):
            for arrangement in ARRANGEMENTS:
                server: Served
                with _server(Path(folder), f"{arrangement}-{blocks is None}", blocks or 0.0) as server:
                    if blocks is None:
                        turn = server.turn(iter(messages(count(), seconds / 4, FULL)), seconds / 4, FULL)
                        name, waits, rate = "wait 5 ms, full load", turn.waits, turn.rate
                    else:
                        waits, rate = asyncio.run(_steady(server.port, seconds)), float(RATE)
                        name = f"block for {blocks:g} s" if blocks else "wait 5 ms"
                rows.append((f"{name}, {arrangement}", rate, *_row(waits)))
                longest[f"{name}, {arrangement}"] = waits[-1]
    table = Table(
        title="Answers while handlers run",
        columns=("handlers", "answers per second", "p50 ms", "p99 ms", "max ms"),
        rows=tuple(rows),
    )
    goals = tuple(
        Goal(name=f"longest answer, handlers {name}, s", value=value, at_most=BUDGET + SMALL)
        for name, value in longest.items()
    )
    return Result(part="handlers", tables=(table,), goals=goals)


def served(arrangement: str, blocks: float, file: Path) -> Any:  # an ASGI application
    """Return the application that a child process serves."""
    receiver = Receiver(
        credentials=Credentials(app_id=APP_ID, app_token=TOKEN),
        sink=SqliteInbox(file),
        own_thread=ARRANGEMENTS[arrangement.rpartition("-")[0]],
        drain=0,
    )

    @receiver.fallback
    async def handle(_: Event) -> None:
        await asyncio.sleep(WAITS)
        time.sleep(blocks)  # noqa: ASYNC251  # what is measured

    return receiver.asgi


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--serve", required=True)
    parser.add_argument("--blocks", type=float, required=True)
    parser.add_argument("--inbox", type=Path, required=True)
    given = parser.parse_args()
    tell_time()
    asyncio.run(serve_app(served(given.serve, given.blocks, given.inbox), http="httptools", lifespan="on"))
