"""Prepared requests: they wait without a deadline, their sender learns the moment at which they leave, and no call pays."""

from contextlib import suppress
from itertools import pairwise, product
from math import inf

import pytest
from anyio import CancelScope, create_task_group
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

from helpers.stubs import BUSY, HANGS, NO_PAUSES, OK, ONCE, READ, Background, Stub, client_over, failing, waits
from rbim import ClientClosed, DeadlineExceeded, JoinGroup, Limits, NotSent, Outcome, Rate, Unanswered
from rbim.client import admission, call
from rbim.client.client import in_background, prepare
from rbim.client.limits import Bucket
from rbim.client.queue import EARLIEST
from rbim.emulator.clock import EmulatedClock

NONE = Limits()
SLOW = Limits(rates=[Rate(1, per=100)])
ONE_PLACE = Limits(concurrency=1)
EACH_GROUP = Limits(rates=[Rate(1, per=100, each_group=True)])
BURST = Limits(rates=[Rate(50, per=100, burst=3)])
EVERY = [NONE, SLOW, ONE_PLACE, EACH_GROUP, BURST]


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request):
    return request.param


async def nothing() -> None:
    pass


def later(call):
    """Return an async function that calls a function."""

    async def leaves():
        call()

    return leaves


def clean(client) -> bool:
    """Whether nothing waits or is in flight."""
    load = client.load
    return (load.in_flight, load.waiting, load.calls) == (0, 0, 0) and not client._shared.scopes


# The moment at which it leaves


async def learns_of_eight(limits):
    stub = Stub(waits(7))
    left = []
    async with client_over(stub, limits=limits) as client, create_task_group() as tasks:

        async def leaves():
            left.append((stub.clock.elapsed, len(stub.requests), client.load.in_flight > 0))

        for _ in range(8):
            tasks.start_soon(client.prepare(READ, leaves).send)
    assert [at for at, _, _ in left] == stub.times
    assert [(before, place) for _, before, place in left] == [(number, True) for number in range(8)]


async def test_the_sender_learns_of_each_request_at_the_moment_at_which_it_leaves():
    for limits in EVERY:
        await learns_of_eight(limits)


async def test_it_waits_without_a_deadline_and_its_deadline_begins_when_it_leaves():
    for limits in [SLOW, EACH_GROUP]:
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


async def test_while_its_sender_records_it_it_holds_its_place_and_its_deadline_begins_afterwards():
    stub = Stub(OK, OK)
    async with client_over(stub, limits=ONE_PLACE, timeout=10, deadline=3) as client, create_task_group() as tasks:

        async def records():
            tasks.start_soon(client.send, READ)
            await stub.clock.sleep(2)

        await client.prepare(READ, records).send()
    assert stub.times == [2, 2]  # the other one had to wait for its place
    assert stub.timeouts == [3, 1]


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
        prepared = client.prepare(READ, later(lambda: left.append(stub.clock.elapsed)))
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
    assert isinstance(error.__cause__, NotSent)
    assert "again" in str(error)
    assert "attempt 1 failed" in str(error)
    assert stub.times == [0, 100]  # the next token would come behind its deadline
    assert stub.clock.elapsed <= 105


# What is given back


async def cannot_mark(limits, waits_first):
    stub = Stub()

    async def fails():
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


async def test_if_the_sender_cannot_mark_it_nothing_is_sent_and_everything_is_given_back():
    for limits, waits_first in product(EVERY, (False, True)):
        await cannot_mark(limits, waits_first)


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


async def test_what_was_given_back_goes_to_the_next_one_that_waits():
    stub, left = Stub(), []

    async def fails():
        raise OSError("no")

    async with client_over(stub, limits=SLOW) as client, create_task_group() as tasks:
        await client.send(READ)

        async def first():
            with pytest.raises(OSError, match="no"):
                await client.prepare(READ, fails).send()

        tasks.start_soon(first)
        await checkpoint()
        tasks.start_soon(client.prepare(READ, later(lambda: left.append(stub.clock.elapsed))).send)
    assert left == [100]


async def known_before_during_and_after(step, may):
    seen = []

    class Watching(Stub):
        async def respond(self, request, timeout):
            seen.append(prepared.may_have_acted)
            return await super().respond(request, timeout)

    stub = Watching(step)
    async with client_over(stub, retry=ONCE) as client:
        prepared = client.prepare(READ, later(lambda: seen.append(prepared.may_have_acted)))
        seen.append(prepared.may_have_acted)
        with suppress(NotSent, Unanswered, type(BUSY), Exception):
            await prepared.send()
    assert seen == [False, False, True]
    assert prepared.may_have_acted is may


async def test_whether_the_platform_may_have_acted_is_known_at_any_time():
    for step, may in [(NotSent, False), (Unanswered, True), (OK, True), (BUSY, False)]:
        await known_before_during_and_after(step, may)


# Cancellation and closing


async def cancelled_after_turns(limits, turns):
    stub, left = Stub(waits(0.05)), []
    async with client_over(stub, limits=limits) as client, create_task_group() as tasks:
        tasks.start_soon(client.send, READ)
        prepared = client.prepare(JoinGroup(group_id="g1"), later(lambda: left.append(len(stub.requests))))
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


async def test_cancelled_in_any_turn_of_the_loop_it_leaves_nothing_behind():
    for limits, turns in product((NONE, ONE_PLACE, Limits(rates=[Rate(10)])), range(14)):
        await cancelled_after_turns(limits, turns)


async def test_on_a_client_that_is_not_open_it_says_so():
    stub, left = Stub(), []
    client = client_over(stub)
    early = await failing(client.prepare(READ, later(lambda: left.append(1))).send())
    async with client:
        late = client.prepare(READ, later(lambda: left.append(1)))
    assert [type(each) for each in (early, await failing(late.send()))] == [ClientClosed] * 2
    assert (left, stub.requests) == ([], [])


# Others that wait


async def send_many(client, tasks, number, *, leaves=nothing, op=READ) -> None:
    for _ in range(number):
        tasks.start_soon(client.prepare(op, leaves).send)
    await checkpoint()


async def behind_a_hundred_without_a_deadline(priority):
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


async def test_what_waits_without_a_deadline_keeps_no_call_from_being_tried():
    """A hundred requests that need a hundred seconds do not make the answer of a call with ten seconds impossible."""
    for priority in ["low", "normal"]:
        await behind_a_hundred_without_a_deadline(priority)


async def beside_low_priority(per_second):
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


async def test_a_call_waits_two_intervals_at_most_beside_requests_of_low_priority():
    for per_second in [5, 50]:
        await beside_low_priority(per_second)


async def test_calls_with_a_deadline_go_before_those_without_one_and_these_are_not_starved():
    """On one level: the deadline decides; from a minute on, one turn in eight is of the request that waits longest."""
    stub, left = Stub(), []
    async with client_over(stub, limits=Limits(rates=[Rate(10)])) as client, create_task_group() as tasks:
        low = in_background(client)

        async def caller():
            while True:
                await low.send(READ)

        await send_many(low, tasks, 1)
        await send_many(low, tasks, 200, leaves=later(lambda: left.append(stub.clock.elapsed)))
        for _ in range(20):
            tasks.start_soon(caller)
        await stub.clock.sleep(59)
        assert len(left) <= 1
        await stub.clock.sleep(65)
        tasks.cancel_scope.cancel()
    assert 0.11 * 640 <= len(left) <= 0.14 * 640


async def test_a_job_that_ends_is_no_caller_that_gives_up():
    """Requests of normal priority that are cancelled, after a long wait, do not turn the order of calls round."""
    for where in ["waiting", "in flight"]:
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
            assert client._shared.admission._queue._normal.order(stub.clock.elapsed) is EARLIEST
            tasks.cancel_scope.cancel()
            del calls


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
        wait = client._shared.wait
        monkeypatch.setattr(client._shared, "wait", lambda sent, due, ended: scopes.append(due) or wait(sent, due, ended))
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

    prepared = prepare(Plain(), READ, later(lambda: happened.append(("leaves", prepared.may_have_acted))))
    assert not prepared.may_have_acted
    assert await prepared.send() == "g1"
    assert happened == [("leaves", False), ("sent", True)]


async def test_a_client_and_its_views_are_prepared_in_their_own_limits():
    stub, left = Stub(), []
    async with client_over(stub, limits=Limits(rates=[Rate(1)]), retry=NO_PAUSES) as client:
        for sender in (client, client.acting_as("boss"), in_background(client)):
            await prepare(sender, READ, later(lambda: left.append(stub.clock.elapsed))).send()
    assert left == [0, 1, 2]
    assert all(later - earlier == 1 for earlier, later in pairwise(stub.times))
