"""The durable inbox as tasks, threads and processes use it; a plain connection beside it reads what is in the file."""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from contextlib import asynccontextmanager, closing
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path

import anyio
import pytest
from anyio import create_task_group, fail_after, move_on_after, sleep
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from helpers.deliveries import delivery, unreadable
from helpers.paths import TESTS
from rbim import InvalidRequest
from rbim._support.event_loops import waker
from rbim.callbacks.events.enums import MsgType
from rbim.callbacks.events.types import Event, Message, Notification, Picture, Text
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.emulator.clock import START, EmulatedClock
from rbim.storage import group_commit as commits


@pytest.fixture
def rows(path):
    """Executes a statement over a connection that has nothing to do with the inbox."""

    def execute(statement, *values):
        with closing(sqlite3.connect(path, isolation_level=None)) as plain:
            return plain.execute(statement, values).fetchall()

    return execute


@pytest.fixture
def locked(path):
    """Makes a plain connection that holds the file's write lock until it rolls back."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:

        def lock():
            other.execute("BEGIN IMMEDIATE")
            return partial(other.execute, "ROLLBACK")

        yield lock


async def until(condition):
    with fail_after(10):
        while not condition():
            await sleep(0.001)


async def settle():
    for _ in range(30):
        await checkpoint()


def writing(inbox):
    """Whether a transaction of the inbox is being made."""
    return inbox._group_commit._committing


# --------------------------------------------------------------------------------- entering, leaving


async def test_an_inbox_is_used_inside_its_context(path):
    inbox = SqliteInbox(path)
    assert (inbox.path, inbox.lease, inbox.durable) == (path, 30.0, True)
    for use in (
        lambda: inbox.accept(delivery(1)),
        inbox.counts,
        partial(inbox.conversations, 100),
        inbox.dead_letters,
        inbox.quarantined,
        inbox.replay,
    ):
        with pytest.raises(RuntimeError, match="inside `async with inbox`"):
            await use()
    assert not path.exists()
    shown = repr(inbox)
    for number in range(2):
        async with inbox as entered:
            assert entered is inbox
            assert repr(inbox) == shown
            with pytest.raises(RuntimeError, match="entered already"):
                await inbox.__aenter__()
            assert await inbox.accept(delivery(number))
            assert (await inbox.counts()).waiting == number + 1
    await inbox.__aexit__(None, None, None)


async def test_a_file_that_cannot_be_opened_leaves_the_inbox_as_it_was(path):
    path.write_bytes(b"no database " * 100)
    inbox = SqliteInbox(path)
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="not a database"):
            async with inbox:
                pass
    path.unlink()
    async with inbox:
        assert (await inbox.counts()).waiting == 0


async def test_what_the_block_raises_comes_out_as_it_is(path):
    async def enter_both():
        async with SqliteInbox(path) as inbox, inbox.backlog():
            await inbox.accept(delivery(1))
            raise error

    error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError) as caught:
        await enter_both()
    assert caught.value is error


async def test_a_cancelled_block_closes_the_file(path):
    with move_on_after(0.01) as scope:
        async with SqliteInbox(path) as inbox:
            await inbox.accept(delivery(1))
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert [each.name for each in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"path": ""}, "path"),
        ({"path": 7}, "path"),
        ({"retention": 0}, "retention"),
        ({"lease": -1.0}, "lease"),
        ({"lease": True}, "lease"),
        ({"poll": float("nan")}, "poll"),
        ({"poll": "1"}, "poll"),
    ],
)
def test_options_are_checked(options, field):
    with pytest.raises(InvalidRequest) as caught:
        SqliteInbox(**({"path": "x"} | options))
    assert caught.value.field == field


def test_a_path_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert SqliteInbox("inbox.db").path == tmp_path / "inbox.db"
    inbox = SqliteInbox(":memory:")
    assert inbox.path == tmp_path / ":memory:"
    with pytest.raises(AttributeError):
        inbox.path = Path("other")


# --------------------------------------------------------------------------------------- accepting


async def test_what_was_accepted_is_in_the_file(path, rows):
    async with SqliteInbox(path) as inbox:
        assert await inbox.accept(delivery(1))
        assert rows("SELECT key, state FROM event") == [(delivery(1).key, 0)]
        assert not await inbox.accept(delivery(1))
        assert await inbox.accept(unreadable())
        assert rows("SELECT state FROM event ORDER BY number") == [(0,), (3,)]


async def test_tasks_share_transactions(path, rows):
    statements = []
    async with SqliteInbox(path) as inbox:
        inbox._store._database._connection.set_trace_callback(statements.append)
        async with create_task_group() as tasks:
            for number in range(100):
                tasks.start_soon(inbox.accept, delivery(number, str(number)))
        inbox._store._database._connection.set_trace_callback(None)
    assert statements.count("COMMIT") <= 5
    assert {key for (key,) in rows("SELECT key FROM event")} == {delivery(number, str(number)).key for number in range(100)}


async def test_copies_that_arrive_together_are_one_event(path, rows):
    new = []
    async with SqliteInbox(path) as inbox, create_task_group() as tasks:

        async def accept():
            new.append(await inbox.accept(delivery(1)))

        for _ in range(20):
            tasks.start_soon(accept)
    assert sorted(new) == [False] * 19 + [True]
    assert rows("SELECT count(*) FROM event") == [(1,)]


async def test_a_locked_file_makes_accepting_slower_and_an_accept_cancelled_meanwhile_leaves_no_trace(path, locked, rows):
    async with SqliteInbox(path) as inbox:
        unlock = locked()
        async with create_task_group() as tasks:
            tasks.start_soon(inbox.accept, delivery(1))
            await until(lambda: writing(inbox))
            tasks.start_soon(inbox.accept, delivery(2))
            async with create_task_group() as others:
                others.start_soon(inbox.accept, delivery(3))
                await until(lambda: len(inbox._group_commit._pending) == 2)
                others.cancel_scope.cancel()
            assert rows("SELECT * FROM event") == []
            unlock()
        assert rows("SELECT key FROM event ORDER BY number") == [(delivery(1).key,), (delivery(2).key,)]


async def test_resends_among_new_deliveries_of_a_transaction_change_neither_results_nor_order(path, locked, rows):
    results = {}

    async def accept(number):
        results.setdefault(number, []).append(await inbox.accept(delivery(number)))

    async with SqliteInbox(path) as inbox:
        await accept(3)
        unlock = locked()
        async with create_task_group() as tasks:
            tasks.start_soon(accept, 0)
            await until(lambda: writing(inbox))
            for number in (1, 2, 3, 2, 4):
                tasks.start_soon(accept, number)
                await settle()
            unlock()
    counts = {number: sorted(found) for number, found in results.items()}  # tasks may go on in any order
    assert counts == {0: [True], 1: [True], 2: [False, True], 3: [False, True], 4: [True]}
    assert [key for (key,) in rows("SELECT key FROM event ORDER BY number")] == [delivery(n).key for n in (3, 0, 1, 2, 4)]
    assert rows("SELECT count(*) FROM conversation") == [(len({delivery(n).conversation for n in range(5)}),)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.usefixtures("anyio_backend")
async def test_asyncios_own_cancellation_of_an_accept_harms_nobody(path, locked, rows):
    async with SqliteInbox(path) as inbox:
        unlock = locked()
        first = asyncio.create_task(inbox.accept(delivery(1)))
        await until(lambda: writing(inbox))
        second = asyncio.create_task(inbox.accept(delivery(2)))
        await settle()
        for task in (first, second):
            task.cancel()
        assert await asyncio.gather(first, second, return_exceptions=True) == [IsCancelled()] * 2
        unlock()
        assert await inbox.accept(delivery(3))
    assert rows("SELECT key FROM event ORDER BY number") == [(delivery(1).key,), (delivery(3).key,)]


class IsCancelled:
    def __eq__(self, other):
        return isinstance(other, asyncio.CancelledError)

    __hash__ = None


async def test_an_accept_that_is_cancelled_in_its_transaction_harms_nobody(path, locked, rows):
    async with SqliteInbox(path) as inbox:
        unlock = locked()
        async with create_task_group() as tasks:
            tasks.start_soon(inbox.accept, delivery(1))
            await until(lambda: writing(inbox))
            tasks.cancel_scope.cancel()
        unlock()
        assert not await inbox.accept(delivery(1))  # it was committed after all, and is known
    assert rows("SELECT count(*) FROM event") == [(1,)]


async def test_a_failing_disk_fails_every_accept_of_the_transaction_and_not_the_process(path, rows):
    errors = []
    async with SqliteInbox(path) as inbox:
        connection = inbox._store._database._connection
        connection.execute("PRAGMA query_only = ON")

        async def accept(number):
            with pytest.raises(sqlite3.OperationalError, match="readonly") as caught:
                await inbox.accept(delivery(number))
            errors.append(caught.value)

        async with create_task_group() as tasks:
            for number in range(5):
                tasks.start_soon(accept, number)
        assert len({id(error) for error in errors}) == 5
        connection.execute("PRAGMA query_only = OFF")
        assert await inbox.accept(delivery(1))
    assert rows("SELECT count(*) FROM event") == [(1,)]


async def test_one_bad_delivery_fails_alone(path):
    async with SqliteInbox(path) as inbox, create_task_group() as tasks:
        tasks.start_soon(inbox.accept, delivery(1))

        async def bad():
            with pytest.raises(UnicodeEncodeError):
                await inbox.accept(delivery(2, app_id="\udcff"))

        tasks.start_soon(bad)
        tasks.start_soon(inbox.accept, delivery(3))
    async with inbox:
        assert (await inbox.counts()).waiting == 2


async def test_leaving_completes_what_is_pending(path, locked, rows):
    inbox = SqliteInbox(path)
    accepted = []

    async def accept(number):
        accepted.append(await inbox.accept(delivery(number)))

    async with create_task_group() as tasks:
        async with inbox:
            unlock = locked()
            tasks.start_soon(accept, 0)
            await until(lambda: writing(inbox))
            for number in range(1, 10):
                tasks.start_soon(accept, number)
            await settle()
            used = inbox._group_commit
            tasks.start_soon(run_sync, unlock)
        with pytest.raises(RuntimeError, match="the file is closed"):
            await used.run(lambda: None)
    assert accepted == [True] * 10
    assert rows("SELECT count(*) FROM event") == [(10,)]


async def test_leaving_gives_up_on_a_file_that_stays_locked(path, locked, rows, monkeypatch):
    monkeypatch.setattr(commits, "LAST_WAIT", 0.05)
    inbox = SqliteInbox(path)

    async def accept(number):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            await inbox.accept(delivery(number))

    async with create_task_group() as tasks, inbox:
        unlock = locked()
        for number in range(3):
            tasks.start_soon(accept, number)
        await until(lambda: writing(inbox))
    unlock()
    assert rows("SELECT count(*) FROM event") == [(0,)]


async def test_an_inbox_belongs_to_the_event_loop_that_entered_it(path):
    async with SqliteInbox(path) as inbox:

        def elsewhere():
            for use in (partial(inbox.accept, delivery(1)), inbox.counts):
                with pytest.raises(RuntimeError, match="in the event loop that opened it"):
                    anyio.run(use)

        await run_sync(elsewhere)
        assert (await inbox.counts()).waiting == 0


# ------------------------------------------------------------------------------------- the backlog


@asynccontextmanager
async def both(path, **options):
    """An inbox and a backlog of it in the same event loop."""
    async with SqliteInbox(path, **options) as inbox, inbox.backlog() as backlog:
        yield inbox, backlog


async def test_a_backlog_gives_out_what_was_accepted(path, rows):
    clock = EmulatedClock()
    async with both(path, clock=clock) as (inbox, backlog):
        for number, team in enumerate("aab"):
            await inbox.accept(delivery(number, team))
        assert await backlog.claim(0) == ()
        a, beside, b = await backlog.claim(5)
        assert (a.number, beside.number, b.number) == (1, 2, 3)
        (following,) = await backlog.done([a], more=1)
        assert following.number == 2
        await backlog.retry(following, error="later", pause=5.0)
        await backlog.release(b)
        (b,) = await backlog.claim(5)
        assert b.attempt == 1
        assert not await backlog.dead_letter(b, error="boom", more=0)
        with pytest.raises(LeaseLost):
            await backlog.done([b], more=0)
        await backlog.release(b)
        clock.elapsed += 5.0
        (again,) = await backlog.claim(5)
        assert (again.number, again.attempt) == (2, 2)
        clock.elapsed += 29.0
        await backlog.renew([])
        await backlog.renew([again])
        clock.elapsed += 29.0
        assert await backlog.claim(5) == []
        assert backlog._held == {again.fence}
        assert not await backlog.done([again], more=1)
        assert backlog._held == set()
    assert rows("SELECT state, error FROM event ORDER BY number") == [(1, None), (1, None), (2, "boom")]


async def test_a_backlog_works_without_its_inbox_being_entered_and_outlives_it(path):
    inbox = SqliteInbox(path)
    async with inbox.backlog() as backlog:
        assert await backlog.claim(1) == []
        async with inbox:
            await inbox.accept(delivery(1))
        (claim,) = await backlog.claim(1)
        await backlog.done([claim], more=0)
    assert [each.name for each in path.parent.iterdir()] == [path.name]


async def test_a_claim_that_nobody_waits_for_any_more_is_given_back(path, locked, rows):
    async with both(path) as (inbox, backlog):
        for team in "ab":
            await inbox.accept(delivery(team, team))
        unlock = locked()
        async with create_task_group() as tasks:
            tasks.start_soon(backlog.claim, 1)
            await until(lambda: backlog._group_commit._committing)
            tasks.cancel_scope.cancel()
        unlock()
        assert [claim.attempt for claim in await backlog.claim(5)][1:] == []
        await until(lambda: rows("SELECT count(*) FROM conversation WHERE fence = 0") == [(1,)])
        assert [claim.attempt for claim in await backlog.claim(5)] == [1]


@pytest.mark.parametrize("more", [0, 1])
async def test_the_next_event_that_nobody_waits_for_any_more_is_given_back(path, locked, rows, more):
    async with both(path) as (inbox, backlog):
        for number in range(1 + more):
            await inbox.accept(delivery(number))
        (claim,) = await backlog.claim(1)
        unlock = locked()
        async with create_task_group() as tasks:
            tasks.start_soon(partial(backlog.done, [claim], more=1))
            await until(lambda: backlog._group_commit._committing)
            tasks.cancel_scope.cancel()
        unlock()
        await until(
            lambda: rows("SELECT sum(state = 1), sum(fence) FROM event LEFT JOIN conversation") == [(1, 0 if more else None)]
        )
        assert [each.number for each in await backlog.claim(1)] == [2][:more]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.usefixtures("anyio_backend")
async def test_a_claim_that_is_cancelled_just_when_it_was_made_is_given_back(path, rows):
    async with both(path) as (inbox, backlog):
        await inbox.accept(delivery(1))
        plain = backlog._group_commit._settle

        def settle_and_cancel(*settled):
            plain(*settled)
            claiming.cancel()

        backlog._group_commit._settle = settle_and_cancel
        claiming = asyncio.create_task(backlog.claim(1))
        with pytest.raises(asyncio.CancelledError):
            await claiming
        backlog._group_commit._settle = plain
        await until(lambda: rows("SELECT attempts, fence FROM event LEFT JOIN conversation") == [(0, 0)])


# ----------------------------------------------------------------------------------------- waiting


async def test_waiting_ends_when_something_is_accepted(path):
    async with both(path, poll=inf) as (inbox, backlog):
        with fail_after(10):
            async with create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(backlog.wait)
                await settle()
                await inbox.accept(delivery(1))
        with fail_after(10):
            await backlog.wait()


async def test_a_wake_up_between_claiming_and_waiting_is_not_lost(path):
    async with both(path, poll=inf) as (inbox, backlog):
        assert await backlog.claim(1) == []
        await inbox.accept(delivery(1))
        await settle()
        with fail_after(10):
            await backlog.wait()
        assert len(await backlog.claim(1)) == 1


async def test_a_wake_up_while_looking_is_not_lost(path):
    async with both(path, poll=inf) as (inbox, backlog), create_task_group() as tasks:
        plain, looked, go = backlog._store.availability, threading.Event(), threading.Event()

        def look(held):
            seen = plain(held)
            looked.set()
            go.wait(10)
            return seen

        backlog._store.availability = look
        with fail_after(10):
            async with create_task_group() as waiting:
                waiting.start_soon(backlog.wait)
                await until(looked.is_set)
                await inbox.accept(delivery(1))
                await settle()
                backlog._store.availability = plain
                tasks.start_soon(run_sync, go.set)


async def test_waiting_ends_when_a_conversation_has_rested(path):
    clock = EmulatedClock()
    async with both(path, clock=clock, poll=inf) as (inbox, backlog):
        await inbox.accept(delivery(1))
        (claim,) = await backlog.claim(1)
        ended, looked, look = [], [], backlog._store.availability
        backlog._store.availability = lambda held: (look(held), looked.append(held))[0]

        async def wait():
            await backlog.wait()
            ended.append(clock.elapsed)

        with fail_after(10):
            async with create_task_group() as tasks:
                tasks.start_soon(wait)
                await until(lambda: looked)
                await settle()
                await backlog.retry(claim, error="", pause=7.0)
                await until(lambda: clock.next_due() == 7.0)
                await clock.advance(6.9)
                assert ended == []
                await clock.advance(0.1)
    assert ended == [7.0]


async def test_waiting_ends_when_a_lease_of_somebody_else_runs_out(path):
    clock = EmulatedClock()
    async with both(path, clock=clock, poll=inf) as (inbox, backlog), SqliteInbox(path, clock=clock).backlog() as other:
        await inbox.accept(delivery(1))
        assert len(await other.claim(1)) == 1
        with fail_after(10):
            async with create_task_group() as tasks:
                tasks.start_soon(backlog.wait)
                await until(lambda: clock.next_due() == 30.0)
                await clock.advance(30.0)
        (claim,) = await backlog.claim(1)
        assert (claim.attempt, claim.crashes) == (1, 1)


async def test_nothing_due_makes_no_emulated_time_pass(path):
    """Neither an empty inbox nor a lease of one's own is something to wait for by the clock."""
    clock = EmulatedClock(auto=True)
    async with both(path, clock=clock, poll=0.001) as (inbox, backlog):
        for claims in range(2):
            with move_on_after(0.03):
                await backlog.wait()
            assert clock.next_due() is None
            await inbox.accept(delivery(1))
            assert len(await backlog.claim(1)) == 1 - claims
    assert clock.elapsed == 0.0


async def test_a_lease_that_ran_out_is_noticed_by_polling_and_is_not_for_its_holder(path):
    """Its holder is alive: the clock has jumped, or it could not renew it."""
    clock = EmulatedClock()
    async with both(path, clock=clock, poll=0.001) as (inbox, backlog):
        await inbox.accept(delivery(1))
        (claim,) = await backlog.claim(1)
        clock.elapsed += 30.0
        with move_on_after(0.05) as scope:
            await backlog.wait()
        assert scope.cancelled_caught
        assert await backlog.claim(1) == []
        async with inbox.backlog() as other:
            with fail_after(10):
                await other.wait()
            (again,) = await other.claim(1)
            assert (again.number, again.attempt) == (claim.number, 2)


async def test_what_another_connection_accepts_is_noticed_by_polling(path):
    async with SqliteInbox(path) as other, SqliteInbox(path, poll=0.005).backlog() as backlog:
        with fail_after(10):
            async with create_task_group() as tasks:
                tasks.start_soon(backlog.wait)
                await settle()
                await other.accept(delivery(1))
        assert len(await backlog.claim(1)) == 1


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
async def test_a_worker_in_another_thread_is_woken(path, backend, rows):
    inbox = SqliteInbox(path, poll=inf)
    numbers = []

    async def work():
        async with inbox.backlog() as backlog:
            while len(numbers) < 20:
                for claim in await backlog.claim(1):
                    numbers.append(claim.number)
                    following = await backlog.done([claim], more=1)
                    while following:
                        numbers.append(following[0].number)
                        following = await backlog.done(following, more=1)
                if len(numbers) < 20:
                    await backlog.wait()

    async with inbox:
        with fail_after(20):
            async with create_task_group() as tasks:
                tasks.start_soon(run_sync, partial(anyio.run, work, backend=backend))
                for number in range(20):
                    await inbox.accept(delivery(number))
                    await settle()
        assert numbers == list(range(1, 21))
        assert rows("SELECT count(*) FROM event WHERE state = 1") == [(20,)]


async def test_a_worker_whose_event_loop_is_gone_disturbs_nobody(path):
    gone = []

    async def listen():
        gone.append(partial(waker(), lambda: None))

    for backend in ("asyncio", "trio"):
        await run_sync(partial(anyio.run, listen, backend=backend))
    inbox = SqliteInbox(path)
    async with inbox:
        for each in gone:
            inbox._store.listen(each)
        assert await inbox.accept(delivery(1))


# ------------------------------------------------------------------------- letters, counts, replays


async def test_counts_letters_and_replays(path):
    async with both(path, clock=EmulatedClock()) as (inbox, backlog):
        for number in range(6):
            await inbox.accept(delivery(number, str(number), at=START + timedelta(seconds=number)))
        for number in range(3):
            await inbox.accept(unreadable(str(number)))
        for claim in await backlog.claim(5):
            if claim.number < 4:
                await backlog.dead_letter(claim, error=f"boom {claim.number}", more=0)
            else:
                await backlog.done([claim], more=0)
        counts = await inbox.counts()
        assert (counts.waiting, counts.done, counts.dead, counts.quarantined) == (1, 2, 3, 3)
        assert await inbox.conversations(100) == {"app/team/5"}
        letters = await inbox.dead_letters(limit=2)
        assert [(each.number, each.error) for each in letters] == [(1, "boom 1"), (2, "boom 2")]
        assert [each.number for each in await inbox.dead_letters(after=2)] == [3]
        assert [each.body for each in await inbox.quarantined(2, after=7)] == [b"1", b"2"]
        assert await inbox.replay(START + timedelta(seconds=2), dead_only=True) == 1
        assert await inbox.replay(START + timedelta(seconds=5)) == 0
        assert await inbox.replay() == 4
        assert (await inbox.counts()).waiting == 6
        assert await inbox.replay() == 0


@pytest.mark.parametrize(
    ("kind", "count"),
    [(None, 4), (Event, 4), (Message, 2), (Text, 1), (Picture, 1), (Notification, 0), (MsgType.TEXT, 1), ("NEW", 1)],
)
async def test_a_replay_of_one_kind(path, kind, count):
    async with both(path) as (inbox, backlog):
        for number, msg_type in enumerate(("TEXT", "PICTURE", "NEW", "OTHER")):
            await inbox.accept(delivery(number, str(number), msg_type=msg_type))
        for claim in await backlog.claim(5):
            await backlog.done([claim], more=0)
        assert await inbox.replay(kind=kind) == count


async def test_an_empty_inbox_replays_nothing(path):
    async with SqliteInbox(path) as inbox:
        assert await inbox.replay() == 0


async def test_arguments_are_checked(path):
    async with SqliteInbox(path) as inbox:
        for call, field in [
            (lambda: inbox.replay(datetime(2026, 1, 1)), "since"),  # noqa: DTZ001  # that is the point
            (lambda: inbox.replay("2026-01-01"), "since"),
            (lambda: inbox.replay(kind=7), "kind"),
            (lambda: inbox.replay(kind=int), "kind"),
            (lambda: inbox.dead_letters(0), "limit"),
            (lambda: inbox.quarantined(-1), "limit"),
        ]:
            with pytest.raises(InvalidRequest) as caught:
                await call()
            assert caught.value.field == field


# --------------------------------------------------------------------------------------- processes

WORKER = """
import sys, time, os
sys.path.insert(0, sys.argv[1])
import anyio
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim._support.event_loops import waker
from helpers.deliveries import delivery

me, per_process, teams = int(sys.argv[3]), 150, 6
inbox = SqliteInbox(sys.argv[2], poll=0.005)

async def accept(tasks):
    for number in range(per_process):
        await inbox.accept(delivery(f"{me}-{number}", str(number % teams)))
        await inbox.accept(delivery(f"both-{number}", str(number % teams)))

async def handle(backlog, claim):
    while claim is not None:
        start = time.monotonic_ns()
        await anyio.lowlevel.checkpoint()
        print(claim.conversation, claim.number, claim.fence, claim.attempt, start, time.monotonic_ns(), flush=True)
        claim = next(iter(await backlog.done([claim], more=int(claim.number % 5 > 0))), None)

async def work():
    async with inbox.backlog() as backlog:
        while (await inbox.counts()).done < 3 * per_process:
            async with anyio.create_task_group() as tasks:
                heads = {}
                for claim in await backlog.claim(3):
                    heads.setdefault(claim.conversation, claim)
                for claim in heads.values():
                    tasks.start_soon(handle, backlog, claim)
            with anyio.move_on_after(0.05):
                await backlog.wait()

async def main():
    async with inbox, anyio.create_task_group() as tasks:
        tasks.start_soon(accept, tasks)
        await work()

anyio.run(main, backend=sys.argv[4])
"""


def test_two_processes_that_accept_and_handle_lose_nothing_and_do_nothing_twice(path, rows):
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(TESTS), path, str(me), backend], stdout=subprocess.PIPE, text=True
        )
        for me, backend in enumerate(("asyncio", "trio"))
    ]
    outputs = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0]
    assert all(outputs)
    told = {}
    for line in "".join(outputs).splitlines():
        conversation, *numbers = line.split()
        told.setdefault(conversation, []).append(tuple(map(int, numbers)))
    assert sorted(number for each in told.values() for number, *_ in each) == sorted(
        number for (number,) in rows("SELECT number FROM event")
    )
    assert rows("SELECT count(*), min(state), max(state) FROM event") == [(450, 1, 1)]
    assert rows("SELECT * FROM conversation") == []
    for handled in told.values():
        handled.sort(key=lambda each: each[3])
        assert [number for number, *_ in handled] == sorted(number for number, *_ in handled)
        assert all(attempt == 1 for _, _, attempt, _, _ in handled)
        assert all(before[4] <= after[3] for before, after in pairwise(handled))


DIES = """
import sys, os
sys.path.insert(0, sys.argv[1])
import anyio
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim._support.event_loops import waker
from helpers.deliveries import delivery

async def main():
    inbox = SqliteInbox(sys.argv[2], lease=float(sys.argv[3]))
    async with inbox, inbox.backlog() as backlog:
        await inbox.accept(delivery(1))
        await inbox.accept(delivery(2))
        (claim,) = await backlog.claim(1)
        print(claim.number, flush=True)
        os._exit(9)

anyio.run(main)
"""


async def test_what_a_process_that_died_had_in_hand_comes_again_when_its_lease_is_over(path, rows):
    died = await run_sync(
        partial(subprocess.run, [sys.executable, "-c", DIES, str(TESTS), path, "0.2"], stdout=subprocess.PIPE, check=False)
    )
    assert (died.returncode, died.stdout) == (9, b"1\n")
    assert rows("SELECT state, attempts FROM event ORDER BY number") == [(0, 0), (0, 0)]
    async with SqliteInbox(path).backlog() as backlog:
        with fail_after(10):
            await backlog.wait()
        (claim,) = await backlog.claim(1)
        assert (claim.number, claim.attempt, claim.crashes) == (1, 1, 1)
        assert not await backlog.done([claim], more=1)
        (following,) = await backlog.claim(1)
        assert (following.number, following.attempt, following.crashes) == (2, 1, 0)


PASSES_BY = """
import sqlite3, sys
with sqlite3.connect(sys.argv[1]) as connection:
    connection.execute("SELECT count(*) FROM event").fetchall()
connection.close()  # SQLite tidies up where it is the last that has the file open
"""


async def test_an_inbox_that_is_opened_twice_loses_nothing_to_another_process(path, rows):
    """POSIX drops every lock that a process has on a file when it closes any descriptor of that file."""
    async with SqliteInbox(path) as inbox:
        await inbox.accept(delivery(1))
        async with SqliteInbox(path) as beside:
            await beside.accept(delivery(2))
        await run_sync(partial(subprocess.run, [sys.executable, "-c", PASSES_BY, path], check=True, timeout=30))
        await inbox.accept(delivery(3))
        assert path.with_name(f"{path.name}-wal").exists()
        assert rows("SELECT count(*) FROM event") == [(3,)]
        assert (await inbox.counts()).waiting == 3
