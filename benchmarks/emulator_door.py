"""The cost of the emulator's server: requests per second and CPU time, beside a constant answer by the same uvicorn.

Run: python -m benchmarks.emulator_door [--seconds 2] [--repeats 5] [--connections 16]

Each server has its own process. The client is this process: an asyncio protocol that handles only bytes. Turns are
interleaved (constant, emulator, constant, ...), a ratio compares two turns of the same round, and the figures are medians.
Both servers run uvicorn's h11 protocol with the same settings. The constant answer is as long as that of the emulator.

If the client or a busy machine slows down both servers, the ratio of the rates is too good for the emulator. The ratio of
the CPU time per request is not affected. The goal holds for both.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hashlib
import json
import statistics
import sys
from datetime import UTC, datetime, timedelta, timezone
from itertools import repeat
from typing import Any

from benchmarks.httpload import Served, constant, process, serve_app, tell_time
from rbim.credentials import Credentials
from rbim.emulator import Emulator
from rbim.emulator.server.server import serve

APP_ID, TOKEN = "aaf98f8947b5d6c80147b8a2b7c30123", "7f0c4b9de2a14f5c8b3e6d1a90c2f4e8"
GROUP_ID = "g80000049837291"
WORK: dict[str, dict[str, Any]] = {
    "QueryGroupDetail": {"groupId": GROUP_ID},
    "SearchPublicGroups": {"groupId": GROUP_ID},
    "InviteJoinGroup (50 accounts)": {"groupId": GROUP_ID, "members": [f"user-{n:05d}" for n in range(50)]},
    "CreateGroup": {"name": "产品公告", "type": "1", "declared": "欢迎"},
}
GOAL = 0.5
MODULE = "benchmarks.emulator_door"
WARM_UP = 0.2  # seconds


def signed(name: str, document: dict[str, Any]) -> bytes:
    """Return the bytes of a signed request."""
    operation = name.split(maxsplit=1)[0]
    stamp = datetime.now(UTC).astimezone(timezone(timedelta(hours=8))).strftime("%Y%m%d%H%M%S")
    sig = hashlib.md5(f"{APP_ID}{TOKEN}{stamp}".encode()).hexdigest().upper()
    body = json.dumps(document, ensure_ascii=False).encode()
    head = (
        f"POST /2013-12-26/Application/{APP_ID}/IM/Group/{operation}?sig={sig} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: {base64.b64encode(f'{APP_ID}:{stamp}'.encode()).decode()}\r\nAccept: application/json\r\n"
        f"Content-Type: application/json;charset=utf-8\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def serve_emulator() -> None:
    """Serve the emulator until killed."""
    emulator = Emulator(credentials=Credentials(app_id=APP_ID, app_token=TOKEN))
    async with serve(emulator) as server:
        print(server.port, flush=True)
        await asyncio.Event().wait()


def compare(emulated: Served, name: str, options: argparse.Namespace) -> float:
    """Print one line of the table, and return the lower ratio."""
    requests, connections = repeat(signed(name, WORK[name])), options.connections
    sample = (emulated.turn(requests, WARM_UP, connections)).sample
    rates: list[tuple[float, float]] = []
    costs: list[tuple[float, float]] = []
    with process(MODULE, "--constant", str(len(sample))) as plain:
        plain.turn(requests, WARM_UP, connections)
        for _ in range(options.repeats):
            turns = [each.turn(requests, options.seconds, connections) for each in (plain, emulated)]
            rates.append((turns[0].rate, turns[1].rate))
            costs.append((turns[0].cpu, turns[1].cpu))
    of_rates = statistics.median(ours / constant for constant, ours in rates)
    of_costs = statistics.median(constant / ours for constant, ours in costs)
    rate = [statistics.median(column) for column in zip(*rates, strict=True)]
    cost = [statistics.median(column) * 1e6 for column in zip(*costs, strict=True)]
    print(
        f"{name:<30} {rate[0]:>8,.0f} {rate[1]:>8,.0f} {of_rates:>6.2f} {cost[0]:>9.0f} {cost[1]:>9.0f} {of_costs:>6.2f}",
        flush=True,
    )
    return min(of_rates, of_costs)


def main(options: argparse.Namespace) -> bool:
    """Print the table, and return whether the goal is met."""
    print(f"{'':<30} {'requests per second':>24} {'CPU us per request':>26}")
    print(f"{'':<30} {'constant':>8} {'emulator':>8} {'ratio':>6} {'constant':>9} {'emulator':>9} {'ratio':>6}")
    with process(MODULE, "--emulator") as emulated:
        made = emulated.turn(repeat(signed("CreateGroup", WORK["CreateGroup"])), 0, 1)
        assert json.loads(made.sample)["groupId"] == GROUP_ID
        ratios = [compare(emulated, name, options) for name in WORK]
    reached = min(ratios) >= GOAL
    print(f"lowest ratio {min(ratios):.2f}, goal {GOAL}: {'reached' if reached else 'NOT reached'}")
    return reached


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Measure the cost of the emulator's server.")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per turn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--emulator", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--constant", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.emulator or options.constant is not None:
        tell_time()
    if options.emulator:
        asyncio.run(serve_emulator())
    elif options.constant is not None:
        asyncio.run(serve_app(constant(options.constant)))
    else:
        sys.exit(not main(options))
