"""What ends a worker, and what it does then; handlers that block."""

import sys
import threading
import time
from contextlib import asynccontextmanager

import anyio
import pytest
from attrs import evolve

from helpers.waiting import until
from helpers.workers import Panic, moment, router_of, text
from rbim import InvalidRequest, SystemClock
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.observers import HungHandler, LoopBlocked, Observers, PartEnded, PartRestarted, RetriedAlone
from rbim.callbacks.worker import attempt, supervision
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import Router
from rbim.callbacks.worker.worker import GRACE, Worker
from rbim.emulator.clock import EmulatedClock


def quick(inbox, handler, **options):
    """A worker by the machine's clock, with pauses nobody notices."""
    options = {"drain": 5.0, "backoff": Backoff(first=0.001, most=0.001), **options}
    return Worker(inbox, router_of(handler), clock=SystemClock(), **options)


async def test_around_is_entered_where_handlers_run():
    sink, log = MemorySink(), []

    @asynccontextmanager
    async def around():
        log.append("enters")
        yield 7
        log.append("leaves")

    async def handler(_event, handling):
        log.append(handling.resource)

    async with quick(sink, handler, around=around):
        assert log == ["enters"]
        await sink.accept(text(1))
        await until(lambda: len(log) == 2)
    assert log == ["enters", 7, "leaves"]


@asynccontextmanager
async def cannot_be_entered():
    reason = "no database"
    raise ConnectionError(reason)
    yield


@asynccontextmanager
async def cannot_be_left():
    try:
        yield
    finally:
        raise ConnectionError("the database went away")


async def test_what_keeps_a_worker_from_running_is_raised_on_entering(caplog):
    with pytest.raises(ConnectionError, match="no database"):
        async with quick(MemorySink(), print, around=cannot_be_entered):
            pytest.fail("it was entered")
    with pytest.raises(InvalidRequest, match="fallback"):
        async with Worker(MemorySink(), Router()):
            pytest.fail("it was entered")
    assert not caplog.records


async def test_what_ends_a_worker_is_raised_on_leaving_or_logged(caplog):
    with pytest.raises(ConnectionError, match="went away"):
        async with quick(MemorySink(), print, around=cannot_be_left):
            pass
    assert not caplog.records
    with pytest.raises(KeyError):  # what went wrong inside counts more
        async with quick(MemorySink(), print, around=cannot_be_left):
            raise KeyError
    assert "the worker ended with an error" in caplog.text


@pytest.fixture
def at_once(monkeypatch):
    """Restarts without a pause."""
    monkeypatch.setattr(supervision, "RESTARTS", Backoff(attempts=sys.maxsize, first=0.001, most=0.001))


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

    async def fail(self, error):
        raise error


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("how", ["background_error", "background_panic", "background_exit"])
async def test_a_worker_that_ends_in_whatever_way_is_started_again(how):
    ending, sink, facts = Ending(how), MemorySink(), []
    handled = []

    async def handler(event):
        await ending.handle(event)
        handled.append(event.body)

    worker = quick(sink, handler, observers=Observers([facts.append]), around=ending.around)
    async with worker:
        await sink.accept(text("ends it", "g1"))
        await until(lambda: worker.supervision.restarts == 1)
        await sink.accept(text("after", "g2"))
        await until(lambda: set(handled) == {"ends it", "after"})
        assert worker.supervision.running
    (ended,), (restarted,) = observed(PartEnded, facts), observed(PartRestarted, facts)
    assert (ended.part, restarted.part, restarted.restarts) == ("worker", "worker", 1)
    assert ended.error == worker.supervision.error != ""
    assert (ending.entered, ending.left) == (2, 2)
    assert not worker.supervision.running
    assert sink.events == ()
    (alone,) = observed(RetriedAlone, facts)
    assert (alone.crashes, alone.alone) == (1, True)


def test_pauses_grow_and_are_short_again_after_a_part_has_run_for_long(monkeypatch):
    monkeypatch.setattr(supervision, "RESTARTS", evolve(supervision.RESTARTS, random=lambda: 1.0))
    clock, pauses = EmulatedClock(), []
    part = supervision.Supervision("sink", Observers([]), clock)
    for seconds in (100, 1, 29, 30, 1):
        part.started()
        clock.elapsed += seconds
        pauses.append(part.ended(ConnectionError("went away")))
    assert (pauses, part.restarts) == ([0.5, 1.0, 2.0, 0.5, 1.0], 4)


@pytest.mark.usefixtures("at_once")
async def test_a_restart_that_fails_is_repeated():
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
        await until(lambda: worker.supervision.running)
        raise ConnectionError("went away")

    worker = quick(MemorySink(), print, observers=Observers([facts.append]), around=around)
    async with worker:
        await until(lambda: worker.supervision.restarts == 1)
    assert [type(each) for each in facts] == [PartEnded] * 3 + [PartRestarted]
    assert "no database" in facts[2].error


async def test_a_plain_function_that_hangs_is_reported_once():
    release, facts = threading.Event(), []

    def handle(_event):
        assert release.wait(10)

    sink, first = MemorySink(), text(1)
    worker = quick(sink, handle, observers=Observers([facts.append]), timeout=0.01)
    async with worker:
        await sink.accept(first)
        await until(lambda: observed(HungHandler, facts))
        await moment()
        release.set()
        await until(lambda: sink.events == ())
        await sink.accept(text(2))
        await until(lambda: sink.events == ())
    (hung,) = [each for each in observed(HungHandler, facts) if each.key == first.key]
    assert (hung.seconds, hung.attempt, hung.event) == (0.01, 1, "Text")
    assert hung.handler.endswith("handle")


async def test_a_handler_that_blocks_is_logged_with_its_name(monkeypatch, caplog):
    monkeypatch.setattr(attempt, "BLOCKED", 0.05)
    sink, facts = MemorySink(), []

    async def blocks(event):
        await anyio.sleep(0.1 if event.body == "waits" else 0)
        if event.body == "blocks":
            time.sleep(0.1)  # as somebody's handler does

    async with quick(sink, blocks, observers=Observers([facts.append], receiver="eu")):
        for said in ("waits", "blocks"):
            await sink.accept(text(said))
            await until(lambda: sink.events == ())
    (blocked,) = observed(LoopBlocked, facts)
    assert (blocked.receiver, blocked.handler.rpartition(".")[2]) == ("eu", "blocks")
    assert 0.1 <= blocked.seconds < 5
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert f"the async handler {blocked.handler} has blocked the event loop for" in record.getMessage()


async def test_a_function_that_never_ends_holds_up_the_end_of_a_worker_only_for_its_grace(clock, caplog):
    sink, begun, release = MemorySink(clock=clock), threading.Event(), threading.Event()

    def handler(_event):
        begun.set()
        assert release.wait(20)

    await sink.accept(text(1))
    try:
        async with anyio.create_task_group() as tasks:
            worker = Worker(sink, router_of(handler), clock=clock, drain=1.0)
            tasks.start_soon(worker.run)
            await until(begun.is_set)
            worker.stop()
            await moment()
            await clock.advance(1 + GRACE + 0.1)
    finally:
        release.set()
    assert "is left running in its thread" in caplog.text


@pytest.mark.parametrize("blocking", [True, False])
async def test_a_handler_that_wants_to_end_everything_only_fails(blocking):
    sink, log = MemorySink(), []
    endings = {"exit": SystemExit(1), "panic": Panic(), "closed": GeneratorExit()}
    for said in endings:
        await sink.accept(text(said, said))
        await sink.accept(text("after", said))

    def handle(event):
        log.append(event.body)
        if event.body in endings:
            raise endings[event.body]

    async def handler(event):
        handle(event)

    worker = Worker(sink, router_of(handle if blocking else handler), backoff=Backoff(attempts=1))
    async with worker:
        await until(lambda: not sink.events)
    assert sorted(log) == sorted([*endings, *["after"] * len(endings)])
    errors = " ".join(letter.error for letter in await sink.dead_letters())
    assert all(type(ending).__name__ in errors for ending in endings.values())
