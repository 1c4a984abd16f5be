"""A worker in a thread of its own, or as a task."""

import asyncio
import sys
import threading
from contextlib import asynccontextmanager

import anyio
import pytest

from helpers.waiting import until
from helpers.workers import Panic, moment, router_of, text
from rbim import InvalidRequest, SystemClock
from rbim._support.event_loops import backend
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.observers import Handled, HungHandler, LoopBlocked, Observers, PartEnded, PartRestarted
from rbim.callbacks.worker import backoff, runner as thread_module
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import Router
from rbim.callbacks.worker.runner import WorkerTask, WorkerThread
from rbim.callbacks.worker.worker import Worker
from rbim.emulator import EmulatedClock

# ---------------------------------------------------------------------------------- a thread of its own


def quick(inbox, handler, **options):
    """A worker by the machine's clock, with pauses nobody notices."""
    options = {"drain": 5.0, "backoff": Backoff(first=0.001, most=0.001), **options}
    return Worker(inbox, router_of(handler), clock=SystemClock(), **options)


async def test_a_handler_that_blocks_delays_nobody_outside(tmp_path):
    for inbox in (MemorySink(), SqliteInbox(tmp_path / "inbox.db", poll=0.02)):
        release, log, threads = threading.Event(), [], set()

        async def handler(event, release=release, log=log, threads=threads):
            threads.add(threading.current_thread().name)
            if event.to == "blocks":
                log.append("blocks")
                assert release.wait(10)
            log.append(event.to)

        async with inbox:
            await inbox.accept(text(1, "blocks"))
            async with WorkerThread(quick(inbox, handler)):
                await until(lambda log=log: log)
                for number in range(20):
                    assert await inbox.accept(text(number, "other"))
                assert log == ["blocks"]
                release.set()
                await until(lambda log=log: len(log) == 22)
        assert log == ["blocks", "blocks"] + ["other"] * 20
        assert threads == {"rbim-worker"}


async def test_leaving_waits_for_handlers_without_blocking(caplog):
    sink, release, log = MemorySink(), threading.Event(), []

    async def handler(_event):
        log.append("begins")
        assert release.wait(10)
        log.append("ends")

    async with anyio.create_task_group() as tasks:

        async def let_go():
            await moment()
            log.append("this loop goes on")
            release.set()

        async with WorkerThread(quick(sink, handler)):
            await sink.accept(text(1))
            await until(lambda: log)
            tasks.start_soon(let_go)
    assert log == ["begins", "this loop goes on", "ends"]
    assert sink.events == ()
    assert not caplog.records


async def test_a_thread_that_does_not_end_is_left_behind(monkeypatch, caplog):
    monkeypatch.setattr(thread_module, "THREAD_GRACE", 0.03)
    sink, release, log = MemorySink(), threading.Event(), []

    async def handler(_event):
        log.append("begins")
        release.wait(10)

    async with WorkerThread(quick(sink, handler, drain=0.01)):
        await sink.accept(text(1))
        await until(lambda: log)
    assert "has not ended after 0.04 s" in caplog.text
    (thread,) = [each for each in threading.enumerate() if each.name == "rbim-worker"]
    assert thread.daemon
    release.set()
    await anyio.to_thread.run_sync(thread.join, 10)
    assert not thread.is_alive()


@pytest.fixture(params=[WorkerThread, WorkerTask])
def runs(request):
    return request.param


async def test_around_is_entered_where_handlers_run(runs):
    sink, log = MemorySink(), []

    @asynccontextmanager
    async def around():
        log.append(("enters", threading.current_thread().name, backend()))
        yield
        log.append(("leaves", threading.current_thread().name, backend()))

    async def handler(_event):
        log.append(("handles", threading.current_thread().name, backend()))

    async with runs(quick(sink, handler), around=around):
        assert log[0][0] == "enters"
        await sink.accept(text(1))
        await until(lambda: len(log) == 2)
    where = "rbim-worker" if runs is WorkerThread else threading.current_thread().name
    assert log == [(what, where, backend()) for what in ("enters", "handles", "leaves")]


@asynccontextmanager
async def cannot_be_entered():
    reason = "no database"
    raise ConnectionError(reason)
    yield


@asynccontextmanager
async def cannot_be_left():
    yield
    reason = "the database went away"
    raise ConnectionError(reason)


async def test_what_keeps_a_worker_from_running_is_raised_on_entering(runs, caplog):
    with pytest.raises(ConnectionError, match="no database"):
        async with runs(quick(MemorySink(), print), around=cannot_be_entered):
            pytest.fail("it was entered")
    with pytest.raises(InvalidRequest, match="fallback"):
        async with runs(Worker(MemorySink(), Router())):
            pytest.fail("it was entered")
    stopped = quick(MemorySink(), print)
    stopped.stop()
    with pytest.raises(InvalidRequest, match="was stopped before it ran"):
        async with runs(stopped):
            pytest.fail("it was entered")
    assert not caplog.records


async def test_what_ends_a_worker_is_logged_and_raised_on_leaving(runs, caplog):
    with pytest.raises(ConnectionError, match="went away"):
        async with runs(quick(MemorySink(), print), around=cannot_be_left):
            pass
    assert "no more events are handled" in caplog.text
    with pytest.raises(KeyError):  # what went wrong inside counts more
        async with runs(quick(MemorySink(), print), around=cannot_be_left):
            raise KeyError


@pytest.fixture
def at_once(monkeypatch):
    """Restarts without a pause."""
    monkeypatch.setattr(backoff, "RESTARTS", Backoff(attempts=sys.maxsize, first=0.001, most=0.001))


def observed(kind, facts):
    return [each for each in facts if isinstance(each, kind)]


class Ending:
    """Ends the worker in some way, the first time it is used."""

    def __init__(self, how):
        self.how = how
        self.entered = self.left = 0
        self.broken = False

    @asynccontextmanager
    async def around(self):
        self.entered += 1
        try:
            async with anyio.create_task_group() as self.tasks:
                yield
                self.tasks.cancel_scope.cancel()
        finally:
            self.left += 1

    async def handle(self, event):
        if event.body == "ends it":
            if self.broken:
                return
            self.broken = True
            await getattr(self, self.how)()

    async def background_error(self):
        self.tasks.start_soon(self.fail, ConnectionError("the pool is gone"))
        await anyio.sleep_forever()

    async def background_panic(self):
        self.tasks.start_soon(self.fail, Panic("no more"))
        await anyio.sleep_forever()

    async def background_exit(self):
        self.tasks.start_soon(self.fail, GeneratorExit())
        await anyio.sleep_forever()

    async def cancel_all(self):
        for task in asyncio.all_tasks():
            task.cancel()
        await anyio.sleep_forever()

    async def stop_loop(self):
        asyncio.get_running_loop().stop()
        await anyio.sleep_forever()

    async def fail(self, error):
        raise error


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("how", ["background_error", "background_panic", "background_exit", "cancel_all", "stop_loop"])
async def test_a_worker_that_ends_in_whatever_way_is_started_again(runs, how):
    if how in ("cancel_all", "stop_loop") and (runs is WorkerTask or backend() == "trio"):
        return  # they would end this test
    ending, sink, facts = Ending(how), MemorySink(), []
    handled = []

    async def handler(event):
        await ending.handle(event)
        handled.append(event.body)

    worker = quick(sink, handler, observers=Observers([facts.append]))
    async with runs(worker, around=ending.around) as runner:
        await sink.accept(text("ends it", "g1"))
        await until(lambda: runner.supervision.restarts == 1)
        await sink.accept(text("after", "g2"))
        await until(lambda: set(handled) == {"ends it", "after"})
        assert runner.supervision.running
    (ended,), (restarted,) = observed(PartEnded, facts), observed(PartRestarted, facts)
    assert (ended.part, restarted.part, restarted.restarts) == ("worker", "worker", 1)
    assert ended.error == runner.supervision.error != ""
    assert (ending.entered, ending.left) == (2, 2)
    assert not runner.supervision.running
    assert sink.events == ()


@pytest.mark.usefixtures("at_once")
async def test_a_restart_that_fails_is_repeated(runs):
    entered, facts = [], []

    @asynccontextmanager
    async def around():
        entered.append(1)
        if len(entered) in (2, 3):
            reason = "no database"
            raise ConnectionError(reason)
        async with anyio.create_task_group() as tasks:
            if len(entered) == 1:
                tasks.start_soon(fail)
            yield

    async def fail():
        reason = "went away"
        raise ConnectionError(reason)

    async with runs(quick(MemorySink(), print, observers=Observers([facts.append])), around=around) as runner:
        await until(lambda: runner.supervision.restarts == 1)
    assert [type(each) for each in facts] == [PartEnded] * 3 + [PartRestarted]
    assert "no database" in facts[2].error


async def test_the_pause_before_a_restart_grows_and_leaving_ends_it():
    clock, facts = EmulatedClock(), []

    @asynccontextmanager
    async def around():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fail)
            yield

    async def fail():
        reason = "went away"
        raise ConnectionError(reason)

    worker = Worker(MemorySink(clock=clock), router_of(print), clock=clock, observers=Observers([facts.append]))
    with anyio.fail_after(10):
        async with WorkerTask(worker, around=around):
            for number in range(1, 9):
                await until(lambda number=number: len(observed(PartEnded, facts)) == number)
                await clock.advance(observed(PartEnded, facts)[-1].pause)
            await until(lambda: len(observed(PartEnded, facts)) == 9)
    pauses = [each.pause for each in observed(PartEnded, facts)]
    assert 0.25 <= pauses[0] <= 0.5
    assert 15 <= pauses[-1] <= 30


async def test_a_plain_function_that_hangs_is_reported_once():
    release, facts = threading.Event(), []

    def handle(_event):
        assert release.wait(10)

    sink = MemorySink()
    worker = quick(sink, handle, observers=Observers([facts.append]), timeout=0.01)
    async with WorkerTask(worker):
        await sink.accept(text(1))
        await until(lambda: observed(HungHandler, facts))
        await moment()
        release.set()
        await until(lambda: sink.events == ())
        await sink.accept(text(2))
        await until(lambda: sink.events == ())
    (hung,) = observed(HungHandler, facts)
    assert (hung.seconds, hung.attempt, hung.event) == (0.01, 1, "Text")
    assert hung.handler.endswith("handle")


@pytest.mark.parametrize("beside", [False, True], ids=["in a handler", "in a task beside it"])
async def test_a_loop_of_its_own_that_is_blocked_is_reported_once_and_when_it_goes_on(monkeypatch, caplog, beside):
    monkeypatch.setattr(thread_module, "SHORTEST_LIMIT", 0.05)
    release, facts, threads = threading.Event(), [], set()

    def blocks_here():
        threads.add(threading.get_ident())
        assert release.wait(20)

    async def in_a_task():
        blocks_here()

    async def handler(event):
        if event.body == "blocks" and beside:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(in_a_task)
        elif event.body == "blocks":
            blocks_here()

    sink = MemorySink()
    worker = quick(sink, handler, observers=Observers([facts.append], receiver="eu"), timeout=0.2)
    async with WorkerThread(worker) as runner:
        await sink.accept(text("before"))
        await until(lambda: sink.events == ())
        assert not runner.supervision.blocked
        await sink.accept(text("blocks"))
        await until(lambda: runner.supervision.blocked)
        await anyio.sleep(0.3)  # for a second report, if there were one
        (hung,) = observed(HungHandler, facts)
        assert (hung.receiver, hung.seconds) == ("eu", 0.2)
        assert "blocks_here" in hung.stack
        assert runner.supervision.running
        assert len([each for each in threading.enumerate() if each.name == "rbim-worker"]) == 1
        (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
        assert "no events are handled" in record.getMessage()
        assert "blocks_here" in record.getMessage()
        assert not observed(LoopBlocked, facts)
        release.set()
        await until(lambda: not runner.supervision.blocked)
        await until(lambda: sink.events == () or sink.dead)
        (blocked,) = observed(LoopBlocked, facts)
        assert blocked.seconds >= 0.2
        assert (blocked.handler, blocked.stack) == (hung.handler, hung.stack)
        await sink.accept(text("after", "g2"))
        await until(lambda: len(observed(Handled, facts)) >= 2)
    if beside:
        assert (hung.handler, hung.key, hung.event) == ("", "", "")
        assert "a task beside the handlers" in record.getMessage()
    else:
        assert hung.handler.endswith("handler")
        assert hung.handler in record.getMessage()
        assert (hung.attempt, hung.event, hung.app_id) == (1, "Text", "app")
    assert len(threads) == 1
    assert len(observed(HungHandler, facts)) == 1


async def test_a_loop_of_its_own_that_is_blocked_until_the_end_is_left(monkeypatch):
    monkeypatch.setattr(thread_module, "SHORTEST_LIMIT", 0.02)
    monkeypatch.setattr(thread_module, "THREAD_GRACE", 0.02)
    release, facts = threading.Event(), []

    async def handler(_event):
        assert release.wait(20)

    sink = MemorySink()
    worker = quick(sink, handler, observers=Observers([facts.append]), timeout=0.02, drain=0.01)
    async with WorkerThread(worker) as runner:
        await sink.accept(text(1))
        await until(lambda: runner.supervision.blocked)
    assert not runner.supervision.blocked
    await anyio.sleep(0.1)  # for a report, if the loop were watched on
    assert len(observed(HungHandler, facts)) == 1
    (thread,) = [each for each in threading.enumerate() if each.name == "rbim-worker"]
    release.set()
    await anyio.to_thread.run_sync(thread.join, 10)


async def test_entering_can_be_cancelled(runs):
    log = []

    @asynccontextmanager
    async def slow():
        log.append("enters")
        for _ in range(50):
            await anyio.sleep(0.001)
        yield

    async with anyio.create_task_group() as tasks:

        async def enter():
            async with runs(quick(MemorySink(), print), around=slow):
                log.append("entered")

        tasks.start_soon(enter)
        await until(lambda: log)
        tasks.cancel_scope.cancel()
    assert log == ["enters"]
    await until(lambda: all(each.name != "rbim-worker" for each in threading.enumerate()))


async def test_a_cancelled_block_gives_its_events_back(runs):
    sink, log = MemorySink(), []

    async def handler(event):
        log.append(event.body)
        await anyio.sleep_forever()

    async with anyio.create_task_group() as tasks:

        async def receive():
            async with runs(quick(sink, handler, drain=0.01)):
                await sink.accept(text(1))
                await anyio.sleep_forever()

        tasks.start_soon(receive)
        await until(lambda: log)
        tasks.cancel_scope.cancel()
    assert len(sink.events) == 1


@pytest.mark.parametrize("ending", [SystemExit(1), Panic(), KeyboardInterrupt(), GeneratorExit()], ids=repr)
@pytest.mark.parametrize("blocking", [True, False])
async def test_a_handler_that_wants_to_end_everything_only_fails(ending, blocking):
    """In the worker's own thread, where no Ctrl-C arrives."""
    if blocking and isinstance(ending, KeyboardInterrupt):
        ending = SystemExit(2)  # anyio hands no KeyboardInterrupt from one thread to another
    sink, log = MemorySink(), []
    for said, group in (("bad", "g1"), ("good", "g2"), ("after", "g1")):
        await sink.accept(text(said, group))

    def handle(event):
        log.append(event.body)
        if event.body == "bad":
            raise ending

    async def handler(event):
        handle(event)

    worker = Worker(sink, router_of(handle if blocking else handler), backoff=Backoff(attempts=1))
    async with WorkerThread(worker):
        await until(lambda: len(log) == 3)
    assert sorted(log) == ["after", "bad", "good"]
    assert [type(ending).__name__ in letter.error for letter in sink.dead] == [True]
