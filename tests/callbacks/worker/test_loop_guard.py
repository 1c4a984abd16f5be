"""Async handlers in the loop of the application: one that blocks holds up everything else for no longer than it must."""

import asyncio
import logging
import threading
import time

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint

from helpers.credentials import CREDENTIALS
from helpers.receiving import body, post
from helpers.waiting import until
from helpers.workers import router_of, text
from rbim._support.event_loops import backend
from rbim.callbacks import Backoff, DeadLettered, Handled, LoopBlocked, MemorySink, Receiver, Worker
from rbim.callbacks.observers import Observers
from rbim.callbacks.worker import shared_run, worker as worker_module
from rbim.callbacks.worker.loop_guard import SHORT, LoopGuard
from rbim.clock import SystemClock

MANY = 6
LONG = 2 * SHORT


class Turns:
    """Measures, from inside the loop, for how long nothing else could run."""

    def __init__(self):
        self.longest = 0.0

    async def run(self):
        last = time.monotonic()
        while True:
            await anyio.sleep(0.001)
            now = time.monotonic()
            self.longest, last = max(self.longest, now - last), now


@pytest.fixture
def told():
    return []


@pytest.fixture
def receiver(told):
    return Receiver(credentials=CREDENTIALS, sink=MemorySink(), observers=[told.append], budget=4 * LONG, concurrency=MANY)


def of(told, kind):
    return [each for each in told if isinstance(each, kind)]


async def test_handlers_that_block_in_the_same_turn_leave_the_loop_between_them(receiver, told):
    turns, ready = Turns(), anyio.Event()

    @receiver.fallback
    async def blocks(_):
        await ready.wait()
        time.sleep(LONG)

    async with anyio.create_task_group() as tasks:
        async with receiver:
            for number in range(MANY):
                await post(receiver, body(to=f"g{number}", msgId=str(number)))
            await anyio.sleep(0.02)
            tasks.start_soon(turns.run)
            ready.set()  # all of them go on in one turn
            await until(lambda: len(of(told, Handled)) == MANY)
        tasks.cancel_scope.cancel()
    assert LONG <= turns.longest < 3 * LONG  # one after the other they would take MANY times as long


def blocks_here(seconds):
    time.sleep(seconds)


async def test_a_handler_that_blocks_is_reported_with_its_name_and_the_place(receiver, told, caplog):
    @receiver.fallback
    async def blocks(_):
        blocks_here(3 * LONG)

    async with receiver:
        await post(receiver, body())
        await until(lambda: of(told, LoopBlocked))
        watch = [each for each in threading.enumerate() if each.name == "rbim-loop-watch"]
        assert len(watch) == 1
    assert not watch[0].is_alive()
    (blocked,) = of(told, LoopBlocked)
    assert blocked.handler == blocks.__qualname__
    assert 3 * LONG <= blocked.seconds < 9 * LONG
    assert "blocks_here" in blocked.stack
    assert blocked.stack.count("File ") == 2  # the handler and what it calls, nothing around it
    (record,) = (each for each in caplog.records if each.levelno == logging.ERROR)
    for part in (blocks.__qualname__, "blocks_here", "plain def", "own_thread=True"):
        assert part in record.getMessage()
    assert record.rbim_handler == blocks.__qualname__


@pytest.mark.parametrize("own_thread", [False, True])
async def test_a_handler_that_only_waits_is_not_reported_nor_one_in_its_own_thread(told, own_thread):
    receiver = Receiver(
        credentials=CREDENTIALS, sink=MemorySink(), observers=[told.append], budget=4 * LONG, own_thread=own_thread
    )

    @receiver.fallback
    async def waits(_):
        if own_thread:
            time.sleep(3 * LONG)
        else:
            await anyio.sleep(3 * LONG)

    async with receiver:
        await post(receiver, body())
        await until(lambda: of(told, Handled))
        watched = "rbim-loop-watch" in [each.name for each in threading.enumerate()]
    assert of(told, LoopBlocked) == []
    assert watched is not own_thread


async def test_one_long_step_makes_no_call_wait_for_what_another_one_waits_for(receiver, told):
    began = []

    @receiver.fallback
    async def works(event):
        began.append(time.monotonic())
        if event.body == "blocks":
            time.sleep(1.1 * SHORT)
        await anyio.sleep(0.2)

    async with receiver:
        await post(receiver, body(body="blocks", to="first", msgId="first"))
        await until(lambda: began)
        for number in range(MANY - 1):
            await post(receiver, body(to=f"g{number}", msgId=str(number)))
        await until(lambda: len(of(told, Handled)) == MANY)
    assert max(began) - min(began) < 0.2  # one after the other they would begin up to 1 s later


async def test_calls_of_a_handler_that_blocks_wait_for_their_turn_before_their_timeout_begins(told):
    receiver = Receiver(
        credentials=CREDENTIALS,
        sink=MemorySink(),
        observers=[told.append],
        budget=4 * LONG,
        timeout=3 * LONG,
        backoff=Backoff(attempts=1),
    )

    @receiver.fallback
    async def blocks(_):
        time.sleep(LONG)

    async with receiver:
        for number in range(MANY):
            await post(receiver, body(to=f"g{number}", msgId=str(number)))
        await until(lambda: len(of(told, Handled)) + len(of(told, DeadLettered)) == MANY)
    assert len(of(told, Handled)) == MANY


async def test_a_cancellation_while_the_loop_rests_loses_nothing_that_the_handler_waited_for():
    """A permit that was handed to the handler is returned, or its own cancellation returns it."""
    permits = trio.Semaphore(0) if backend() == "trio" else asyncio.Semaphore(0)
    ended = []

    async def waits():
        try:
            async with permits:
                await checkpoint()
                ended.append("went on")
        finally:
            ended.append("cleaned up")

    async def blocks():
        await anyio.sleep(0.02)
        permits.release()
        time.sleep(2 * SHORT)

    async with LoopGuard(clock=SystemClock(), observers=Observers(), budget=100) as guard:

        async def run(function, seconds):
            with anyio.move_on_after(seconds):
                await guard.steps_of(function, function.__name__)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, waits, 0.02 + 3 * SHORT)
            tasks.start_soon(run, blocks, 1)
    assert ended == ["cleaned up"]
    with anyio.fail_after(0.1):
        await permits.acquire()


async def test_a_cancellation_reaches_a_handler_while_the_loop_rests():
    ended = []

    async def handler():
        try:
            time.sleep(4 * SHORT)
            await anyio.sleep(0)  # it would rest here
            ended.append("went on")
        finally:
            ended.append("cleaned up")

    async with LoopGuard(clock=SystemClock(), observers=Observers(), budget=100) as guard:
        began = time.monotonic()
        with anyio.move_on_after(0.01):
            await guard.steps_of(handler, "handler")
    assert ended == ["cleaned up"]
    assert time.monotonic() - began < 7 * SHORT


async def test_steps_pass_on_results_errors_and_everything_that_is_waited_for():
    async def returns():
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.sleep, 0.001)
        return await anyio.to_thread.run_sync(lambda: 7)

    async def raises():
        with pytest.raises(TimeoutError), anyio.fail_after(0.001):
            await anyio.sleep(1)
        raise KeyError("k")

    async with LoopGuard(clock=SystemClock(), observers=Observers(), budget=2) as guard:
        assert await guard.steps_of(returns, "a") == 7
        with pytest.raises(KeyError):
            await guard.steps_of(raises, "b")


@pytest.mark.parametrize("budget", [2.0, None])
async def test_a_function_that_never_ends_holds_up_the_end_of_a_receiver_only_for_its_grace(monkeypatch, caplog, budget):
    monkeypatch.setattr(worker_module, "GRACE", 0.05)
    monkeypatch.setattr(shared_run, "GRACE", 0.05)
    monkeypatch.setattr(worker_module, "ABANDON_AFTER", 0.05)
    sink, over, began = MemorySink(), threading.Event(), anyio.Event()

    def hangs(_):
        anyio.from_thread.run_sync(began.set)
        over.wait(10)

    async with sink:
        await sink.accept(text("a"))
        handling = Worker(sink, router_of(hangs), drain=0.01, budget=budget)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(handling.run)
            await began.wait()
            handling.stop()
            await anyio.sleep(0.3)
            left = "is left running in its thread" in caplog.text
            over.set()
    assert left is (budget is not None)
