"""An inbox in which a million events wait: what accepting costs then, and while ``lag`` and ``counts`` read it.

The first deliveries are accepted, and then copied under other keys by SQL: the file is as large as if all were accepted.
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.deliveries import APP_ID, body_of
from benchmarks.results import Goal, Part, Table
from rbim.callbacks import SqliteInbox
from rbim.callbacks.delivery import delivery_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.results import Options

__all__ = ["backlog"]

FEW, MANY = 10_000, 1_000_000
ACCEPTS = 10_000
TASKS = 200  # that accept at once
RATE, WORST = 2000, 50.0  # per second, milliseconds


def backlog(options: Options) -> Part:
    """Measure a small and a large inbox; return the figures."""
    sizes, accepts = ((100, 1000), 400) if options.quick else ((FEW, MANY), ACCEPTS)
    rows: list[tuple[str, float, float, float, float]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            rows.append((f"{size:,} wait", *asyncio.run(_measured(Path(folder, "inbox"), size, accepts))))
    (_, few, *_), (_, many, _, _, worst) = rows
    table = Table(
        title="An inbox in which events wait",
        columns=("", "accepts per second", "lag ms", "counts ms", "longest accept ms meanwhile"),
        rows=tuple(rows),
    )
    names = f"{sizes[0]:,}", f"{sizes[1]:,}"
    goals = (
        Goal(name=f"accepts per second, {names[0]} / {names[1]} wait", value=few / many),
        Goal(name=f"accepts per second, {names[1]} wait", value=many, at_least=RATE),
        Goal(name=f"longest accept while lag and counts read, {names[1]} wait, ms", value=worst, at_most=WORST),
    )
    return Part(table, goals)


async def _measured(path: Path, size: int, accepts: int) -> tuple[float, float, float, float]:
    """Return accepts per second, milliseconds of ``lag`` and ``counts``, and those of the longest accept meanwhile."""
    numbers = count()
    inbox = SqliteInbox(path)
    first = min(size, 1000)
    async with inbox:
        await _accept(inbox, numbers, first)
    _copy(path, size // first - 1)
    async with inbox:
        began = time.perf_counter()
        await _accept(inbox, numbers, accepts)
        rate = accepts / (time.perf_counter() - began)
        reading = asyncio.create_task(_read(inbox))
        longest = 0.0
        while not reading.done():
            began = time.perf_counter()
            await _accept(inbox, numbers, 1)
            longest = max(longest, time.perf_counter() - began)
        lag, counts = await reading
    return rate, 1000 * lag, 1000 * counts, 1000 * longest


async def _accept(inbox: SqliteInbox, numbers: Iterator[int], many: int) -> None:
    """Accept so many deliveries, each task one after another."""
    now = datetime.now(UTC)

    async def accept(share: int) -> None:
        for _ in range(share):
            await inbox.accept(delivery_of(body_of(next(numbers), groups=1000), app_id=APP_ID, received=now))

    tasks = min(TASKS, many)
    async with asyncio.TaskGroup() as group:
        for number in range(tasks):
            group.create_task(accept(many // tasks + (number < many % tasks)))


async def _read(inbox: SqliteInbox) -> tuple[float, float]:
    """Return the seconds that ``lag`` and ``counts`` take: the longest of three."""
    lags, counts = [0.0], [0.0]
    for _ in range(3):
        began = time.perf_counter()
        await inbox.lag()
        between = time.perf_counter()
        await inbox.counts()
        lags.append(between - began)
        counts.append(time.perf_counter() - between)
    return max(lags), max(counts)


def _copy(path: Path, times: int) -> None:
    """Copy each event so many times, under other keys."""
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("PRAGMA synchronous = OFF")
        _, *columns = [name for _, name, *_ in file.execute("PRAGMA table_info(event)")]  # without the number
        copied = ["printf('%016x%016x', event.rowid, copy)" if name == "key" else f"event.{name}" for name in columns]
        file.execute(
            f"""WITH RECURSIVE copies (copy) AS (SELECT 1 UNION ALL SELECT copy + 1 FROM copies WHERE copy < ?)
            INSERT INTO event ({", ".join(columns)}) SELECT {", ".join(copied)} FROM copies, event WHERE copy <= ?""",
            (times, times),
        )
