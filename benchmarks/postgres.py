"""What an inbox in a PostgreSQL database takes and gives out, beside plain inserts of the same rows.

Run: python -m benchmarks postgres

A real server on this machine, without syncs of the disk, which would hide all else. Accepting: 256 tasks in one process, and
in each of four at once; the peer is asyncpg, with a pool of eight connections and one INSERT for each row into a table with
the same indexes. Handling: three processes of workers whose handlers do nothing, begun at one time, on loopback and with a
millisecond more for each statement. Rates are those of this machine, whose cores the server shares; the ratio matters.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.deliveries import APP_ID, body_of
from benchmarks.results import Goal, Options, Result, Table
from rbim.callbacks import Event, HandlerContext, Router, Worker
from rbim.callbacks.delivery import delivery_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from rbim.callbacks.delivery import Delivery
    from rbim.postgres import PostgresInbox

__all__ = ["run"]

AT_ONCE, PROCESSES, WORKERS, POOL = 256, 4, 3, 8
WAITING, BEHIND, DELAY = 100_000, 20_000, 0.001
ACCEPT_GOAL, LOOPBACK_GOAL, DELAYED_GOAL, UNAFFECTED_GOAL = 2.0, 3000, 2000, 0.8
CLAIM_GOAL, RESULT_GOAL, COUNTS_GOAL = 5.0, 5.0, 50.0  # milliseconds
INSERT = """INSERT INTO event (key, conversation, app_id, class, msg_type, received, state, body)
    VALUES ($1, $2, $3, $4, $5, $6, 0, $7)"""
MISSING = "skipped: PostgreSQL is not installed"


def _deliveries(first: int, many: int, groups: int = 1000) -> list[Delivery]:
    now = datetime.now(UTC)
    return [
        delivery_of(body_of(number, groups=groups), app_id=APP_ID, received=now) for number in range(first, first + many)
    ]


def _inbox(address: str, name: str) -> PostgresInbox:
    from rbim.postgres import PostgresInbox

    return PostgresInbox(address, name=name)


async def _all(accept: Callable[[Delivery], Awaitable[object]], deliveries: Iterable[Delivery]) -> None:
    waiting = iter(deliveries)

    async def one_by_one() -> None:
        for each in waiting:
            await accept(each)

    await asyncio.gather(*(one_by_one() for _ in range(AT_ONCE)))


async def _accept(address: str, first: int, many: int) -> float:
    """Return accepts per second of this process."""
    async with _inbox(address, "copies") as inbox:
        await inbox.counts()
        began = time.perf_counter()
        await _all(inbox.accept, _deliveries(first, many))
        return many / (time.perf_counter() - began)


async def _insert(address: str, first: int, many: int) -> float:
    """Return asyncpg's inserts per second of this process."""
    import asyncpg  # no types

    async with asyncpg.create_pool(address, min_size=POOL, max_size=POOL, server_settings={"search_path": "peer"}) as pool:

        async def insert(each: Delivery) -> None:
            kind = "" if each.kind is None else each.kind.__name__
            row = (each.key, each.conversation, each.app_id, kind, each.msg_type, each.received.timestamp(), each.body)
            await pool.execute(INSERT, *row)

        began = time.perf_counter()
        await _all(insert, _deliveries(first, many))
        return many / (time.perf_counter() - began)


async def _work(address: str, name: str, delay: float, at: float) -> float:
    """Handle everything that waits, from a time of day; return that of the last event."""
    if delay:
        import psycopg

        execute: Any = psycopg.Connection.execute

        def delayed(*given: Any, **options: Any) -> Any:  # of any statement
            time.sleep(delay)
            return execute(*given, **options)

        psycopg.Connection.execute = delayed  # type: ignore[method-assign]
    router, last = Router(), time.time()

    @router.fallback
    async def handle(_: Event) -> None:
        nonlocal last
        last = time.time()

    async with _inbox(address, name) as inbox:
        await inbox.counts()
        await asyncio.sleep(at - time.time())
        async with Worker(inbox, router, concurrency=64):
            while (await inbox.counts()).waiting:  # noqa: ASYNC110  # in any process
                await asyncio.sleep(0.2)
    return last


def _processes(what: str, address: str, arguments: Iterable[tuple[Any, ...]]) -> list[float]:
    """Run a function of this module in as many processes at once, and return the results."""
    command = [sys.executable, "-m", "benchmarks.postgres", what, address]
    running = [
        subprocess.Popen([*command, json.dumps(each)], stdout=subprocess.PIPE, text=True)  # ours
        for each in arguments
    ]
    return [float(process.communicate()[0]) for process in running]


def _handled(address: str, name: str, many: int, delay: float, start: float) -> float:
    """Return events handled per second by three workers."""

    async def fill() -> None:
        async with _inbox(address, name) as inbox:
            await _all(inbox.accept, _deliveries(0, many))

    asyncio.run(fill())
    began = time.time() + start  # when all processes are there
    return many / (max(_processes("work", address, [(name, delay, began)] * WORKERS)) - began)


async def _waiting(address: str, many: int) -> tuple[float, float, float]:
    """Return the milliseconds of a claim, a result and the counts while many events wait."""
    async with _inbox(address, "waiting") as inbox, inbox.backlog() as backlog:
        await _all(inbox.accept, _deliveries(0, many))
        times = []
        for _ in range(20):
            began = time.perf_counter()
            (claim,) = await backlog.claim(1)
            claimed = time.perf_counter()
            await backlog.done([claim], more=0)
            recorded = time.perf_counter()
            await inbox.counts()
            times.append((claimed - began, recorded - claimed, time.perf_counter() - recorded))
    claims, results, counts = (sorted(each)[len(each) // 2] * 1000 for each in zip(*times, strict=True))
    return claims, results, counts


async def _beside(address: str, name: str, behind: int, many: int) -> float:
    """Return events of other conversations handled per second beside a failing one with so many behind it."""
    router, done, numbers = Router(), count(1), asyncio.Event()
    failing = "app/team/failing"

    @router.fallback
    async def handle(_: Event, context: HandlerContext) -> None:
        if context.number <= behind:
            raise ValueError
        if next(done) == many:
            numbers.set()

    async with _inbox(address, name) as inbox:
        await _all(inbox.accept, (each._replace(conversation=failing) for each in _deliveries(many, behind)))
        await _all(inbox.accept, _deliveries(0, many))
        began = time.perf_counter()
        async with Worker(inbox, router):
            await numbers.wait()
            return many / (time.perf_counter() - began)


def run(options: Options) -> Result:
    """Measure the inbox, as one part of the benchmarks."""
    sys.path.append(str(Path(__file__).parents[1] / "tests"))
    from helpers.postgres import INITDB, server  # no types

    if INITDB is None:
        return Result(part="postgres", notes=(MISSING,))
    many, waiting, behind, start = (500, 1000, 500, 5.0) if options.quick else (20_000, WAITING, BEHIND, 15.0)
    with server() as made:
        address: str = made.address

        async def tables() -> None:
            for name in ("copies", "peer"):
                async with _inbox(address, name) as inbox:
                    await inbox.counts()

        asyncio.run(tables())
        rates: dict[tuple[str, int], float] = {}
        for number, processes in enumerate((1, PROCESSES), 1):
            shares = [(number * 10_000_000 + place * 1_000_000, many // processes) for place in range(processes)]
            for what in ("insert", "accept"):
                rates[what, processes] = sum(_processes(what, address, shares))
        handled = [_handled(address, f"handled{place}", many, delay, start) for place, delay in enumerate((0.0, DELAY))]
        claim, result, counts = asyncio.run(_waiting(address, waiting))
        alone, beside = (asyncio.run(_beside(address, f"beside{size}", size, many // 4)) for size in (1, behind))
    table = Table(
        title="An inbox in a PostgreSQL database, per second",
        columns=("", "1 process", f"{PROCESSES} processes"),
        rows=(
            ("PostgresInbox.accept", rates["accept", 1], rates["accept", PROCESSES]),
            ("asyncpg, INSERT", rates["insert", 1], rates["insert", PROCESSES]),
            (f"handled, {WORKERS} workers", handled[0], None),
            (f"handled, {WORKERS} workers, 1 ms for each statement", handled[1], None),
        ),
        digits=0,
    )
    goals = (
        *(
            Goal(
                name=f"accept / asyncpg's INSERT, {processes} process{'es' if processes > 1 else ''}",
                value=rates["accept", processes] / rates["insert", processes],
                at_least=ACCEPT_GOAL,
            )
            for processes in (1, PROCESSES)
        ),
        Goal(name="handled per second, 3 workers", value=handled[0], at_least=LOOPBACK_GOAL),
        Goal(name="handled per second, 3 workers, 1 ms more", value=handled[1], at_least=DELAYED_GOAL),
        Goal(name=f"claim while {waiting:,} wait, ms", value=claim, at_most=CLAIM_GOAL),
        Goal(name=f"result while {waiting:,} wait, ms", value=result, at_most=RESULT_GOAL),
        Goal(name=f"counts while {waiting:,} wait, ms", value=counts, at_most=COUNTS_GOAL),
        Goal(
            name=f"others beside {behind:,} behind a failing one / beside one",
            value=beside / alone,
            at_least=UNAFFECTED_GOAL,
        ),
    )
    return Result(part="postgres", tables=(table,), goals=goals)


if __name__ == "__main__":
    what, address, given = sys.argv[1:]
    function: Any = {"accept": _accept, "insert": _insert, "work": _work}[what]
    print(asyncio.run(function(address, *json.loads(given))))
