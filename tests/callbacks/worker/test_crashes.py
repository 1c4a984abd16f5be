"""Deaths: what had begun is retried alone, only what died alone is buried, and a stop is no death.

A process is an ``SqliteInbox`` of its own on the file; one that dies leaves its claims behind.
"""

import asyncio
import json
import sqlite3
import sys
import threading
from contextlib import asynccontextmanager, closing

import anyio
import pytest

from helpers.receiving import results_for
from helpers.waiting import until
from helpers.workers import moment, router_of, text
from rbim import Credentials
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.observers import DeadLettered, Handled, Observers, RetriedAlone
from rbim.callbacks.receiver.receiver import Receiver
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.worker import CRASHED, Worker

LEASE = 30.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "inbox.db"


@pytest.fixture
def inbox(path, clock):
    return SqliteInbox(path, clock=clock, lease=LEASE, poll=0.01)


@pytest.fixture
def rows(path):
    def execute(statement):
        with closing(sqlite3.connect(path)) as plain:
            return plain.execute(statement).fetchall()

    return execute


async def accept(inbox, *groups):
    for group in groups:
        assert await inbox.accept(text(f"first of {group}", group))


async def dies(path, clock, limit, *, begun=False):
    """Let a process claim so many events and die; return how often the process of the first one had died before."""
    process = SqliteInbox(path, clock=clock, lease=LEASE)
    async with process.backlog() as backlog:
        claims = await backlog.claim(limit)
        if begun:
            await backlog.begin(claims[0])
    clock.elapsed += LEASE + 1
    return claims[0].crashes


@asynccontextmanager
async def running(inbox, handler, clock, **options):
    worker = Worker(inbox, router_of(handler), clock=clock, **options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        yield worker
        worker.stop()


async def test_what_is_retried_alone_waits_until_nothing_runs_and_runs_one_by_one(inbox, path, clock, rows, caplog):
    log, now, gates = [], set(), {group: anyio.Event() for group in "abcd"}

    async def handler(event):
        now.add(event.to)
        log.append((event.to, sorted(now)))
        await gates[event.to].wait()
        now.discard(event.to)

    async with inbox:
        await accept(inbox, "a", "b")
        await dies(path, clock, 2)
        clock.elapsed -= LEASE + 1  # the leases of the dead still hold
        await accept(inbox, "c")
        async with running(inbox, handler, clock, timeout=1000.0):
            await until(lambda: log)
            await accept(inbox, "d")
            await until(lambda: now == {"c", "d"})
            clock.elapsed += LEASE + 1
            await until(lambda: rows("SELECT max(fence) FROM conversation") == [(5,)])  # one is claimed, and waits
            await accept(inbox, "e")
            gates["e"] = anyio.Event()
            gates["c"].set()
            await moment()
            assert now == {"d"}  # neither a nor b nor e has begun
            gates["d"].set()
            await until(lambda: len(now) == 1 and "d" not in now)
            (first,) = now
            await moment()
            assert now == {first}
            gates[first].set()
            await until(lambda: now and first not in now)
            (second,) = now
            await moment()
            assert {first, second} == {"a", "b"}
            gates[second].set()
            await until(lambda: now == {"e"})
            gates["e"].set()
            await until(lambda: not now)
    assert [beside for group, beside in log if group in "abe"] == [[first], [second], ["e"]]
    assert "its process or its worker ended while it was handled (1 times by now)" in caplog.text


async def test_only_what_died_alone_is_buried_and_the_next_one_goes_on(inbox, path, clock):
    log, results = [], []

    async def handler(event):
        log.append(event.body)

    async with inbox:
        await accept(inbox, "a")
        await inbox.accept(text("second of a", "a"))
        crashes = [await dies(path, clock, 1)]
        crashes += [await dies(path, clock, 1, begun=True) for _ in range(3)]
        assert crashes == [0, 1, 2, 3]
        await accept(inbox, "b")
        async with running(inbox, handler, clock, observers=Observers([results_for(results.append)])):
            await until(lambda: len(results) == 3)
        (letter,) = await inbox.dead_letters()
    assert sorted(log) == ["first of b", "second of a"]
    assert letter.error == CRASHED % (4, 3)
    assert [(fact.error, fact.crashes) for fact in results if isinstance(fact, DeadLettered)] == [(letter.error, 4)]
    assert sum(isinstance(fact, Handled) for fact in results) == 2


async def test_the_last_time_before_it_is_buried_it_begins_like_before(inbox, path, clock):
    facts = []

    async def handler(_event):
        assert [fact.crashes for fact in facts if isinstance(fact, RetriedAlone)] == [3]

    async with inbox:
        await accept(inbox, "a")
        await dies(path, clock, 1)
        for _ in range(2):
            await dies(path, clock, 1, begun=True)
        async with running(inbox, handler, clock, observers=Observers([facts.append])):
            await until(lambda: any(isinstance(fact, Handled) for fact in facts))


async def test_of_a_worker_that_is_being_stopped_nothing_is_retried_alone(inbox, clock, rows):
    begun, gate = [], anyio.Event()

    async def handler(event):
        begun.append(event.to)
        await gate.wait()

    async with inbox:
        await accept(inbox, "a", "b")
        async with running(inbox, handler, clock) as worker:
            await until(lambda: len(begun) == 2)
            assert rows("SELECT begun FROM conversation") == [(1,), (1,)]
            worker.stop()
            await until(lambda: rows("SELECT begun FROM conversation") == [(0,), (0,)])  # and now it may be killed
            gate.set()


async def test_what_hangs_alone_holds_up_the_others_for_its_time_out_only(inbox, path, clock, rows):
    begun, gate = [], threading.Event()

    def handler(event):
        begun.append(event.to)
        if len(begun) == 1:
            gate.wait(10)

    async with inbox:
        await accept(inbox, "a", "b", "c")
        await dies(path, clock, 3)
        async with running(inbox, handler, clock, timeout=20.0):
            await until(lambda: begun)
            (hanging,) = begun
            await moment()
            assert begun == [hanging]
            await clock.advance(20.1)
            # the others wait no second time for what hangs, and nothing counts without need
            await until(lambda: sorted(begun) == ["a", "b", "c"])
            await until(lambda: len(rows("SELECT * FROM conversation")) == 1)
            ((name, begun_alone),) = rows("SELECT name, begun FROM conversation")
            assert name.endswith(hanging)
            assert begun_alone == 0  # it has run alone for its time-out, and nothing died
            gate.set()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_a_handler_that_cancels_all_tasks_is_buried_alone(path, monkeypatch, kind):
    """It takes the worker and the receiver down each time, with healthy events beside it."""
    monkeypatch.setattr("rbim.callbacks.worker.supervision.RESTARTS", Backoff(attempts=sys.maxsize, first=0.01, most=0.02))
    begun, ended = [], []
    sink = SqliteInbox(path, poll=0.01) if kind == "file" else MemorySink()
    receiver = Receiver(credentials=Credentials(app_id="app", app_token="t"), sink=sink)

    @receiver.fallback
    async def handler(event):
        begun.append(event.body)
        if event.body == "cancels":
            await anyio.sleep(0.03)
            for task in asyncio.all_tasks():
                task.cancel()
        await anyio.sleep(0.05)
        ended.append(event.body)

    async def main():
        async with SqliteInbox(path) if kind == "file" else sink as first:
            for said, group in (("well", "a"), ("cancels", "b"), ("behind", "b"), ("well too", "c")):
                await first.accept(text(said, group))
        letters = []
        async with receiver:
            while len(ended) < 3 or not letters:
                try:
                    await asyncio.sleep(0.02)
                    letters = await sink.dead_letters()
                except asyncio.CancelledError:
                    asyncio.current_task().uncancel()
                except RuntimeError:  # the receiver is being started again
                    assert kind == "file"
        return letters

    (letter,) = anyio.run(main, backend="asyncio")
    assert json.loads(letter.body)["body"] == "cancels"
    assert letter.error == CRASHED % (4, 3)
    assert sorted(ended) == ["behind", "well", "well too"]
    assert begun.count("cancels") == 4
    assert begun.count("well") <= 2


@pytest.mark.parametrize("died", [False, True])
async def test_after_a_jump_of_the_clock_nothing_is_handled_beside_itself(inbox, path, clock, died, caplog):
    begun, gate = [], anyio.Event()

    async def handler(event):
        begun.append(event.to)
        await gate.wait()

    async with inbox:
        await accept(inbox, "a")
        if died:
            await dies(path, clock, 1)
        async with running(inbox, handler, clock, timeout=1000.0) as worker:
            await until(lambda: begun == ["a"])
            clock.elapsed += 20 * LEASE  # as after a machine slept: its leases have expired
            await accept(inbox, "b", "c")
            if not died:
                await until(lambda: len(begun) == 3)
            await moment()
            assert sorted(begun) == (["a"] if died else ["a", "b", "c"])
            gate.set()
            await until(lambda: sorted(begun) == ["a", "b", "c"])
            worker.stop()
        assert (await inbox.counts()).done == 3
    assert "lost" not in caplog.text
