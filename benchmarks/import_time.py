"""The cost of a start: CPU time of new interpreters that import, and of commands, beside one that imports httpx.

Run: python -m benchmarks import_time

Each figure is the user and system time of one process from start to end, with compiled bytecode on the disk (a start before
the first round writes it). Starts are interleaved, the figures are medians, and a ratio compares two starts of the same
round. *above bare* is the figure without the interpreter's own start, also in the ratio of that name.

``import httpx`` also imports click, rich and pygments for its command line if all three are installed, as they are with the
extras of rbim. *httpx alone* is the same in a process that cannot import them, and so is each row that ends with *alone*.

*rbim in use* is the work of an application before its first call: ``from rbim import AsyncClient, InviteJoinGroup``, a
client with an ``AsyncioTransport``, and one encoded operation. ``rbim groups leave`` finds no server. ``rbim invite`` sends
a file of ten rows to a server with a constant answer, and writes a journal.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.httpload import ROOT, process
from benchmarks.results import Goal, Result, Table, interleaved, ratio

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.results import Options

__all__ = ["run"]

BARE, HTTPX, ALONE, IN_USE = "python -c pass", "import httpx", "httpx alone", "rbim in use"
NAMES, NAMES_ALONE = "from rbim import AsyncClient, CreateGroup", "from rbim import AsyncClient, CreateGroup, alone"
HELP, LEAVE, INVITE = "rbim --help", "rbim groups leave g1, no server", "rbim invite, 10 rows"
CLOSED = "http://127.0.0.1:1"
NOT_SENT = 3  # exit code

RATIOS = ((NAMES, HTTPX, 0.55), (NAMES_ALONE, ALONE, 1.2), (IN_USE, HTTPX, 1.0), (IN_USE, ALONE, 1.0))
MOST = {LEAVE: 150.0, INVITE: 250.0, HELP: None}
"""CPU ms above bare."""

HIDDEN = "import sys; sys.modules |= dict.fromkeys(('click', 'rich', 'pygments')); "
NAMED = "from rbim import AsyncClient, CreateGroup"
COMMAND = "from rbim.cli.entry_point import main; main({})"

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

STARTS: dict[str, str] = {
    BARE: "pass",
    "import asyncio": "import asyncio",
    "import anyio": "import anyio",
    HTTPX: "import httpx",
    ALONE: f"{HIDDEN}import httpx",
    "import aiohttp": "import aiohttp",
    "import rbim": "import rbim",
    NAMES: NAMED,
    NAMES_ALONE: HIDDEN + NAMED,
    IN_USE: CLIENT,
    HELP: COMMAND.format(["--help"]),
}
COMMANDS = (HELP, LEAVE, INVITE)
NEEDS = {"import aiohttp": "aiohttp", **dict.fromkeys(COMMANDS, "cyclopts")}


def cpu_ms(code: str, *, expected: int = 0, **environment: str) -> float:
    """Return the CPU milliseconds of a new interpreter that runs this code, with its own configuration of rbim."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RBIM_")}
    started = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**kept, **environment},
    )
    _, status, used = os.wait4(started.pid, 0)
    started.returncode = os.waitstatus_to_exitcode(status)  # Popen did not wait for it
    assert started.returncode == expected, code
    return 1000 * (used.ru_utime + used.ru_stime)


def _environment(origin: str) -> dict[str, str]:
    return {"RBIM_BASE_URL": origin, "RBIM_APP_ID": "0" * 32, "RBIM_APP_TOKEN": "1" * 32}


def _commands(folder: Path, port: int) -> dict[str, Callable[[], float]]:
    """Return the commands that send something; each run of the job has its own journal."""
    rows, numbers = folder / "rows.csv", count()
    rows.write_text("group,account\n" + "".join(f"g80000049837291,user-{number}\n" for number in range(10)))

    def invite() -> float:
        arguments = ["invite", str(rows), "--journal", str(folder / f"{next(numbers)}.journal")]
        return cpu_ms(COMMAND.format(arguments), **_environment(f"http://127.0.0.1:{port}"))

    leave = COMMAND.format(["groups", "leave", "g1"])
    return {LEAVE: lambda: cpu_ms(leave, expected=NOT_SENT, **_environment(CLOSED)), INVITE: invite}


def run(options: Options) -> Result:
    """Measure the cost of a start, as one part of the benchmarks."""
    return measured(options.rounds) if options.quick else measured(2 * options.rounds, warm_up=True)


def measured(rounds: int, *, warm_up: bool = False) -> Result:
    """Measure ``rounds`` rounds; with ``warm_up``, after one more round that writes the bytecode."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    missing = {name: library for name, library in NEEDS.items() if find_spec(library) is None}
    with tempfile.TemporaryDirectory() as folder, process("benchmarks.target") as served:
        starts = {name: partial(cpu_ms, code) for name, code in STARTS.items()} | _commands(Path(folder), served.port)
        measures: dict[str, Callable[[], float]] = {name: each for name, each in starts.items() if name not in missing}
        if warm_up:
            interleaved(measures, 1)
        figures = interleaved(measures, rounds)
    above = {
        name: [mine - bare for mine, bare in zip(column, figures[BARE], strict=True)]
        for name, column in figures.items()
        if name != BARE
    }
    rows: list[tuple[str | float | None, ...]] = [
        (
            name,
            statistics.median(column),
            statistics.median(above[name]) if name in above else None,
            ratio(figures, name, HTTPX),
            ratio(above, name, HTTPX) if name in above else None,
        )
        for name, column in figures.items()
    ]
    table = Table(
        title="CPU ms of a new interpreter",
        columns=("", "CPU ms", "above bare", "ratio to httpx", "above bare, ratio to httpx"),
        rows=tuple(rows),
        digits=2,
    )
    goals = [
        Goal(name=f"{ours} / {theirs}", value=ratio(figures, ours, theirs), at_most=most) for ours, theirs, most in RATIOS
    ]
    goals += [
        Goal(name=f"{name}, CPU ms above bare", value=statistics.median(above[name]), at_most=most)
        for name, most in MOST.items()
        if name in above
    ]
    notes = tuple(f"left out: {name} ({library} is not installed)" for name, library in missing.items())
    return Result(part="import_time", tables=(table,), goals=tuple(goals), notes=notes)
