"""The overflow file (spool): how fast it is emptied, beside how fast deliveries are accepted; also on a slower disk.

In a process of its own, without HTTP: 100 tasks give signed deliveries to a receiver with a ``SqliteInbox``; as many others
wait in a spool's file, which forwards them to another inbox. On the slower disk each sync takes 5 ms longer
(``benchmarks/slow_disk.py``).
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from benchmarks.deliveries import APP_ID, TOKEN, body_of
from benchmarks.httpload import keep_to_core, on_cores, process
from benchmarks.results import Goal, Part, Table
from benchmarks.slow_disk import missing, slow_disk
from rbim.callbacks import Receiver, SqliteInbox, sign
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.receiver.spool import Spool
from rbim.clock import SystemClock
from rbim.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.results import Options
    from rbim.callbacks.delivery import Delivery

__all__ = ["spool"]

MODULE = "benchmarks.callbacks_spool"
DELIVERIES = 4000
TASKS = 100
SHAPES = {"one conversation": 1, "a thousand": 1000}
SLOWER = 0.005  # seconds that each sync takes longer
DISKS = ("this disk", "5 ms more per sync")
SHARE = 0.5


def spool(options: Options) -> Part:
    """Measure both shapes, by turns; return the figures."""
    deliveries, rounds = (200, 1) if options.quick else (DELIVERIES, min(options.rounds, 3))
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    with tempfile.TemporaryDirectory() as folder, on_cores(0):
        disks: dict[str, dict[str, str]] = {DISKS[0]: {}}
        if not missing():
            disks[DISKS[1]] = slow_disk(Path(folder), SLOWER)
        for turn in range(rounds):
            for disk, environment in disks.items():
                for shape, groups in SHAPES.items():
                    files = Path(folder, f"{disk}-{groups}-{turn}")
                    files.mkdir()
                    arguments = (str(files), str(groups), str(deliveries))
                    with process(MODULE, *arguments, environment=environment) as child:
                        accepted, drained = map(float, child.ask().split())
                    found.setdefault((disk, shape), []).append((accepted, drained))
    rows = tuple(
        (
            f"{disk}, {shape}",
            statistics.median(accepted for accepted, _ in turns),
            statistics.median(drained for _, drained in turns),
        )
        for (disk, shape), turns in found.items()
    )
    table = Table(
        title=f"Deliveries per second: a receiver accepts them, the spool forwards them ({deliveries} deliveries)",
        columns=("", "accepted", "forwarded"),
        rows=rows,
        digits=0,
    )
    goals = (
        Goal(
            name=f"forwarded / accepted, {disk}, {shape}",
            value=statistics.median(drained / accepted for accepted, drained in turns),
            at_least=SHARE,
        )
        for (disk, shape), turns in found.items()
    )
    return Part(table, tuple(goals), (f"Left out: {missing()}.",) if missing() else ())


# In the child process.


def _deliveries(groups: int, many: int) -> Iterator[Delivery]:
    now = datetime.now(UTC)
    for number in range(many):
        yield delivery_of(body_of(number, groups=groups), app_id=APP_ID, received=now)


async def _receive_all(receiver: Receiver[Any], groups: int, many: int) -> float:
    """Return the seconds in which a receiver accepts deliveries."""
    credentials, now = Credentials(app_id=APP_ID, app_token=TOKEN), datetime.now(UTC)
    bodies = [body_of(number, groups=groups) for number in range(many)]
    signed = iter([(sign(body, credentials=credentials, now=now), body) for body in bodies])

    async def receive() -> None:
        for headers, body in signed:
            reply = await receiver.receive(headers, body)
            assert reply.status == HTTPStatus.OK

    began = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for _ in range(TASKS):
            tasks.start_soon(receive)
    return time.perf_counter() - began


async def _rates(folder: Path, groups: int, many: int) -> tuple[float, float]:
    """Return how many deliveries per second a receiver accepts, and the spool forwards."""
    credentials = Credentials(app_id=APP_ID, app_token=TOKEN)
    async with Receiver(credentials=credentials, sink=SqliteInbox(folder / "accepted.db")) as receiver:
        accepting = await _receive_all(receiver, groups, many)
    async with SqliteInbox(folder / "forwarded.db") as inbox:
        async with Spool(folder / "spool.db", inbox, clock=SystemClock(), budget=2.0) as spool:
            stored = [spool.put(delivery) for delivery in _deliveries(groups, many)]
            await stored[-1]()
            began = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(spool.forward)
                while spool.holds:  # noqa: ASYNC110  # nothing tells of its end
                    await anyio.sleep(0.005)
                forwarding = time.perf_counter() - began
                tasks.cancel_scope.cancel()
        assert (await inbox.counts()).waiting == many
    return many / accepting, many / forwarding


if __name__ == "__main__":
    keep_to_core(1)
    print(0, flush=True)  # where a server tells its port
    input()
    print(*asyncio.run(_rates(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))), flush=True)
    input()  # until it is killed
