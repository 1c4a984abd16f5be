"""The cost of a start: CPU time of new interpreters that import, beside one that imports httpx.

Run: python -m benchmarks.import_time [--rounds 15]

Each figure is the user and system time of one process from start to end, with compiled bytecode on the disk (a start before
the first round writes it). Starts are interleaved, the figures are medians, and a ratio compares two starts of the same
round. *above bare* is the figure without the interpreter's own start, also in the ratio of that name.

``import httpx`` also imports click, rich and pygments for its command line if all three are installed, as they are with the
extras of rbim. *httpx alone* is the same without them.

*rbim in use* is the work of an application before its first call: ``from rbim import AsyncClient, InviteJoinGroup``, a
client with an ``AsyncioTransport``, and one encoded operation.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from benchmarks.httpload import ROOT
from benchmarks.results import Goal, Result, Table, interleaved, ratio, shown

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.results import Options

__all__ = ["ALONE", "BARE", "HTTPX", "IN_USE", "STARTS", "cpu_ms", "main", "measured", "run"]

BARE, HTTPX, ALONE, IN_USE = "python -c pass", "import httpx", "httpx alone", "rbim in use"
GOAL = 1.0

CLIENT = """
from rbim import AsyncClient, Credentials, InviteJoinGroup
from rbim.transports.asyncio import AsyncioTransport

client = AsyncClient(
    base_url="https://im.example.com",
    credentials=Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"),
    transport=AsyncioTransport(),
)
client._shared.codec.encode(InviteJoinGroup(group_id="g80000049837291", members=["1001"]))
"""

STARTS: dict[str, tuple[str, ...]] = {
    BARE: ("-c", "pass"),
    "import asyncio": ("-c", "import asyncio"),
    "import anyio": ("-c", "import anyio"),
    HTTPX: ("-c", "import httpx"),
    ALONE: ("-c", "import sys; sys.modules['click'] = None; import httpx"),
    "import aiohttp": ("-c", "import aiohttp"),
    "import rbim": ("-c", "import rbim"),
    IN_USE: ("-c", CLIENT),
    "rbim --help": ("-c", "from rbim.cli.entry_point import main; main(['--help'])"),
}


NEEDS = {"import aiohttp": "aiohttp", "rbim --help": "cyclopts"}


def cpu_ms(*arguments: str) -> float:
    """Return the CPU milliseconds of a new interpreter."""
    started = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL, cwd=ROOT)
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)  # Popen did not wait for it
    assert started.returncode == 0, arguments
    return 1000 * (used.ru_utime + used.ru_stime)


def run(options: Options) -> Result:
    """Measure the cost of a start, as one part of the benchmarks."""
    return measured(options.rounds) if options.quick else measured(2 * options.rounds, warm_up=True)


def measured(rounds: int, *, warm_up: bool = False) -> Result:
    """Measure ``rounds`` rounds; with ``warm_up``, after one more round that writes the bytecode."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    missing = {name: library for name, library in NEEDS.items() if find_spec(library) is None}
    measures: dict[str, Callable[[], float]] = {
        name: partial(cpu_ms, *arguments) for name, arguments in STARTS.items() if name not in missing
    }
    if warm_up:
        interleaved(measures, 1)
    figures = interleaved(measures, rounds)
    bare = figures[BARE]
    rows: list[tuple[str | float | None, ...]] = [(BARE, statistics.median(bare), None, ratio(figures, BARE, HTTPX), None)]
    above = {
        name: [mine - nothing for mine, nothing in zip(column, bare, strict=True)]
        for name, column in figures.items()
        if name != BARE
    }
    rows += [
        (
            name,
            statistics.median(figures[name]),
            statistics.median(column),
            ratio(figures, name, HTTPX),
            ratio(above, name, HTTPX),
        )
        for name, column in above.items()
    ]
    table = Table(
        title="CPU ms of a new interpreter",
        columns=("", "CPU ms", "above bare", "ratio to httpx", "above bare, ratio to httpx"),
        rows=tuple(rows),
        digits=2,
    )
    goals = tuple(
        Goal(name=f"{IN_USE} / {other}", value=ratio(figures, IN_USE, other), at_most=GOAL) for other in (HTTPX, ALONE)
    )
    notes = tuple(f"left out: {name} ({library} is not installed)" for name, library in missing.items())
    return Result(part="import_time", tables=(table,), goals=goals, notes=notes)


def main(rounds: int) -> bool:
    """Print the table, and return whether the goal is reached."""
    result = measured(rounds, warm_up=True)
    print(shown(result))
    return all(goal.reached for goal in result.goals)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.import_time", description="Measure the cost of a start.")
    parser.add_argument("--rounds", type=int, default=15)
    sys.exit(not main(parser.parse_args().rounds))
