"""What a job costs beside its requests: memory, the journal; and how its pace fares on a platform with limits and outages.

Run: python benchmarks/bulk.py [memory | journal | pace] [--rows 100000 1000000] [--chunk 1 50] [--stub]

*memory*: a CSV file of so many rows, as a job of invitations, to a server in another process that answers the same thing
always (``--stub``: to a transport that does, in the job's own process). Each job is a process of its own; *idle* is its
resident memory once everything is imported and the client is open, the peaks are above that: while the file is loaded, and
in all. *journal* is its size on the disk once it is closed.

*journal*: the same accounts, loaded before, in requests of ``--chunk`` accounts, through the job as it is; through the same
job with a journal in memory that writes nothing; and through ``fan_out`` of operations that were made before. Turns are
interleaved, a ratio compares neighbours, the medians are shown. CPU is that of all threads of the process. The goal is one
for requests that take a way over sockets.

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

from bulk_parts import AtOnce, Unwritten, chunk_of, client_of, constant, loaded_journal, requests
from httpload import process, serve_app, tell_time

from rbim import InviteJoinGroup
from rbim.bulk import Done, InviteJob, RowFile, fan_out, open_job
from rbim.bulk.loading import Loaded
from rbim.bulk.running import Running
from rbim.bulk.schema import State
from rbim.bulk.settings import Settings
from rbim.bulk.steering import Steering
from rbim.bulk.tally import Tally

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from paced_job import PacedJob

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bulk_parts import Sending

    from rbim import AsyncClient

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


async def whole_job(path: Path, port: int | None) -> dict[str, float]:
    """Run a job of a file, and return what it took; memory in bytes above idle."""
    async with client_of(port) as client:
        job = InviteJob(client, journal=path.with_suffix(".journal"))
        idle, loading = resident(), 0
        most_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        samples: list[int] = []
        over = threading.Event()

        def sample() -> None:
            while not over.wait(0.02):
                samples.append(resident())

        sampler = threading.Thread(target=sample)
        sampler.start()
        async with job.run(RowFile(path)) as progress:
            async for snapshot in progress:
                if snapshot.phase == "loading":
                    loading = len(samples)
        over.set()
        sampler.join()
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


def memory(options: argparse.Namespace) -> bool:
    """Print what jobs of different lengths take, and tell whether it is little and flat."""
    print(f"memory ({'stub transport' if options.stub else 'HTTP'}), MiB{'':<8} {'loading':>12} {'rows/s when':>23}")
    heads = ("idle", "above idle", "peak", "journal", "loading", "sending", "requests/s")
    print(f"{'rows':>12} {' '.join(f'{head:>11}' for head in heads)}")
    peaks: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.rows:
            path = Path(folder, f"{rows}.csv")
            write_rows(path, rows)
            with serving() if not options.stub else no_server() as port:
                command = [sys.executable, __file__, "--child", str(path), *(() if port is None else ("--port", str(port)))]
                told = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            sizes = [told[name] / MIB for name in ("idle", "loading", "peak", "journal")]
            rates = [told[name] for name in ("load", "rows", "requests")]
            print(
                f"{rows:>12,} {' '.join(f'{size:>11.1f}' for size in sizes)} {' '.join(f'{each:>11,.0f}' for each in rates)}"
            )
            peaks.append(told["peak"] / MIB)
    reached = max(peaks) < MEMORY_GOAL
    print(f"highest peak {max(peaks):.1f} MiB (goal {MEMORY_GOAL}): {'reached' if reached else 'NOT reached'}\n", flush=True)
    return reached


@contextmanager
def serving() -> Iterator[int]:
    """Give the port of a constant server in a process of its own."""
    with process(__file__, "--serve") as server:
        yield server.port


@contextmanager
def no_server() -> Iterator[None]:
    """Give no port."""
    yield None


# The journal.


def stopwatch() -> Callable[[], tuple[float, float]]:
    """Return what tells the seconds from now on: on the wall, and of this process's CPU."""
    wall, cpu = time.perf_counter(), time.process_time()
    return lambda: (time.perf_counter() - wall, time.process_time() - cpu)


async def as_it_is(client: AsyncClient, sendings: list[Sending], settings: Settings, template: Path) -> tuple[float, float]:
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


async def unwritten(client: AsyncClient, sendings: list[Sending], settings: Settings, _: Path) -> tuple[float, float]:
    """Send them through the job without its journal's writes."""
    chunk = len(sendings[0][1])
    parts = InviteJob(client, journal="unused", chunk=chunk)._parts()  # noqa: SLF001  # the sender as the job has it
    commits: Any = AtOnce()
    journal: Any = Unwritten([chunk_of(number, *sending) for number, sending in enumerate(sendings)])
    total = len(sendings) * chunk
    loaded = Loaded(rows=total, bad=0, duplicates=0, digest="")
    taken = stopwatch()
    tally = Tally(loaded, {state: total * (state is State.WAITING) for state in State}, parts.clock.monotonic())
    running = Running(
        work=parts.work,
        sender=parts.sender,
        journal=journal,
        commits=commits,
        steering=Steering(concurrency=settings.concurrency, adaptive=settings.adaptive),
        tally=tally,
        settings=settings,
        clock=parts.clock,
    )
    assert await running.run() == "done"
    assert tally.waiting == 0
    return taken()


async def fanned_out(client: AsyncClient, sendings: list[Sending], settings: Settings, _: Path) -> tuple[float, float]:
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


async def turns(
    options: argparse.Namespace, chunk: int, concurrency: int, port: int | None
) -> dict[str, list[tuple[float, float]]]:
    """Return the wall and CPU seconds of each way's turns, interleaved."""
    sendings = requests(options.requests, chunk)
    settings = Settings(concurrency=concurrency, adaptive=False)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        template = Path(folder, "template.journal")
        loaded_journal(template, sendings, settings)
        async with client_of(port) as client:
            for number in range(options.repeats + 1):
                for name, way in WAYS.items():
                    seconds = await way(client, sendings, settings, template)
                    if number:  # the first turn warms up
                        took[name].append(seconds)
    return took


def cost(options: argparse.Namespace) -> bool:
    """Print what requests cost with the journal and without it, and tell whether the difference is small."""
    print(f"journal ({'stub transport' if options.stub else 'HTTP'}), seconds for 1000 requests")
    print(f"{'accounts, in flight':<36} {'wall':>8} {'CPU':>8} {'requests/s':>11}   {'to nothing written':>18}")
    worst = 0.0
    for chunk, concurrency in product(options.chunk, options.concurrency):
        with serving() if not options.stub else no_server() as port:
            took = asyncio.run(turns(options, chunk, concurrency, port))
        for name, all_of_it in took.items():
            wall, cpu = (statistics.median(column) * 1000 / options.requests for column in zip(*all_of_it, strict=True))
            pairs = list(zip(all_of_it, took["nothing written"], strict=True))
            walls, cpus = (statistics.median(mine[column] / other[column] for mine, other in pairs) for column in (0, 1))
            what = f"{chunk:>8}, {concurrency:>9}, {name}"
            print(f"{what:<36} {wall:>8.3f} {cpu:>8.3f} {1000 / wall:>11,.0f}   {walls:>8.2f} {cpus:>9.2f}", flush=True)
            worst = max(worst, walls if name == "as it is" else 0.0)
    if options.stub:
        print(f"highest ratio {worst:.2f}\n", flush=True)
        return True
    reached = worst <= JOURNAL_GOAL
    print(f"highest ratio {worst:.2f} (goal {JOURNAL_GOAL}): {'reached' if reached else 'NOT reached'}\n", flush=True)
    return reached


# The pace.


def pace(_: argparse.Namespace) -> bool:
    """Print how jobs keep up with a limit and come back after an outage, and tell whether that is well."""
    print(f"pace, at most {LIMIT} requests in a second")
    print(f"{'latency':>10} {'share, 10 to 60 s':>18} {'recovery':>9} {'throttled':>10} {'real seconds':>13}")
    good = True
    for latency in (0.001, 0.1):
        began = time.perf_counter()
        job = PacedJob(latency=latency, limit=LIMIT)
        asyncio.run(job.run(105, outage=(60, 90)))
        share, recovery = job.share(10, 60), job.recovery(90, PACE_GOAL)
        took = time.perf_counter() - began
        print(f"{latency * 1000:>7.0f} ms {share:>18.1%} {recovery:>7.1f} s {job.throttled(10, 60):>10.2%} {took:>13.1f}")
        good = good and share >= PACE_GOAL and recovery <= RECOVERY_GOAL
    print(f"goals {PACE_GOAL:.0%}, {RECOVERY_GOAL:g} s: {'reached' if good else 'NOT reached'}\n", flush=True)
    return good


SECTIONS = {"memory": memory, "journal": cost, "pace": pace}


def main(options: argparse.Namespace) -> bool:
    """Print the tables and tell whether all goals are reached."""
    reached = [SECTIONS[name](options) for name in options.section or SECTIONS]
    return all(reached)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What a job costs beside its requests, and how its pace fares.")
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
