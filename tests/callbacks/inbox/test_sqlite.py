"""The durable inbox as tasks, threads and processes use it; a plain connection beside it reads what is in the file."""

import sqlite3
import threading
from contextlib import asynccontextmanager, closing
from functools import partial
from math import inf

import pytest
from anyio import create_task_group, fail_after, move_on_after, sleep

from helpers.deliveries import delivery
from helpers.waiting import settle, until
from rbim import InvalidRequest
from rbim.callbacks.inbox.sqlite import SqliteInbox


@pytest.fixture
def locked(path):
    """Makes a plain connection that holds the file's write lock until it rolls back."""
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as other:

        def lock():
            other.execute("BEGIN IMMEDIATE")
            return partial(other.execute, "ROLLBACK")

        yield lock


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
        inbox.vacuum,
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


def test_options_are_checked():
    nan = float("nan")
    table = [("path", ""), ("path", 7), ("retention", 0), ("lease", -1.0), ("lease", True), ("poll", nan), ("poll", "1")]
    for field, value in table:
        with pytest.raises(InvalidRequest) as caught:
            SqliteInbox(**{"path": "x", field: value})
        assert caught.value.field == field


# --------------------------------------------------------------------------------------- accepting


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


# ------------------------------------------------------------------------------------- the backlog


@asynccontextmanager
async def both(path, **options):
    """An inbox and a backlog of it in the same event loop."""
    async with SqliteInbox(path, **options) as inbox, inbox.backlog() as backlog:
        yield inbox, backlog


# ----------------------------------------------------------------------------------------- waiting


async def test_a_wake_up_while_looking_is_not_lost(path):
    async with both(path, poll=inf) as (_, backlog):
        plain, looked, go = backlog._store.due, threading.Event(), threading.Event()

        def look(held):
            due = plain(held)
            looked.set()
            go.wait(10)
            return due

        backlog._store.due = look
        with fail_after(10):
            async with create_task_group() as tasks:
                tasks.start_soon(backlog.wait)
                await until(looked.is_set)
                backlog.notify()
                go.set()


async def test_other_tasks_go_on_while_nothing_can_be_claimed_beside_what_is_retried_alone(path):
    async with both(path) as (inbox, backlog):
        for team in "ab":
            await inbox.accept(delivery(1, team))
        for claim in await backlog.claim(2):
            await backlog.release(claim, died=True)
        (alone,) = await backlog.claim(2)
        assert alone.crashes == 1
        looks, slept = 0, []

        async def other():
            await sleep(0)
            slept.append(looks)

        async with create_task_group() as tasks:
            tasks.start_soon(other)
            while not slept and looks < 1000:
                looks += 1
                assert await backlog.claim(1) == ()
                with move_on_after(1):
                    await backlog.wait()
        assert looks < 1000
