"""The cost of the emulator without sockets: operations per second through its transport, and the time to make one.

Run: python -m benchmarks.emulator [--operations 3000] [--repeats 7] [--alive 1000]

All work runs in one process on one core (pinned to it, if the system can do that). *transport* is a client whose transport
is the emulator: encoding, signing, the limiters, decoding and the whole platform. *platform* is the part of the platform
alone, with the same requests. Turns are interleaved, each with a new emulator; the figures are medians.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING, Any

from rbim import (
    AsyncClient,
    CreateGroup,
    Credentials,
    GroupType,
    InviteJoinGroup,
    ModifyGroup,
    Permission,
    QueryGroupDetail,
    SearchPublicGroups,
)
from rbim.emulator import Emulator

if TYPE_CHECKING:
    from rbim.http import Request, Response
    from rbim.operations.base import Operation

CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")
GROUP_ID = "g80000049837291"
MAKE = CreateGroup(name="产品公告", type=GroupType.VIP, declared="欢迎")
WORK: dict[str, Operation[Any]] = {
    "QueryGroupDetail": QueryGroupDetail(group_id=GROUP_ID),
    "SearchPublicGroups (by id)": SearchPublicGroups(group_id=GROUP_ID),
    "ModifyGroup": ModifyGroup(group_id=GROUP_ID, name="公告", permission=Permission.OPEN),
    "InviteJoinGroup (1 account)": InviteJoinGroup(group_id=GROUP_ID, members=["1001"]),
    "InviteJoinGroup (50 accounts)": InviteJoinGroup(group_id=GROUP_ID, members=[f"user-{n:05d}" for n in range(50)]),
    "CreateGroup": MAKE,
}
GOAL = 5000
MAKING_GOAL = 5.0  # milliseconds


def client_of(transport: Any) -> AsyncClient:  # an emulator
    """Return a client of the emulator."""
    return AsyncClient(base_url="http://emulator", transport=transport, credentials=CREDENTIALS)


class Recording(Emulator):
    """An emulator that keeps the last request."""

    request: Request

    async def send(self, request: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109  # a transport keeps it
        """Keep the request, and answer."""
        self.request = request
        return await super().send(request, timeout=timeout)


async def by_transport(op: Operation[Any], count: int) -> float:
    """Return operations per second through the client."""
    async with client_of(Emulator(credentials=CREDENTIALS)) as client:
        await client.send(MAKE)
        send = client.send
        began = time.perf_counter()
        for _ in range(count):
            await send(op)
        return count / (time.perf_counter() - began)


async def platform(op: Operation[Any], count: int) -> float:
    """Return requests per second of the platform alone."""
    emulator = Recording(credentials=CREDENTIALS)
    async with client_of(emulator) as client:
        await client.send(MAKE)
        await client.send(op)
    serve, asked = emulator.platform.serve, emulator.request
    began = time.perf_counter()
    for _ in range(count):
        serve(asked.method, asked.path, asked.query, asked.headers, asked.body)
    taken = time.perf_counter() - began
    assert all(record.effect for record in emulator.requests)
    return count / taken


async def compare(name: str, op: Operation[Any], options: argparse.Namespace) -> float:
    """Print one line of the table, and return the rate through the transport."""
    turns = [
        (await by_transport(op, options.operations), await platform(op, options.operations)) for _ in range(options.repeats)
    ]
    through, alone = (statistics.median(turn[which] for turn in turns) for which in (0, 1))
    print(f"{name:<30} {through:>10,.0f} {alone:>10,.0f} {1e6 / through:>10.0f} {1e6 / alone:>10.0f}", flush=True)
    return through


def making(options: argparse.Namespace) -> float:
    """Make many emulators at the same time; print the cost of one, and return its milliseconds."""
    times: list[float] = []
    for _ in range(options.repeats):
        alive: list[Emulator] = []
        began = time.perf_counter()
        for _ in range(options.alive):
            alive.append(Emulator(credentials=CREDENTIALS))  # noqa: PERF401  # the loop is what is measured
        times.append((time.perf_counter() - began) / options.alive * 1000)
        del alive
    tracemalloc.start()
    alive = [Emulator(credentials=CREDENTIALS) for _ in range(options.alive)]
    size = tracemalloc.get_traced_memory()[0] / len(alive) / 1024
    tracemalloc.stop()
    took = statistics.median(times)
    print(f"one of {len(alive):,} new emulators: {took:.3f} ms, {size:.1f} KiB")
    return took


async def first(options: argparse.Namespace) -> float:
    """Return the milliseconds from the start to the first answer, with a new emulator and a new client."""
    times: list[float] = []
    for _ in range(options.repeats * 10):
        began = time.perf_counter()
        async with client_of(Emulator(credentials=CREDENTIALS)) as client:
            await client.send(MAKE)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def pin() -> None:
    """Stay on one core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


async def main(options: argparse.Namespace) -> bool:
    """Print the table, and return whether the goals are reached."""
    pin()
    print(f"{'':<30} {'operations per second':>21} {'us per operation':>21}")
    print(f"{'':<30} {'transport':>10} {'platform':>10} {'transport':>10} {'platform':>10}")
    rates = [await compare(name, op, options) for name, op in WORK.items()]
    took = making(options)
    print(f"new emulator, new client, first answer: {await first(options):.3f} ms")
    reached = min(rates) >= GOAL and took <= MAKING_GOAL
    print(
        f"lowest rate {min(rates):,.0f} (goal {GOAL:,}), making {took:.3f} ms (goal {MAKING_GOAL:g}): "
        f"{'reached' if reached else 'NOT reached'}"
    )
    return reached


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.emulator", description="Measure the cost of the emulator without sockets."
    )
    parser.add_argument("--operations", type=int, default=3000, help="operations per turn")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--alive", type=int, default=1000, help="emulators at the same time")
    sys.exit(not asyncio.run(main(parser.parse_args())))
