"""The cost of receiving deliveries, beside a FastAPI + pydantic endpoint with the same checks; and durable accepts.

Run: python -m benchmarks.callbacks [--seconds 2] [--repeats 5] [--http httptools]

Each server has its own process on one core, with the same uvicorn and the same settings. The client runs on another core. It
sends signed messages, all different and prepared before, over 32 connections. The client does so little work that the
servers are the bottleneck: the figures of a server that waits would include the waiting. Turns are interleaved (constant,
receiver, peer, ...), a ratio compares two turns of the same round, and the figures are medians.

The first table has the CPU time of the server for each event, above that of an ASGI application with a constant answer: the
receiver with a MemorySink, and the endpoint of ``benchmarks/fastapi_peer.py``. The second table has the receiver with a
SqliteInbox in a temporary directory; it commits every event to the disk before the answer.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attrs import frozen

from benchmarks.httpload import Served, constant, keep_to_core, on_cores, process, serve_app, tell_time
from benchmarks.results import Goal, Result, Table, shown
from rbim.callbacks import MemorySink, Receiver, SqliteInbox
from rbim.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.httpload import Measured
    from benchmarks.results import Options

__all__ = ["Turns", "main", "measured", "run"]

APP_ID, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"
FASTEST = 25_000  # prepared requests per second of a turn
CONNECTIONS = 32
SHARE = 1 / 3
ACCEPTS, P99 = 2000, 50.0  # per second, milliseconds
MODULE = "benchmarks.callbacks"


@frozen(kw_only=True)
class Turns:
    """The plan: seconds of the warm-up and of each turn, the number of turns, and uvicorn's HTTP parser."""

    warm_up: float = 0.3
    seconds: float = 2.0
    repeats: int = 5
    http: Literal["httptools", "h11"] = "httptools"


def messages(numbers: Iterator[int], seconds: float) -> list[bytes]:
    """Return signed requests, each with another message: prepared, so that the client has little to do."""
    return [message(next(numbers)) for _ in range(int(FASTEST * seconds) + CONNECTIONS)]


def message(number: int) -> bytes:
    """Return one signed request, to one of 500 groups."""
    document = {
        "eventType": "1",
        "convType": "TEAM",
        "to": f"g800000{number % 500:06d}",
        "fromAccount": f"{APP_ID}#{10_000 + number % 997}",
        "fromClientType": "Android",
        "fromDeviceId": "5f0e9c1d7a",
        "fromNick": "王小明",
        "msgTimestamp": str(1_767_323_045_000 + number),
        "msgType": "TEXT",
        "body": "明天上午十点开会, 请准时参加",
        "msgId": f"m{number:016d}",
        "resendFlag": "0",
        "tMembers": [f"{APP_ID}#{each}" for each in range(1001, 1006)],
        "ext": '{"v":1}',
    }
    body = json.dumps(document, ensure_ascii=False).encode()
    digest = hashlib.md5(body).hexdigest().upper()
    moment = str(int(time.time() * 1000))
    checksum = hashlib.md5(f"{APP_ID}{TOKEN}{digest}{moment}".encode()).hexdigest().upper()
    head = (
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nMD5: {digest}\r\n"
        f"CurTime: {moment}\r\nCheckSum: {checksum}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def receiver(sink: Any) -> Any:  # a sink; an ASGI application
    """Return the receiver under test."""
    return Receiver(credentials=Credentials(app_id=APP_ID, app_token=TOKEN), sink=sink).asgi


def compare(turns: Turns, numbers: Iterator[int]) -> tuple[Table, Goal]:
    """Return the cost of an event for each server, and the ratio of the receiver to the peer."""
    names = ("constant", "receiver", "fastapi")
    costs: list[dict[str, float]] = []
    with (
        process(MODULE, "--serve", "constant", "--http", turns.http) as plain,
        process(MODULE, "--serve", "receiver", "--http", turns.http) as ours,
        process(MODULE, "--serve", "fastapi", "--http", turns.http) as theirs,
    ):
        servers: dict[str, Served] = dict(zip(names, (plain, ours, theirs), strict=True))
        requests = messages(numbers, turns.warm_up)
        for server in servers.values():
            server.turn(iter(requests), turns.warm_up, CONNECTIONS)
        for _ in range(turns.repeats):
            requests = messages(numbers, turns.seconds)
            took = {name: each.turn(iter(requests), turns.seconds, CONNECTIONS) for name, each in servers.items()}
            costs.append({name: turn.cpu for name, turn in took.items()})
    rows: list[tuple[str, float, float]] = []
    for name in names:
        cost = statistics.median(each[name] for each in costs)
        above = statistics.median(each[name] - each["constant"] for each in costs)
        rows.append((name, cost * 1e6, above * 1e6))
    share = statistics.median((each["receiver"] - each["constant"]) / (each["fastapi"] - each["constant"]) for each in costs)
    table = Table(
        title="CPU us per event of a server: a constant answer, the receiver, a FastAPI endpoint",
        columns=("", "CPU us per event", "above constant"),
        rows=tuple(rows),
    )
    return table, Goal(name="the receiver's cost / the FastAPI endpoint's", value=share, at_most=SHARE)


def durable(turns: Turns, numbers: Iterator[int]) -> tuple[Table, Goal, Goal]:
    """Return the durable accepts per second, and their durations."""
    took: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "events.db"))
        with process(MODULE, "--serve", "durable", "--http", turns.http, "--inbox", file) as server:
            server.turn(iter(messages(numbers, turns.warm_up)), turns.warm_up, CONNECTIONS)
            for _ in range(turns.repeats):
                requests = messages(numbers, turns.seconds)
                took += [server.turn(iter(requests), turns.seconds, CONNECTIONS)]
    rate = statistics.median(turn.rate for turn in took)
    p50, p99 = (1000 * statistics.median(turn.wait(share) for turn in took) for share in (0.5, 0.99))
    cost = statistics.median(turn.cpu for turn in took)
    table = Table(
        title="Durable accepts: the receiver with a SqliteInbox, each event on the disk before the answer",
        columns=("", "per second", "p50 ms", "p99 ms", "CPU us each"),
        rows=((f"{CONNECTIONS} connections", rate, p50, p99, cost * 1e6),),
    )
    return (
        table,
        Goal(name="durable accepts per second", value=rate, at_least=ACCEPTS),
        Goal(name="p99 of a durable accept, ms", value=p99, at_most=P99),
    )


def measured(turns: Turns) -> Result:
    """Measure both tables."""
    numbers = count()
    with on_cores(0):
        costs, cheap = compare(turns, numbers)
        accepts, *fast = durable(turns, numbers)
    return Result(part="callbacks", tables=(costs, accepts), goals=(cheap, *fast))


def run(options: Options) -> Result:
    """Measure the cost of deliveries, as one part of the benchmarks."""
    warm_up, seconds = (0.05, 0.1) if options.quick else (0.3, 1.0)
    return measured(Turns(warm_up=warm_up, seconds=seconds, repeats=options.rounds))


def main(turns: Turns) -> bool:
    """Print both tables, and return whether all goals are reached."""
    result = measured(turns)
    print(shown(result))
    return all(goal.reached for goal in result.goals)


def served(serve: str, inbox: Path) -> Any:  # an ASGI application
    """Return the application that a child process serves."""
    if serve == "constant":
        return constant(0)
    if serve == "fastapi":
        os.environ |= {"RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}
        from benchmarks.fastapi_peer import app

        return app
    if serve == "durable":
        return receiver(SqliteInbox(inbox))
    return receiver(MemorySink(capacity=10**9))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Measure the cost of receiving deliveries.")
    parser.add_argument("--seconds", type=float, default=Turns().seconds, help="seconds per turn")
    parser.add_argument("--repeats", type=int, default=Turns().repeats)
    parser.add_argument("--http", default=Turns().http, choices=["httptools", "h11"], help="uvicorn's HTTP parser")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--inbox", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        keep_to_core(1)
        tell_time()
        app = served(options.serve, options.inbox)
        asyncio.run(serve_app(app, http=options.http, lifespan="off" if options.serve == "constant" else "on"))
    else:
        sys.exit(not main(Turns(seconds=options.seconds, repeats=options.repeats, http=options.http)))
