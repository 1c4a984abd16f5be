"""The cost of loading the input of a job, by its number of rows and by the order of its keys.

Run: python -m benchmarks loading [--full]

A row is loaded when the journal has it on the disk, with its account known once. Each load has its own process. The orders:
the rows of a group together; random phone numbers, all in one group; and many groups in turn. *CPU us* is the time of all
threads of the process for each row, from the CSV file to the end of the load; the bytes are those of the closed journal, and
those that the process wrote to files meanwhile (Linux only). ``--full`` adds ten million rows, which takes minutes.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.bulk_parts import client_of
from benchmarks.httpload import ROOT
from benchmarks.results import Goal, Result, Table
from rbim import AuthenticationError
from rbim.bulk import InviteJob, RowFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.results import Options

__all__ = ["ORDERS", "load", "run", "write"]

MODULE = "benchmarks.loading"
GROUP_SIZE = 1900
SIZES = (100_000, 1_000_000)
REFUSED = b'{"statusCode":"111109"}'
SEED = 1


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
    """Measure each order with each number of rows."""
    sizes = (2000,) if options.quick else (*SIZES, 10_000_000) if options.full else SIZES
    rows: list[tuple[str | float, ...]] = []
    costs: dict[tuple[str, int], float] = {}
    for size in sizes:
        for order in ORDERS:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, "rows.csv")
                write(path, order, size)
                command = [sys.executable, "-m", MODULE, str(path)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, cwd=ROOT)
            figures = json.loads(done.stdout)
            costs[order, size] = figures["cpu"]
            rows.append((f"{size:,} rows, {order}", figures["cpu"], figures["kept"], figures["written"]))
    table = Table(
        title="Loading the input of a job, for each row",
        columns=("", "CPU us", "bytes on the disk", "bytes written"),
        rows=tuple(rows),
    )
    most, least = max(sizes), min(sizes)
    goals = tuple(
        Goal(name=f"CPU of a row, {order}, {most:,} rows / {least:,}", value=costs[order, most] / costs[order, least])
        for order in ORDERS
        if most > least
    )
    return Result(part="loading", tables=(table,), goals=goals)


def written() -> int:
    """Return the bytes that this process has written, where the system tells."""
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return int(dict(line.split(": ") for line in lines)["wchar"])


def load(path: Path) -> dict[str, float]:
    """Load a file, and return the CPU us, the bytes kept and the bytes written for each of its rows.

    The platform refuses the credentials, which ends the job at its first request.
    """

    async def job() -> None:
        async with client_of(None, answer=REFUSED) as client:
            await InviteJob(client, journal=journal, concurrency=1).run(RowFile(path))

    journal = path.with_suffix(".journal")
    with path.open("rb") as file:
        rows = sum(1 for _ in file) - 1
    cpu, before = time.process_time(), written()
    try:
        asyncio.run(job())
    except AuthenticationError:
        cpu, before = time.process_time() - cpu, written() - before
    else:
        raise RuntimeError("the job was not refused")
    return {"cpu": cpu / rows * 1e6, "kept": journal.stat().st_size / rows, "written": before / rows}


if __name__ == "__main__":
    print(json.dumps(load(Path(sys.argv[1]))))
