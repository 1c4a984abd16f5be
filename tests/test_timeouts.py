"""The cheap scopes of calls on asyncio: each test runs with them and with anyio's, and tells no difference."""

import asyncio
import time
from contextlib import suppress

import anyio
import pytest
import trio

from helpers.stubs import BASE_URL, CREDENTIALS, READ, Stub, answer
from rbim import (
    AsyncClient,
    ClientClosed,
    DeadlineExceeded,
    Limits,
    NotSent,
    Observer,
    Outcome,
    SystemClock,
    Unanswered,
)
from rbim.callbacks import SqliteInbox
from rbim.client import client as client_module
from rbim.emulator import EmulatedClock
from rbim.timeouts import REST, deadlines_of, is_unshielded, unshielded


class ByAnyio(SystemClock):
    """The machine's clock, which is not told to be so: its scopes are anyio's."""


@pytest.fixture
def anyio_backend(request):
    return getattr(request, "param", "asyncio")


@pytest.fixture(params=[SystemClock, ByAnyio])
def clock(request):
    return request.param()


@pytest.fixture
async def scope(clock):
    return scopes(clock)


def scopes(clock, again=5.0):
    found = deadlines_of(clock, again=again)
    return clock.scope if found is None else found.scope


async def test_only_the_machines_own_clock_on_asyncio_has_the_cheap_ones():
    assert deadlines_of(SystemClock(), again=5.0) is not None
    for other in (ByAnyio(), EmulatedClock()):
        assert deadlines_of(other, again=5.0) is None


@pytest.mark.parametrize("anyio_backend", ["trio"], indirect=True)
@pytest.mark.usefixtures("anyio_backend")
async def test_trio_has_anyios():
    clock = SystemClock()
    assert deadlines_of(clock, again=5.0) is None
    with scopes(clock)(0.001) as scope:
        await anyio.sleep(10)
    assert scope.cancelled_caught


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


async def test_of_many_scopes_each_ends_at_its_own_time(scope):
    took, all_short = {}, anyio.Event()

    async def one(seconds):
        began = time.monotonic()
        with scope(seconds) as entered:
            await anyio.sleep(100)
        assert entered.cancelled_caught
        took[seconds] = time.monotonic() - began
        if len(took) == 4:
            all_short.set()

    async with anyio.create_task_group() as tasks:
        for seconds in (50.0, 0.15, 0.05, 60.0, 0.1, 0.0):
            tasks.start_soon(one, seconds)
        await all_short.wait()
        tasks.cancel_scope.cancel()
    assert took.keys() == {0.0, 0.05, 0.1, 0.15}  # in which order, a busy machine says
    assert all(seconds <= each < 40 for seconds, each in took.items())


async def test_another_task_can_end_it(scope):
    entered = []

    async def one():
        with scope(10) as own:
            entered.append(own)
            await anyio.sleep(10)
        return own.cancelled_caught

    task = asyncio.create_task(one())
    await asyncio.sleep(0)
    entered[0].cancel()
    assert await task


async def test_an_exception_goes_through_and_a_value_stands(scope):
    with pytest.raises(KeyError), scope(10):
        raise KeyError
    with pytest.raises(OSError, match="instead"), scope(0.001):
        await instead()
    await anyio.sleep(0.001)


async def instead():
    try:
        await anyio.sleep(10)
    finally:
        reason = "instead"
        raise OSError(reason)


async def test_the_cancellation_of_the_task_goes_through(scope):
    async def one():
        with scope(10):
            await anyio.sleep(10)

    task = asyncio.create_task(one())
    await asyncio.sleep(0)
    task.cancel("mine")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


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


async def test_a_scope_of_anyios_around_it_ends_it(scope):
    with anyio.move_on_after(0.01) as outer, scope(10) as inner:
        await anyio.sleep(10)
    assert outer.cancelled_caught
    assert not inner.cancelled_caught


async def test_both_at_once_end_at_the_outer_one(scope):
    with anyio.CancelScope() as outer:
        with scope(10) as inner:
            outer.cancel()
            inner.cancel()
            await anyio.sleep(10)
        await anyio.sleep(10)
    assert outer.cancelled_caught
    await anyio.sleep(0.001)


async def test_a_scope_of_anyios_within_it_is_ended_with_it(scope):
    with scope(0.01) as outer, anyio.move_on_after(10) as inner:
        await anyio.sleep(10)
    assert outer.cancelled_caught
    assert not inner.cancelled_caught
    await anyio.sleep(0.001)


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


async def test_the_more_scopes_there_are_the_longer_the_timer_rests():
    class Due:
        due = 0.0

    for count, rests in ((1, 0.01), (20_000, 20_000 * REST)):
        deadlines = deadlines_of(SystemClock(), again=5.0)
        deadlines.scopes = {Due(): None for _ in range(count)}
        now = time.monotonic()
        Due.due = now + 0.01
        deadlines._fire()
        fires = deadlines.fires
        deadlines.close()
        assert 0.99 * rests <= fires - now < rests + 0.01


async def test_one_timer_serves_all(monkeypatch):
    loop, set_ = asyncio.get_running_loop(), []
    later = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda *told: set_.append(told[0]) or later(*told))
    scope = scopes(SystemClock())
    for _ in range(1000):
        with scope(10):
            pass
    assert len(set_) == 1
    with scope(5):  # this one is due before
        assert len(set_) == 2


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


async def test_a_transport_that_keeps_no_time_is_cut_off_at_the_deadline(clock):
    async with client_over(Slow(), clock, timeout=0.02, deadline=0.02) as client:
        with pytest.raises(DeadlineExceeded) as caught:
            await client.send(READ)
        assert caught.value.outcome is Outcome.UNKNOWN
        assert [made.error for made in caught.value.attempts] == ["DeadlineExceeded"]


async def test_leaving_ends_calls_in_flight_and_those_that_wait(clock):
    async def failing(call):
        with pytest.raises(ClientClosed) as caught:
            await call
        return caught.value.outcome

    async with client_over(Slow(), clock) as client:
        calls = [asyncio.create_task(failing(client.send(READ))) for _ in range(102)]
        await anyio.sleep(0.001)
    assert [await call for call in calls] == [Outcome.UNKNOWN] * 100 + [Outcome.NOT_SENT] * 2


class Converting(Slow):
    """A transport that makes an error of its own of a cancellation."""

    sent = 0

    async def send(self, _request, /, *, timeout):  # noqa: ARG002  # it keeps none
        self.sent += 1
        try:
            await self.let.wait()
        except BaseException:
            reason = "cancelled"
            raise NotSent(reason) from None


async def test_a_client_that_is_left_sends_nothing_more(clock):
    transport = Converting()
    async with client_over(transport, clock) as client:
        call = asyncio.create_task(client.send(READ))
        await anyio.sleep(0.001)
    with pytest.raises(ClientClosed):
        await call
    assert transport.sent == 1


class CleaningUp(Slow):
    """A transport that needs a while to clean up behind a request."""

    done = False

    async def send(self, _request, /, *, timeout):  # noqa: ARG002  # it keeps none
        try:
            await self.let.wait()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.05)
                self.done = True


async def test_a_transport_may_clean_up_behind_a_call_that_is_too_late(clock):
    transport = CleaningUp()
    async with client_over(transport, clock, timeout=0.01, deadline=0.01) as client:
        with pytest.raises(DeadlineExceeded):
            await client.send(READ)
    assert transport.done


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


@pytest.mark.parametrize("kind", [Slow, Timed, Inherits, Wraps])
async def test_a_call_has_a_scope_unless_its_transport_keeps_the_time(clock, kind):
    async with client_over(kind(), clock, timeout=0.05, deadline=0.05) as client:
        call = asyncio.create_task(failing_with(DeadlineExceeded, client.send(READ)))
        await asyncio.sleep(0)
        assert client.load.calls == 1
        assert len(client._shared.scopes) == (kind is not Timed or type(clock) is not SystemClock)
        error = await call
        assert error.outcome is Outcome.UNKNOWN
        assert len(error.attempts) == 1
        assert client.load.calls == 0


async def test_leaving_ends_calls_over_a_transport_that_keeps_the_time(clock):
    async with client_over(Timed(), clock) as client:
        calls = [asyncio.create_task(failing_with(ClientClosed, client.send(READ))) for _ in range(102)]
        await anyio.sleep(0.001)
        assert client.load.calls == 102
    assert all(call.done() for call in calls)
    assert [call.result().outcome for call in calls] == [Outcome.UNKNOWN] * 100 + [Outcome.NOT_SENT] * 2
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


async def test_a_call_that_waits_for_a_place_ends_at_its_deadline(clock):
    async with client_over(Timed(), clock, limits=Limits(concurrency=1)) as client:
        first = asyncio.create_task(failing_with(ClientClosed, client.send(READ)))
        await asyncio.sleep(0)
        error = await failing_with(DeadlineExceeded, client.tuned(deadline=0.02).send(READ))
        assert (error.outcome, error.attempts) == (Outcome.NOT_SENT, ())
    assert (await first).outcome is Outcome.UNKNOWN


async def test_the_callers_cancellation_passes_and_is_observed(clock):
    seen = []

    class Watch(Observer):
        def call_ended(self, event):
            seen.append((event.cancelled, [made.outcome for made in event.attempts]))

    async with client_over(Timed(), clock, observers=[Watch()]) as client:
        call = asyncio.create_task(client.send(READ))
        await anyio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    assert seen == [(True, [Outcome.UNKNOWN])]


async def test_a_client_that_was_left_leaves_no_timer(monkeypatch):
    loop, timers = asyncio.get_running_loop(), []
    later = loop.call_later
    monkeypatch.setattr(loop, "call_later", lambda *told: timers.append(later(*told)) or timers[-1])
    async with client_over(Stub(), SystemClock()) as client:
        await client.send(READ)
        assert len(timers) == 1
    assert timers[0].cancelled()


async def test_another_event_loop_is_refused():
    async with client_over(Slow(), SystemClock()) as client:
        error = await asyncio.to_thread(asyncio.run, failing_with(RuntimeError, client.send(READ)))
    assert "event loop" in str(error)


async def failing_with(kind, call):
    with pytest.raises(kind) as caught:
        await call
    return caught.value


def test_trio_as_a_guest_of_asyncio_has_anyios():
    ended = []

    async def guest():
        async with client_over(Stub(), SystemClock()) as client:
            await client.send(READ)
        return "done"

    async def host():
        loop = asyncio.get_running_loop()
        over = loop.create_future()
        trio.lowlevel.start_guest_run(
            guest, run_sync_soon_threadsafe=loop.call_soon_threadsafe, done_callback=over.set_result
        )
        ended.append((await over).unwrap())

    asyncio.run(host())
    assert ended == ["done"]


async def test_answers_and_cancellations_by_the_thousand_leave_nothing_behind(clock):
    transport = Slow()
    async with client_over(transport, clock) as client:
        calls = [asyncio.create_task(client.send(READ)) for _ in range(1000)]
        await anyio.sleep(0)
        for call in calls[::3]:
            call.cancel()
        transport.let.set()
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(got, asyncio.CancelledError) == (number % 3 == 0) for number, got in enumerate(outcomes))
        shared = client._shared
        assert (shared.running, shared.scopes, shared.admission.free, shared.admission.waiting) == (0, set(), 100, 0)
        again = await client.send(READ)
    assert again.extra == {}


def test_a_mark_that_nothing_is_shielded_is_for_one_function():
    class Marked:
        @unshielded
        async def accept(self):
            pass

    class Inherits(Marked):
        pass

    class Overrides(Marked):
        async def accept(self):
            await super().accept()

    assert [is_unshielded(kind.accept) for kind in (Marked, Inherits, Overrides)] == [True, True, False]
    assert not is_unshielded(None)
    assert is_unshielded(SqliteInbox.accept)
