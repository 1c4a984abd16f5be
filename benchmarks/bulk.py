"""What a job costs beside its requests: memory, the journal; and how its pace fares on a platform with limits and outages.

Run: python -m benchmarks.bulk [memory | journal | pace] [--rows 100000 1000000] [--chunk 1 50] [--stub]

*memory*: a CSV file of so many rows, as a job of invitations, to a server in another process that answers the same thing
always (``--stub``: to a transport that does, in the job's own process). Each job is a process of its own; *idle* is its
resident memory once everything is imported and the client is open, the peaks are above that: while the file is loaded, and
in all. *journal* is its size on the disk once it is closed.

*journal*: the same accounts, loaded before, in requests of ``--chunk`` accounts, through the job as it is; through the same
job with a journal in memory that writes nothing; and through ``fan_out`` of operations that were made before. Turns are
interleaved, a ratio compares neighbours, the medians are shown. CPU is that of all threads of the process. The goals are
for the CPU of requests that take a way over sockets: waits depend on what else the machine does.

*pace*: a whole job on emulated time, told no rate, to an emulator that takes 200 requests in a second: the share of them
that was used from the tenth second to the sixtieth; and the seconds from the end of an outage of half a minute, in which
every connection is refused, to the end of the first whole second with nine tenths of them.
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

from benchmarks.bulk_parts import AtOnce, Unwritten, chunk_of, client_of, constant, loaded_journal, requests
from benchmarks.httpload import ROOT, process, serve_app, tell_time
from benchmarks.results import Goal, Result, Table, shown
from rbim import InviteJoinGroup
from rbim.bulk import Done, InviteJob, RowFile, fan_out, open_job
from rbim.bulk.dispatcher import Dispatcher
from rbim.bulk.journal.loading import Loaded
from rbim.bulk.pace.controller import PaceController
from rbim.bulk.progress import RunCounts
from rbim.bulk.settings import JobSettings
from rbim.bulk.states import AccountState

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from benchmarks.bulk_parts import Sending
    from benchmarks.results import Options
    from rbim import AsyncClient

__all__ = ["Journaled", "cost", "main", "memory", "pace", "run", "whole_job"]

MODULE = "benchmarks.bulk"
GROUP_SIZE = 1900
MIB = 1024 * 1024
MEMORY_GOAL = 60  # MiB
JOURNAL_GOAL = 1.15
LIMIT, PACE_GOAL, RECOVERY_GOAL = 200, 0.9, 10.0


# Memory.


def write_rows(path: Path, rows: int) -> None:
    """Write a CSV file of so many rows, whose groups change from each to the next."""
    groups = rows // GROUP_SIZE + 1
    with path.open("w") as file:
        file.write("group,account\n")
        file.writelines(f"g8{number % groups:013d},user-{number:08d}\n" for number in range(rows))


def resident() -> int:
    """Return the bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


@contextmanager
def sampled() -> Generator[list[int]]:
    """Give a list that grows by the resident memory fifty times a second, and at the end of the block."""
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
    """Run a job of a file, and return what it took; memory in bytes above idle."""
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
    """Return what jobs of so many rows take, and how fast they are."""
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
                told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT).stdout)
            name = f"{number:,} rows"
            sizes.append((name, *(told[size] / MIB for size in ("idle", "loading", "peak", "journal"))))
            rates.append((name, *(told[rate] for rate in ("load", "rows", "requests"))))
            peaks.append(told["peak"] / MIB)
    way = "a transport that answers by itself" if stub else "HTTP"
    return Result(
        part="bulk: memory",
        tables=(
            Table(
                title=f"MiB that a job takes, over {way}",
                columns=("", "idle", "above idle: loading", "above idle: peak", "journal on the disk"),
                rows=tuple(sizes),
            ),
            Table(
                title=f"How many a second, over {way}",
                columns=("", "rows loaded", "rows sent", "requests"),
                rows=tuple(rates),
                digits=0,
            ),
        ),
        goals=(Goal(name="highest peak of a job above idle, MiB", value=max(peaks), at_most=MEMORY_GOAL),),
    )


@contextmanager
def serving(*, stub: bool) -> Generator[int | None]:
    """Give the port of a constant server in a process of its own; for a stub, None."""
    if stub:
        yield None
        return
    with process(MODULE, "--serve") as server:
        yield server.port


# The journal.


def stopwatch() -> Callable[[], tuple[float, float]]:
    """Return what tells the seconds from now on: on the wall, and of this process's CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    return lambda: (time.perf_counter() - wall, time.process_time() - cpu)


async def as_it_is(
    client: AsyncClient, sendings: list[Sending], settings: JobSettings, template: Path
) -> tuple[float, float]:
    """Send them through the job."""
    path = template.with_name("turn.journal")
    for old in path.parent.glob("turn.journal*"):
        old.unlink()
    copyfile(template, path)
    taken = stopwatch()
    async with open_job(client, path, concurrency=settings.concurrency, adaptive=settings.adaptive).resume() as run:
        pass
    assert (run.why, run.snapshot.requests, run.snapshot.waiting) == ("done", len(sendings), 0)
    return taken()


async def unwritten(client: AsyncClient, sendings: list[Sending], settings: JobSettings, _: Path) -> tuple[float, float]:
    """Send them through the job without its journal's writes."""
    chunk = len(sendings[0][1])
    parts = InviteJob(client, journal="unused", chunk=chunk)._parts()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    commits: Any = AtOnce()
    journal: Any = Unwritten([chunk_of(number, *sending) for number, sending in enumerate(sendings)])
    total = len(sendings) * chunk
    loaded = Loaded(rows=total, bad=0, duplicates=0, digest="")
    taken = stopwatch()
    tally = RunCounts(
        loaded, {state: total * (state is AccountState.WAITING) for state in AccountState}, parts.clock.monotonic()
    )
    running = Dispatcher(
        work=parts.work,
        sender=parts.sender,
        journal=journal,
        commits=commits,
        steering=PaceController(concurrency=settings.concurrency, adaptive=settings.adaptive),
        tally=tally,
        settings=settings,
        clock=parts.clock,
    )
    assert await running.run() == "done"
    assert tally.waiting == 0
    return taken()


async def fanned_out(client: AsyncClient, sendings: list[Sending], settings: JobSettings, _: Path) -> tuple[float, float]:
    """Send them as operations that are there already."""
    ops = [InviteJoinGroup(group_id=group, members=inside) for group, inside in sendings]
    done = 0
    taken = stopwatch()
    async with fan_out(client, ops, workers=settings.concurrency) as outcomes:
        async for outcome in outcomes:
            done += isinstance(outcome, Done)
    assert done == len(ops)
    return taken()


WAYS = {"as it is": as_it_is, "nothing written": unwritten, "fan_out": fanned_out}


@frozen(kw_only=True)
class Journaled:
    """How to measure the journal: requests in a turn, accounts in a request, requests in flight, turns, the ways to send."""

    requests: int = 1000
    chunks: tuple[int, ...] = (1, 50)
    concurrency: tuple[int, ...] = (50, 100)
    repeats: int = 5
    ways: tuple[str, ...] = tuple(WAYS)
    stub: bool = False


async def turns(plan: Journaled, chunk: int, concurrency: int, port: int | None) -> dict[str, list[tuple[float, float]]]:
    """Return the wall and CPU seconds of each way's turns, interleaved."""
    sendings = requests(plan.requests, chunk)
    settings = JobSettings(concurrency=concurrency, adaptive=False)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in plan.ways}
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "template.journal")
        loaded_journal(template, sendings, settings)
        async with client_of(port) as client:
            for number in range(plan.repeats + 1):
                for name in plan.ways:
                    seconds = await WAYS[name](client, sendings, settings, template)
                    if number:  # the first turn warms up
                        took[name].append(seconds)
    return took


def cost(plan: Journaled) -> Result:
    """Return what requests cost with the journal and without it."""
    rows: list[tuple[str | float, ...]] = []
    goals: list[Goal] = []
    for chunk, concurrency in product(plan.chunks, plan.concurrency):
        with serving(stub=plan.stub) as port:
            took = asyncio.run(turns(plan, chunk, concurrency, port))
        what = f"{chunk} account{'s' * (chunk > 1)}, {concurrency} in flight"
        for name, mine in took.items():
            pairs = list(zip(mine, took["nothing written"], strict=True))
            seconds = [statistics.median(turn[column] for turn in mine) * 1000 / plan.requests for column in (0, 1)]
            ratios = [statistics.median(one[column] / other[column] for one, other in pairs) for column in (0, 1)]
            rows.append((f"{what}: {name}", *seconds, *ratios))
            if name == "as it is":
                goals.append(Goal(name=f"CPU with the journal / without, {what}", value=ratios[1], at_most=JOURNAL_GOAL))
    table = Table(
        title=f"Seconds for 1000 requests of a job, over {'a transport that answers by itself' if plan.stub else 'HTTP'}",
        columns=("", "wall", "CPU", "wall / nothing written", "CPU / nothing written"),
        rows=tuple(rows),
        digits=2,
    )
    return Result(part="bulk: journal", tables=(table,), goals=() if plan.stub else tuple(goals))


# The pace.


def pace() -> Result:
    """Return how jobs keep up with a limit and come back after an outage."""
    from tests.helpers.paced_job import PacedJob

    rows: list[tuple[str | float, ...]] = []
    goals: list[Goal] = []
    for latency in (0.001, 0.1):
        began = time.perf_counter()
        job = PacedJob(latency=latency, limit=LIMIT)
        asyncio.run(job.run(105, outage=(60, 90)))
        name = f"latency {latency * 1000:.0f} ms"
        share, throttled, recovery = job.share(10, 60), job.throttled(10, 60), job.recovery(90, PACE_GOAL)
        rows.append((name, 100 * share, 100 * throttled, recovery, time.perf_counter() - began))
        goals.append(Goal(name=f"share of the limit used, {name}", value=share, at_least=PACE_GOAL))
        goals.append(Goal(name=f"seconds to recover, {name}", value=recovery, at_most=RECOVERY_GOAL))
    table = Table(
        title=f"Pace of a job where at most {LIMIT} requests in a second are accepted, told nothing",
        columns=("", "% of the limit, 10 to 60 s", "% throttled", "recovery s", "real seconds"),
        rows=tuple(rows),
    )
    return Result(part="bulk: pace", tables=(table,), goals=tuple(goals))


def run(options: Options) -> Result:
    """Measure memory and the journal, as a part of all the benchmarks."""
    number, flying, rows = (50, 50, [2000]) if options.quick else (500, 100, [100_000, 300_000])
    ways = ("as it is", "nothing written")
    plan = Journaled(requests=number, concurrency=(flying,), repeats=options.rounds, ways=ways)
    results = [memory(rows), cost(plan)]
    return Result(
        part="bulk",
        tables=tuple(table for result in results for table in result.tables),
        goals=tuple(goal for result in results for goal in result.goals),
    )


SECTIONS: dict[str, Callable[[argparse.Namespace], Result]] = {
    "memory": lambda told: memory(told.rows, stub=told.stub),
    "journal": lambda told: cost(
        Journaled(
            requests=told.requests,
            chunks=tuple(told.chunk),
            concurrency=tuple(told.concurrency),
            repeats=told.repeats,
            stub=told.stub,
        )
    ),
    "pace": lambda _: pace(),
}


def main(told: argparse.Namespace) -> bool:
    """Print the tables and tell whether all goals are reached."""
    reached = True
    for name in told.section or SECTIONS:
        result = SECTIONS[name](told)
        print(shown(result), end="\n\n", flush=True)
        reached = reached and all(goal.reached for goal in result.goals)
    return reached


if __name__ == "__main__":
    about = "What a job costs beside its requests, and how its pace fares."
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=about)
    parser.add_argument("section", nargs="*", choices=[*SECTIONS, []], help="all of them unless told")
    parser.add_argument("--rows", type=int, nargs="+", default=[20_000, 100_000], help="of the files (memory)")
    parser.add_argument("--requests", type=int, default=1000, help="in each turn (journal)")
    parser.add_argument("--chunk", type=int, nargs="+", default=[1, 50], help="accounts in each request (journal)")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[50, 100], help="requests in flight (journal)")
    parser.add_argument("--repeats", type=int, default=5, help="turns (journal)")
    parser.add_argument("--stub", action="store_true", help="no HTTP: what the job itself costs (memory, journal)")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        tell_time()
        asyncio.run(serve_app(constant, http="httptools"))
    elif told.child is not None:
        print(json.dumps(asyncio.run(whole_job(told.child, told.port))))
    else:
        sys.exit(not main(told))
