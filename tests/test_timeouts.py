"""The cheap scopes of calls on asyncio: each test runs with them and with anyio's, and tells no difference."""

import asyncio
import time
from contextlib import suppress
from math import inf

import anyio
import pytest

from helpers.stubs import BASE_URL, CREDENTIALS, READ, answer
from helpers.tables import each_row
from rbim import AsyncClient, DeadlineExceeded, Outcome, SystemClock, Unanswered
from rbim.client import client as client_module
from rbim.emulator import EmulatedClock
from rbim.timeouts import deadlines_of


class ByAnyio(SystemClock):
    """The machine's clock, which is not told to be so: its scopes are anyio's."""


@pytest.fixture
def anyio_backend(request):
    return getattr(request, "param", "asyncio")


@pytest.fixture(params=[SystemClock, ByAnyio])
def clock(request):
    return request.param()


@pytest.fixture
async def scope():
    return scopes(SystemClock())


def scopes(clock, again=5.0):
    found = deadlines_of(clock, again=again)
    return clock.scope if found is None else found.scope


async def test_only_the_machines_own_clock_on_asyncio_has_the_cheap_ones():
    assert deadlines_of(SystemClock(), again=5.0) is not None
    for other in (ByAnyio(), EmulatedClock()):
        assert deadlines_of(other, again=5.0) is None


async def test_what_runs_too_long_is_ended_and_the_task_goes_on(scope):
    began = time.monotonic()
    with scope(0.02) as entered:
        await anyio.sleep(10)
    assert 0.02 <= time.monotonic() - began < 5
    assert entered.cancelled_caught
    await anyio.sleep(0.001)
    assert asyncio.current_task().cancelling() == 0


async def test_what_ends_in_time_is_left_alone_later_too(scope):
    with scope(0.01) as entered:
        await anyio.sleep(0)
    await anyio.sleep(0.03)
    entered.cancel()
    await anyio.sleep(0.001)
    assert not entered.cancelled_caught


async def test_the_cancellation_of_the_task_that_comes_with_the_end_of_time_goes_through(scope):
    entered = []

    async def one():
        with scope(10) as own:
            entered.append(own)
            await anyio.sleep(10)

    task = asyncio.create_task(one())
    await asyncio.sleep(0)
    entered[0].cancel()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_the_cancellation_of_a_task_that_comes_with_the_end_of_its_wait_goes_through():
    deadlines = deadlines_of(SystemClock(), again=5.0)
    for both in (False, True):
        task = asyncio.create_task(deadlines.run(anyio.sleep(10), inf, lambda: LookupError("ended")))
        await asyncio.sleep(0)
        deadlines.end()
        if both:
            task.cancel()
        with pytest.raises(asyncio.CancelledError if both else LookupError):
            await task
        assert task.cancelling() == both
        assert deadlines.scopes == {}
    deadlines.close()


async def test_a_scope_of_anyios_around_it_ends_it(scope):
    with anyio.move_on_after(0.01) as outer, scope(10) as inner:
        await anyio.sleep(10)
    assert outer.cancelled_caught
    assert not inner.cancelled_caught


async def test_who_does_not_heed_it_is_told_again(clock):
    scope = scopes(clock, again=0.01)
    deaf = 0
    with scope(0.01) as entered:
        while True:
            try:
                await anyio.sleep(10)
            except asyncio.CancelledError:
                deaf += 1
                if deaf == 3:
                    raise
    assert entered.cancelled_caught
    assert asyncio.current_task().cancelling() == 0
    await anyio.sleep(0.001)


# Through a client


class Slow:
    """A transport that keeps no time-out, and answers when it is let."""

    def __init__(self):
        self.let = asyncio.Event()

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_):
        pass

    async def send(self, _request, /, *, timeout):  # noqa: ARG002  # it keeps none
        await self.let.wait()
        return answer()


def client_over(transport, clock, **options):
    return AsyncClient(base_url=BASE_URL, credentials=CREDENTIALS, transport=transport, clock=clock, **options)


class Timed(Slow):
    """A transport that keeps its time-out, as it says."""

    keeps_timeouts = True

    async def send(self, _request, /, *, timeout):
        try:
            await asyncio.wait_for(self.let.wait(), timeout)
        except TimeoutError:
            raise Unanswered("late") from None
        return answer()


class Inherits(Timed):
    """A transport that waits by itself, too."""

    async def send(self, request, /, *, timeout):
        await asyncio.sleep(10)
        return await super().send(request, timeout=timeout)


class Wraps:
    """A transport with the attributes of another one."""

    def __init__(self):
        self.inner = Timed()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *error):
        await self.inner.__aexit__(*error)

    async def send(self, request, /, *, timeout):
        await asyncio.sleep(10)
        return await self.inner.send(request, timeout=timeout)


@each_row("kind", [Slow, Timed, Inherits, Wraps])
async def test_a_call_has_a_deadline_unless_its_transport_keeps_the_time(clock, kind):
    async with client_over(kind(), clock, timeout=0.05, deadline=0.05) as client:
        call = asyncio.create_task(failing_with(DeadlineExceeded, client.send(READ)))
        await asyncio.sleep(0)
        assert client.load.calls == 1
        if type(clock) is SystemClock:
            assert [due < inf for due in client._deadlines.scopes.values()] == [kind is not Timed]
        else:
            assert len(client._shared.scopes) == 1
        error = await call
        assert error.outcome is Outcome.UNKNOWN
        assert [made.error for made in error.attempts] == ["Unanswered" if kind is Timed else "DeadlineExceeded"]
        assert client.load.calls == 0


async def test_leaving_does_not_wait_for_ever_for_a_transport_that_breaks_its_word(monkeypatch):
    class Liar(Slow):
        keeps_timeouts = True

        async def send(self, _request, /, *, timeout):  # noqa: ARG002  # it keeps none
            with anyio.CancelScope(shield=True):
                while not self.let.is_set():
                    with suppress(asyncio.CancelledError):
                        await self.let.wait()
            return answer()

    monkeypatch.setattr(client_module, "GRACE", 0.01)
    transport = Liar()
    async with client_over(transport, SystemClock()) as client:
        call = asyncio.create_task(client.send(READ))
        await anyio.sleep(0.001)
    assert not call.done()
    transport.let.set()
    await call


@each_row("kind", [Slow, Timed])
async def test_another_event_loop_is_refused(kind):
    async with client_over(kind(), SystemClock()) as client:
        error = await asyncio.to_thread(asyncio.run, failing_with(RuntimeError, client.send(READ)))
    assert "event loop" in str(error)


async def failing_with(kind, call):
    with pytest.raises(kind) as caught:
        await call
    return caught.value
