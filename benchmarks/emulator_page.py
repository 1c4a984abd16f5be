"""The cost of the emulator's page: CPU time per request without it, while no one watches, and while someone does.

Run: python -m benchmarks.emulator_page [--rate 1000] [--seconds 2] [--repeats 5] [--connections 16]

Each server has its own process, and the client is this process, as in :mod:`benchmarks.emulator_door`. *no page* keeps no
exchange. *unwatched* is ``rbim emulator`` as people start it. *watched* has a page open: what is new and the list of groups
are asked for twice a second, as the page does while that tab is open. Turns are interleaved; a ratio compares two
turns of the same round, and the figures are medians. The load has a fixed rate: at a higher one, a server that has more
to do besides gets more done at once, which hides or feigns a difference.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from itertools import count, repeat
from typing import TYPE_CHECKING, Any, cast

from benchmarks.emulator_door import APP_ID, TOKEN, WARM_UP, WORK, signed
from benchmarks.httpload import Served, process, tell_time
from rbim.credentials import Credentials
from rbim.emulator import Emulator
from rbim.emulator.server.server import serve

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MODULE = "benchmarks.emulator_page"
KINDS = ("no page", "unwatched", "watched")
OPERATIONS = ("QueryGroupDetail", "CreateGroup")
UNWATCHED, WATCHED = 1.02, 1.1  # goals
REFRESH = 0.5  # seconds between two questions of the page


class _Nothing:
    """Keeps no exchange."""

    def begin(self, record: Any, *_: object) -> _Nothing:
        self.record, self.took = record, 0.0
        return self


async def serve_emulator(kind: str) -> None:
    """Serve an emulator until killed."""
    emulator = Emulator(credentials=Credentials(app_id=APP_ID, app_token=TOKEN))
    emulator.requests.limit = 100_000  # as the command has it
    async with serve(emulator) as server:
        if kind == "no page":
            emulator.asgi.exchanges = cast("Any", _Nothing())
        print(server.port, flush=True)
        await asyncio.Event().wait()


@contextmanager
def watching(port: int) -> Generator[list[int]]:
    """Ask as a page does while the block runs; yield a list to which the bytes of answers are added."""
    ended, read = threading.Event(), [0]

    def questions() -> None:
        position = "0"
        with closing(HTTPConnection("127.0.0.1", port)) as connection:
            while not ended.wait(REFRESH):
                for path in (f"live/{position}", "groups"):
                    connection.request("GET", f"/_emulator/{path}")
                    answer = connection.getresponse().read()
                    read[0] += len(answer)
                    position = json.loads(answer).get("requests", {}).get("position", position)

    thread = threading.Thread(target=questions)
    thread.start()
    try:
        yield read
    finally:
        ended.set()
        thread.join()


def turn(served: Served, kind: str, request: bytes, options: argparse.Namespace) -> float:
    """Return the CPU time per request, in microseconds."""
    with ExitStack() as stack:
        read = stack.enter_context(watching(served.port)) if kind == "watched" else [1]
        if kind == "watched":
            time.sleep(REFRESH)
        cpu = served.turn(paced(request, options.rate), options.seconds, options.connections).cpu * 1e6
    assert read[0]
    return cpu


def paced(request: bytes, rate: float) -> Iterator[bytes]:
    """Yield the request ``rate`` times per second."""
    began = time.perf_counter()
    for number in count():
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        yield request


def main(options: argparse.Namespace) -> bool:
    """Print the table, and return whether the goals are met."""
    print(f"{'CPU us per request':<20} {''.join(f'{kind:>12}' for kind in KINDS)} {'unwatched':>12} {'watched':>12}")
    met = True
    for name in OPERATIONS:
        request = signed(name, WORK[name])
        with ExitStack() as stack:
            servers = [(kind, stack.enter_context(process(MODULE, "--serve", kind))) for kind in KINDS]
            for _, served in servers:
                served.turn(repeat(signed("CreateGroup", WORK["CreateGroup"])), WARM_UP, 1)
                served.turn(repeat(request), WARM_UP, options.connections)
            rounds: list[list[float]] = []
            for number in range(options.repeats):
                order = servers[number % len(KINDS) :] + servers[: number % len(KINDS)]  # none is always the first
                found = {kind: turn(served, kind, request, options) for kind, served in order}
                rounds.append([found[kind] for kind in KINDS])
        costs = [statistics.median(column) for column in zip(*rounds, strict=True)]
        ratios = [statistics.median(each[at] / each[0] for each in rounds) for at in (1, 2)]
        met = met and ratios[0] <= UNWATCHED and ratios[1] <= WATCHED
        print(f"{name:<20} {''.join(f'{cost:>12.1f}' for cost in costs)} {ratios[0]:>12.3f} {ratios[1]:>12.3f}", flush=True)
    print(f"goals {UNWATCHED} and {WATCHED}: {'reached' if met else 'NOT reached'}")
    return met


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description="Measure the cost of the emulator's page.")
    parser.add_argument("--rate", type=float, default=1000.0, help="requests per second")
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds per turn")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--serve", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        tell_time()
        asyncio.run(serve_emulator(options.serve))
    else:
        sys.exit(not main(options))
