"""Deliveries of one conversation beside those of a thousand: accepting and handling, also on a slower disk.

Accepting: 100 connections to a receiver with a ``SqliteInbox``, in its own process, as in ``benchmarks/callbacks.py``.
Handling: a process stores deliveries, and then measures how fast a worker with the defaults handles them; its handler does
nothing. On the slower disk each sync takes 5 ms longer (``benchmarks/slow_disk.py``).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.deliveries import APP_ID, body_of, messages, receiver
from benchmarks.httpload import keep_to_core, on_cores, process, serve_app
from benchmarks.results import Goal, Part, Table
from benchmarks.slow_disk import missing, slow_disk
from rbim.callbacks import Event, Router, SqliteInbox, Worker
from rbim.callbacks.delivery import delivery_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.results import Options

__all__ = ["conversations"]

MODULE = "benchmarks.callbacks_conversations"
CONNECTIONS = 100
SHAPES = {"one conversation": 1, "a thousand": 1000}
SLOWER = 0.005  # seconds that each sync takes longer
DISKS = ("this disk", "5 ms more per sync")
SHARE = 0.5
AT_ONCE = 1000  # deliveries that are stored together


def conversations(options: Options) -> Part:
    """Measure both shapes, by turns; return the figures."""
    seconds, events, rounds = (0.1, 100, 1) if options.quick else (1.0, 4000, min(options.rounds, 3))
    numbers = count()
    found: dict[tuple[str, str, str], list[tuple[float, float | None]]] = {}
    with tempfile.TemporaryDirectory() as folder, on_cores(0):
        disks: dict[str, dict[str, str]] = {DISKS[0]: {}}
        if not missing():
            disks[DISKS[1]] = slow_disk(Path(folder), SLOWER)
        for turn in range(rounds):
            for disk, environment in disks.items():
                for shape, groups in SHAPES.items():
                    file = Path(folder, f"{disk}-{groups}-{turn}.db")
                    accepted = _accepting(file, environment, groups, numbers, seconds)
                    found.setdefault(("accepting", disk, shape), []).append(accepted)
                    handled = _handling(Path(f"{file}-handled"), environment, groups, events)
                    found.setdefault(("handling", disk, shape), []).append((handled, None))
    rates = {case: statistics.median(rate for rate, _ in turns) for case, turns in found.items()}
    rows = tuple(
        (f"{doing}, {disk}, {shape}", rates[doing, disk, shape], _median(wait for _, wait in turns))
        for (doing, disk, shape), turns in sorted(found.items())
    )
    goals = tuple(
        Goal(
            name=f"{doing} one conversation / a thousand, {disk}",
            value=rates[doing, disk, "one conversation"] / rates[doing, disk, "a thousand"],
            at_least=SHARE,
        )
        for doing in ("accepting", "handling")
        for disk in disks
    )
    table = Table(
        title=f"Events per second in one conversation and in a thousand ({CONNECTIONS} connections; a worker's defaults)",
        columns=("", "per second", "p99 ms"),
        rows=rows,
    )
    return Part(table, goals, (f"Left out: {missing()}.",) if missing() else ())


def _median(values: Iterator[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _accepting(
    file: Path, environment: dict[str, str], groups: int, numbers: Iterator[int], seconds: float
) -> tuple[float, float]:
    """Return how many deliveries a receiver accepts per second, and the p99 of the answers in milliseconds."""
    requests = iter(messages(numbers, seconds, CONNECTIONS, groups=groups))
    with process(MODULE, "--accept", str(file), environment=environment) as server:
        turn = server.turn(requests, seconds, CONNECTIONS)
    return turn.rate, 1000 * turn.wait(0.99)


def _handling(file: Path, environment: dict[str, str], groups: int, events: int) -> float:
    """Return how many events a worker handles per second."""
    with process(MODULE, "--handle", str(file), str(groups), str(events), environment=environment) as worker:
        return float(worker.ask())


# In the child processes.


async def _fill(inbox: SqliteInbox, groups: int, events: int) -> None:
    now = datetime.now(UTC)
    async with inbox:
        for first in range(0, events, AT_ONCE):
            async with anyio.create_task_group() as tasks:
                for number in range(first, min(first + AT_ONCE, events)):
                    delivery = delivery_of(body_of(number, groups=groups), app_id=APP_ID, received=now)
                    tasks.start_soon(inbox.accept, delivery)


async def _rate(file: Path, groups: int, events: int) -> float:
    inbox, router, left = SqliteInbox(file), Router(), events
    await _fill(inbox, groups, events)
    began = ended = time.perf_counter()

    @router.fallback
    async def handle(_: Event) -> None:
        nonlocal left, ended
        left, ended = left - 1, time.perf_counter()
        if not left:
            worker.stop()

    worker = Worker(inbox, router)
    with anyio.move_on_after(LONGEST):
        await worker.run()
    return (events - left) / (ended - began)


LONGEST = 8.0
"""Seconds that a worker has for all its events: the rate of a slow one is that of those that it handled."""


def _tell(rate: float) -> None:
    print(0, flush=True)  # where a server tells its port
    input()
    print(rate, flush=True)
    input()  # until it is killed


def served(file: Path) -> Any:  # an ASGI application
    """Return the receiver."""
    return receiver(SqliteInbox(file))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}")
    parser.add_argument("--accept", type=Path)
    parser.add_argument("--handle", nargs=3)
    given = parser.parse_args()
    keep_to_core(1)
    if given.handle:
        path, groups, events = given.handle
        _tell(asyncio.run(_rate(Path(path), int(groups), int(events))))
    else:
        from benchmarks.httpload import tell_time

        tell_time()
        asyncio.run(serve_app(served(given.accept), http="httptools", lifespan="on"))
