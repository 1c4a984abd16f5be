"""Opening and closing a client: who may do it when, and what becomes of the calls that are under way; cancellation."""

import asyncio
from math import inf

import pytest
from anyio import CancelScope, Event, create_task_group
from anyio.lowlevel import checkpoint

from helpers.stubs import BUSY, HANGS, NEVER, NO_PAUSES, OK, READ, Background, Stub, client_over, failing
from rbim import ClientClosed, DeadlineExceeded, Limits, NotSent, Outcome, Rate, SystemClock, Unanswered
from rbim.client.client import GRACE
from rbim.emulator.clock import EmulatedClock


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request):
    return request.param


# Opening and closing


async def test_before_it_is_entered_a_client_refuses_at_once():
    stub = Stub()
    error = await failing(client_over(stub).send(READ))
    assert isinstance(error, ClientClosed)
    assert (error.outcome, error.operation) == (Outcome.NOT_SENT, "QueryGroupDetail")
    assert "async with" in error.message
    assert stub.requests == []


async def test_after_it_was_left_a_client_refuses_at_once():
    stub = Stub()
    async with client_over(stub) as client:
        view = client.acting_as("boss")
    for sender in (client, view):
        error = await failing(sender.send(READ))
        assert isinstance(error, ClientClosed)
        assert "already closed" in error.message
    assert stub.requests == []


async def test_a_client_is_entered_once():
    stub = Stub()
    async with client_over(stub) as client:
        with pytest.raises(RuntimeError, match="entered once"):
            await client.__aenter__()
    with pytest.raises(RuntimeError, match="entered once"):
        await client.__aenter__()
    assert (stub.entered, stub.left) == (1, 1)


async def test_a_transport_that_cannot_be_entered_leaves_a_client_that_can_be():
    class Reluctant(Stub):
        willing = False

        async def __aenter__(self):
            if not self.willing:
                reason = "not yet"
                raise OSError(reason)
            return await super().__aenter__()

    stub = Reluctant()
    client = client_over(stub)
    with pytest.raises(OSError, match="not yet"):
        await client.__aenter__()
    assert isinstance(await failing(client.send(READ)), ClientClosed)
    stub.willing = True
    async with client:
        await client.send(READ)
    assert (stub.entered, stub.left) == (1, 1)


SITUATIONS = {  # what the call under test does when its client is left; and what is then known of it
    "in flight": ((HANGS,), NEVER, Outcome.UNKNOWN),
    "in a pause": ((NotSent, HANGS), READ, Outcome.NOT_SENT),
    "in a pause after a refusal": ((BUSY, HANGS), READ, Outcome.REFUSED),
    "in a pause after an unknown outcome": ((Unanswered, HANGS), READ, Outcome.UNKNOWN),
    "in flight again": ((NotSent, HANGS), READ, Outcome.UNKNOWN),
}


async def left_while(situation):
    script, op, outcome = SITUATIONS[situation]
    stub = Stub(*script, clock=EmulatedClock())
    async with create_task_group() as tasks:
        async with client_over(stub) as client:
            call = Background(tasks, client.send(op))
            await stub.clock.advance(0.3 if situation == "in flight again" else 0.1)
            assert call.ended is None
        assert stub.left == 1
        assert stub.in_flight == 0
        await checkpoint()
        await checkpoint()
        assert isinstance(call.ended, ClientClosed)
    assert call.ended.outcome is outcome
    assert call.ended.operation == op.spec.name
    assert len(call.ended.attempts) == len(stub.requests)
    assert stub.clock.elapsed == pytest.approx(0.3 if situation == "in flight again" else 0.1)


async def test_leaving_ends_calls_wherever_they_are():
    for situation in SITUATIONS:
        await left_while(situation)


async def test_leaving_ends_calls_that_were_not_let_go_yet():
    for limits in [Limits(concurrency=1), Limits(rates=[Rate(1, per=5)])]:
        stub = Stub(HANGS, clock=EmulatedClock())
        async with create_task_group() as tasks, client_over(stub, limits=limits) as client:
            calls = []
            for _ in range(5):
                calls.append(Background(tasks, client.send(READ)))
                await stub.clock.advance()
        assert [type(call.ended) for call in calls] == [ClientClosed] * 5
        assert [call.ended.outcome for call in calls] == [Outcome.UNKNOWN] + [Outcome.NOT_SENT] * 4
        assert stub.left == 1


class KeepsTimeouts(Stub):
    """A transport that keeps its time-outs by itself, so that the client sets no timer for its sends."""

    keeps_timeouts = True

    async def respond(self, request, timeout):  # noqa: ARG002
        await Event().wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_leaving_ends_calls_over_a_transport_that_keeps_its_timeouts():
    stub = KeepsTimeouts()
    async with create_task_group() as tasks:
        async with client_over(stub, clock=SystemClock()) as client:
            assert client._shared.backstop == inf
            call = Background(tasks, client.send(READ))
            for _ in range(5):
                await checkpoint()
            assert stub.in_flight == 1
        await checkpoint()
    assert isinstance(call.ended, ClientClosed)
    assert call.ended.outcome is Outcome.UNKNOWN
    assert [each.outcome for each in call.ended.attempts] == [Outcome.UNKNOWN]
    assert stub.in_flight == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_calls_that_wait_for_a_place_end_at_their_deadline_and_with_their_client():
    """The timer of the client wakes them: they wait in no scope."""
    async with create_task_group() as tasks:
        async with client_over(KeepsTimeouts(), clock=SystemClock(), limits=Limits(concurrency=1)) as client:
            calls = []
            for _ in range(3):
                calls.append(Background(tasks, client.send(READ)))
                await checkpoint()
            late = await failing(client.tuned(deadline=0.05).send(READ))
            assert isinstance(late, DeadlineExceeded)
            assert (late.outcome, late.attempts, client.load.waiting, client.load.refused) == (Outcome.NOT_SENT, (), 2, 1)
        await checkpoint()
    assert [type(call.ended) for call in calls] == [ClientClosed] * 3
    assert [call.ended.outcome for call in calls] == [Outcome.UNKNOWN, Outcome.NOT_SENT, Outcome.NOT_SENT]
    assert client._deadlines.scopes == {}


async def test_a_call_that_is_let_go_while_its_client_closes_sends_nothing():
    class Slowly:
        app_id = "app"

        def sign(self, request):
            client._shared.state = "closing"  # as if it was left at this moment, and the call was in no scope
            return request

    stub = Stub()
    async with client_over(stub, signer=Slowly()) as client:
        error = await failing(client.send(READ))
        assert isinstance(error, ClientClosed)
        assert (error.outcome, error.attempts) == (Outcome.NOT_SENT, ())
        assert client._shared.admission.free == 100
    assert stub.requests == []


async def test_a_transport_that_fails_to_close_still_leaves_a_closed_client():
    class Broken(Stub):
        async def __aexit__(self, *_):
            self.left += 1
            reason = "broken pipe"
            raise OSError(reason)

    stub = Broken()
    client = client_over(stub)
    with pytest.raises(OSError, match="broken pipe"):
        async with client:
            pass
    assert isinstance(await failing(client.send(READ)), ClientClosed)
    assert "closed" in repr(client)


async def test_leaving_in_a_cancelled_scope_still_ends_calls_and_closes_the_transport():
    stub = Stub(HANGS, clock=EmulatedClock())
    async with create_task_group() as tasks:
        with CancelScope() as scope:
            async with client_over(stub) as client:
                call = Background(tasks, client.send(READ))
                await stub.clock.advance()
                scope.cancel()
                await checkpoint()
        assert scope.cancelled_caught
    assert isinstance(call.ended, ClientClosed)
    assert stub.left == 1


class Stubborn(Stub):
    """A transport whose requests do not heed their cancellation for so many seconds."""

    seconds = 3.0

    async def respond(self, *_):
        with CancelScope(shield=True):
            await self.clock.sleep(self.seconds)
        return OK


async def test_leaving_waits_for_calls_that_take_a_while_to_end_and_not_for_ever():
    for seconds, waited in ((3.0, 3), (1000.0, GRACE)):
        stub = Stubborn(clock=EmulatedClock(auto=True))
        stub.seconds = seconds
        async with create_task_group() as tasks:
            async with client_over(stub) as client:
                call = Background(tasks, client.send(READ))
                for _ in range(3):
                    await checkpoint()
            assert (stub.clock.elapsed, stub.left, stub.in_flight) == (waited, 1, int(seconds > GRACE))
        assert call.ended is not None


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_cancel_while_leaving_still_closes_the_transport():
    stub = Stubborn(clock=EmulatedClock())

    async def work():
        async with client_over(stub) as client:
            task = asyncio.create_task(client.send(READ))
            for _ in range(3):
                await asyncio.sleep(0)
        return task

    task = asyncio.create_task(work())
    for _ in range(10):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert stub.left == 1
    await stub.clock.advance(3)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_cancel_in_any_turn_of_the_loop_leaves_nothing_behind():
    for turns in range(12):
        stub = Stub(NotSent, OK)
        async with client_over(stub, limits=Limits(concurrency=1), retry=NO_PAUSES) as client:
            task = asyncio.create_task(client.send(READ))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                assert task.cancelling() == 1
            assert client._shared.admission.free == 1
            assert client._shared.running == 0


async def test_a_callers_cancellation_is_no_error_of_the_call():
    stub = Stub(HANGS, clock=EmulatedClock())
    async with client_over(stub) as client, create_task_group() as tasks:
        with stub.clock.scope(3) as scope:
            tasks.start_soon(stub.clock.advance, 5)
            await client.send(READ)
        assert scope.cancelled_caught
