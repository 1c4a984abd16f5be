"""Processes that die: suspects run alone, only what died alone is buried, and a stop is no crash.

A process is an ``SqliteInbox`` of its own on the file; one that dies leaves its claims behind.
"""

import sqlite3
import threading
from contextlib import AsyncExitStack, asynccontextmanager, closing

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


async def test_the_last_time_before_it_is_buried_a_suspect_is_begun_like_before(inbox, path, clock):
    facts = []

    async def handler(_event):
        assert [fact.crashes for fact in facts if isinstance(fact, SuspectedOfCrash)] == [3]

    async with inbox:
        await accept(inbox, "a")
        await dies(path, clock, 1)
        for _ in range(2):
            await dies(path, clock, 1, begun=True)
        async with running(inbox, handler, clock, observers=Observers([facts.append])):
            await until(lambda: any(isinstance(fact, Handled) for fact in facts))


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
            await until(lambda: rows("SELECT suspect, boot FROM conversation") == [(None, "")])
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


async def test_a_suspect_that_hangs_holds_up_the_other_suspects_for_its_time_out_only(inbox, path, clock, rows):
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
            # the others wait no second time for what hangs, and no one is suspected without need
            await until(lambda: sorted(begun) == ["a", "b", "c"])
            await until(lambda: len(rows("SELECT * FROM conversation")) == 1)
            ((name, *suspected),) = rows("SELECT name, suspect, crashes FROM conversation")
            assert name.endswith(hanging)
            assert suspected == [None, 0]  # it has run alone for its time-out, and nothing died
            gate.set()


async def test_two_suspects_wait_for_a_slow_neighbour_once(inbox, path, clock, rows):
    """It began before they were known, and does not end in time."""
    begun, gate = [], threading.Event()

    def handler(event):
        begun.append(event.to)
        if event.to == "slow":
            gate.wait(10)

    facts = []
    async with inbox:
        await accept(inbox, "a", "b")
        await dies(path, clock, 2)
        clock.elapsed -= LEASE + 1
        await accept(inbox, "slow")
        async with running(inbox, handler, clock, timeout=20.0, observers=Observers([facts.append])):
            await until(lambda: begun == ["slow"])
            clock.elapsed += LEASE + 1
            await until(lambda: rows("SELECT 1 FROM conversation WHERE suspect IS NOT NULL AND fence > 0"))
            await moment()
            assert begun == ["slow"]
            await clock.advance(20.1)
            await until(lambda: sorted(begun) == ["a", "b", "slow"])
            gate.set()
    assert [fact.alone for fact in facts if isinstance(fact, SuspectedOfCrash)] == [False, False]


async def test_what_is_not_claimed_has_no_attempt_more(inbox, path, clock, rows):
    """A lease that this process let expire: its conversation waits while suspects go first."""
    async with inbox:
        await accept(inbox, "x")
        async with inbox.backlog() as backlog:
            await backlog.claim(1)
        await accept(inbox, "a")
        await dies(path, clock, 1)
        async with inbox.backlog() as backlog:
            for _ in range(5):
                (suspect,) = await backlog.claim(4)
                assert suspect.crashes == 1
                await backlog.release(suspect)
            assert rows("SELECT attempts FROM event") == [(0,), (0,)]
            (suspect,) = await backlog.claim(4)
            await backlog.done((suspect,), more=0)
            (claim,) = await backlog.claim(4)
            assert claim.attempt == 2


@pytest.mark.parametrize("suspected", [False, True])
async def test_after_a_jump_of_the_clock_nothing_is_handled_beside_itself(inbox, path, clock, suspected, caplog):
    begun, gate = [], anyio.Event()

    async def handler(event):
        begun.append(event.to)
        await gate.wait()

    async with inbox:
        await accept(inbox, "a")
        if suspected:
            await dies(path, clock, 1)
        async with running(inbox, handler, clock, timeout=1000.0) as worker:
            await until(lambda: begun == ["a"])
            clock.elapsed += 20 * LEASE  # as after a machine slept: its leases have expired
            await accept(inbox, "b", "c")
            if not suspected:
                await until(lambda: len(begun) == 3)
            await moment()
            assert sorted(begun) == (["a"] if suspected else ["a", "b", "c"])
            gate.set()
            await until(lambda: sorted(begun) == ["a", "b", "c"])
            worker.stop()
        assert (await inbox.counts()).done == 3
    assert "lost" not in caplog.text


async def test_a_suspect_of_which_the_process_is_stopped_and_then_killed_did_not_crash(inbox, path, clock, rows):
    begun, gate = [], anyio.Event()

    async def handler(event):
        begun.append(event.to)
        await gate.wait()

    async with inbox:
        await accept(inbox, "a")
        for _ in range(5):
            crashes = [await dies(path, clock, 1)]
            async with running(inbox, handler, clock, timeout=1000.0) as worker:
                await until(lambda: begun)
                worker.stop()
                await until(lambda: rows("SELECT boot FROM conversation") == [("",)])
                with closing(sqlite3.connect(path)) as file, file:  # the file as the killed process leaves it
                    (left,) = file.execute("SELECT ready, fence, boot, suspect, crashes FROM conversation").fetchall()
                await clock.advance(10.1)  # its drain
            begun.clear()
            with closing(sqlite3.connect(path)) as file, file:
                file.execute("UPDATE conversation SET ready = ?, fence = ?, boot = ?, suspect = ?, crashes = ?", left)
            clock.elapsed += LEASE + 1
        assert crashes == [1]
        assert rows("SELECT crashes FROM conversation") == [(1,)]


async def test_events_that_kill_their_process_only_together_are_handled(inbox, path, clock):
    log = []
    async with inbox:
        await accept(inbox, "a", "b")
        for _ in range(3):  # both were begun together, and no process lived long enough to run them alone
            await dies(path, clock, 2)
        async with running(inbox, lambda event: log.append(event.to), clock):
            await until(lambda: sorted(log) == ["a", "b"])
        assert await inbox.dead_letters() == []


async def test_of_suspects_in_four_processes_one_is_on_trial_and_the_rest_goes_on(inbox, path, clock):
    suspects, ordinary = {f"s{number}" for number in range(6)}, {f"o{number}" for number in range(40)}
    on_trial, most, done, gate = set(), [], set(), anyio.Event()

    async def handler(event):
        if event.to in suspects:
            on_trial.add(event.to)
            most.append(len(on_trial))
            await gate.wait()
            await moment()
            on_trial.discard(event.to)
        done.add(event.to)

    others = [SqliteInbox(path, clock=clock, lease=LEASE, poll=0.01) for _ in range(3)]
    async with inbox:
        await accept(inbox, *suspects)
        await dies(path, clock, 6)
        await accept(inbox, *ordinary)
        async with AsyncExitStack() as processes:
            for each in (inbox, *others):
                await processes.enter_async_context(running(each, handler, clock, timeout=1000.0))
            await until(lambda: done == ordinary and on_trial)
            gate.set()
            await until(lambda: done == ordinary | suspects)
        assert (await inbox.counts()).done == 46
    assert most == [1] * 6
