"""The cost of a job beside its requests (memory, journal, commits, phases), and its pace on platforms with limits.

Run: python -m benchmarks.bulk [memory | journal | commits | phases | pace] [--rows 100000 1000000] [--chunk 1 50] [--stub]

*memory*: a job of invitations from a CSV file with N rows. It sends to a server in another process
(``--stub``: to a transport with a constant answer, in the job's own process). Each job has its own process. *idle* is its
resident memory after all imports, with an open client. The peaks are above idle: while the file is loaded, and in all.
*journal* is the size of the closed journal on the disk.

*journal*: the same loaded accounts, in requests of ``--chunk`` accounts, sent in three ways: by the job; by the same job
with a journal in memory that writes nothing; and by ``fan_out`` of operations made before. Each transport has its turns,
because the own cost of a slow one hides that of the journal. Turns are interleaved, a ratio compares two turns of the same
round, the figures are medians. CPU is that of all threads of the process. The goals hold for the CPU of requests over
sockets, because waits depend on the other work of the machine.

*commits*: the same job over ``AsyncioTransport`` while each commit of its journal takes 10 ms longer, and while it does not:
requests per second.

*phases*: see ``benchmarks.loading``. *pace*: see ``benchmarks.pace``.
"""

from __future__ import annotations

import argparse
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

from attrs import frozen

from benchmarks import loading
from benchmarks.bulk_parts import AtOnce, Unwritten, chunk_of, client_of, loaded_journal, requests
from benchmarks.httpload import ROOT, process
from benchmarks.pace import pace
from benchmarks.results import Goal, Result, Table, shown
from rbim import InviteJoinGroup
from rbim.bulk import Done, InviteJob, RowFile, fan_out, open_job
from rbim.bulk.dispatcher import Dispatcher
from rbim.bulk.journal.journal import Journal
from rbim.bulk.journal.loading import Loaded
from rbim.bulk.pace import Pace
from rbim.bulk.progress import RunCounts
from rbim.bulk.settings import JobSettings
from rbim.bulk.work import AccountState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from benchmarks.bulk_parts import Sending
    from benchmarks.results import Options
    from rbim import AsyncClient

__all__ = ["Journaled", "commits", "cost", "main", "memory", "run", "whole_job"]

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


async def whole_job(path: Path, port: int | None) -> dict[str, float]:
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
        ((rows, done),) = file.execute("SELECT count(*), sum(state = 1) FROM account")
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


def memory(rows: Sequence[int], *, stub: bool = False) -> Result:
    """Return the memory and the speed of jobs with these numbers of rows."""
    sizes: list[tuple[str | float, ...]] = []
    rates: list[tuple[str | float, ...]] = []
    peaks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for number in rows:
            path = Path(folder, f"{number}.csv")
            write_rows(path, number)
            with serving(stub=stub) as port:
                command = [sys.executable, "-m", MODULE, "--child", str(path)]
                command += () if port is None else ("--port", str(port))
                figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
            name = f"{number:,} rows"
            sizes.append((name, *(figures[size] / MIB for size in ("idle", "loading", "peak", "journal"))))
            rates.append((name, *(figures[rate] for rate in ("load", "rows", "requests"))))
            peaks.append(figures["peak"] / MIB)
    way = "a stub transport" if stub else "HTTP"
    return Result(
        part="bulk: memory",
        tables=(
            Table(
                title=f"MiB that a job uses, over {way}",
                columns=("", "idle", "above idle: loading", "above idle: peak", "journal on the disk"),
                rows=tuple(sizes),
            ),
            Table(
                title=f"Rows and requests per second, over {way}",
                columns=("", "rows loaded", "rows sent", "requests"),
                rows=tuple(rates),
                digits=0,
            ),
        ),
        goals=(Goal(name="highest peak of a job above idle, MiB", value=max(peaks), at_most=MEMORY_GOAL),),
    )


@contextmanager
def serving(*, stub: bool) -> Generator[int | None]:
    """Yield the port of a server in its own process, whose answers have heads of their own; for a stub, None."""
    if stub:
        yield None
        return
    with process("benchmarks.target") as server:
        yield server.port


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


async def fanned_out(client: AsyncClient, sendings: list[Sending], settings: JobSettings, _: Path) -> tuple[float, float]:
    """Send the requests as operations made before, with ``fan_out``; return wall and CPU seconds."""
    ops = [InviteJoinGroup(group_id=group, members=inside) for group, inside in sendings]
    done = 0
    taken = stopwatch()
    async with fan_out(client, ops, workers=settings.concurrency) as outcomes:
        async for outcome in outcomes:
            done += isinstance(outcome, Done)
    assert done == len(ops)
    return taken()


WAYS = {"with journal": with_journal, "without journal": without_journal, "fan_out": fanned_out}


@frozen(kw_only=True)
class Journaled:
    """The plan of the part journal: requests per turn, accounts per request, requests in flight, turns, ways to send.

    With ``stub``, the requests need no transport.
    """

    requests: int = 1000
    chunks: tuple[int, ...] = (1, 50)
    concurrency: tuple[int, ...] = (50, 100)
    repeats: int = 5
    ways: tuple[str, ...] = tuple(WAYS)
    transports: tuple[str, ...] = ("AsyncioTransport", "HttpxTransport")
    stub: bool = False


async def turns(plan: Journaled, chunk: int, concurrency: int, client: AsyncClient) -> dict[str, list[tuple[float, float]]]:
    """Return the wall and CPU seconds of the turns of each way, interleaved."""
    sendings = requests(plan.requests, chunk)
    settings = JobSettings(concurrency=concurrency, adaptive=False)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in plan.ways}
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "template.journal")
        loaded_journal(template, sendings, settings)
        async with client:
            for number in range(plan.repeats + 1):
                for name in plan.ways:
                    seconds = await WAYS[name](client, sendings, settings, template)
                    if number:  # the first turn warms up
                        took[name].append(seconds)
    return took


def cost(plan: Journaled) -> Result:
    """Return the cost of requests with the journal and without it."""
    rows: list[tuple[str | float, ...]] = []
    goals: list[Goal] = []
    transports = plan.transports[:1] if plan.stub else plan.transports
    for transport, chunk, concurrency in product(transports, plan.chunks, plan.concurrency):
        with serving(stub=plan.stub) as port:
            took = asyncio.run(turns(plan, chunk, concurrency, client_of(port, transport)))
        what = f"{chunk} account{'s' * (chunk > 1)}, {concurrency} in flight"
        if not plan.stub:
            what = f"{transport}, {what}"
        for name, mine in took.items():
            pairs = list(zip(mine, took["without journal"], strict=True))
            seconds = [statistics.median(turn[column] for turn in mine) * 1000 / plan.requests for column in (0, 1)]
            ratios = [statistics.median(one[column] / other[column] for one, other in pairs) for column in (0, 1)]
            rows.append((f"{what}: {name}", *seconds, *ratios))
            if name == "with journal":
                goals.append(Goal(name=f"CPU with the journal / without, {what}", value=ratios[1], at_most=JOURNAL_GOAL))
    table = Table(
        title=f"Seconds for 1000 requests of a job, over {'a stub transport' if plan.stub else 'HTTP'}",
        columns=("", "wall", "CPU", "wall / without journal", "CPU / without journal"),
        rows=tuple(rows),
        digits=2,
    )
    return Result(part="bulk: journal", tables=(table,), goals=() if plan.stub else tuple(goals))


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


def commits(number: int = 5000, repeats: int = 5, *, stub: bool = False) -> Result:
    """Return what slow commits cost a job."""
    with serving(stub=stub) as port:
        usual, slow = asyncio.run(speeds(number, repeats, client_of(port, "AsyncioTransport")))
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
    ways = ("with journal", "without journal")
    plan = Journaled(requests=number, concurrency=(flying,), repeats=options.rounds, ways=ways)
    results = [memory(rows), cost(plan), commits(20 * number, options.rounds), pace(options)]
    return Result(
        part="bulk",
        tables=tuple(table for result in results for table in result.tables),
        goals=tuple(goal for result in results for goal in result.goals),
    )


SECTIONS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "memory": lambda options: memory(options.rows, stub=options.stub),
    "journal": lambda options: cost(
        Journaled(
            requests=options.requests,
            chunks=tuple(options.chunk),
            concurrency=tuple(options.concurrency),
            repeats=options.repeats,
            stub=options.stub,
        )
    ),
    "commits": lambda options: commits(repeats=options.repeats, stub=options.stub),
    "phases": lambda options: loading.whole_jobs(options.rows),
    "pace": lambda _: pace(),
}


def main(options: argparse.Namespace) -> bool:
    """Print the tables, and return whether all goals are met."""
    met = True
    for name in options.section or SECTIONS:
        result = SECTIONS[name](options)
        print(shown(result), end="\n\n", flush=True)
        met = met and result.met
    return met


if __name__ == "__main__":
    about = "Measure the cost of a job beside its requests, and its pace."
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=about)
    parser.add_argument("section", nargs="*", choices=[*SECTIONS, []], help="the sections to measure (default: all)")
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 100_000], help="rows of the files (memory, phases)")
    parser.add_argument("--requests", type=int, default=1000, help="requests per turn (journal)")
    parser.add_argument("--chunk", type=int, nargs="+", default=[1, 50], help="accounts per request (journal)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[50, 100], help="requests in flight (journal)")
    parser.add_argument("--repeats", type=int, default=5, help="turns (journal)")
    parser.add_argument("--stub", action="store_true", help="no HTTP: only the cost of the job itself (memory, journal)")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        print(json.dumps(asyncio.run(whole_job(options.child, options.port))))
    else:
        sys.exit(not main(options))
