"""Prepared requests: they wait without a deadline, their sender learns the moment at which they leave, and no call pays."""

import asyncio
import time
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from math import inf

import anyio
import pytest
from anyio import CancelScope, create_task_group
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

from helpers.stubs import BUSY, HANGS, NO_PAUSES, OK, ONCE, READ, Background, Stub, client_over, failing, waits
from rbim import (
    ClientClosed,
    DeadlineExceeded,
    InvalidRequest,
    InviteJoinGroup,
    JoinGroup,
    Limits,
    NotSent,
    Outcome,
    QueryGroupDetail,
    Rate,
    SystemClock,
    Unanswered,
)
from rbim.client import admission, call
from rbim.client.limits import Bucket
from rbim.client.senders import in_background, prepare
from rbim.emulator.clock import EmulatedClock

NONE = Limits()
SLOW = Limits(rates=[Rate(1, per=100)])
ONE_PLACE = Limits(concurrency=1)
EACH_GROUP = Limits(rates=[Rate(1, per=100, each_group=True)])
BURST = Limits(rates=[Rate(50, per=100, burst=3)])
EVERY = [NONE, SLOW, ONE_PLACE, EACH_GROUP, BURST]


def nothing() -> None:
    pass


def clean(client) -> bool:
    """Whether nothing waits or is in flight."""
    load = client.load
    return (load.in_flight, load.waiting, load.calls) == (0, 0, 0) and not client._shared.scopes


async def fill(stub, client, tasks) -> None:
    """Take the only place or token for READ's group."""
    tasks.start_soon(client.send, READ)
    await stub.clock.advance()


# The moment at which it leaves


@pytest.mark.parametrize("limits", EVERY, ids=repr)
async def test_the_sender_learns_of_each_request_at_the_moment_at_which_it_leaves(limits):
    stub = Stub(waits(7))
    left = []
    async with client_over(stub, limits=limits) as client, create_task_group() as tasks:

        def leaves():
            left.append((stub.clock.elapsed, len(stub.requests), client.load.in_flight > 0))

        for _ in range(8):
            tasks.start_soon(client.prepare(READ, leaves).send)
    assert [at for at, _, _ in left] == stub.times
    assert [(before, place) for _, before, place in left] == [(number, True) for number in range(8)]


@pytest.mark.parametrize("limits", [SLOW, EACH_GROUP], ids=repr)
async def test_it_waits_without_a_deadline_and_its_deadline_begins_when_it_leaves(limits):
    stub = Stub(OK, OK, HANGS)
    async with client_over(stub, limits=limits, timeout=10, deadline=3, retry=ONCE) as client:
        for _ in range(2):
            await client.prepare(READ, nothing).send()
        error = await failing(client.prepare(READ, nothing).send())
        assert clean(client)
    assert stub.times == [0, 100, 200]
    assert stub.timeouts == [3, 3, 3]
    assert (type(error), error.outcome) == (DeadlineExceeded, Outcome.UNKNOWN)
    assert 203 <= stub.clock.elapsed <= 203.1


async def test_while_it_is_not_sent_it_takes_nothing():
    stub = Stub()
    async with client_over(stub, limits=Limits(concurrency=1, rates=[Rate(1, per=100)])) as client:
        prepared = [client.prepare(READ, nothing) for _ in range(10)]
        assert clean(client)
        await client.send(READ)
        assert stub.times == [0]
        assert not any(each.may_have_acted for each in prepared)


async def test_it_is_sent_once():
    stub = Stub()
    async with client_over(stub) as client:
        prepared = client.prepare(READ, nothing)
        await prepared.send()
        with pytest.raises(RuntimeError, match="sent once"):
            await prepared.send()
    assert len(stub.requests) == 1


async def test_its_retries_are_those_of_a_call_and_the_sender_learns_of_the_first_attempt_only():
    stub, left = Stub(OK, NotSent, BUSY, OK), []
    async with client_over(stub, limits=Limits(rates=[Rate(1)]), deadline=5) as client:
        await client.send(READ)
        prepared = client.prepare(READ, lambda: left.append(stub.clock.elapsed))
        await prepared.send()
    assert left == [1]
    assert stub.times == [0, 1, 2, 3]
    assert prepared.may_have_acted


async def test_its_deadline_holds_for_its_retries():
    stub = Stub(OK, NotSent)
    async with client_over(stub, limits=SLOW, deadline=5) as client:
        await client.send(READ)
        error = await failing(client.prepare(READ, nothing).send())
        assert clean(client)
    assert error.outcome is Outcome.NOT_SENT
    assert stub.times == [0, 100]  # the next token would come behind its deadline
    assert stub.clock.elapsed <= 105


# What is given back


@pytest.mark.parametrize("limits", EVERY, ids=repr)
@pytest.mark.parametrize("waits_first", [False, True])
async def test_if_the_sender_cannot_mark_it_nothing_is_sent_and_everything_is_given_back(limits, waits_first):
    stub = Stub()

    def fails():
        raise OSError("no space left")

    async with client_over(stub, limits=limits) as client:
        if waits_first:
            await client.send(READ)
        prepared = client.prepare(READ, fails)
        with pytest.raises(OSError, match="no space left"):
            await prepared.send()
        failed = stub.clock.elapsed
        assert clean(client)
        assert not prepared.may_have_acted
        before = len(stub.requests)
        await client.send(READ)
        assert stub.clock.elapsed == failed  # its token is there
        assert len(stub.requests) == before + 1


async def test_an_error_of_the_sdk_that_the_sender_raises_comes_out_as_it_is():
    stub = Stub()
    error = InvalidRequest("the journal is another one")

    def fails():
        raise error

    async with client_over(stub) as client:
        assert await failing(client.prepare(READ, fails).send()) is error
        assert clean(client)
    assert stub.requests == []


@given(
    burst=st.integers(1, 5),
    interval=st.sampled_from([0.25, 1.0, 3.0]),
    steps=st.lists(st.tuples(st.floats(0, 9), st.booleans()), max_size=30),
)
@settings(max_examples=60)
def test_a_bucket_forgets_a_request_that_did_not_leave(burst, interval, steps):
    """A bucket that counts requests and takes some back allows the same as one that never saw these."""
    rate = Rate(1, per=interval, burst=burst)
    bucket, model, now = Bucket(rate), [], 0.0
    for pause, leaves in steps:
        now += pause
        # by definition: of any `n` requests that left, the last is at least (n - burst) intervals behind the first
        allowed = all(now - at >= (len(model) - n + 1 - burst) * interval - 1e-6 for n, at in enumerate(model))
        sure = all(abs(now - at - (len(model) - n + 1 - burst) * interval) > 1e-6 for n, at in enumerate(model))
        if sure:
            assert (bucket.ready_at(now) <= now) == allowed
        if bucket.ready_at(now) <= now:
            bucket.take(now)
            if leaves:
                model.append(now)
            else:
                bucket.give_back()


async def test_a_rate_that_allows_one_request_ever_allows_it_still_if_it_did_not_leave():
    stub = Stub()
    async with client_over(stub, limits=Limits(rates=[Rate(1e-200, per=1e200)])) as client:
        with pytest.raises(ZeroDivisionError):
            await client.prepare(READ, lambda: 1 / 0).send()
        await client.prepare(READ, nothing).send()
        async with create_task_group() as tasks:
            tasks.start_soon(client.prepare(READ, nothing).send)
            await stub.clock.sleep(1e6)
            tasks.cancel_scope.cancel()
        assert clean(client)
    assert len(stub.requests) == 1


async def test_what_was_given_back_goes_to_the_next_one_that_waits():
    stub, left = Stub(), []

    def fails():
        raise OSError("no")

    async with client_over(stub, limits=SLOW) as client, create_task_group() as tasks:
        await client.send(READ)

        async def first():
            with pytest.raises(OSError, match="no"):
                await client.prepare(READ, fails).send()

        tasks.start_soon(first)
        await checkpoint()
        tasks.start_soon(client.prepare(READ, lambda: left.append(stub.clock.elapsed)).send)
    assert left == [100]


@pytest.mark.parametrize("limits", [NONE, SLOW], ids=repr)
async def test_a_signer_that_fails_sends_nothing_and_marks_nothing(limits):
    class Fails:
        app_id = "app"
        calls = 0

        def sign(self, request):
            self.calls += 1
            if self.calls > 1:
                raise OSError("no key")
            return request

    stub, left = Stub(), []
    async with client_over(stub, signer=Fails(), limits=limits) as client:
        await client.send(READ)
        prepared = client.prepare(READ, lambda: left.append(1))
        with pytest.raises(OSError, match="no key"):
            await prepared.send()
        assert clean(client)
        assert not prepared.may_have_acted
    assert (left, len(stub.requests)) == ([], 1)


async def test_values_that_cannot_be_sent_are_refused_before_its_turn():
    stub, left = Stub(), []
    async with client_over(stub, limits=SLOW) as client:
        await client.send(READ)
        most = client.dialect.invite_limit
        op = InviteJoinGroup(group_id="g", members=[f"a{n}" for n in range(most + 1)])
        error = await failing(client.prepare(op, lambda: left.append(1)).send())
        assert clean(client)
    assert (type(error), left, stub.clock.elapsed) == (InvalidRequest, [], 0)


@pytest.mark.parametrize(("step", "may"), [(NotSent, False), (Unanswered, True), (OK, True), (BUSY, False)])
async def test_whether_the_platform_may_have_acted_is_known_at_any_time(step, may):
    seen = []

    class Watching(Stub):
        async def respond(self, request, timeout):
            seen.append(prepared.may_have_acted)
            return await super().respond(request, timeout)

    stub = Watching(step)
    async with client_over(stub, retry=ONCE) as client:
        prepared = client.prepare(READ, lambda: seen.append(prepared.may_have_acted))
        seen.append(prepared.may_have_acted)
        with suppress(NotSent, Unanswered, type(BUSY), Exception):
            await prepared.send()
    assert seen == [False, False, True]
    assert prepared.may_have_acted is may


# Cancellation and closing


@pytest.mark.parametrize("limits", [NONE, ONE_PLACE, Limits(rates=[Rate(10)])], ids=repr)
@pytest.mark.parametrize("turns", range(14))
async def test_cancelled_in_any_turn_of_the_loop_it_leaves_nothing_behind(limits, turns):
    stub, left = Stub(waits(0.05)), []
    async with client_over(stub, limits=limits) as client, create_task_group() as tasks:
        tasks.start_soon(client.send, READ)
        prepared = client.prepare(JoinGroup(group_id="g1"), lambda: left.append(len(stub.requests)))
        scope = CancelScope()

        async def run():
            with scope:
                await prepared.send()

        tasks.start_soon(run)
        for _ in range(turns):
            await checkpoint()
        scope.cancel()
        await stub.clock.sleep(1)
        assert clean(client)
        assert len(left) == len(stub.requests) - 1
        assert prepared.may_have_acted == bool(left)
        tasks.start_soon(client.send, READ)
    assert len(stub.requests) == len(left) + 2


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("limits", [NONE, ONE_PLACE, Limits(rates=[Rate(10)])], ids=repr)
@pytest.mark.parametrize("turns", range(14))
async def test_asyncios_own_cancel_in_any_turn_of_the_loop_leaves_nothing_behind(limits, turns):
    stub, left = Stub(waits(0.05)), []
    async with client_over(stub, limits=limits) as client:
        other = asyncio.create_task(client.send(READ))
        prepared = client.prepare(JoinGroup(group_id="g1"), lambda: left.append(len(stub.requests)))
        task = asyncio.create_task(prepared.send())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        await other
        assert clean(client)
        assert len(left) == len(stub.requests) - 1
        assert prepared.may_have_acted == bool(left)


@pytest.mark.parametrize("limits", [ONE_PLACE, Limits(rates=[Rate(1)])], ids=repr)
@pytest.mark.parametrize("cancelled_first", [False, True])
async def test_cancelled_at_the_moment_of_its_turn_it_does_not_leave(limits, cancelled_first):
    """A caller is cancelled while the place or the time that wakes its request comes, in either order."""
    clock = EmulatedClock()
    stub, left, scope = Stub(waits(1), clock=clock), [], CancelScope()
    async with client_over(stub, limits=limits) as client, create_task_group() as tasks:
        await fill(stub, client, tasks)
        prepared = client.prepare(JoinGroup(group_id="g1"), lambda: left.append(1))

        async def run():
            with scope:
                await prepared.send()

        tasks.start_soon(run)
        await clock.advance(0.5)
        assert client.load.waiting == 1
        if cancelled_first:
            scope.cancel()
        # what happens at 1 s, without a turn of the loop: the answer, or the token
        client._shared.admission.leave(READ, 0.0, answered=True)
        clock.elapsed = 1.0
        client._shared.admission._grant(1.0)
        assert [waiter.state for waiter in client._shared.admission._queue] == []
        scope.cancel()
        client._shared.admission.free -= 1  # the call in flight still has it
        await clock.advance(2)
        assert (left, prepared.may_have_acted) == ([], False)
        assert clean(client)
    assert len(stub.requests) == 1


@pytest.mark.parametrize("limits", [SLOW, ONE_PLACE, EACH_GROUP], ids=repr)
async def test_closing_the_client_ends_what_waits(limits):
    stub, left = Stub(HANGS, clock=EmulatedClock()), []
    async with create_task_group() as tasks:
        async with client_over(stub, limits=limits) as client:
            await_filled = Background(tasks, client.send(READ))
            await stub.clock.advance()
            prepared = [client.prepare(READ, lambda: left.append(1)) for _ in range(5)]
            waiting = [Background(tasks, each.send()) for each in prepared]
            await stub.clock.advance(1)
            assert client.load.waiting == 5
        await stub.clock.advance()
        assert clean(client)
        assert isinstance(await_filled.ended, ClientClosed)
    assert [(type(each.ended), each.ended.outcome) for each in waiting] == [(ClientClosed, Outcome.NOT_SENT)] * 5
    assert not any(each.may_have_acted for each in prepared)
    assert left == []


async def test_on_a_client_that_is_not_open_it_says_so():
    stub, left = Stub(), []
    client = client_over(stub)
    early = await failing(client.prepare(READ, lambda: left.append(1)).send())
    async with client:
        late = client.prepare(READ, lambda: left.append(1))
    assert [type(each) for each in (early, await failing(late.send()))] == [ClientClosed] * 2
    assert (left, stub.requests) == ([], [])


async def test_at_the_moment_at_which_the_client_closes_it_leaves_no_more():
    class Slowly:
        app_id = "app"

        def sign(self, request):
            client._shared.state = "closing"  # as if it was left at this moment, and the call was in no scope
            return request

    stub, left = Stub(), []
    async with client_over(stub, signer=Slowly(), limits=SLOW) as client:
        error = await failing(client.prepare(READ, lambda: left.append(1)).send())
        assert (type(error), error.outcome) == (ClientClosed, Outcome.NOT_SENT)
        assert clean(client)
        client._shared.state = "open"
        client._shared.signer = client_over(stub)._shared.signer
        await client.send(READ)
        assert stub.times == [0]  # the token was given back
    assert left == []


# Others that wait


async def send_many(client, tasks, number, *, leaves=nothing, op=READ) -> None:
    for _ in range(number):
        tasks.start_soon(client.prepare(op, leaves).send)
    await checkpoint()


@pytest.mark.parametrize("priority", ["low", "normal"])
async def test_what_waits_without_a_deadline_keeps_no_call_from_being_tried(priority):
    """A hundred requests that need a hundred seconds do not make the answer of a call with ten seconds impossible."""
    stub = Stub(clock=EmulatedClock())
    async with client_over(stub, limits=Limits(rates=[Rate(1)]), deadline=10) as client, create_task_group() as tasks:
        await client.send(READ)
        await send_many(client.tuned(priority=priority), tasks, 100)
        calls = {level: Background(tasks, client.tuned(priority=level).send(READ)) for level in ("low", "normal")}
        await stub.clock.advance(0.5)
        assert client.load.refused == 0
        assert client.load.waiting == 102
        assert client.load.oldest == 0.5
        await stub.clock.advance(1.5)
        assert calls["normal"].ended is not None
        await stub.clock.advance(8)
        if priority == "low":
            assert client.load.refused == 0
        tasks.cancel_scope.cancel()


async def test_what_waits_without_a_deadline_for_a_place_keeps_no_call_of_low_priority_from_being_tried():
    stub = Stub(waits(1), clock=EmulatedClock())
    async with client_over(stub, limits=ONE_PLACE, deadline=10) as client, create_task_group() as tasks:
        tasks.start_soon(client.send, READ)
        await send_many(client, tasks, 100)
        await stub.clock.advance(5.5)
        assert client.load.attempt_time == pytest.approx(1)
        tried = Background(tasks, in_background(client).send(READ))
        await stub.clock.advance(4)
        assert client.load.refused == 0
        assert tried.ended is not None  # one turn in eight
        tasks.cancel_scope.cancel()


async def test_a_halt_that_is_longer_than_any_deadline_is_waited_for():
    stub = Stub()
    async with client_over(stub, deadline=5, retry=ONCE) as client, create_task_group() as tasks:
        client._shared.admission.throttled(READ, 250.0, calls=1)
        await send_many(client, tasks, 3)
        await stub.clock.sleep(10)
        client._shared.admission.throttled(READ, 270.0, calls=1)  # one more, while they wait
    assert stub.times == [280] * 3


@pytest.mark.parametrize("per_second", [5, 50])
async def test_a_call_waits_two_intervals_at_most_beside_requests_of_low_priority(per_second):
    stub = Stub()
    async with client_over(stub, limits=Limits(rates=[Rate(per_second, burst=1)])) as client, create_task_group() as tasks:
        await send_many(in_background(client), tasks, 15 * per_second)
        took = []
        for _ in range(8):
            await stub.clock.sleep(1.7)
            began = stub.clock.elapsed
            await client.send(READ)
            took.append(stub.clock.elapsed - began)
        assert max(took) <= 2 / per_second + 1e-6
        assert len(stub.requests) >= 0.95 * per_second * stub.clock.elapsed
        tasks.cancel_scope.cancel()


async def test_one_turn_in_eight_is_of_low_priority_while_calls_wait():
    stub, left = Stub(), []
    async with client_over(stub, limits=Limits(rates=[Rate(10)])) as client, create_task_group() as tasks:

        async def caller():
            while True:
                await client.send(READ)

        await send_many(in_background(client), tasks, 200, leaves=lambda: left.append(stub.clock.elapsed))
        for _ in range(20):
            tasks.start_soon(caller)
        await stub.clock.sleep(5)
        before = len(left), len(stub.requests)
        await stub.clock.sleep(64)
        low, every = len(left) - before[0], len(stub.requests) - before[1]
        tasks.cancel_scope.cancel()
    assert 638 <= every <= 642
    assert 79 <= low <= 81


async def test_calls_with_a_deadline_go_before_those_without_one_and_these_are_not_starved():
    """On one level: the deadline decides; from a minute on, one turn in eight is of the request that waits longest."""
    stub, left = Stub(), []
    async with client_over(stub, limits=Limits(rates=[Rate(10)])) as client, create_task_group() as tasks:
        low = in_background(client)

        async def caller():
            while True:
                await low.send(READ)

        await send_many(low, tasks, 1)
        await send_many(low, tasks, 200, leaves=lambda: left.append(stub.clock.elapsed))
        for _ in range(20):
            tasks.start_soon(caller)
        await stub.clock.sleep(59)
        assert len(left) <= 1
        await stub.clock.sleep(65)
        tasks.cancel_scope.cancel()
    assert 0.11 * 640 <= len(left) <= 0.14 * 640


async def test_while_callers_give_up_it_keeps_its_order_behind_the_calls():
    """The newest call goes first then; what waits without a deadline does not give up, and is as old as it is."""
    stub, left = Stub(clock=EmulatedClock()), []
    limits = Limits(rates=[Rate(1, per=10)])
    async with client_over(stub, limits=limits, deadline=1000) as client, create_task_group() as tasks:
        await client.send(READ)

        async def impatient():
            with stub.clock.scope(9):
                await client.send(READ)

        tasks.start_soon(impatient)
        await stub.clock.advance()
        tasks.start_soon(client.send, READ)
        await stub.clock.advance(1)
        for number in range(5):
            tasks.start_soon(client.prepare(READ, lambda number=number: left.append(number)).send)
            await stub.clock.advance(0.1)
        await stub.clock.advance(8)
        assert client._shared.admission._queue._normal.newest_first(stub.clock.elapsed)
        await stub.clock.advance(2)
        assert (len(stub.requests), left) == (2, [])  # the call
        await stub.clock.advance(10)
        assert left == [0]
        await stub.clock.advance(40)
    assert left == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("where", ["waiting", "in flight"])
async def test_a_job_that_ends_is_no_caller_that_gives_up(where):
    """Requests of normal priority that are cancelled, after a long wait, do not turn the order of calls round."""
    stub = Stub(waits(0.01), clock=EmulatedClock())
    limits = Limits(concurrency=1) if where == "in flight" else Limits(rates=[Rate(1)])
    async with client_over(stub, limits=limits, deadline=100) as client, create_task_group() as tasks:
        async with create_task_group() as job:
            job.start_soon(client.send, READ)
            await stub.clock.advance(0.005)
            await send_many(client, job, 5)
            if where == "in flight":
                stub.then(waits(50))
                await stub.clock.advance(0.01)
                assert stub.in_flight == 1
            calls = [Background(tasks, client.send(READ)) for _ in range(3)]
            await stub.clock.advance(0.01)
            assert client.load.waiting >= 7
            job.cancel_scope.cancel()
        assert not client._shared.admission._queue._normal.newest_first(stub.clock.elapsed)
        tasks.cancel_scope.cancel()
        del calls


async def test_one_group_that_must_wait_holds_up_no_other():
    stub = Stub()
    async with client_over(stub, limits=Limits(rates=[Rate(20)])) as client, create_task_group() as tasks:
        client._shared.admission.throttled(QueryGroupDetail(group_id="slow"), 120.0, calls=1)
        low = in_background(client)
        await send_many(low, tasks, 5, op=QueryGroupDetail(group_id="slow"))
        await send_many(low, tasks, 100)
        await stub.clock.sleep(6)
        sent = Counter(document["groupId"] for document in stub.documents)
        tasks.cancel_scope.cancel()
    assert sent == {"g1": 100}


# Rates by the time of leaving


@given(
    moves=st.lists(st.tuples(st.floats(0, 3), st.sampled_from(["prepared", "call", "fails", "gives up"])), max_size=25),
    backend=st.sampled_from(["asyncio", "trio"]),
)
@settings(max_examples=25, deadline=None)
def test_whatever_happens_rates_hold_and_everything_that_may_leave_does(moves, backend):
    """The times of leaving, against the definition: burst + limit * t in any t seconds, and all that did not give up."""
    stub, left, expected = Stub(), [], 0
    limit, burst = 2.0, 2

    def fails():
        raise OSError("no")

    async def one(client, kind):
        if kind == "call":
            await client.send(READ)
        elif kind == "fails":
            with suppress(OSError):
                await client.prepare(READ, fails).send()
        elif kind == "gives up":
            with stub.clock.scope(0.4):
                await client.prepare(READ, lambda: left.append(stub.clock.elapsed)).send()
        else:
            await client.prepare(READ, lambda: left.append(stub.clock.elapsed)).send()

    async def main():
        nonlocal expected
        rates = [Rate(limit, burst=burst)]
        async with client_over(stub, limits=Limits(rates=rates), deadline=1000) as client, create_task_group() as tasks:
            for pause, kind in moves:
                await stub.clock.sleep(pause)
                tasks.start_soon(one, client, kind)
                expected += kind in {"prepared", "call"}
            await stub.clock.sleep(60)
            assert clean(client)

    anyio.run(main, backend=backend)
    times = stub.times
    assert len(times) >= expected
    assert len(times) - len(left) == sum(kind == "call" for _, kind in moves)
    for first in range(len(times)):
        for last in range(first, len(times)):
            assert last - first + 1 <= burst + limit * (times[last] - times[first]) + 1e-6


async def test_on_the_real_clock_a_rate_counts_what_has_left_also_after_a_stall():
    stub = Stub()
    left: list[float] = []
    options = {"clock": SystemClock(), "limits": Limits(rates=[Rate(100, burst=1)])}
    async with client_over(stub, **options) as client, create_task_group() as tasks:
        await send_many(in_background(client), tasks, 25, leaves=lambda: left.append(time.monotonic()))
        await anyio.sleep(0.05)
        time.sleep(0.08)  # the stall
    assert len(left) == len(stub.requests) == 25
    assert all(
        left[last] - left[first] >= (last - first - 1) / 100 - 0.005 for first in range(25) for last in range(first, 25)
    )
    assert left[-1] - left[0] <= 3


# What it costs, and other senders


async def test_without_limits_in_the_way_it_costs_no_queue_no_event_and_no_scope(monkeypatch):
    def fails(*_, **__):
        raise AssertionError("not needed")

    stub = Stub()
    async with client_over(stub) as client:
        monkeypatch.setattr(admission, "Waiter", fails)
        monkeypatch.setattr(admission, "late_anyio", fails)
        monkeypatch.setattr(call.Call, "_wait_for_admission", fails)
        scopes = []
        scope = client._shared.scope
        monkeypatch.setattr(client._shared, "scope", lambda seconds: scopes.append(seconds) or scope(seconds))
        await client.send(READ)
        await client.prepare(READ, nothing).send()
    assert len(scopes) <= 2
    assert inf not in scopes
    assert len(set(scopes)) <= 1  # those of the transport, the same for both


async def test_a_sender_that_is_no_client_sends_at_once():
    happened = []

    class Plain:
        async def send(self, op, /):
            happened.append(("sent", prepared.may_have_acted))
            return op.group_id

    prepared = prepare(Plain(), READ, lambda: happened.append(("leaves", prepared.may_have_acted)))
    assert not prepared.may_have_acted
    assert await prepared.send() == "g1"
    assert happened == [("leaves", False), ("sent", True)]


async def test_a_sender_that_is_no_client_sends_nothing_that_cannot_be_marked():
    sent = []

    class Plain:
        async def send(self, op, /):
            sent.append(op)

    def fails():
        raise OSError("no")

    prepared = prepare(Plain(), READ, fails)
    with pytest.raises(OSError, match="no"):
        await prepared.send()
    assert (sent, prepared.may_have_acted) == ([], False)


async def test_a_client_and_its_views_are_prepared_in_their_own_limits():
    stub, left = Stub(), []
    async with client_over(stub, limits=Limits(rates=[Rate(1)]), retry=NO_PAUSES) as client:
        for sender in (client, client.acting_as("boss"), in_background(client)):
            await prepare(sender, READ, lambda: left.append(stub.clock.elapsed)).send()
    assert left == [0, 1, 2]
    assert all(later - earlier == 1 for earlier, later in pairwise(stub.times))
