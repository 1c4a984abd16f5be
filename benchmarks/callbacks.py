"""What a receiver of callbacks costs and bears, beside endpoints with the same checks: not durable, and durable.

Run: python -m benchmarks callbacks

Each server has its own process on one core, with the same uvicorn and the same settings. The client runs on another core. It
sends signed messages, all different and prepared before, over 200 connections. The client does so little work that the
servers are the bottleneck: the figures of a server that waits would include the waiting. Turns are interleaved (constant,
receiver, peer, ...), a ratio compares two turns of the same round, and the figures are medians.

The first table has the CPU time of the server for each event, above that of an ASGI application with a constant answer. Not
durable are the receiver with a MemorySink and the endpoint of ``benchmarks/fastapi_peer.py``, which keeps events in memory.
Durable are the receiver with a SqliteInbox in a temporary directory and the endpoints of ``benchmarks/durable_peers.py``:
they commit every event to the disk before the answer. The second table has the rates and the durations of all of them.

The other tables: one conversation beside a thousand (``callbacks_conversations.py``), the overflow file
(``callbacks_spool.py``), and an inbox in which a million events wait (``callbacks_backlog.py``).
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from benchmarks.callbacks_backlog import backlog
from benchmarks.callbacks_conversations import conversations
from benchmarks.callbacks_spool import spool
from benchmarks.deliveries import APP_ID, TOKEN, messages, receiver
from benchmarks.httpload import constant, keep_to_core, on_cores, process, serve_app, tell_time
from benchmarks.results import Goal, Result, Table
from rbim.callbacks import MemorySink, SqliteInbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.httpload import Measured
    from benchmarks.results import Options

__all__ = ["run"]

CONNECTIONS = 200
DURABLE_SHARE = 0.3
MEMORY_SHARE = 1.2  # a transaction for each delivery, in memory: one engine for both inboxes, and this one is for tests
CONSTANT, MEMORY, ENDPOINT = "constant answer", "receiver, MemorySink, not durable", "FastAPI, not durable"
INBOX, THREADED = "receiver, SqliteInbox", "FastAPI, SQLite, same durability"
GROUPED = "FastAPI, SQLite, group commit by hand"
NAMES = (CONSTANT, MEMORY, ENDPOINT, INBOX, THREADED, GROUPED)
ACCEPTS, P99 = 2000, 100.0  # per second, milliseconds
MODULE = "benchmarks.callbacks"


def turns_of(warm_up: float, seconds: float, rounds: int) -> list[dict[str, Measured]]:
    """Return the measurements of each server, by round."""
    numbers = count()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = {
            name: stack.enter_context(process(MODULE, name, str(folder / f"{number}.db")))
            for number, name in enumerate(NAMES)
        }
        requests = messages(numbers, warm_up, CONNECTIONS)
        for server in servers.values():
            server.turn(iter(requests), warm_up, CONNECTIONS)
        found: list[dict[str, Measured]] = []
        for _ in range(rounds):
            requests = messages(numbers, seconds, CONNECTIONS)
            found += [{name: each.turn(iter(requests), seconds, CONNECTIONS) for name, each in servers.items()}]
    return found


def measured(warm_up: float, seconds: float, rounds: int) -> Result:
    """Measure all servers."""
    with on_cores(0):
        found = turns_of(warm_up, seconds, rounds)
    above = {name: [each[name].cpu - each[CONSTANT].cpu for each in found] for name in NAMES}

    def share(ours: str, theirs: str) -> float:
        return statistics.median(a / b for a, b in zip(above[ours], above[theirs], strict=True))

    def middle(name: str, of: Callable[[Measured], float]) -> float:
        return statistics.median(of(each[name]) for each in found)

    costs = Table(
        title="CPU us per event of a server",
        columns=("", "CPU us per event", "above constant"),
        rows=tuple(
            (name, middle(name, lambda turn: turn.cpu * 1e6), statistics.median(above[name]) * 1e6) for name in NAMES
        ),
    )
    accepts = Table(
        title=f"Deliveries per second over {CONNECTIONS} connections",
        columns=("", "per second", "p50 ms", "p99 ms"),
        rows=tuple(
            (
                name,
                middle(name, lambda turn: turn.rate),
                middle(name, lambda turn: 1000 * turn.wait(0.5)),
                middle(name, lambda turn: 1000 * turn.wait(0.99)),
            )
            for name in NAMES
        ),
    )
    goals = (
        Goal(name=f"{INBOX} / {THREADED}", value=share(INBOX, THREADED), at_most=DURABLE_SHARE),
        Goal(name=f"{INBOX} / {GROUPED}", value=share(INBOX, GROUPED), at_most=DURABLE_SHARE),
        Goal(name=f"{MEMORY} / {ENDPOINT}", value=share(MEMORY, ENDPOINT), at_most=MEMORY_SHARE),
        Goal(name=f"{INBOX}, accepts per second", value=middle(INBOX, lambda turn: turn.rate), at_least=ACCEPTS),
        Goal(name=f"{INBOX}, p99 of an accept, ms", value=middle(INBOX, lambda turn: 1000 * turn.wait(0.99)), at_most=P99),
    )
    return Result(part="callbacks", tables=(costs, accepts), goals=goals)


def run(options: Options) -> Result:
    """Measure all tables, as one part of the benchmarks."""
    warm_up, seconds = (0.05, 0.1) if options.quick else (0.3, 1.0)
    costs = measured(warm_up, seconds, options.rounds)
    others = (conversations(options), spool(options), backlog(options))
    return evolve(
        costs,
        tables=(*costs.tables, *(each.table for each in others)),
        goals=(*costs.goals, *(goal for each in others for goal in each.goals)),
        notes=tuple(note for each in others for note in each.notes),
    )


def served(serve: str, file: Path) -> Any:  # an ASGI application
    """Return the application that a child process serves."""
    os.environ |= {"RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}
    if serve == CONSTANT:
        return constant(0)
    if serve == MEMORY:
        return receiver(MemorySink(capacity=10**9))
    if serve == INBOX:
        return receiver(SqliteInbox(file))
    if serve == ENDPOINT:
        from benchmarks.fastapi_peer import app

        return app
    from benchmarks import durable_peers

    made = {THREADED: durable_peers.fastapi, GROUPED: durable_peers.fastapi_group}
    return made[serve](str(file))


if __name__ == "__main__":
    keep_to_core(1)
    tell_time()
    name, inbox = sys.argv[1:]
    asyncio.run(serve_app(served(name, Path(inbox)), http="httptools", lifespan="off" if name == CONSTANT else "on"))
