"""The cost of a job beside its requests (memory, journal, slow commits), and its pace on platforms with limits.

Run: python -m benchmarks bulk

*Memory*: a job of invitations from a CSV file with N rows, in a process of its own. It sends to a server in another process.
*idle* is its resident memory after all imports, with an open client. The peaks are above idle: while the file is loaded, and
in all. *journal* is the size of the closed journal on the disk.

*Journal*: the same loaded accounts, in requests of 1 and of 50 accounts, sent by the job, and by the same job with a journal
in memory that writes nothing. Each transport has its turns, because the own cost of a slow one hides that of the journal.
Turns are interleaved, a ratio compares two turns of the same round, the figures are medians. CPU is that of all threads of
the process. The goals hold for the CPU of requests over sockets, because waits depend on the other work of the machine.

*Slow commits*: the same job over ``AsyncioTransport`` while each commit of its journal takes 10 ms longer, and while it does
not: requests per second. *Pace*: see ``benchmarks.pace``.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from shutil import copyfile
from typing import TYPE_CHECKING, Any

from benchmarks.bulk_parts import AtOnce, Unwritten, chunk_of, client_of, loaded_journal, requests
from benchmarks.httpload import ROOT, process
from benchmarks.pace import pace
from benchmarks.results import Goal, Result, Table
from rbim.bulk import InviteJob, RowFile, open_job
from rbim.bulk.dispatcher import Dispatcher
from rbim.bulk.journal.facts import Loaded
from rbim.bulk.journal.journal import Journal
from rbim.bulk.pace import Pace
from rbim.bulk.progress import RunCounts
from rbim.bulk.settings import JobSettings
from rbim.bulk.work import AccountState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from benchmarks.bulk_parts import Sending
    from benchmarks.results import Options
    from rbim import AsyncClient

__all__ = ["run"]

MODULE = "benchmarks.bulk"
GROUP_SIZE = 1900
MIB = 1024 * 1024
MEMORY_GOAL = 60  # MiB
JOURNAL_GOAL = 1.25
SLOWER, COMMITS_GOAL = 0.01, 0.8  # seconds that a commit takes longer; share of the speed that is left


# Memory.


def write_rows(path: Path, rows: int) -> None:
    """Write a CSV file of ``rows`` rows; each row has another group than the one before."""
    groups = rows // GROUP_SIZE + 1
    with path.open("w") as file:
        file.write("group,account\n")
        file.writelines(f"g8{number % groups:013d},user-{number:08d}\n" for number in range(rows))


def resident() -> int:
    """Return the resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@contextmanager
def sampled() -> Generator[list[int]]:
    """Yield a list to which the resident memory is added fifty times per second, and at the end of the block."""
    samples: list[int] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.02):
            samples.append(resident())

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield samples
    finally:
        over.set()
        sampler.join()
        samples.append(resident())


async def whole_job(path: Path, port: int) -> dict[str, float]:
    """Run a job of a file, and return its figures; memory in bytes above idle."""
    async with client_of(port) as client:
        job = InviteJob(client, journal=path.with_suffix(".journal"))
        idle, loading = resident(), 0
        most_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with sampled() as samples:
            async with job.run(RowFile(path)) as progress:
                async for snapshot in progress:
                    if snapshot.phase == "loading":
                        loading = len(samples)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    with closing(sqlite3.connect(job.journal)) as file:
        ((created, loaded),) = file.execute("SELECT created, loaded FROM job")
        ((began, ended, why),) = file.execute("SELECT began, ended, why FROM run")
        ((requests, answered),) = file.execute("SELECT count(*), sum(outcome = 1) FROM request")
        ((rows, done),) = file.execute("SELECT count(*), sum(state = 1) FROM result")
    assert (why, answered, done) == ("done", requests, rows)
    return {
        "idle": idle,
        "loading": max(samples[:loading], default=idle) - idle,
        "peak": max(most if most > most_before else 0, *samples) - idle,
        "journal": job.journal.stat().st_size,
        "load": rows / (loaded - created),
        "rows": rows / (ended - began),
        "requests": requests / (ended - began),
    }


def memory(rows: Sequence[int]) -> Result:
    """Return the memory and the speed of jobs with these numbers of rows."""
    sizes: list[tuple[str | float, ...]] = []
    rates: list[tuple[str | float, ...]] = []
    peaks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in rows:
            path = Path(folder, f"{number}.csv")
            write_rows(path, number)
            with process("benchmarks.target") as server:
                command = [sys.executable, "-m", MODULE, str(path), str(server.port)]
                figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
            name = f"{number:,} rows"
            sizes.append((name, *(figures[size] / MIB for size in ("idle", "loading", "peak", "journal"))))
            rates.append((name, *(figures[rate] for rate in ("load", "rows", "requests"))))
            peaks.append(figures["peak"] / MIB)
    return Result(
        part="bulk: memory",
        tables=(
            Table(
                title="MiB that a job uses, over HTTP",
                columns=("", "idle", "above idle: loading", "above idle: peak", "journal on the disk"),
                rows=tuple(sizes),
            ),
            Table(
                title="Rows and requests per second, over HTTP",
                columns=("", "rows loaded", "rows sent", "requests"),
                rows=tuple(rates),
                digits=0,
            ),
        ),
        goals=(Goal(name="highest peak of a job above idle, MiB", value=max(peaks), at_most=MEMORY_GOAL),),
    )


# The journal.


def stopwatch() -> Callable[[], tuple[float, float]]:
    """Return a function that returns the seconds from now on: wall time, and CPU time of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    return lambda: (time.perf_counter() - wall, time.process_time() - cpu)


async def with_journal(
    client: AsyncClient, sendings: list[Sending], settings: JobSettings, template: Path
) -> tuple[float, float]:
    """Send the requests through the job; return wall and CPU seconds."""
    path = template.with_name("turn.journal")
    for old in path.parent.glob("turn.journal*"):
        old.unlink()
    copyfile(template, path)
    taken = stopwatch()
    async with open_job(client, path, concurrency=settings.concurrency, adaptive=settings.adaptive).resume() as run:
        pass
    assert (run.why, run.snapshot.requests, run.snapshot.waiting) == ("done", len(sendings), 0)
    return taken()


async def without_journal(
    client: AsyncClient, sendings: list[Sending], settings: JobSettings, _: Path
) -> tuple[float, float]:
    """Send the requests through the job, with a journal that writes nothing; return wall and CPU seconds."""
    chunk = len(sendings[0][1])
    parts = InviteJob(client, journal="unused", chunk=chunk)._parts  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    commits: Any = AtOnce()
    journal: Any = Unwritten([chunk_of(number, *sending) for number, sending in enumerate(sendings)])
    total = len(sendings) * chunk
    loaded = Loaded(rows=total, bad=0, duplicates=0, digest="")
    taken = stopwatch()
    counts = RunCounts(
        loaded, {state: total * (state is AccountState.WAITING) for state in AccountState}, parts.clock.monotonic()
    )
    running = Dispatcher(
        parts._replace(settings=settings),
        journal=journal,
        commits=commits,
        pace=Pace(concurrency=settings.concurrency, adaptive=settings.adaptive),
        counts=counts,
    )
    assert await running.run() == "done"
    assert counts.waiting == 0
    return taken()


WAYS = {"with journal": with_journal, "without journal": without_journal}


async def turns(
    number: int, chunk: int, concurrency: int, client: AsyncClient, rounds: int
) -> dict[str, list[tuple[float, float]]]:
    """Return the wall and CPU seconds of the turns of both ways, interleaved."""
    sendings = requests(number, chunk)
    settings = JobSettings(concurrency=concurrency, adaptive=False)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "template.journal")
        loaded_journal(template, sendings, settings)
        async with client:
            for turn in range(rounds + 1):
                for name, send in WAYS.items():
                    seconds = await send(client, sendings, settings, template)
                    if turn:  # the first turn warms up
                        took[name].append(seconds)
    return took


def cost(number: int, concurrency: int, rounds: int) -> Result:
    """Return the cost of so many requests with the journal and without it."""
    rows: list[tuple[str | float, ...]] = []
    goals: list[Goal] = []
    for transport, chunk in product(("AsyncioTransport", "HttpxTransport"), (1, 50)):
        with process("benchmarks.target") as server:
            took = asyncio.run(turns(number, chunk, concurrency, client_of(server.port, transport), rounds))
        what = f"{transport}, {chunk} account{'s' * (chunk > 1)}, {concurrency} in flight"
        for name, mine in took.items():
            pairs = list(zip(mine, took["without journal"], strict=True))
            seconds = [statistics.median(turn[column] for turn in mine) * 1000 / number for column in (0, 1)]
            ratios = [statistics.median(one[column] / other[column] for one, other in pairs) for column in (0, 1)]
            rows.append((f"{what}: {name}", *seconds, *ratios))
            if name == "with journal":
                goals.append(Goal(name=f"CPU with the journal / without, {what}", value=ratios[1], at_most=JOURNAL_GOAL))
    table = Table(
        title="Seconds for 1000 requests of a job, over HTTP",
        columns=("", "wall", "CPU", "wall / without journal", "CPU / without journal"),
        rows=tuple(rows),
        digits=2,
    )
    return Result(part="bulk: journal", tables=(table,), goals=tuple(goals))


@contextmanager
def slow_commits(seconds: float) -> Generator[None]:
    """Let each commit of a journal take so much longer."""
    commit = Journal.commit

    def slow(self: Journal, commands: Sequence[Callable[[], Any]], **options: Any) -> list[Any]:
        time.sleep(seconds)
        return commit(self, commands, **options)

    Journal.commit = slow  # type: ignore[method-assign]
    try:
        yield
    finally:
        Journal.commit = commit  # type: ignore[method-assign]


async def speeds(number: int, repeats: int, client: AsyncClient) -> tuple[list[float], list[float]]:
    """Return the requests per second of jobs of ``number`` requests, without slow commits and with them, interleaved."""
    sendings, settings = requests(number, 50), JobSettings(adaptive=False)
    found: tuple[list[float], list[float]] = ([], [])
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "template.journal")
        loaded_journal(template, sendings, settings)
        async with client:
            for _ in range(repeats):
                for seconds, into in zip((0.0, SLOWER), found, strict=True):
                    with slow_commits(seconds):
                        wall, _ = await with_journal(client, sendings, settings, template)
                    into.append(number / wall)
    return found


def commits(number: int, repeats: int) -> Result:
    """Return what slow commits cost a job."""
    with process("benchmarks.target") as server:
        usual, slow = asyncio.run(speeds(number, repeats, client_of(server.port, "AsyncioTransport")))
    share = statistics.median(one / other for one, other in zip(slow, usual, strict=True))
    table = Table(
        title="Requests per second of a job, fifty accounts a request",
        columns=("", "requests/s"),
        rows=(
            ("as it is", statistics.median(usual)),
            (f"each commit {SLOWER * 1000:.0f} ms longer", statistics.median(slow)),
        ),
        digits=0,
    )
    goal = Goal(name="speed with slow commits / without", value=share, at_least=COMMITS_GOAL)
    return Result(part="bulk: commits", tables=(table,), goals=(goal,))


def run(options: Options) -> Result:
    """Measure memory, the journal, slow commits and the pace, as one part of the benchmarks."""
    number, flying, rows = (50, 50, [2000]) if options.quick else (1000, 100, [100_000, 300_000])
    results = [memory(rows), cost(number, flying, options.rounds), commits(20 * number, options.rounds), pace(options)]
    return Result(
        part="bulk",
        tables=tuple(table for result in results for table in result.tables),
        goals=tuple(goal for result in results for goal in result.goals),
    )


if __name__ == "__main__":
    print(json.dumps(asyncio.run(whole_job(Path(sys.argv[1]), int(sys.argv[2])))))
