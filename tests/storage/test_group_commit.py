"""Group commit, on asyncio and trio: with a file, which plain sqlite3 reads beside it, and with a store that can be held.

Each transaction of the file writes a time of its own beside its rows, so that the file tells what was committed together.
"""

import asyncio
import sys
import threading
from collections import Counter
from contextlib import asynccontextmanager, suppress
from functools import partial
from itertools import count

import anyio
import pytest
from anyio import CancelScope, create_task_group, fail_after
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from helpers.tables import each_row
from helpers.waiting import settle
from rbim._support.event_loops import waker
from rbim.storage.group_commit import GroupCommit, open_group_commit
from rbim.storage.sqlite import CommandFailure, Database, FileKind

HERE = sys.modules[GroupCommit.__module__]

KIND = FileKind(name="a log", mark=b"rbyy", schema=("CREATE TABLE log (number INTEGER, moment REAL, more TEXT)",), version=1)
INSERT = "INSERT INTO log VALUES (?, ?, ?)"

on_asyncio = [pytest.mark.parametrize("anyio_backend", ["asyncio"]), pytest.mark.usefixtures("anyio_backend")]


class Held:
    """A store around another one, or in memory: its transactions can be held up, and it tells what happened to it."""

    def __init__(self, database=None, **options):
        self.database = database
        self.options = options
        self.events = []
        self.transactions = []  # how many commands there were in each
        self.running = 0
        self.most_running = 0
        self.hurried = None
        self.go = threading.Event()
        self.go.set()

    def hold(self):
        """Hold up the next transaction; return what is set when it has begun."""
        self.go, self.begun, self.tell = threading.Event(), anyio.Event(), waker()
        return self.begun

    def open(self):
        self.events.append("open")
        if self.database is not None:
            self.database.open()

    def close(self):
        self.events.append("close")
        if self.database is not None:
            self.database.close()

    def commit(self, commands, *, hurried):
        go = self.go
        self.transactions.append(len(commands))
        self.hurried = hurried
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            if not go.is_set():
                self.tell(self.begun.set)
                assert go.wait(10)
            if self.database is None:
                return [command() for command in commands]
            return self.database.commit(commands, hurried=hurried, **self.options)
        finally:
            self.running -= 1


class File(Held):
    """A file with a log in it."""

    def __init__(self, path, **options):
        ticks = count()
        super().__init__(Database(path, KIND, clock=lambda: float(next(ticks))), **options)

    def add(self, number, more=""):
        """Write a row, as a command; return its number."""

        def command():
            self.database.execute(INSERT, (number, self.database.now, more))
            return number

        return command


@pytest.fixture
def store(path):
    return File(path)


@pytest.fixture
def log(rows):
    """Reads the numbers in the file, in the order in which they were written."""
    return lambda: [number for (number,) in rows("SELECT number FROM log ORDER BY rowid")]


@pytest.fixture
def together(rows):
    """Reads the numbers in the file, by the transaction that wrote them."""

    def read():
        found = {}
        for number, moment in rows("SELECT number, moment FROM log ORDER BY rowid"):
            found.setdefault(moment, []).append(number)
        return list(found.values())

    return read


@pytest.fixture(autouse=True)
async def bounded():
    with fail_after(20):
        yield


@asynccontextmanager
async def held(store):
    """Enter a store, with its first transaction, which writes number 0, under way until the store's ``go`` is set."""
    async with open_group_commit(store) as commits:
        begun = store.hold()
        first = commits.begin(store.add(0) if store.database else lambda: 0)
        await begun.wait()
        try:
            yield commits
        finally:
            store.go.set()
        assert await first() == 0


# ---------------------------------------------------------------------------------- together, in order


async def test_what_is_returned_is_in_the_file(store, log):
    async with open_group_commit(store) as commits:
        for number in range(3):
            assert await commits.run(store.add(number)) == number
            assert log() == list(range(number + 1))


async def test_what_tasks_want_during_a_transaction_is_done_in_the_next_one_in_their_order(store, together):
    numbers, results = range(1, 100), {}
    async with held(store) as commits, create_task_group() as tasks:

        async def work(number):
            results[number] = await commits.run(store.add(number))

        for number in numbers:
            tasks.start_soon(work, number)
            if number % 10 == 0:
                await settle()
        await settle()
        assert results == {}
        store.go.set()
    assert results == {number: number for number in numbers}
    first, second = together()
    assert first == [0]
    assert sorted(second) == list(numbers)
    for begin in range(1, 100, 10):  # within ten, tasks may start in any order
        assert sorted(second[begin - 1 : begin + 9]) == list(numbers[begin - 1 : begin + 9])


# ----------------------------------------------------------------------------------------- failures


async def outcome(commits, command):
    try:
        return await commits.run(command)
    except Exception as error:
        return error


async def outcomes(commits, commands):
    """Run commands as tasks, begun in this order; return what each returned or raised."""
    results = [None] * len(commands)

    async def work(place, command):
        results[place] = await outcome(commits, command)

    async with create_task_group() as tasks:
        for place, command in enumerate(commands):
            tasks.start_soon(work, place, command)
            await settle()
    return results


def failing(error):
    def fail():
        raise error

    return fail


async def beside_each_other(store, commits, commands):
    """Run commands in one transaction, behind one that is under way."""
    found = []

    async def work():
        found.extend(await outcomes(commits, commands))

    async with create_task_group() as tasks:
        tasks.start_soon(work)
        for _ in commands:
            await settle()
        await settle()
        before = len(store.transactions)
        store.go.set()
    assert len(store.transactions) == before + 1
    return found


async def test_a_command_that_fails_harms_no_other_one_of_its_transaction(store, log):
    error = ValueError("a bad one")

    def half():
        store.add(9)()
        raise error

    async with held(store) as commits:
        results = await beside_each_other(store, commits, [store.add(1), half, store.add(2)])
        assert results == [1, error, 2]
        assert results[1] is error
        assert await commits.run(store.add(3)) == 3
    assert log() == [0, 1, 2, 3]


@each_row("threads", [True, False])
async def test_what_ends_the_event_loop_leaves_nobody_waiting(threads):
    class End(BaseException):
        pass

    store, told = Held(), []

    async def work(commits, command):
        with CancelScope(shield=True):
            told.append(str(await outcome(commits, command)))

    async def use():
        async with create_task_group() as tasks, open_group_commit(store, threads=threads) as commits:
            for command in (failing(End()), lambda: 1):
                tasks.start_soon(work, commits, command)
            await settle()
            await commits.begin(lambda: 2)()

    with suppress(RuntimeError, BaseExceptionGroup):
        await use()
    assert told == ["the event loop ended"] * 2
    assert store.events == ["open", "close"]


# ----------------------------------------------------------------------------------- cancelled waiters


@asynccontextmanager
async def cancelled_within(commits, command, **options):
    """Wait for a command in a task that is cancelled when the block ends; the cancellation has arrived then."""
    ended = []

    async def work():
        try:
            await commits.run(command, **options)
        finally:
            ended.append(True)

    async with create_task_group() as tasks:
        tasks.start_soon(work)
        await settle()
        yield
        assert ended == []
        tasks.cancel_scope.cancel()
    assert ended == [True]


async def test_who_is_cancelled_before_the_transaction_begins_leaves_nothing_and_the_others_their_places(store, together):
    undone = []
    async with held(store) as commits:
        waits = [commits.begin(store.add(1))]
        async with cancelled_within(commits, store.add(2), undo=undone.append):
            waits.append(commits.begin(store.add(3)))
        waits.append(commits.begin(store.add(4)))
        store.go.set()
        assert [await wait() for wait in waits] == [1, 3, 4]
    assert together() == [[0], [1, 3, 4]]
    assert undone == []


async def test_who_is_cancelled_during_the_transaction_does_not_wait_for_it_and_it_is_carried_out(store, log):
    async with open_group_commit(store) as commits:
        begun = store.hold()
        async with cancelled_within(commits, store.add(1)):
            await begun.wait()
        assert not store.go.is_set()  # it is still under way
        other = commits.begin(store.add(2))
        store.go.set()
        assert await other() == 2
    assert log() == [1, 2]


async def undone(store, command, undo):
    """Cancel who waits for a command, while it is carried out; return what the command after it returns."""
    async with open_group_commit(store) as commits:
        begun = store.hold()
        async with cancelled_within(commits, command, undo=undo):
            await begun.wait()
        after = commits.begin(store.add(99))
        store.go.set()
        return await after()


async def test_what_nobody_waits_for_any_more_is_undone_in_the_next_transaction(store, together):
    def undo(number):
        return [store.add(-number), store.add(-number - 1)]

    assert await undone(store, store.add(5), undo) == 99
    assert together() == [[5], [99, -5, -6]]


@each_row("result", [None, CommandFailure(ValueError("not done"))])
async def test_nothing_is_undone_of_what_brought_nothing(store, log, result):
    called = []
    assert await undone(store, lambda: result, called.append) == 99
    assert called == []
    assert set(log()) == {99}


async def test_what_is_undone_while_it_closes_is_undone_before_it_is_closed(store, log):
    async with create_task_group() as tasks, open_group_commit(store) as commits:
        begun = store.hold()
        async with cancelled_within(commits, store.add(5), undo=lambda number: [store.add(-number)]):
            await begun.wait()
        tasks.start_soon(settle_and, store.go.set)
    assert log() == [5, -5]


async def settle_and(do):
    await settle()
    do()


class TestAsyncioCancellation:
    pytestmark = on_asyncio

    async def test_a_task_that_is_cancelled_while_it_closes_closes_all_the_same(self, store, log):
        async def use():
            async with open_group_commit(store) as commits:
                begun.append(store.hold())
                commits.begin(store.add(1))
                await begun[0].wait()

        begun = []
        task = asyncio.create_task(use())
        await settle()
        while not (begun and begun[0].is_set()):
            await checkpoint()
        for _ in range(3):
            await settle()
            task.cancel()
        await settle()
        assert store.events == ["open"]
        store.go.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert store.events == ["open", "close"]
        assert log() == [1]

    async def test_a_task_that_is_cancelled_just_before_its_transaction_is_settled_has_it_undone(
        self, store, together, monkeypatch
    ):
        """The task does not know yet that it is cancelled, and so has not said what is to be undone."""

        def cancels(commits, *settled):
            task.cancel()
            settle_batch(commits, *settled)

        settle_batch = GroupCommit._settle
        async with open_group_commit(store) as commits:
            monkeypatch.setattr(GroupCommit, "_settle", cancels)
            task = asyncio.create_task(commits.run(store.add(1), undo=lambda number: [store.add(-number)]))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await commits.run(store.add(2)) == 2
            assert commits._abandoned == {}
        assert together() in ([[1], [-1, 2]], [[1], [-1], [2]])


# ------------------------------------------------------------------------------- entering and leaving


async def test_leaving_carries_out_what_was_asked_for_and_closes_then(store, log):
    results = []

    async def work(number):
        results.append(await commits.run(store.add(number)))

    async with create_task_group() as tasks:
        async with open_group_commit(store) as commits:
            begun = store.hold()
            settled = commits.begin(store.add(0))
            await begun.wait()
            for number in range(1, 10):
                tasks.start_soon(work, number)
            await settle()
            tasks.start_soon(settle_and, store.go.set)
        assert store.events == ["open", "close"]
        assert await settled() == 0
    assert sorted(results) == list(range(1, 10))
    assert sorted(log()) == list(range(10))
    with pytest.raises(RuntimeError, match="is not open"):
        store.database.execute("SELECT 1")


async def test_once_it_is_left_nothing_more_is_taken(store, log):
    async with open_group_commit(store) as commits:
        pass
    called = []
    for use in (commits.run, commits.read):
        with pytest.raises(RuntimeError, match="the file is closed"):
            await use(partial(called.append, 1))
    with pytest.raises(RuntimeError, match="the file is closed"):
        commits.begin(partial(called.append, 1))
    assert called == log() == []


async def test_a_cancellation_of_the_block_lets_what_was_begun_be_carried_out(store, log):
    with CancelScope() as scope:
        async with open_group_commit(store) as commits:
            begun = store.hold()
            commits.begin(store.add(1))
            await begun.wait()
            commits.begin(store.add(2))
            commits.begin(store.add(3))
            threading.Thread(target=store.go.set).start()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert log() == [1, 2, 3]
    assert store.events == ["open", "close"]


async def test_a_store_that_cannot_be_opened_is_not_closed():
    class Broken(Held):
        def open(self):
            super().open()
            raise error

    store, error = Broken(), OSError("no such disk")
    with pytest.raises(OSError, match="no such disk") as caught:
        async with open_group_commit(store):
            pytest.fail("entered")
    assert caught.value is error
    assert store.events == ["open"]


# ---------------------------------------------------------------------- other processes, other threads


async def test_a_transaction_is_in_no_hurry_until_three_seconds_after_the_end_began(monkeypatch):
    store, seen, now = Held(), [], [100.0]
    monkeypatch.setattr(HERE, "monotonic", lambda: now[0])

    def look():
        if store.transactions == [1]:
            return
        for now[0] in (99.0, 202.9, 203.1):
            seen.append(store.hurried())

    async with create_task_group() as tasks, open_group_commit(store) as commits:
        await commits.run(lambda: None)
        now[0] = 1e9
        assert store.hurried() is False
        begun = store.hold()
        commits.begin(look)
        await begun.wait()
        now[0] = 200.0
        tasks.start_soon(settle_and, store.go.set)
    assert seen == [False, False, True]


async def test_only_the_thread_of_the_event_loop_that_opened_it_may_use_it(store, log):
    async with open_group_commit(store) as commits:

        def elsewhere():
            called = []

            async def use_it(use):
                with fail_after(5):
                    await use(partial(called.append, 1))

            for use in (commits.run, commits.read):
                with pytest.raises(RuntimeError, match="in the event loop that opened it"):
                    anyio.run(use_it, use)
            with pytest.raises(RuntimeError, match="in the event loop that opened it"):
                commits.begin(partial(called.append, 1))
            assert called == []

        await run_sync(elsewhere)
        assert await commits.run(store.add(1)) == 1
    assert log() == [1]


async def test_reading_and_writing_go_on_where_no_thread_can_be_started(store, log, monkeypatch):
    def refuses(_thread):
        raise RuntimeError("can't create new thread at interpreter shutdown")

    async with open_group_commit(store) as commits:
        monkeypatch.setattr(threading.Thread, "start", refuses)
        assert await commits.read(lambda: "read") == "read"
        with pytest.raises(ZeroDivisionError):
            await commits.read(lambda: 1 / 0)
        assert await commits.run(store.add(1)) == 1
    assert log() == [1]


@pytest.mark.parametrize("threads", [True, False])
async def test_without_threads_the_event_loop_does_the_work_itself(store, log, threads):
    here, used = threading.get_ident(), Counter()

    def note():
        used[threading.get_ident() == here] += 1

    async with open_group_commit(store, threads=threads) as commits:
        results = await outcomes(commits, [store.add(1), note, store.add(2)])
        assert results == [1, None, 2]
        await commits.read(note)
    assert used == {not threads: 2}
    assert log() == [1, 2]
