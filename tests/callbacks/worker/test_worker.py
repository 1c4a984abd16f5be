"""Handling: order, failures, time-outs, the end of a worker, and a thread of its own."""

import asyncio
import json
import logging
import threading
from collections import Counter, defaultdict
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

from helpers.receiving import results_for
from helpers.waiting import until
from helpers.workers import NOON, moment, router_of, text
from rbim import InvalidRequest, SystemClock
from rbim._support.event_loops import backend
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.inbox.sqlite import SqliteInbox
from rbim.callbacks.observers import DeadLettered, Handled, HandlingFailed, Observers
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import Router
from rbim.callbacks.worker.worker import GRACE, MOST_IN_A_ROW, Worker
from rbim.emulator.clock import EmulatedClock

NO_JITTER = Backoff(random=lambda: 1.0)  # 1, 4, 16, 64, 256, 300, 300 s


@pytest.fixture
def inbox(anyio_backend_name, clock, tmp_path):
    """In a file on asyncio, in memory on trio; with leases that emulated time cannot end by mistake."""
    if anyio_backend_name == "trio":
        return MemorySink(capacity=5000, clock=clock)
    return SqliteInbox(tmp_path / "inbox.db", clock=clock, lease=1e9, poll=0.02)


async def dead(inbox):
    """The dead letters: text, attempts and error of each."""
    return [(json.loads(each.body)["body"], each.attempts, each.error) for each in await inbox.dead_letters()]


async def accept(inbox, *deliveries):
    async with anyio.create_task_group() as tasks:
        for delivery in deliveries:
            tasks.start_soon(inbox.accept, delivery)
            await checkpoint()


@asynccontextmanager
async def running(inbox, handler, clock, **options):
    """Run a worker, and end it as whoever stops it does."""
    router = handler if isinstance(handler, Router) else router_of(handler)
    options = {"backoff": NO_JITTER, **options}
    worker = Worker(inbox, router, clock=clock, **options)
    async with anyio.create_task_group() as tasks:
        await tasks.start(worker.run)
        yield worker
        worker.stop()


class Facts:
    """Keeps what a worker tells."""

    def __init__(self):
        self.told = []
        self.observers = Observers([results_for(self.told.append)])

    def of(self, kind):
        return [fact for fact in self.told if isinstance(fact, kind)]


# ------------------------------------------------------------------------- order, and what holds up what


async def test_each_conversation_keeps_its_order_through_failures(inbox, clock):
    log, facts = [], Facts()
    failing = {("a", "1"): 2, ("a", "3"): 1, ("b", "2"): 1}

    async def handler(event, handling):
        log.append((event.to, event.body, handling.attempt))
        if handling.attempt <= failing.get((event.to, event.body), 0):
            reason = f"no {event.body}"
            raise ValueError(reason)

    async with inbox:
        for number in range(5):
            await accept(inbox, text(number, "a"), text(number, "b"))
        async with running(inbox, handler, clock, observers=facts.observers):
            await until(lambda: len(facts.of(Handled)) == 10, clock)
    assert [each[1:] for each in log if each[0] == "a"] == [
        ("0", 1), ("1", 1), ("1", 2), ("1", 3), ("2", 1), ("3", 1), ("3", 2), ("4", 1),
    ]  # fmt: skip
    assert [each[1:] for each in log if each[0] == "b"] == [("0", 1), ("1", 1), ("2", 1), ("2", 2), ("3", 1), ("4", 1)]
    failed = facts.of(HandlingFailed)
    assert Counter(fact.pause for fact in failed) == {1.0: 3, 4.0: 1}
    assert {fact.error for fact in failed} == {"ValueError: no 1", "ValueError: no 3", "ValueError: no 2"}


async def test_an_event_is_dead_after_its_last_attempt_and_the_next_one_goes_on(inbox, clock):
    log, facts = [], Facts()

    def deep_inside():
        reason = "the ledger is closed \ud83d"  # half of a character, which no store takes
        raise RuntimeError(reason)

    async def handler(event):
        log.append(event.body)
        if event.body == "bad":
            deep_inside()

    async with inbox:
        await accept(inbox, text("bad"))
        await accept(inbox, text("good"))
        async with running(inbox, handler, clock, backoff=Backoff(attempts=3), observers=facts.observers):
            await until(lambda: facts.of(Handled), clock)
        ((said, attempt, error),) = await dead(inbox)
    assert log == ["bad"] * 3 + ["good"]
    assert (said, attempt) == ("bad", 3)
    assert error.startswith("Traceback (most recent call last):")
    assert "in deep_inside" in error
    assert error.endswith("RuntimeError: the ledger is closed \\ud83d\n")
    (buried,) = facts.of(DeadLettered)
    assert (buried.attempt, buried.error) == (3, "RuntimeError: the ledger is closed \\ud83d")
    assert [fact.attempt for fact in facts.of(HandlingFailed)] == [1, 2]


async def test_what_can_no_longer_be_read_is_dead_at_once(clock):
    sink, log, facts = MemorySink(clock=clock), [], Facts()
    good = text("good")
    readable = delivery_of(b'{"msgId": "x"}', app_id="app", received=NOON)
    bad = readable._replace(body=b"[no JSON")  # as a version that could read it had accepted it
    for delivery in (bad, good):
        await sink.accept(delivery)

    async def handler(event):
        log.append(event.body)

    async with running(sink, handler, clock, observers=facts.observers):
        await until(lambda: log)
    (letter,) = await sink.dead_letters()
    assert "CallbackRejected: the body cannot be read" in letter.error
    assert facts.of(DeadLettered)[0].attempt == 1


# ---------------------------------------------------------------------------------- many at once


async def test_at_most_so_many_conversations_at_once(inbox, clock):
    now, most, log, gate = set(), [], [], anyio.Event()

    async def handler(event):
        assert event.to not in now, "two of one conversation at once"
        now.add(event.to)
        most.append(len(now))
        await gate.wait()
        log.append(event.to)
        now.discard(event.to)

    async with inbox:
        await accept(inbox, *(text(number, f"g{group}") for group in range(10) for number in range(2)))
        async with running(inbox, handler, clock, concurrency=3):
            await until(lambda: len(now) == 3)
            await moment()
            assert len(now) == 3
            gate.set()
            await until(lambda: len(log) == 20)
    assert max(most) == 3


async def test_after_32_events_others_have_their_turn():
    sink, log = MemorySink(), []

    async def handler(event):
        log.append(event.to)

    for number in range(100):
        await sink.accept(text(number, "busy"))
    await sink.accept(text(0, "quiet"))
    async with running(sink, handler, SystemClock(), concurrency=1):
        await until(lambda: len(log) == 101)
    assert log.index("quiet") == MOST_IN_A_ROW == 32


class Leases(MemorySink):
    """Leases that need to be renewed, and who renews them when."""

    lease = 30.0

    def __init__(self, *, clock):
        super().__init__(clock=clock)
        self.clock = clock
        self.renewed = []
        self.failing = 0

    @asynccontextmanager
    async def backlog(self):
        async with super().backlog() as backlog:

            async def renew(claims):
                self.renewed.append((self.clock.elapsed, sorted(claim.number for claim in claims)))
                if self.failing:
                    self.failing -= 1
                    raise OSError
                return ()

            backlog.renew = renew
            yield backlog


async def test_leases_are_renewed_while_something_runs_and_only_then(clock, caplog):
    sink, gate, log = Leases(clock=clock), anyio.Event(), []
    sink.failing = 1

    async def handler(event):
        await gate.wait()
        log.append(event.body)

    async with running(sink, handler, clock, timeout=1e6):
        await clock.advance(100)
        assert sink.renewed == []
        for group in "ab":
            await sink.accept(text(0, group))
        await moment()
        await clock.advance(25)
        gate.set()
        await until(lambda: len(log) == 2)
        await clock.advance(100)
    assert sink.renewed == [(110.0, [1, 2]), (111.0, [1, 2]), (121.0, [1, 2])]  # after a failure within a second
    assert "the leases could not be renewed" in caplog.text


class Stopped(MemorySink):
    """Its process is stopped for a day after a claim; another worker takes the leases meanwhile, if ``taken``."""

    lease = 30.0
    taken = True

    @asynccontextmanager
    async def backlog(self):
        async with super().backlog() as backlog:
            claim = backlog.claim

            async def claimed(most):
                found = await claim(most)
                if found:
                    await self.clock.advance(86400)
                return found

            async def renew(claims):
                return list(claims) if self.taken else []

            backlog.claim, backlog.renew = claimed, renew
            yield backlog


@pytest.mark.parametrize("taken", [True, False])
async def test_a_handler_begins_only_under_a_lease_that_still_holds(clock, caplog, taken):
    sink, log = Stopped(clock=clock), []
    sink.clock, sink.taken = clock, taken

    async def handler(event):
        log.append(event.body)

    await sink.accept(text(1))
    async with running(sink, handler, clock):
        await until(lambda: "was lost" in caplog.text or log)
    assert log == ([] if taken else ["1"])


# ---------------------------------------------------------------------------------- time-outs, threads


async def test_a_handler_that_takes_too_long_has_failed(inbox, clock):
    log, facts = [], Facts()

    async def handler(_event):
        log.append("begins")
        try:
            await anyio.sleep_forever()
        finally:
            log.append("ends")

    async with inbox:
        await accept(inbox, text(1))
        async with running(inbox, handler, clock, timeout=7, backoff=Backoff(attempts=1), observers=facts.observers):
            await until(lambda: log)
            await clock.advance(6.9)
            assert log == ["begins"]
            await clock.advance(0.2)
            await until(lambda: facts.told)
        ((_, _, error),) = await dead(inbox)
    assert error.endswith("TimeoutError: the handler took longer than 7 s\n")
    assert log == ["begins", "ends"]


async def test_plain_functions_run_in_threads_and_may_block(inbox, clock):
    threads, together = set(), threading.Barrier(3, timeout=10)

    def handler(event):
        threads.add(threading.get_ident())
        together.wait()  # three at once, or none gets past
        if event.to == "g0":
            raise KeyError(event.to)

    facts = Facts()
    async with inbox:
        await accept(inbox, *(text(0, f"g{group}") for group in range(3)))
        async with running(inbox, handler, clock, concurrency=3, backoff=Backoff(attempts=1), observers=facts.observers):
            await until(lambda: len(facts.told) == 3)
        assert [error.splitlines()[-1] for _, _, error in await dead(inbox)] == ["KeyError: 'g0'"]
    assert len(facts.of(Handled)) == 2
    assert threading.get_ident() not in threads


async def test_an_event_waits_while_no_thread_can_be_started_and_no_attempt_is_counted(inbox, clock, monkeypatch, caplog):
    refused, facts, start = [], Facts(), threading.Thread.start

    def refuses(thread):
        if len(refused) < 3 and thread.name.startswith(("AnyIO", "Trio")):
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    log = []

    def handler(event, handling):
        log.append((event.to, event.body, handling.attempt))

    monkeypatch.setattr(threading.Thread, "start", refuses)
    if backend() == "trio":
        real = anyio.to_thread.run_sync

        async def run_sync(function, *arguments, **options):  # trio keeps threads of earlier tests
            if len(refused) < 3 and "call" in function.__qualname__:
                refused.append(function)
                raise RuntimeError("can't start new thread")
            return await real(function, *arguments, **options)

        monkeypatch.setattr(anyio.to_thread, "run_sync", run_sync)
    async with inbox:
        await accept(inbox, text(1, "a"), text(2, "a"))
        async with running(inbox, handler, clock, observers=facts.observers):
            await until(lambda: len(facts.of(Handled)) == 2, clock)
    assert log == [("a", "1", 1), ("a", "2", 1)]
    assert len(refused) == 3
    assert not facts.of(HandlingFailed)
    waiting = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2] for line in waiting] == ["its handler is called later: can't start new thread"] * 3


async def test_what_a_plain_function_returns_is_awaited_if_it_can_be(clock):
    """A decorator that knows nothing of async functions makes a plain one of each."""
    sink, log = MemorySink(clock=clock), []

    def decorated(event):
        async def handler():
            await checkpoint()
            log.append((event.body, threading.current_thread().name))
            if event.body == "slow":
                await anyio.sleep_forever()

        return handler()

    await sink.accept(text("quick"))
    await sink.accept(text("slow"))
    async with running(sink, decorated, clock, backoff=Backoff(attempts=1), timeout=1):
        await until(lambda: not sink.events, clock)
    assert log == [(said, threading.current_thread().name) for said in ("quick", "slow")]
    (letter,) = await sink.dead_letters()
    assert "TimeoutError" in letter.error


async def test_a_plain_function_is_waited_for_and_what_it_did_is_recorded(inbox, clock):
    begun, release = threading.Event(), threading.Event()

    def handler(_event):
        begun.set()
        assert release.wait(10)

    async with inbox:
        await accept(inbox, text(1), text(2, "g2"))
        async with anyio.create_task_group() as tasks:
            worker = Worker(inbox, router_of(handler), clock=clock, drain=1, concurrency=1)
            tasks.start_soon(worker.run)
            await until(begun.is_set)
            worker.stop()
            await moment()
            await clock.advance(1 + GRACE / 2)
            await moment()
            release.set()
        counts = await inbox.counts()
    assert (counts.done, counts.waiting) == (1, 1)


def cancels_its_task(event):
    async def cancelling():
        if backend() == "asyncio":
            asyncio.current_task().cancel()
            if event.body == "waits":
                await checkpoint()
            return
        with anyio.CancelScope() as scope:
            scope.cancel()
            await checkpoint()
        reason = "given up"
        raise RuntimeError(reason)

    return cancelling()


def raises_cancelled(_event):
    async def raising():
        if backend() == "asyncio":
            raise anyio.get_cancelled_exc_class()
        raise RuntimeError

    return raising()


async def test_a_handler_that_cancels_itself_has_failed_and_nothing_else(clock):
    sink, log = MemorySink(clock=clock), []

    async def handle(event):
        log.append(event.body)
        if event.body in {"waits", "returns"}:
            await cancels_its_task(event)
        elif event.body == "raises":
            await raises_cancelled(event)

    bad = ["waits", "returns", "raises"]
    for said in (*bad, "good"):
        await sink.accept(text(said))
    async with running(sink, handle, clock, backoff=Backoff(attempts=2)):
        await until(lambda: "good" in log, clock)
        assert [letter.attempts for letter in await sink.dead_letters()] == [2, 2, 2]
        await sink.accept(text("good", number=2))
        await until(lambda: log.count("good") == 2)
    assert log == [*(said for said in bad for _ in range(2)), "good", "good"]


# ------------------------------------------------------------------------------------ the end of a worker


async def test_stopping_lets_running_handlers_finish_and_begins_nothing(inbox, clock):
    log, gate, begun = [], anyio.Event(), []

    async def handler(event):
        begun.append((event.to, event.body))
        await gate.wait()
        log.append((event.to, event.body))

    async with inbox:
        for number in range(2):
            await accept(inbox, text(number, "a"))
            await accept(inbox, text(number, "b"))
        await accept(inbox, text(0, "c"))
        async with running(inbox, handler, clock, concurrency=2) as worker:
            await until(lambda: len(begun) == 2)
            worker.stop()
            worker.stop()
            await moment()
            gate.set()
        assert sorted(log) == [("a", "0"), ("b", "0")]
        await worker.run()  # a worker that was stopped does not run again
        async with inbox.backlog() as backlog:
            left = [(json.loads(claim.body)["body"], claim.attempt) for claim in await backlog.claim(10)]
    assert sorted(left) == [("0", 1), ("1", 1), ("1", 1)]


async def test_a_worker_that_was_stopped_before_it_is_entered_ends_at_once(inbox, clock):
    async with inbox:
        worker = Worker(inbox, router_of(print), clock=clock)
        worker.stop()
        with anyio.fail_after(10):
            async with worker:
                await worker.wait()


async def test_what_has_not_finished_after_the_drain_is_given_back(inbox, clock):
    log = []

    async def handler(_event):
        log.append("begins")
        try:
            await anyio.sleep_forever()
        finally:
            log.append("cancelled")

    async with inbox:
        await accept(inbox, text(1))
        async with running(inbox, handler, clock, drain=10) as worker:
            await until(lambda: log)
            worker.stop()
            await moment()
            await clock.advance(9.9)
            assert log == ["begins"]
            await clock.advance(0.2)
        assert log == ["begins", "cancelled"]
        async with inbox.backlog() as backlog:
            assert [claim.attempt for claim in await backlog.claim(10)] == [1]


async def test_what_comes_after_a_handler_that_cancelled_itself_is_given_back_as_any_other(inbox, clock):
    begun = []

    async def handler(event):
        if event.body == "1":
            await raises_cancelled(event)
        begun.append(event.body)
        await anyio.sleep_forever()

    async with inbox:
        await accept(inbox, text(1), text(2))
        async with running(inbox, handler, clock, drain=1, backoff=Backoff(attempts=1)) as worker:
            await until(lambda: begun == ["2"])
            worker.stop()
            await moment()
            await clock.advance(1.1)
        async with inbox.backlog() as backlog:
            assert [claim.crashes for claim in await backlog.claim(10)] == [0]


async def test_a_cancelled_worker_gives_back_what_it_holds_and_what_had_begun_is_retried_alone(inbox, clock):
    log, found = [], []

    async def handler(event):
        log.append(event.to)
        await anyio.sleep_forever()

    async with inbox:
        await accept(inbox, *(text(1, f"g{group}") for group in range(5)))
        async with anyio.create_task_group() as tasks:
            await tasks.start(Worker(inbox, router_of(handler), clock=clock, concurrency=3).run)
            await until(lambda: len(log) == 3)
            tasks.cancel_scope.cancel()
        async with inbox.backlog() as backlog:
            while claims := await backlog.claim(10):
                found += [(len(claims), claim.crashes, claim.attempt) for claim in claims]
                for claim in claims:
                    await backlog.done((claim,), more=0)
    assert found == [(1, 1, 1)] * 3 + [(2, 0, 1)] * 2


def test_a_cancellation_that_comes_after_a_handler_has_ended_costs_no_event(caplog):
    """asyncio's, of a whole task: whoever holds the task of a handler may cancel it at any time."""
    sink, log = MemorySink(), []

    async def handler(event, handling):
        log.append((event.body, handling.attempt))
        if len(log) == 1:
            asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)

    async def main():
        await sink.accept(text(1))
        await sink.accept(text(2))
        async with running(sink, handler, SystemClock()):
            await until(lambda: not sink.events)

    anyio.run(main, backend="asyncio")
    assert log == [("1", 1), ("2", 1)]
    assert "a stray cancellation" in caplog.text


def test_options_that_make_no_sense_are_refused():
    nan = float("nan")
    for option, value in (("concurrency", 0), ("concurrency", 1.5), ("timeout", 0), ("drain", -1), ("drain", nan)):
        with pytest.raises(InvalidRequest) as raised:
            Worker(MemorySink(), Router(), **{option: value})
        assert raised.value.field == option


# ------------------------------------------------------------------------------------ a backlog that fails


class Flaky(MemorySink):
    """An inbox whose backlog first does what its plan says: a method's name, and the exceptions of its next calls.

    A number in place of an exception is the seconds that the call takes.
    """

    def __init__(self, clock, **plan):
        super().__init__(clock=clock)
        self.clock = clock
        self.plan = {name: list(errors) for name, errors in plan.items()}
        self.calls = []

    @asynccontextmanager
    async def backlog(self):
        async with super().backlog() as backlog:
            for name in ("claim", "done", "retry", "dead_letter", "release", "wait"):
                setattr(backlog, name, self.flaky(name, getattr(backlog, name)))
            yield backlog

    def flaky(self, name, method):
        async def call(*args, **options):
            self.calls.append(name)
            if self.plan.get(name) and (error := self.plan[name].pop(0)) is not None:
                if error is anyio.sleep_forever:
                    await error()
                if not isinstance(error, float):
                    raise type(error)(*error.args)
                await self.clock.sleep(error)
            return await method(*args, **options)

        return call


LOCKED = OSError("the database is locked")


async def test_a_backlog_that_fails_is_asked_again_after_a_pause(clock, caplog):
    sink, log = Flaky(clock, claim=[LOCKED] * 3, wait=[LOCKED]), []

    async def handler(event):
        log.append(event.body)

    await sink.accept(text(1))
    async with running(sink, handler, clock):
        await clock.advance(0.05)
        assert sink.calls == ["claim"]
        await clock.advance(0.1)
        assert sink.calls == ["claim"] * 2
        await until(lambda: len(log) == 1, clock)
        await until(lambda: sink.calls[-2:] == ["claim", "wait"], clock)
        await sink.accept(text(2))
        await until(lambda: len(log) == 2)
    assert log == ["1", "2"]
    assert caplog.text.count("the database is locked") == 4


@pytest.mark.parametrize("method", ["done", "dead_letter", "retry"])
async def test_what_could_not_be_recorded_is_recorded_later_and_not_handled_again(clock, caplog, method):
    sink, log, facts = Flaky(clock, **{method: [LOCKED] * 4}), [], Facts()

    async def handler(event, handling):
        log.append((event.body, handling.attempt))
        if method == "dead_letter" or (method == "retry" and handling.attempt == 1):
            raise ValueError

    await sink.accept(text(1))
    attempts = {"done": 1, "dead_letter": 1, "retry": 2}[method]
    async with running(sink, handler, clock, backoff=Backoff(attempts=attempts), observers=facts.observers):
        await until(lambda: sink.calls.count(method) >= 2, clock)
        await until(lambda: not sink.events, clock)
        await until(lambda: len(facts.told) == attempts)
    assert log == [("1", attempt) for attempt in range(1, attempts + 1)]
    assert sink.calls.count(method) == 5
    assert "could not be recorded; next try in 0.8 s" in caplog.text


async def test_recording_takes_as_long_as_it_must_while_a_worker_runs(clock):
    """Only the end of a cancelled worker is not waited for longer than its grace."""
    sink, log = Flaky(clock, done=[2 * GRACE]), []

    async def handler(event):
        log.append(event.body)

    await sink.accept(text(1))
    async with running(sink, handler, clock):
        await until(lambda: "done" in sink.calls)
        await clock.advance(2 * GRACE)
        await until(lambda: not sink.events)
    assert log == ["1"]
    assert sink.calls.count("done") == 1


async def test_stopping_does_not_wait_for_a_backlog_that_never_recovers(clock):
    sink, log = Flaky(clock, done=[LOCKED] * 10**4), []

    async def handler(event):
        log.append(event.body)

    await sink.accept(text(1))
    async with running(sink, handler, clock, drain=2) as worker:
        await until(lambda: sink.calls.count("done") >= 2, clock)
        worker.stop()
        await moment()
        await clock.advance(3)
    assert log == ["1"]
    assert sink.calls[-1] == "done"  # once more, in the end


async def test_a_cancelled_worker_does_not_wait_for_ever_for_a_backlog_that_hangs(clock):
    hangs = [anyio.sleep_forever]
    sink, log = Flaky(clock, done=hangs * 2), []

    async def handler(event):
        log.append(event.body)

    await sink.accept(text(1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(Worker(sink, router_of(handler), clock=clock).run)
        await until(lambda: "done" in sink.calls)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await until(lambda: sink.calls.count("done") == 2)  # once more, in the end
            await clock.advance(GRACE + 0.1)


async def test_a_lost_lease_is_logged_and_left_to_who_has_it(clock, caplog):
    sink, log, facts = Flaky(clock, done=[LeaseLost()]), [], Facts()

    async def handler(event):
        log.append((event.to, event.body))

    await sink.accept(text(1, "a"))
    async with running(sink, handler, clock, observers=facts.observers):
        await until(lambda: log)
        await sink.accept(text(1, "b"))
        await until(lambda: facts.told)
    assert [(record.levelno, record.name) for record in caplog.records] == [(logging.WARNING, "rbim.callbacks")]
    assert "was lost" in caplog.text
    assert len(facts.told) == 1
    assert "release" not in sink.calls


# ---------------------------------------------------------------------------------------- any schedule


@settings(max_examples=25, deadline=None)
@given(
    plans=st.lists(st.lists(st.integers(0, 4), max_size=6), min_size=1, max_size=6),
    concurrency=st.integers(1, 4),
    kind=st.sampled_from(["asyncio", "trio"]),
)
def test_every_event_is_handled_to_success_once_or_dead_in_order(plans, concurrency, kind):
    """``plans`` has, for each event of each conversation, how often it fails; 3 attempts are all there are."""
    log = defaultdict(list)

    async def main():
        clock = EmulatedClock(auto=True)
        sink, facts = MemorySink(clock=clock), Facts()

        async def handler(event, handling):
            fails = handling.attempt <= plans[int(event.to)][int(event.body)]
            await clock.sleep(int(event.body) % 3)
            log[int(event.to)].append((int(event.body), handling.attempt, not fails))
            if fails:
                raise ValueError

        for group, plan in enumerate(plans):
            for number in range(len(plan)):
                await sink.accept(text(number, str(group)))
        options = {"concurrency": concurrency, "backoff": Backoff(attempts=3), "observers": facts.observers}
        async with running(sink, handler, clock, **options):
            await until(lambda: not sink.events)
        letters = [json.loads(each.body) for each in await sink.dead_letters()]
        return {(int(each["to"]), int(each["body"])) for each in letters}

    dead_ones = anyio.run(main, backend=kind)
    for group, plan in enumerate(plans):
        expected = [(n, attempt, attempt > fails) for n, fails in enumerate(plan) for attempt in range(1, min(fails, 2) + 2)]
        assert log[group] == expected
    assert dead_ones == {(group, n) for group, plan in enumerate(plans) for n, fails in enumerate(plan) if fails >= 3}
