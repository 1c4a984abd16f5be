"""Fan-out: every outcome, no more than asked for at once, and nothing left running."""

import asyncio
import gc
import weakref
from contextlib import aclosing
from itertools import count

import pytest
import trio
from anyio import CancelScope, ClosedResourceError, Event, create_task_group, sleep_forever
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

from helpers.stubs import Stub, answer, client_over, waits
from helpers.waiting import settle
from rbim import (
    AuthenticationError,
    ClientClosed,
    Done,
    Failed,
    Limits,
    NotFound,
    NotSent,
    QueryGroupDetail,
    TimestampExpired,
    fan_out,
)
from rbim.emulator.clock import EmulatedClock


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request):
    return request.param


def ask(number: int) -> QueryGroupDetail:
    return QueryGroupDetail(group_id=str(number))


class Answering:
    """A sender that answers with the number it was asked for, or raises what ``faults`` has for it."""

    def __init__(self, faults=None, *, hold: Event | None = None) -> None:
        self.faults = faults or {}
        self.hold = hold
        self.started: list[int] = []
        self.in_flight = self.most = self.cancelled = 0

    async def send(self, operation, /):
        number = int(operation.group_id)
        self.started.append(number)
        self.in_flight += 1
        self.most = max(self.most, self.in_flight)
        ended = False
        try:
            await checkpoint()
            if self.hold is not None:
                await self.hold.wait()
            ended = True
            if number in self.faults:
                raise self.faults[number]
            return number
        finally:
            self.in_flight -= 1
            self.cancelled += not ended


class Reads:
    """An input without end that counts how often it was read."""

    def __init__(self) -> None:
        self.numbers = count()
        self.read = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.read += 1
        return ask(next(self.numbers))


async def asynchronous(operations):
    for op in operations:
        await checkpoint()
        yield op


async def gathered(sender, operations, **options):
    async with fan_out(sender, operations, **options) as outcomes:
        return [outcome async for outcome in outcomes]


INPUTS = {
    "list": list,
    "tuple": tuple,
    "generator": lambda operations: (op for op in operations),
    "keys": dict.fromkeys,
    "async generator": asynchronous,
}


async def test_every_operation_has_its_outcome_with_its_place_in_the_input():
    for kind, make in INPUTS.items():
        for workers in (1, 4, 100):
            operations = [ask(number * 10) for number in range(37)]
            outcomes = await gathered(Answering(), make(operations), workers=workers)
            assert sorted(outcomes, key=lambda outcome: outcome.index) == [
                Done(number, operations[number], number * 10) for number in range(37)
            ], kind


async def test_one_worker_keeps_the_order_of_the_input():
    outcomes = await gathered(Answering(), map(ask, range(20)), workers=1)
    assert [outcome.index for outcome in outcomes] == list(range(20))


async def test_outcomes_come_as_they_are_ready():
    stub = Stub(waits(3), waits(1), waits(2))
    async with client_over(stub) as client:
        outcomes = await gathered(client, map(ask, range(3)))
    times = dict(zip((document["groupId"] for document in stub.documents), (3, 1, 2), strict=True))
    assert [times[outcome.operation.group_id] for outcome in outcomes] == [1, 2, 3]


@settings(max_examples=40, deadline=None)
@given(kinds=st.lists(st.sampled_from((None, NotSent, NotFound)), max_size=40), workers=st.integers(1, 8))
async def test_the_outcomes_add_up_to_the_input(kinds, workers):
    faults = {number: kind("") for number, kind in enumerate(kinds) if kind}
    outcomes = await gathered(Answering(faults), map(ask, range(len(kinds))), workers=workers)
    assert sorted(outcome.index for outcome in outcomes) == list(range(len(kinds)))
    assert {outcome.index: outcome.error for outcome in outcomes if isinstance(outcome, Failed)} == faults


async def test_inputs_without_operations_have_no_outcomes_and_wrong_ones_are_refused():
    for operations in [[], (), iter([]), asynchronous([])]:
        assert await gathered(Answering(), operations) == []
    for workers in [0, -1, 2.5, "4"]:
        with pytest.raises(ValueError, match="workers"):
            await gathered(Answering(), [], workers=workers)
    with pytest.raises(TypeError):
        await gathered(Answering(), 5)
    gc.collect()  # nothing was left open


# No more than asked for


async def test_the_input_is_read_no_further_than_the_workers_ahead_of_the_outcomes_taken():
    for kind in ["plain", "asynchronous"]:
        reads, sender, taken = Reads(), Answering(), 0
        async with (
            aclosing(asynchronous(reads)) as slowly,  # trio wants it closed by who made it
            fan_out(sender, reads if kind == "plain" else slowly, workers=4) as outcomes,
        ):
            await settle()
            assert reads.read == len(sender.started) == 4
            async for _ in outcomes:
                taken += 1
                assert reads.read <= taken + 4
                await settle()
                assert reads.read == len(sender.started) == taken + 4
                if taken == 20:
                    break


async def test_memory_does_not_grow_with_the_input():
    alive, most = weakref.WeakSet(), 0

    def operations():
        for number in range(3000):
            op = ask(number)
            alive.add(op)
            yield op
            del op

    async with fan_out(Answering(), operations(), workers=5) as outcomes:
        async for _ in outcomes:
            most = max(most, len(alive))
    assert most <= 2 * 5 + 2


# Leaving


def living() -> int:
    try:
        return len(asyncio.all_tasks())
    except RuntimeError:
        return trio.lowlevel.current_statistics().tasks_living


async def test_leaving_early_cancels_the_rest_and_leaves_no_task_behind():
    for take in [0, 1, 7]:
        before, sender, taken = living(), Answering(), 0
        async with fan_out(sender, Reads(), workers=6) as outcomes:
            while taken < take:
                await anext(outcomes)
                taken += 1
        assert sender.in_flight == 0
        assert living() == before
        with pytest.raises(ClosedResourceError):
            await anext(outcomes)
        gc.collect()


class Cancelling(Answering):
    """A sender that cancels a scope at the moment of its last answer."""

    def __init__(self, scope: CancelScope, hold: Event) -> None:
        super().__init__(hold=hold)
        self.scope = scope

    async def send(self, operation, /):
        result = await super().send(operation)
        if self.in_flight == 0:
            self.scope.cancel()
        return result


async def read_one(outcomes, seen, scope):
    with scope:
        seen.append((await anext(outcomes)).index)


async def test_a_reader_that_is_cancelled_takes_no_outcome_with_it():
    scope, hold, seen = CancelScope(), Event(), []
    async with (
        fan_out(Cancelling(scope, hold), [ask(0)]) as outcomes,
        create_task_group() as tasks,
    ):
        tasks.start_soon(read_one, outcomes, seen, scope)
        await settle()
        hold.set()
        await settle()
        assert scope.cancelled_caught
        assert [outcome.index async for outcome in outcomes] == [0]
    assert seen == []


async def test_an_outcome_goes_to_another_reader_if_the_one_that_was_woken_is_cancelled():
    scope, hold, seen = CancelScope(), Event(), []
    async with (
        fan_out(Cancelling(scope, hold), [ask(0)]) as outcomes,
        create_task_group() as tasks,
    ):
        for each in (scope, CancelScope()):
            tasks.start_soon(read_one, outcomes, seen, each)
            await settle()
        hold.set()
        await settle()
        assert (seen, scope.cancelled_caught) == ([0], True)


async def test_a_reader_outside_the_block_ends_with_it():
    ended = []

    async def read(outcomes):
        ended.extend([outcome async for outcome in outcomes])
        ended.append("end")

    async with create_task_group() as tasks, fan_out(Answering(hold=Event()), Reads(), workers=3) as outcomes:
        tasks.start_soon(read, outcomes)
        await settle()
    assert ended == ["end"]


async def test_a_reader_that_never_has_to_wait_lets_other_tasks_run():
    async def turn():
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    turns = 0
    async with create_task_group() as tasks:
        async with fan_out(Answering(), map(ask, range(1000)), workers=1000) as outcomes:
            await settle()
            tasks.start_soon(turn)
            for _ in range(1000):
                await anext(outcomes)
            assert 10 < turns < 100
        tasks.cancel_scope.cancel()


# What stops everything


async def test_an_authentication_error_stops_everything_and_comes_out_bare():
    for error in [AuthenticationError(code="111109"), TimestampExpired(code="161106")]:
        sender = Answering({7: error})
        before = living()
        with pytest.raises(AuthenticationError) as caught:
            await gathered(sender, Reads(), workers=3)
        assert caught.value is error
        assert sender.in_flight == 0
        assert max(sender.started) <= 7 + 3
        assert living() == before


async def test_an_authentication_error_interrupts_a_block_that_does_something_else():
    with pytest.raises(AuthenticationError):
        async with fan_out(Answering({0: AuthenticationError(code="111109")}), [ask(0)]):
            await sleep_forever()


async def test_what_comes_out_bare_has_a_traceback_and_nothing_of_the_machinery():
    with pytest.raises(AuthenticationError) as caught:
        await gathered(Answering({2: AuthenticationError(code="111109")}), Reads(), workers=3)
    error = caught.value
    assert (error.__context__, error.__cause__, getattr(error, "__notes__", [])) == (None, None, [])
    names = [entry.name for entry in caught.traceback]
    assert names[0] == "test_what_comes_out_bare_has_a_traceback_and_nothing_of_the_machinery"
    assert "gathered" in names
    assert names[-1] == "send"


async def all_at_once(faults):
    """Let every fault happen in the same turn of the event loop."""
    hold = Event()
    async with fan_out(Answering(faults, hold=hold), map(ask, range(len(faults)))) as outcomes:
        await settle()
        hold.set()
        await anext(outcomes)


async def test_errors_of_the_same_moment_become_notes():
    faults = {number: AuthenticationError(f"no {number}", code="111109") for number in range(3)}
    with pytest.raises(AuthenticationError) as caught:
        await all_at_once(faults)
    assert caught.value in faults.values()
    others = [error for error in faults.values() if error is not caught.value]
    assert sorted(caught.value.__notes__) == sorted(f"at the same time: AuthenticationError: {other}" for other in others)


async def test_what_is_no_error_of_rbim_stops_everything_and_comes_out_bare():
    error = ZeroDivisionError("a bug in a sender")
    with pytest.raises(ZeroDivisionError) as caught:
        await gathered(Answering({4: error}), Reads(), workers=2)
    assert caught.value is error


class Stop(BaseException):
    """What is no Exception, as KeyboardInterrupt."""


async def test_what_is_no_exception_goes_before_errors_of_the_same_moment():
    faults = {0: AuthenticationError(code="111109"), 1: Stop("now"), 2: AuthenticationError(code="111109")}
    with pytest.raises(Stop) as caught:
        await all_at_once(faults)
    assert len(caught.value.__notes__) == 2


class Broken:
    """An input that raises after some operations, and once more if it is asked again."""

    def __init__(self, error) -> None:
        self.error = error
        self.asked = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.asked += 1
        if self.asked > 5:
            raise self.error
        return ask(self.asked)


async def test_what_the_input_raises_comes_out_bare_and_the_input_is_not_asked_again():
    for kind in ["plain", "asynchronous"]:
        error = OSError("the disk is gone")
        broken = Broken(error)
        with pytest.raises(OSError, match="the disk is gone") as caught:
            await gathered(Answering(), broken if kind == "plain" else asynchronous(broken), workers=4)
        assert caught.value is error
        assert broken.asked == 6
        assert error.__context__ is None


async def test_what_the_block_raises_comes_out_unchanged():
    for error in [
        KeyError("mine"),
        ExceptionGroup("mine", [KeyError(1), ValueError(2)]),
        ExceptionGroup("mine", [ExceptionGroup("inner", [KeyError(1)])]),
        BaseExceptionGroup("mine", [Stop(1), ValueError(2)]),
        StopIteration("mine"),
        StopAsyncIteration("mine"),
        RuntimeError("mine"),
        Stop("mine"),
        AuthenticationError("mine", code="111109"),
    ]:
        text, context, cause = repr(error), KeyError("while handling this"), OSError("because of this")
        caught = None
        try:
            async with fan_out(Answering(), Reads(), workers=3) as outcomes:
                await anext(outcomes)
                try:
                    raise context
                except KeyError:
                    raise error from cause
        except BaseException as raised:
            caught = raised
        assert caught is error
        assert (caught.__context__, caught.__cause__, repr(caught)) == (context, cause, text)
        assert not hasattr(caught, "__notes__")


# Cancellation


async def test_a_cancellation_from_outside_passes_through_as_one():
    clock = EmulatedClock(auto=True)
    sender = Answering(hold=Event())
    with clock.scope(5) as scope:
        async with fan_out(sender, Reads(), workers=3) as outcomes, create_task_group() as tasks:
            tasks.start_soon(clock.sleep, 100)
            async for _ in outcomes:
                pass
    assert scope.cancelled_caught
    assert (sender.in_flight, sender.cancelled) == (0, 3)


async def test_an_error_while_a_cancellation_cleans_up_is_not_lost():
    class Untidy(Answering):
        async def send(self, operation, /):
            try:
                await sleep_forever()
            finally:
                raise OSError(operation.group_id)

    async def run():
        with CancelScope() as scope:
            async with fan_out(Untidy(), [ask(0)]):
                await settle()
                scope.cancel()
                await sleep_forever()

    with pytest.raises(OSError, match="0"):
        await run()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_cancel_passes_through():
    sender = Answering(hold=Event())
    task = asyncio.create_task(gathered(sender, Reads(), workers=3))
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    assert sender.in_flight == 0


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_sender_that_cancels_its_worker_does_not_end_the_block_in_silence():
    class Shared(Answering):
        async def send(self, operation, /):
            if operation.group_id == "3":
                future = asyncio.get_running_loop().create_future()
                future.cancel()
                await future
            return await super().send(operation)

    with pytest.raises(RuntimeError, match="cancelled by the sender"):
        await gathered(Shared(), Reads(), workers=2)


# Over a client


async def test_it_works_over_a_client_and_over_its_views():
    for view in [False, True]:
        stub = Stub(answer(name="n"))
        async with client_over(stub, limits=Limits(concurrency=3)) as client:
            outcomes = await gathered(client.acting_as("boss") if view else client, map(ask, range(40)))
        assert [outcome.answer.name for outcome in outcomes] == ["n"] * 40
        assert {document.get("userName") for document in stub.documents} == {"boss" if view else None}
        assert stub.most == 3


async def test_a_client_that_is_left_fails_what_is_still_running():
    stub = Stub(waits(1000), clock=EmulatedClock())
    ended = []

    async def run(client):
        ended.extend(await gathered(client, map(ask, range(8)), workers=4))

    async with create_task_group() as tasks, client_over(stub) as client:
        tasks.start_soon(run, client)
        await stub.clock.advance(1)
    assert [type(outcome.error) for outcome in ended] == [ClientClosed] * 8
    assert len(stub.requests) == 4
