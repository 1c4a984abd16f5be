"""The cost of a whole job for each account, by phase, by the number of rows and by the order of its keys.

Run: python -m benchmarks loading [--full]

A job of invitations from a CSV file over a transport with a constant answer, fifty accounts a request, in a process of its
own. The orders: the rows of a group together; random phone numbers, all in one group; and many groups in turn. *load* is
the CPU time of all threads for each row from the file to the last commit of the load, duplicates found; *send* is that
from there to the end of the job. The bytes are those of the closed journal, and those that the process wrote to files while
it loaded (Linux only), as a multiple. The peak is the resident memory of the process, imports included. ``--full`` adds ten
million rows, which takes some minutes.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bulk_parts import client_of
from benchmarks.httpload import ROOT
from benchmarks.results import Goal, Result, Table
from rbim.bulk import InviteJob, RowFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.results import Options

__all__ = ["ORDERS", "goals_of", "run", "whole_job", "whole_jobs", "write"]

MODULE = "benchmarks.loading"
GROUP_SIZE = 1900
SIZES = (100_000, 1_000_000)
SEED = 1
COST_GOAL, ORDER_GOAL, KEPT_GOAL, WRITTEN_GOAL, PEAK_GOAL = 4.0, 1.5, 30, 3.0, 200


def grouped(rows: int) -> Iterator[str]:
    """Yield the rows of one group after those of another."""
    return (f"g8{number // GROUP_SIZE:013d},user-{number:08d}\n" for number in range(rows))


def phones(rows: int) -> Iterator[str]:
    """Yield random phone numbers, all of one group."""
    numbers = random.Random(SEED)
    return (f"g8{0:013d},1{numbers.randrange(3 * 10**9, 10**10)}\n" for _ in range(rows))


def interleaved(rows: int) -> Iterator[str]:
    """Yield rows of many groups in turn."""
    groups = rows // GROUP_SIZE + 1
    return (f"g8{number % groups:013d},user-{number:08d}\n" for number in range(rows))


ORDERS: dict[str, Callable[[int], Iterator[str]]] = {
    "groups one after another": grouped,
    "random phone numbers, one group": phones,
    "groups in turn": interleaved,
}


def write(path: Path, order: str, rows: int) -> None:
    """Write the CSV file of an order."""
    with path.open("w", encoding="ascii") as file:
        file.write("group,account\n")
        file.writelines(ORDERS[order](rows))


def run(options: Options) -> Result:
    """Measure each order with the usual numbers of rows."""
    return whole_jobs((2000,) if options.quick else (*SIZES, 10_000_000) if options.full else SIZES)


def whole_jobs(sizes: Sequence[int]) -> Result:
    """Measure each order with each number of rows; goals hold from a hundred thousand rows on."""
    rows: list[tuple[str | float, ...]] = []
    found: dict[tuple[str, int], dict[str, float]] = {}
    for size in sizes:
        for order in ORDERS:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "rows.csv")
                write(path, order, size)
                command = [sys.executable, "-m", MODULE, str(path)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
            figures = found[order, size] = json.loads(done.stdout)
            rows.append((f"{size:,} rows, {order}", *figures.values()))
    table = Table(
        title="A whole job, for each account",
        columns=("", "load, CPU us", "send, CPU us", "in all", "bytes kept", "written / kept", "peak MiB"),
        rows=tuple(rows),
    )
    return Result(part="loading", tables=(table,), goals=goals_of(found, max(sizes)) if max(sizes) >= SIZES[0] else ())


def goals_of(found: dict[tuple[str, int], dict[str, float]], most: int) -> tuple[Goal, ...]:
    """Return the goals for the largest number of rows."""
    large = [figures for (_, size), figures in found.items() if size == most]
    loads = [figures["load"] for figures in large]
    name = f"{most:,} rows"
    return (
        Goal(name=f"CPU us of an account, {name}", value=max(each["all"] for each in large), at_most=COST_GOAL),
        Goal(name=f"load in the slowest order / the fastest, {name}", value=max(loads) / min(loads), at_most=ORDER_GOAL),
        Goal(name=f"bytes of an account, {name}", value=max(each["kept"] for each in large), at_most=KEPT_GOAL),
        Goal(name=f"bytes written / kept, {name}", value=max(each["written"] for each in large), at_most=WRITTEN_GOAL),
        Goal(name=f"peak MiB, {name}", value=max(each["peak"] for each in large), at_most=PEAK_GOAL),
    )


def written() -> int:
    """Return the bytes that this process has written, where the system tells."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["wchar"])


def peak() -> float:
    """Return the peak of this process's resident memory, in KiB; that of its parent before it began does not count."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(dict(line.split(":", 1) for line in lines)["VmHWM"].split()[0])


async def whole_job(path: Path) -> dict[str, float]:
    """Run a job of a file, and return its figures for each row."""
    with path.open("rb") as file:
        rows = sum(1 for _ in file) - 1
    async with client_of(None) as client:
        job = InviteJob(client, journal=path.with_suffix(".journal"), adaptive=False)
        before, bytes_before, loaded = time.process_time(), written(), (0.0, 0)
        async with job.run(RowFile(path)) as run:
            while not run.began:  # noqa: ASYNC110  # no event says so
                await asyncio.sleep(0.01)
            loaded = time.process_time() - before, written() - bytes_before
        cpu = time.process_time() - before
        assert (run.why, run.snapshot.waiting) == ("done", 0)
    kept = job.journal.stat().st_size
    return {
        "load": loaded[0] / rows * 1e6,
        "send": (cpu - loaded[0]) / rows * 1e6,
        "all": cpu / rows * 1e6,
        "kept": kept / rows,
        "written": loaded[1] / kept,
        "peak": peak() / 1024,
    }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(whole_job(Path(sys.argv[1])))))
