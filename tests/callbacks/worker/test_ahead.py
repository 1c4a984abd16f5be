"""Handling ahead of the record: order, bounds, failures in between, leases; and an inbox that hangs."""

import asyncio
import json
from contextlib import asynccontextmanager

import anyio
import pytest

from helpers.waiting import until
from helpers.workers import moment, router_of, text
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.worker import Worker
from rbim.emulator.clock import EmulatedClock


class Slow(MemorySink):
    """An inbox whose ``done`` takes until the gate is opened; keeps what was asked of it."""

    def __init__(self, clock, *, lease=float("inf")):
        super().__init__(clock=clock)
        self.lease = lease
        self.gate = anyio.Event()
        self.asked = []
        self.hangs = []  # methods, each hangs once
        self.hanging_in = anyio.sleep_forever
        self.lost = False

    @asynccontextmanager
    async def backlog(self):
        async with super().backlog() as backlog:
            done, retry, renew = backlog.done, backlog.retry, backlog.renew

            async def slow_done(claims, *, more):
                self.asked.append(("done", [json.loads(claim.body)["body"] for claim in claims]))
                await self.gate.wait()
                return await done(claims, more=more)

            async def noted_retry(claim, **options):
                self.asked.append(("retry", json.loads(claim.body)["body"]))
                await retry(claim, **options)

            async def losing_renew(claims):
                await renew(claims)
                self.asked.append(("renew", len(claims)))
                return claims if self.lost else ()

            backlog.done, backlog.retry, backlog.renew = slow_done, noted_retry, losing_renew
            for name in ("claim", "done", "retry", "renew", "wait"):
                setattr(backlog, name, self.hanging(name, getattr(backlog, name)))
            yield backlog

    def hanging(self, name, method):
        async def call(*args, **options):
            if name in self.hangs:
                self.hangs.remove(name)
                await self.hanging_in()
            return await method(*args, **options)

        return call


@asynccontextmanager
async def running(inbox, handler, clock, **options):
    worker = Worker(inbox, router_of(handler), clock=clock, **options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        yield worker
        worker.stop()


async def test_a_conversation_goes_on_while_its_results_are_recorded_and_they_are_recorded_together(clock):
    sink, log = Slow(clock), []

    async def handler(event):
        log.append(int(event.body))

    for number in range(40):
        await sink.accept(text(number))
    async with running(sink, handler, clock, concurrency=8):
        await until(lambda: len(log) == 8)
        await moment()
        assert log == list(range(8))  # as many as concurrency results are not recorded, and no more
        assert len(sink.asked) == 1
        sink.gate.set()
        await until(lambda: not sink.events)
    assert log == list(range(40))
    recorded = [number for name, numbers in sink.asked for number in numbers]
    assert recorded == [str(number) for number in range(40)]
    assert sum(len(numbers) for _, numbers in sink.asked[:2]) == 8  # all that had piled up in the second


async def test_while_as_many_results_as_handlers_may_run_are_not_recorded_no_conversation_goes_ahead(clock):
    sink, log = Slow(clock), []

    async def handler(event):
        log.append(event.to)

    async with running(sink, handler, clock, concurrency=8):
        for group, begun in (("a", ["a"] * 8), ("b", ["a"] * 8 + ["b"])):
            for number in range(20):
                await sink.accept(text(number, group))
            await until(lambda begun=begun: len(log) >= len(begun))
            await moment()
            assert log == begun
        sink.gate.set()
        await until(lambda: not sink.events)


async def test_a_failure_is_recorded_after_all_successes_before_it(clock):
    sink, log = Slow(clock), []

    async def handler(event, handling):
        log.append((event.body, handling.attempt))
        if event.body == "2" and handling.attempt == 1:
            raise ValueError

    for number in range(5):
        await sink.accept(text(number))
    async with running(sink, handler, clock, backoff=Backoff(first=1.0)):
        await until(lambda: ("2", 1) in log)
        await moment()
        assert ("retry", "2") not in sink.asked
        sink.gate.set()
        await until(lambda: ("retry", "2") in sink.asked)
        before = sink.asked[: sink.asked.index(("retry", "2"))]
        assert [number for _, numbers in before for number in numbers] == ["0", "1"]
        await until(lambda: not sink.events, clock)
    assert log == [("0", 1), ("1", 1), ("2", 1), ("2", 2), ("3", 1), ("4", 1)]


@pytest.mark.parametrize("loss", ["expired", "renewed"])
async def test_nothing_goes_ahead_under_a_lease_that_may_be_lost(loss):
    """The worker is held up for longer than its lease: another one may handle what it has not recorded."""
    clock = EmulatedClock()
    sink, log, gates = Slow(clock, lease=30.0), [], [anyio.Event() for _ in range(3)]

    async def handler(event):
        log.append(event.body)
        await gates[int(event.body)].wait()

    for number in range(3):
        await sink.accept(text(number))
    async with running(sink, handler, clock, timeout=1000.0):
        await until(lambda: log == ["0"])
        if loss == "expired":
            clock.elapsed += 31.0  # without a renewal
        else:
            sink.lost = True
            await clock.advance(10.0)
            await until(lambda: sink.asked)
        gates[0].set()
        await moment()
        assert log == ["0"]
        for gate in (*gates, sink.gate):
            gate.set()
        sink.lost = False


async def test_a_cancelled_run_records_what_was_handled(clock):
    sink, log = Slow(clock), []

    async def handler(event):
        log.append(event.body)
        if event.body == "2":
            await anyio.sleep_forever()

    for number in range(5):
        await sink.accept(text(number))
    async with anyio.create_task_group() as tasks:
        await tasks.start(Worker(sink, router_of(handler), clock=clock).run)
        await until(lambda: "2" in log)
        tasks.cancel_scope.cancel()
        sink.gate.set()
    assert [event.body for event in sink.events] == ["2", "3", "4"]


async def handled_though(clock, method, monkeypatch, stray=None):
    """Have an event handled by an inbox one of whose methods hangs once, or ends as ``stray`` does; return the attempts."""
    monkeypatch.setattr("rbim.callbacks.worker.worker.CALL_TIMEOUT", 0.05)
    sink, log, gate = Slow(clock, lease=30.0), [], anyio.Event()
    sink.gate.set()
    sink.hangs = [method]
    if stray is not None:
        sink.hanging_in = stray

    async def handler(_event, handling):
        log.append(handling.attempt)
        if method == "retry" and handling.attempt == 1:
            raise ValueError
        if method == "renew":
            await gate.wait()

    async with running(sink, handler, clock):
        if method == "wait":
            await until(lambda: not sink.hangs)
        await sink.accept(text(1))
        await until(lambda: log, clock)
        if method == "renew":
            await until(lambda: sink.asked, clock)
            gate.set()
        await until(lambda: not sink.events, clock)
    assert not sink.hangs
    return log


@pytest.mark.parametrize("method", ["claim", "done", "retry", "renew", "wait"])
async def test_an_inbox_that_hangs_is_asked_again(clock, caplog, method, monkeypatch):
    log = await handled_though(clock, method, monkeypatch)
    assert log == [1, 2][: 1 + (method == "retry")]
    assert ("the inbox has not answered within 0.05 s" in caplog.text) == (method != "wait")


async def gathering():
    """End as ``asyncio.gather`` does: with a cancellation that does not say which scope it is of."""
    await asyncio.gather(asyncio.sleep(1000), asyncio.sleep(0), return_exceptions=True)


async def awaiting_what_is_cancelled():
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("method", ["claim", "done", "wait"])
@pytest.mark.parametrize("stray", [gathering, awaiting_what_is_cancelled])
async def test_a_cancellation_that_no_scope_requested_ends_no_worker(clock, caplog, method, stray, monkeypatch):
    await handled_though(clock, method, monkeypatch, stray)
    words = "has not answered within 0.05 s" if stray is gathering else "was cancelled by something that it awaited"
    assert (words in caplog.text) == (method != "wait" or stray is not gathering)
