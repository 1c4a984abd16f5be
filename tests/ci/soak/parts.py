"""The parts: what runs in the process that is observed. Each ends with it."""

import asyncio
import random
import socket
import sqlite3
import time
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from itertools import count, cycle, repeat
from unittest import mock

import uvicorn
from attrs import field, frozen

from rbim import AsyncClient, Credentials, GroupType, Rate, RbimError
from rbim.bulk import InviteJob, open_job
from rbim.callbacks import Backoff, Receiver, SqliteInbox
from rbim.callbacks.inbox import store
from rbim.emulator import Emulator
from rbim.emulator.faults import (
    CopyFault,
    CutShort,
    Duplicate,
    Fault,
    InvalidJson,
    Latency,
    ResetAfter,
    ResetBefore,
    SlowBody,
    Stale,
    Status,
    Tamper,
    Throttle,
)
from rbim.emulator.server import serve
from rbim.transports.auto import transport_named

from .verdict import LOG, Bound

KEPT = 500  # records of the emulator; `rbim emulator` keeps 100,000
TRANSPORTS = ("auto", "asyncio", "httpx", "httpx2", "aiohttp")
GROUP = 1900  # accounts of a group
SHORT, CHUNK = 120, 5  # rows of a short job, accounts of its requests
RETENTION, MARGIN = 20.0, 10.0  # seconds after which the inbox forgets; it adds an hour otherwise
TIMEOUT = 1.0  # seconds of a handler
CREDENTIALS = Credentials(app_id="soak", app_token="the-token-of-a-soak")
HELD = 2.5  # seconds for which another program locks the inbox, longer than the receiver waits


@frozen
class Part:
    """``run`` takes a probe; ``bounds`` are those of its files."""

    run: object
    bounds: dict[str, Bound] = field(factory=dict)


def _emulator(rate):
    """Return an emulator with all faults of requests, called at this rate."""
    emulator = Emulator(seed=1)
    emulator.requests.limit = emulator.deliveries.limit = KEPT
    emulator.faults.add(
        Fault(effect=Latency(0.01, 0.7)),
        Fault(effect=Latency(20.0), probability=0.003),  # longer than a request waits
        Fault(effect=SlowBody(0.3), probability=0.01),
        Fault(effect=Status(503, 1.0), probability=0.01),
        Fault(effect=Throttle(int(2 * rate), 1.0)),
        *(Fault(effect=effect, probability=0.01) for effect in (ResetBefore(), ResetAfter(), CutShort(), InvalidJson())),
    )
    return emulator


def _client(emulator, server, **options):
    return AsyncClient(base_url=server.url, credentials=emulator.credentials, user_name="admin", **options)


async def _group(client):
    """Return a new group, also during an outage."""
    while True:
        try:
            return (await client.groups.create(name="soak", type=GroupType.VIP)).group_id
        except RbimError:
            await asyncio.sleep(0.2)


@asynccontextmanager
async def _troubled(port, life, *troubles):
    """Meanwhile, begin requests that never end at this port, and make each trouble again and again."""

    async def again(pause, trouble):
        while True:
            await asyncio.sleep(pause)
            await trouble()

    async def attack():
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(random.choice([b"", bytes(range(256)) * 4, b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]))
            await asyncio.sleep(0.05)
            random.choice([writer.close, writer.transport.abort])()

    tasks = [asyncio.create_task(again(0.1, attack)), *(asyncio.create_task(again(life * 0.6, each)) for each in troubles)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _call(probe, client, groups, number):
    """Make the next call of a client, and count how it ends."""
    probe.work()
    try:
        if number % 50 == 0:
            groups.append((await client.groups.create(name="soak", type=GroupType.VIP)).group_id)
        elif number % 50 == 49 and len(groups) > 1:
            await client.groups.delete(group_id=groups.pop(0))
        elif groups and number % 3:
            await client.groups.invite(group_id=groups[-1], members=[f"u{number}"])
        else:
            await client.groups.search(name="nobody's")
    except RbimError as error:
        probe.counts[f"{type(error).__name__} ({error.outcome.name.lower()})"] += 1
    else:
        probe.counts["answers"] += 1


async def calls(probe):
    """Call at a steady rate through each transport in turn; client and server end and begin again with calls in flight."""
    emulator, numbers, draw, in_flight = _emulator(probe.rate), count(), random.Random(1), set()
    probe.in_flight = lambda: len(in_flight)
    async with serve(emulator) as server:  # the libraries of transports are not what grows
        for name in TRANSPORTS:
            async with _client(emulator, server, transport=transport_named(name)) as client:
                await client.warm_up()
                with suppress(RbimError):
                    await client.groups.search(name="nobody's")
    async with probe.running():
        async for name in probe.lives(cycle(TRANSPORTS)):
            groups = []
            async with (
                serve(emulator) as server,
                _troubled(server.port, probe.life, partial(server.refuse, 0.5)),
                _client(emulator, server, transport=transport_named(name), timeout=1.5, deadline=4.0) as client,
            ):
                async for _ in probe.ticks():
                    task = asyncio.create_task(_call(probe, client, groups, next(numbers)))
                    in_flight.add(task)
                    task.add_done_callback(in_flight.discard)
                    if draw.random() < 0.02:
                        asyncio.get_running_loop().call_later(draw.random() * 0.05, task.cancel)
            if in_flight:
                await asyncio.wait(in_flight)
            emulator.state.groups.clear()


async def _short(client, path, end):
    """Run a job, end it in the middle, and resume it; return its report."""
    group = await _group(client)
    rows = [(group, f"u{number}") for number in range(SHORT)]
    async with InviteJob(client, journal=path, chunk=CHUNK, rates=[Rate(20)]).run(rows) as progress:
        while not progress.began:
            await asyncio.sleep(0.05)
        await asyncio.sleep(1.0)
        end(progress)
    await open_job(client, path, rates=[Rate(40)]).resume()
    report = await open_job(client, path).report()
    for each in path.parent.glob(f"{path.name}*"):
        each.unlink()
    return report


async def jobs(probe):
    """Run a long job, and beside it short ones that are stopped or interrupted, and resumed, each with its own journal."""
    emulator = _emulator(probe.rate + 60)
    journal = probe.folder / "long.journal"
    probe.files |= {"journal": journal, "wal": journal.with_name("long.journal-wal")}
    async with (
        serve(emulator, watch=lambda _scope, _seconds: probe.work()) as server,
        _troubled(server.port, probe.life, partial(server.refuse, 0.5)),
        _client(emulator, server, timeout=5.0) as client,
        probe.running(),
    ):
        rows = int(probe.rate * (probe.seconds + 30) * 1.2)
        groups = [await _group(client) for _ in range(rows // GROUP + 1)]
        lines = ((groups[number % len(groups)], f"u{number}") for number in range(rows))
        job = InviteJob(client, journal=journal, chunk=1, rates=[Rate(probe.rate)], concurrency=30, max_failures=None)
        async with job.run(lines) as progress:
            async for number in probe.lives(count()):
                path = probe.folder / f"short-{number}.journal"
                report = await _short(client, path, type(progress).stop if number % 2 else type(progress).interrupt)
                probe.counts["rows done"] += report.accounts.done
                for each in emulator.state.groups.keys() - groups:
                    del emulator.state.groups[each]
                for each in groups:  # what the emulator remembers is not what grows
                    members = emulator.state.groups[each].members
                    for account in members.keys() - {"admin"}:
                        del members[account]
            progress.stop()


def _receiver(probe, inbox):
    """Return a receiver whose handlers fail, hang and block, as the number of the message says."""
    backoff = Backoff(attempts=3, first=0.1, most=0.3, crashes=50)
    receiver = Receiver(credentials=CREDENTIALS, sink=inbox, timeout=TIMEOUT, backoff=backoff, drain=2.0)

    @receiver.fallback
    async def handle(event, handling):
        probe.counts["handlers called"] += 1
        number = int(event.body)
        if number % 50 == 0 or (number % 50 == 1 and handling.attempt == 1):
            raise ValueError(f"cannot handle {number}")
        if number % 300 == 2:
            await asyncio.sleep(3 * TIMEOUT)
        elif number % 50 == 3:
            time.sleep(0.06)
        else:
            await asyncio.sleep(random.random() * 0.005)

    return receiver


def _lock(file):
    """Hold the inbox for longer than the receiver waits."""
    with closing(sqlite3.connect(file, isolation_level=None, timeout=5)) as held, suppress(sqlite3.OperationalError):  # busy
        held.execute("BEGIN IMMEDIATE")
        time.sleep(HELD)
        held.execute("ROLLBACK")


async def deliveries(probe):
    """Let the emulator copy messages to a receiver; both servers end and begin again.

    Another program locks the file of the inbox, so that deliveries go into the overflow file. The inbox forgets what was
    handled after half a minute, not after a week.
    """
    file = probe.folder / "inbox.db"
    probe.files |= {"inbox": file, "wal": probe.folder / "inbox.db-wal"}
    probe.files |= {"spool": probe.folder / "inbox.db-spool", "spool's wal": probe.folder / "inbox.db-spool-wal"}
    emulator, numbers = Emulator(credentials=CREDENTIALS, seed=3), count()
    emulator.requests.limit = emulator.deliveries.limit = KEPT
    emulator.copy_faults.add(*(CopyFault(effect=effect, probability=0.02) for effect in (Tamper(), Stale(), Duplicate())))
    options = {"log_config": None, "access_log": False, "ws": "none", "lifespan": "off", "timeout_graceful_shutdown": 2}
    with mock.patch.object(store, "MARGIN", MARGIN):
        async with probe.running():
            async for _ in probe.lives(repeat(None)):
                inbox = SqliteInbox(file, retention=RETENTION, dead_retention=RETENTION, lease=4.0)
                receiver = _receiver(probe, inbox)
                with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
                    port = listener.getsockname()[1]
                    emulator.copy_to(f"http://127.0.0.1:{port}/")
                    server = uvicorn.Server(uvicorn.Config(receiver.asgi, **options))
                    async with receiver, asyncio.TaskGroup() as serving:
                        serving.create_task(server._serve([listener]))  # not its `serve`, which would take the signals
                        async with serve(emulator), _troubled(port, probe.life, partial(asyncio.to_thread, _lock, file)):
                            async for _ in probe.ticks():
                                probe.work()
                                number = next(numbers)
                                emulator.say("1001", f"2{number % 20}", str(number))
                        server.should_exit = True


PARTS = {
    "client": Part(calls),
    "job": Part(
        jobs, {"journal": Bound("KiB", 256, per_thousand=600), "wal": LOG}
    ),  # 0.6 KiB of a request, with its account
    "receiver": Part(
        deliveries,
        {"inbox": Bound("KiB", 512, per_thousand=20), "wal": LOG, "spool": Bound("KiB", 512), "spool's wal": LOG},
    ),
}
