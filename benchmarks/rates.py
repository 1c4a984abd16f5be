"""The cost of a call below a rate limit, with no other call waiting and with thousands that wait.

The transport answers at once. With a rate of its own for each row: one that never makes a call wait, and one at which a
thousand tasks, or ten thousand, always wait for their turn. CPU microseconds of the process for each call, medians of
interleaved rounds.
"""

from __future__ import annotations

import asyncio
import gc
from functools import partial
from statistics import median
from typing import TYPE_CHECKING

from benchmarks.core import ORIGIN, NullTransport
from benchmarks.httpload import on_cores
from benchmarks.results import Goal, Result, Table, interleaved, ratio
from benchmarks.turns import CORE
from benchmarks.work import ACCOUNTS, APP_ID, APP_TOKEN, GROUP, Stopwatch, together
from rbim import AsyncClient, Credentials, InviteJoinGroup, Limits, Rate

if TYPE_CHECKING:
    from benchmarks.results import Options

__all__ = ["cost", "run"]

TASKS = 1000
FREE, NONE = "no rate", "a rate, none waiting"
MANY, MORE = f"a rate, {TASKS:,} waiting", f"a rate, {10 * TASKS:,} waiting"
AMPLE, SCARCE = 1e9, 4000.0  # calls per second: never reached; far below what a core can do


def run(options: Options) -> Result:
    """Measure a call without a rate, with one that is not reached, and with calls that wait."""
    seconds, tasks = (0.02, 20) if options.quick else (1.0, TASKS)
    with on_cores(CORE):
        measures = {
            FREE: partial(cost, (), 1, seconds),
            NONE: partial(cost, (Rate(AMPLE),), 1, seconds),
            MANY: partial(cost, (Rate(SCARCE),), tasks, seconds),
            MORE: partial(cost, (Rate(SCARCE),), 10 * tasks, seconds),
        }
        figures = interleaved(measures, options.rounds)
    rows = tuple((name, median(column), ratio(figures, name, FREE)) for name, column in figures.items())
    table = Table(
        title="CPU us of a call below a rate limit, without a transport",
        columns=("", "CPU us", "/ no rate"),
        rows=rows,
        digits=2,
    )
    goals = tuple(
        Goal(name=f"{one} / {other}", value=ratio(figures, one, other))
        for one, other in ((NONE, FREE), (MANY, NONE), (MORE, MANY))
    )
    return Result(part="rates", tables=(table,), goals=goals)


def cost(rates: tuple[Rate, ...], tasks: int, seconds: float) -> float:
    """Return the CPU us of a call, with so many tasks that call again and again."""

    async def calls() -> float:
        client = AsyncClient(
            base_url=ORIGIN,
            credentials=Credentials(app_id=APP_ID, app_token=APP_TOKEN),
            transport=NullTransport(),
            limits=Limits(rates=rates, concurrency=tasks),
        )
        operation = InviteJoinGroup(group_id=GROUP, members=ACCOUNTS)
        stopwatch = Stopwatch(skip=2 * tasks, warm=seconds / 5, count=tasks, seconds=seconds)
        async with client:
            gc.collect()
            await together(lambda _: client.send(operation), tasks, stopwatch.more)
        assert stopwatch.lap is not None
        return stopwatch.lap.ms

    return asyncio.run(calls())
