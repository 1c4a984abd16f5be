"""The inbox in memory: what it keeps, whom it lets wait, and what its backlog gives out."""

import json
import subprocess
import sys
import threading
from collections import defaultdict
from itertools import chain

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from helpers.workers import NOON
from rbim import InvalidRequest
from rbim._support.event_loops import backend, waker
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.inbox.memory import MemorySink
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.router import Router
from rbim.callbacks.worker.worker import Worker
from rbim.emulator.clock import EmulatedClock


def text(said, group="g1"):
    fields = {"convType": "TEAM", "msgType": "TEXT", "to": group, "fromAccount": "app#1001", "body": str(said)}
    body = json.dumps({"eventType": "1", "msgId": f"{group}-{said}", **fields}).encode()
    return delivery_of(body, app_id="app", received=NOON)


def said(claim):
    return None if claim is None else json.loads(claim.body)["body"]


async def turns():
    for _ in range(20):
        await checkpoint()


async def until(true):
    with anyio.fail_after(10):
        while not true():
            await anyio.sleep(0.001)


# ------------------------------------------------------------------------------------------ accepting


async def test_it_shows_what_it_took_in_order():
    async with MemorySink() as sink:
        for number in range(3):
            assert await sink.accept(text(number, "a")) is True
            assert await sink.accept(text(number, "b")) is True
    assert [(event.to, event.body) for event in sink.events] == [(g, str(n)) for n in range(3) for g in "ab"]
    assert (sink.durable, sink.retention) == (False, 0)


async def test_an_event_is_taken_once_while_its_key_is_known():
    sink = MemorySink(remember=2)
    assert [await sink.accept(text(number)) for number in (1, 1, 2, 1, 3, 2, 1)] == [
        True, False, True, False, True, False, True,
    ]  # fmt: skip


async def test_what_cannot_be_handled_goes_to_quarantine_however_full_it_is():
    sink = MemorySink(capacity=1, kept=2)
    await sink.accept(text(1))
    unreadable = [delivery_of(b"no JSON %d" % number, app_id="app", received=NOON) for number in range(3)]
    assert [await sink.accept(delivery) for delivery in unreadable] == [True] * 3
    assert await sink.accept(unreadable[2]) is False
    assert [letter.body for letter in await sink.quarantined()] == [each.body for each in unreadable[1:]]
    assert len(sink.events) == 1


async def test_who_finds_no_room_waits_for_it_in_the_order_of_coming():
    sink, log = MemorySink(capacity=2), []

    async def bring(number):
        log.append((number, await sink.accept(text(number))))

    async with anyio.create_task_group() as tasks, sink.backlog() as backlog:
        for number in (0, 1, 2, 3, 3, 4):
            tasks.start_soon(bring, number)
            await checkpoint()
        await turns()
        assert log == [(0, True), (1, True)]
        assert await sink.accept(text(1)) is False  # what is known needs no room
        (claim,) = await backlog.claim(1)
        await turns()
        assert len(log) == 2  # what is being handled takes room as well
        (claim,) = await backlog.done([claim], more=1)
        await turns()
        assert log[2:] == [(2, True)]
        (claim,) = await backlog.dead_letter(claim, error="x", more=1)
        await turns()
        assert sorted(log[3:]) == [(3, False), (3, True)]  # a copy of what is there now has its answer as well
        (claim,) = await backlog.done([claim], more=1)
        await turns()
        assert log[5:] == [(4, True)]
        assert said(claim) == "3"
    assert [event.body for event in sink.events] == ["3", "4"]


async def test_who_gives_up_waiting_leaves_its_place_to_the_next():
    sink, log = MemorySink(capacity=1), []

    async def bring(number):
        log.append((number, await sink.accept(text(number))))

    await sink.accept(text(0))
    async with anyio.create_task_group() as tasks, sink.backlog() as backlog:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as impatient:
                impatient.start_soon(bring, 1)
                await turns()
                tasks.start_soon(bring, 2)
                await turns()
                scope.cancel()
        (claim,) = await backlog.claim(1)
        await backlog.done([claim], more=0)
        await turns()
        assert log == [(2, True)]
        assert await backlog.claim(1)
    assert [event.body for event in sink.events] == ["2"]


async def test_who_is_cancelled_in_the_moment_of_being_let_in_has_been_accepted():
    sink = MemorySink(capacity=1)
    await sink.accept(text(0))
    async with sink.backlog() as backlog:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sink.accept, text(1))
            await turns()
            (claim,) = await backlog.claim(1)
            await backlog.done([claim], more=0)
            tasks.cancel_scope.cancel()
        assert await sink.accept(text(1)) is False
    assert [event.body for event in sink.events] == ["1"]


@pytest.mark.parametrize("option", ["capacity", "remember", "kept"])
def test_options_that_make_no_sense_are_refused(option):
    with pytest.raises(InvalidRequest) as raised:
        MemorySink(**{option: 0})
    assert raised.value.field == option


# ------------------------------------------------------------------------------------------ giving out


async def test_a_conversation_is_with_one_at_a_time_and_in_order():
    sink = MemorySink()
    for number in range(3):
        await sink.accept(text(number, "a"))
        await sink.accept(text(number, "b"))
    async with sink.backlog() as first, sink.backlog() as second:
        (a,) = await first.claim(1)
        (b,) = await second.claim(1)
        assert (a.conversation, b.conversation) == ("app/team/a", "app/team/b")
        assert (a.number, a.attempt, a.app_id, a.received, a.replays) == (1, 1, "app", NOON, 0)
        assert a.key == text(0, "a").key
        assert await second.claim(5) == []
        (following,) = await first.done([a], more=1)
        assert (said(following), following.fence) == ("1", a.fence)
        assert not await first.done([following], more=0)
        (again,) = await second.claim(1)
        assert (said(again), again.conversation) == ("2", "app/team/a")
        assert again.fence > b.fence > a.fence
        assert not await second.done([again], more=1)


async def test_what_an_older_lease_does_is_too_late():
    sink = MemorySink()
    for number in range(2):
        await sink.accept(text(number))
    async with sink.backlog() as backlog:
        (old,) = await backlog.claim(1)
        await backlog.release(old)
        (new,) = await backlog.claim(1)
        assert (new.attempt, new.number) == (1, old.number)  # as if it had not been
        for late in (
            backlog.done([old], more=1),
            backlog.dead_letter(old, error="x", more=1),
            backlog.retry(old, error="x", pause=1),
        ):
            with pytest.raises(LeaseLost):
                await late
        await backlog.release(old)
        await backlog.renew([old, new])
        (following,) = await backlog.done([new], more=1)
        with pytest.raises(LeaseLost):
            await backlog.done([new], more=1)  # the lease holds, but that event is over
        await backlog.release(new)
        assert not await backlog.done([following], more=1)
        with pytest.raises(LeaseLost):
            await backlog.done([following], more=1)
    assert (sink.events, list(sink.dead)) == ((), [])


async def test_what_a_backlog_still_holds_when_it_is_left_goes_back():
    sink = MemorySink()
    await sink.accept(text(1))
    async with sink.backlog() as backlog:
        await backlog.claim(1)
    async with sink.backlog() as backlog:
        assert [claim.attempt for claim in await backlog.claim(1)] == [1]


async def test_dead_letters_are_kept_and_the_last_of_them_only():
    sink = MemorySink(kept=2)
    for number in range(3):
        await sink.accept(text(number))
    async with sink.backlog() as backlog:
        claims = await backlog.claim(1)
        while claims:
            claims = await backlog.dead_letter(claims[0], error=f"error {said(claims[0])}", more=1)
    assert [(said(letter.claim), letter.error) for letter in sink.dead] == [("1", "error 1"), ("2", "error 2")]


async def test_who_failed_rests_and_who_waits_is_woken_when_it_is_due():
    clock, log = EmulatedClock(), []
    sink = MemorySink(clock=clock)
    for group in "ab":
        await sink.accept(text(1, group))

    async def wait(backlog, name):
        await backlog.wait()
        log.append((name, clock.elapsed))

    async with sink.backlog() as backlog, sink.backlog() as other, anyio.create_task_group() as tasks:
        a, b = await backlog.claim(2)
        await backlog.retry(a, error="x", pause=10)
        tasks.start_soon(wait, other, "other")
        await clock.advance(1)
        await backlog.retry(b, error="x", pause=3)  # sooner than what the other waits for
        await clock.advance(0)
        log.clear()  # it may have looked up
        tasks.start_soon(wait, backlog, "own")
        await clock.advance(2.9)
        assert await backlog.claim(5) == []
        assert log == []
        await clock.advance(0.2)
        assert log == [("own", 4.0)]
        (b,) = await backlog.claim(5)
        assert (b.conversation, b.attempt) == ("app/team/b", 2)
        await backlog.done([b], more=1)
        await clock.advance(7)
        (a,) = await backlog.claim(5)
        assert (a.conversation, a.attempt) == ("app/team/a", 2)


async def test_waiting_ends_when_something_comes_or_is_left_behind():
    sink, log = MemorySink(), []

    async def wait(backlog):
        await backlog.wait()
        log.append("woken")

    async with sink.backlog() as backlog, sink.backlog() as other, anyio.create_task_group() as tasks:

        async def wakes(what):
            log.clear()
            tasks.start_soon(wait, other)
            await turns()
            assert log == []
            result = await what
            await until(lambda: log)
            return result

        await wakes(sink.accept(text(1)))
        await other.wait()  # there is something: no need to wait
        (claim,) = await backlog.claim(1)
        await wakes(backlog.release(claim))
        (claim,) = await backlog.claim(1)
        await sink.accept(text(2))
        await wakes(backlog.done([claim], more=0))


def test_threads_and_loops_of_both_kinds_work_on_one_sink_together():
    """Two workers, each in a thread of its own, and two that bring events and have to wait for room."""
    sink, log, lock = MemorySink(capacity=5), defaultdict(list), threading.Lock()
    at_once = defaultdict(int)

    async def handler(event, handling):
        with lock:
            at_once[event.to] += 1
            assert at_once[event.to] == 1
        await checkpoint()
        with lock:
            at_once[event.to] -= 1
            log[event.to].append((int(event.body), handling.attempt))
        if int(event.body) % 7 == 3 and handling.attempt == 1:
            raise ValueError

    router = Router()
    router.fallback(handler)
    backoff = Backoff(first=0.001, most=0.001)
    workers = [Worker(sink, router, concurrency=3, backoff=backoff) for _ in range(2)]

    async def bring(groups):
        for number in range(50):
            for group in groups:
                assert await sink.accept(text(number, group))

    kinds = ("asyncio", "trio")
    working = [
        threading.Thread(target=anyio.run, args=(worker.run,), kwargs={"backend": kind})
        for worker, kind in zip(workers, kinds, strict=True)
    ]
    bringing = [
        threading.Thread(target=anyio.run, args=(bring, groups), kwargs={"backend": kind})
        for groups, kind in zip(("ab", "cd"), kinds, strict=True)
    ]
    for thread in (*working, *bringing):
        thread.start()
    for thread in bringing:
        thread.join(10)
    anyio.run(until, lambda: not sink.events)
    for worker in workers:
        worker.stop()
    for thread in (*working, *bringing):
        thread.join(10)
        assert not thread.is_alive()
    expected = [(number, attempt) for number in range(50) for attempt in ((1, 2) if number % 7 == 3 else (1,))]
    assert log == dict.fromkeys("abcd", expected)


# ------------------------------------------------------------------------------------ any order of things


class OneSink(RuleBasedStateMachine):
    """A sink and two of its backlogs, beside a model: a list of what is not settled for each conversation."""

    def __init__(self):
        super().__init__()
        self.clock = EmulatedClock()
        self.sink = MemorySink(capacity=6, clock=self.clock)
        self.backlogs = [self.sink.backlog(), self.sink.backlog()]
        self.model = defaultdict(list)
        self.held = {}
        self.resting = {}
        self.attempts = defaultdict(int)
        self.number = 0
        for backlog in self.backlogs:
            self.go(self.enter(backlog))

    async def enter(self, backlog):
        return await backlog.__aenter__()

    def go(self, coroutine):
        """Run what never waits, without an event loop if it needs none."""
        box = []

        async def main():
            box.append(await coroutine)

        anyio.run(main)
        return box[0]

    @rule(group=st.sampled_from("abc"))
    def accept(self, group):
        if sum(map(len, self.model.values())) < 6:
            self.number += 1
            assert self.go(self.sink.accept(text(self.number, group)))
            self.model[group].append(str(self.number))

    @rule(which=st.integers(0, 1), limit=st.integers(1, 3))
    def claim(self, which, limit):
        claims = self.go(self.backlogs[which].claim(limit))
        assert len(claims) <= limit
        claims = [claim for claim in claims if claim.number == min(c.number for c in claims if c.fence == claim.fence)]
        free = {g for g, waiting in self.model.items() if waiting and g not in self.held}
        free -= {g for g, due in self.resting.items() if due > self.clock.elapsed}
        assert len(claims) == min(limit, len(free))
        for claim in claims:
            group = claim.conversation[-1]
            assert group in free
            self.take(which, group, claim)

    def take(self, which, group, claim):
        self.held[group] = (which, claim)
        self.resting.pop(group, None)
        assert (said(claim), claim.attempt) == (self.model[group][0], self.attempts[said(claim)] + 1)

    @rule(group=st.sampled_from("abc"), more=st.integers(0, 2), dead=st.booleans())
    def settle(self, group, more, dead):
        if group in self.held:
            which, claim = self.held.pop(group)
            backlog = self.backlogs[which]
            done = backlog.dead_letter(claim, error="x", more=more) if dead else backlog.done([claim], more=more)
            following = self.go(done)
            self.model[group].pop(0)
            assert [said(each) for each in following] == self.model[group][:more]
            if following:
                self.take(which, group, following[0])

    @rule(group=st.sampled_from("abc"), pause=st.sampled_from([1, 5]))
    def retry(self, group, pause):
        if group in self.held:
            which, claim = self.held.pop(group)
            self.go(self.backlogs[which].retry(claim, error="x", pause=pause))
            self.resting[group] = self.clock.elapsed + pause
            self.attempts[said(claim)] += 1

    @rule(group=st.sampled_from("abc"))
    def release(self, group):
        if group in self.held:
            which, claim = self.held.pop(group)
            self.go(self.backlogs[which].release(claim))

    @rule(seconds=st.sampled_from([1, 4]))
    def time_passes(self, seconds):
        self.clock.elapsed += seconds

    @invariant()
    def nothing_is_lost(self):
        assert sorted(event.body for event in self.sink.events) == sorted(chain(*self.model.values()))


OneSink.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
test_any_order_of_things = OneSink.TestCase


# ----------------------------------------------------------------------------------------------- wake


async def test_a_waker_calls_in_its_own_loop_from_any_thread():
    called, woken = [], anyio.Event()
    wake = waker()

    def call():
        called.append(threading.get_ident())
        woken.set()

    await anyio.to_thread.run_sync(wake, call)
    await woken.wait()
    assert called == [threading.get_ident()]


@pytest.mark.parametrize("kind", ["asyncio", "trio"])
def test_a_waker_of_a_loop_that_has_ended_does_nothing(kind):
    async def main():
        assert backend() == kind
        return waker()

    wake = anyio.run(main, backend=kind)
    wake(lambda: pytest.fail("called"))


def test_asyncio_needs_no_trio_to_be_told_from_it():
    program = """
import asyncio, sys
from rbim._support.event_loops import backend, waker

async def main():
    done = asyncio.Event()
    waker()(done.set)
    await done.wait()
    print(backend(), "trio" in sys.modules)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["asyncio", "False"]
