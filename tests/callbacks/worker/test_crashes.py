"""Processes that die: suspects run alone, only what died alone is buried, and a stop is no crash.

A process is an ``SqliteInbox`` of its own on the file; one that dies leaves its claims behind.
"""

import sqlite3
import threading
from contextlib import asynccontextmanager, closing

import anyio
import pytest

from helpers.receiving import results_for
from helpers.waiting import until
from helpers.workers import moment, router_of, text
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.observers import DeadLettered, Handled, Observers, SuspectedOfCrash
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.worker import Worker

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


async def test_suspects_wait_until_nothing_runs_and_run_one_by_one(inbox, path, clock, caplog):
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
            await until(lambda: inbox._store._read("SELECT 1 FROM conversation WHERE suspect IS NOT NULL AND fence > 0"))
            await accept(inbox, "e")
            gates["e"] = anyio.Event()
            gates["c"].set()
            await moment()
            assert now == {"d"}  # neither the suspects nor e have begun
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
    assert "its process ended while it was handled (1 times by now)" in caplog.text


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
    assert letter.error == ("its process ended 4 times while it was handled, the last 3 times with nothing else beside it")
    assert [(fact.error, fact.crashes) for fact in results if isinstance(fact, DeadLettered)] == [(letter.error, 4)]
    assert sum(isinstance(fact, Handled) for fact in results) == 2


async def test_deaths_before_a_suspect_has_begun_bury_nothing(inbox, path, clock):
    log = []
    async with inbox:
        await accept(inbox, "a")
        await dies(path, clock, 1)
        for _ in range(9):
            assert await dies(path, clock, 1) == 1
        facts = []
        async with running(inbox, log.append, clock, observers=Observers([facts.append], receiver="eu")):
            await until(lambda: log)
        assert await inbox.dead_letters() == []
    (suspected,) = [fact for fact in facts if isinstance(fact, SuspectedOfCrash)]
    (handled,) = [fact for fact in facts if isinstance(fact, Handled)]
    assert suspected == SuspectedOfCrash(receiver="eu", key=handled.key, crashes=1, alone=True, app_id="app")


async def test_an_ordinary_failure_of_a_suspect_counts_as_one_and_clears_it(inbox, path, clock, rows):
    attempts = []

    async def handler(_event, handling):
        attempts.append(handling.attempt)
        if len(attempts) == 1:
            raise ValueError

    async with inbox:
        await accept(inbox, "a")
        await dies(path, clock, 1)
        await dies(path, clock, 1, begun=True)
        async with running(inbox, handler, clock, backoff=Backoff(attempts=2, random=lambda: 1.0)):
            await until(lambda: rows("SELECT suspect, crashes FROM conversation") == [(None, 0)])
            await until(lambda: len(attempts) == 2, clock)
    assert attempts == [1, 2]


async def test_a_worker_that_is_being_stopped_makes_no_suspects(inbox, clock, rows):
    begun, gate = [], anyio.Event()

    async def handler(event):
        begun.append(event.to)
        await gate.wait()

    async with inbox:
        await accept(inbox, "a", "b")
        async with running(inbox, handler, clock) as worker:
            await until(lambda: len(begun) == 2)
            assert all(boot for (boot,) in rows("SELECT boot FROM conversation"))
            worker.stop()
            await until(lambda: rows("SELECT boot FROM conversation") == [("",), ("",)])  # and now it may be killed
            gate.set()


async def test_a_suspect_that_does_not_end_holds_up_the_others_for_its_time_out_only(inbox, path, clock, rows):
    begun, gate = [], threading.Event()

    def handler(event):
        begun.append(event.to)
        if event.to == "a":
            gate.wait(10)

    async with inbox:
        await accept(inbox, "a")
        await dies(path, clock, 1)
        async with running(inbox, handler, clock, timeout=20.0):
            await until(lambda: begun)
            await accept(inbox, "b")
            await moment()
            assert begun == ["a"]
            assert rows("SELECT boot <> '' FROM conversation WHERE suspect IS NOT NULL") == [(1,)]
            await clock.advance(20.1)
            await until(lambda: begun == ["a", "b"])
            # it is not alone any more: if the process dies now, it may be for the other
            assert rows("SELECT boot FROM conversation WHERE suspect IS NOT NULL") == [("",)]
            gate.set()


async def test_with_two_workers_one_takes_the_suspects_and_the_other_goes_on(inbox, path, clock):
    log, gates = [], {group: anyio.Event() for group in "abcd"}

    def named(name):
        async def handler(event):
            log.append((name, event.to))
            await gates[event.to].wait()

        return handler

    other = SqliteInbox(path, clock=clock, lease=LEASE, poll=0.01)
    async with inbox:
        await accept(inbox, "a", "b")
        await dies(path, clock, 2)
        async with running(inbox, named("first"), clock, timeout=1000.0), running(other, named("second"), clock):
            await until(lambda: log)
            ((name, _),) = log
            await accept(inbox, "c", "d")
            await until(lambda: len(log) == 3)
            await moment()
            assert {(which != name, group in "cd") for which, group in log[1:]} == {(True, True)}
            for gate in gates.values():
                gate.set()
            await until(lambda: len(log) == 4)
