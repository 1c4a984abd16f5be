"""What receiving message copies costs, beside a FastAPI + pydantic endpoint with the same checks; and durable accepts.

Run: python benchmarks/callbacks.py [--seconds 2] [--repeats 5] [--http httptools]

Each server is a process of its own on one core, with the same uvicorn and the same settings. The client is on another
core; it sends signed messages, a different one each time, made before, over 32 connections, and does so little that the
servers are the slow ones: what a server costs that waits is the waiting. Turns are interleaved (constant, receiver, peer,
...), a ratio compares neighbours, and the medians are shown.

The first table is CPU time of the server for each event, above what an ASGI application costs that answers the same thing
always: the receiver with a MemorySink, and the endpoint of ``benchmarks/fastapi_peer.py``. The second is the receiver with a
SqliteInbox in a temporary directory, every event committed to the disk before it is answered.
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
from typing import TYPE_CHECKING, Any

from httpload import Served, constant, keep_to_core, process, serve_app, tell_time

from rbim.callbacks import MemorySink, Receiver, SqliteInbox
from rbim.signing import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

    from httpload import Measured

APP_ID, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"
WARM_UP = 0.3  # seconds
FASTEST = 25_000  # requests that are there for each second
CONNECTIONS = 32
SHARE = 1 / 3
ACCEPTS, P99 = 2000, 0.050


def messages(numbers: Iterator[int], seconds: float) -> list[bytes]:
    """Return signed requests, a different message each: made before, so that the client has next to nothing to do."""
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


def seconds(value: float) -> str:
    """Show a time in milliseconds."""
    return f"{value * 1000:.1f}"


def compare(options: argparse.Namespace, numbers: Iterator[int]) -> bool:
    """Print what an event costs each server, and tell whether the receiver's share is small enough."""
    names = ("constant", "receiver", "fastapi")
    costs: list[dict[str, float]] = []
    with (
        process(__file__, "--serve", "constant", "--http", options.http) as plain,
        process(__file__, "--serve", "receiver", "--http", options.http) as ours,
        process(__file__, "--serve", "fastapi", "--http", options.http) as theirs,
    ):
        servers: dict[str, Served] = dict(zip(names, (plain, ours, theirs), strict=True))
        requests = messages(numbers, WARM_UP)
        for server in servers.values():
            server.turn(iter(requests), WARM_UP, CONNECTIONS)
        for _ in range(options.repeats):
            requests = messages(numbers, options.seconds)
            turns = {name: each.turn(iter(requests), options.seconds, CONNECTIONS) for name, each in servers.items()}
            costs.append({name: turn.cpu for name, turn in turns.items()})
    print(f"{'':<28} {'CPU us per event':>16} {'above constant':>15}")
    for name in names:
        cost = statistics.median(each[name] for each in costs)
        above = statistics.median(each[name] - each["constant"] for each in costs)
        print(f"{name:<28} {cost * 1e6:>16.1f} {above * 1e6:>15.1f}")
    share = statistics.median((each["receiver"] - each["constant"]) / (each["fastapi"] - each["constant"]) for each in costs)
    reached = share <= SHARE
    print(
        f"the receiver's share of the peer's cost {share:.2f}, goal {SHARE:.2f}: {'reached' if reached else 'NOT reached'}\n"
    )
    return reached


def durable(options: argparse.Namespace, numbers: Iterator[int]) -> bool:
    """Print how many durable accepts a second there are, and how long they take."""
    turns: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder, "events.db"))
        with process(__file__, "--serve", "durable", "--http", options.http, "--inbox", file) as server:
            server.turn(iter(messages(numbers, WARM_UP)), WARM_UP, CONNECTIONS)
            for _ in range(options.repeats):
                requests = messages(numbers, options.seconds)
                turns += [server.turn(iter(requests), options.seconds, CONNECTIONS)]
    rate = statistics.median(turn.rate for turn in turns)
    waits = {share: statistics.median(turn.wait(share) for turn in turns) for share in (0.5, 0.99)}
    cost = statistics.median(turn.cpu for turn in turns)
    reached = rate >= ACCEPTS and waits[0.99] < P99
    print(
        f"durable accepts: {rate:,.0f} a second, p50 {seconds(waits[0.5])} ms, p99 {seconds(waits[0.99])} ms, "
        f"{cost * 1e6:.0f} us of CPU each\n"
        f"goal {ACCEPTS:,} a second at p99 under {seconds(P99)} ms: {'reached' if reached else 'NOT reached'}"
    )
    return reached


def main(options: argparse.Namespace) -> bool:
    """Print both tables and tell whether both goals are reached."""
    keep_to_core(0)
    os.environ |= {"RBIM_APP_ID": APP_ID, "RBIM_APP_TOKEN": TOKEN}  # for the peer
    numbers = count()
    cheap = compare(options, numbers)
    return durable(options, numbers) and cheap


def served(options: argparse.Namespace) -> Any:  # an ASGI application
    """Return the application that a child process serves."""
    if options.serve == "constant":
        return constant(0)
    if options.serve == "fastapi":
        from fastapi_peer import app

        return app
    if options.serve == "durable":
        return receiver(SqliteInbox(options.inbox))
    return receiver(MemorySink(capacity=10**9))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What receiving message copies costs.")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each turn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--http", default="httptools", choices=["httptools", "h11"], help="uvicorn's HTTP parser")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--inbox", type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        keep_to_core(1)
        tell_time()
        lifespan = "off" if told.serve == "constant" else "on"
        asyncio.run(serve_app(served(told), http=told.http, lifespan=lifespan))
    else:
        sys.exit(not main(told))
