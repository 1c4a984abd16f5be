"""Admission: places and rates together; what callers do that give up."""

import asyncio
import contextlib
import itertools
from functools import partial
from math import inf

import pytest
from anyio import CancelScope, Event, create_task_group
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

from helpers.stubs import NO_PAUSES, ONCE, READ, Stub, answer, client_over, failing, waits
from helpers.waiting import settle
from rbim import (
    AsyncClient,
    CreateGroup,
    DeadlineExceeded,
    GroupType,
    JoinGroup,
    Limits,
    NotSent,
    Outcome,
    QueryGroupDetail,
    Rate,
    SystemClock,
)
from rbim.client.admission import Admission, AttemptTimes, NotAdmitted
from rbim.client.limits import LOW, NORMAL, Demands
from rbim.client.queue import Waiter
from rbim.emulator.clock import EmulatedClock

FOREVER = {"latest": inf, "deadline": 30.0, "attempt": 10.0}


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request):
    return request.param


def admission(places: int, *rates: Rate, clock=None) -> Admission:
    return Admission(Limits(concurrency=places, rates=rates), clock or SystemClock())


async def enter(limiter: Admission) -> None:
    """Take a place as a call does."""
    if limiter.enter_at_once(READ, inf) is None:
        await limiter.enter(READ, **FOREVER)


def leave(limiter: Admission) -> None:
    limiter.leave(READ, 0.0, answered=True)


# Places in flight


class Visitor:
    """One who enters, stays until told to go, and leaves; it may be sent away at any moment."""

    def __init__(self, limiter: Admission, entered: list["Visitor"]) -> None:
        self.scope = CancelScope()
        self.may_go = Event()
        self.inside = False
        self._limiter = limiter
        self._entered = entered

    async def visit(self) -> None:
        with self.scope:
            await enter(self._limiter)
            self._entered.append(self)
            self.inside = True
            try:
                await self.may_go.wait()
            finally:
                self.inside = False
                leave(self._limiter)


async def test_a_place_that_is_granted_and_reached_too_late_is_free_again():
    """The event loop is blocked between the two."""
    clock = EmulatedClock()
    limiter = admission(1, clock=clock)
    await enter(limiter)

    async def late() -> None:
        with pytest.raises(NotAdmitted):
            await limiter.enter(READ, latest=5.0, deadline=5.0, attempt=5.0)

    async with create_task_group() as tasks:
        tasks.start_soon(late)
        await settle()
        leave(limiter)
        clock.elapsed += 10
    assert limiter.enter_at_once(READ, inf) is not None
    assert limiter.enter_at_once(READ, inf) is None


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_asyncios_own_cancel_loses_no_place_in_any_turn_of_the_loop():
    for turns in range(4):
        limiter = admission(1)
        await enter(limiter)
        task = asyncio.create_task(enter(limiter))
        await asyncio.sleep(0)
        leave(limiter)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert limiter.free == 1
        else:
            leave(limiter)
        assert (limiter.free, limiter.waiting) == (1, 0)


COME, GO, AWAY, PAUSE = "come", "go", "away", "pause"
MOVES = st.lists(st.tuples(st.sampled_from((COME, COME, GO, AWAY, PAUSE)), st.integers(0, 9)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(places=st.integers(1, 3), moves=MOVES)
async def test_whatever_happens_in_whatever_moment_no_place_is_lost(places, moves):
    limiter, visitors, entered = admission(places), [], []
    async with create_task_group() as tasks:
        for move, which in moves:
            chosen = visitors[which % len(visitors)] if visitors else None
            if move == COME:
                visitors.append(Visitor(limiter, entered))
                tasks.start_soon(visitors[-1].visit)
            elif chosen is not None and move == GO:
                chosen.may_go.set()
            elif chosen is not None and move == AWAY:
                chosen.scope.cancel()
            elif move == PAUSE:
                await checkpoint()  # one turn of the loop, not more: the next move falls into the middle of things
            assert sum(visitor.inside for visitor in visitors) <= places
        for visitor in visitors:
            visitor.may_go.set()
    assert (limiter.free, limiter.waiting) == (places, 0)


@settings(max_examples=60, deadline=None)
@given(places=st.integers(1, 3), moves=MOVES)
async def test_with_time_to_settle_the_gate_does_what_a_plain_queue_would(places, moves):
    limiter, visitors, entered = admission(places, clock=EmulatedClock()), [], []
    inside, queue, order = [], [], []  # the model

    def admit() -> None:
        while queue and len(inside) < places:
            inside.append(queue.pop(0))
            order.append(inside[-1])
        for each in [each for each in inside if each.may_go.is_set()]:
            inside.remove(each)
            admit()

    async with create_task_group() as tasks:
        for move, which in moves:
            present = [*inside, *queue]
            chosen = present[which % len(present)] if present else None
            if move == COME:
                visitor = Visitor(limiter, entered)
                visitors.append(visitor)
                queue.append(visitor)
                tasks.start_soon(visitor.visit)
            elif chosen is not None and move == GO:
                chosen.may_go.set()
            elif chosen is not None and move == AWAY:
                (inside if chosen in inside else queue).remove(chosen)
                chosen.scope.cancel()
            admit()
            for _ in range(4 + 3 * len(visitors)):
                await checkpoint()
            assert entered == order
            assert limiter.waiting == len(queue)
            assert limiter.free == places - len(inside)
        tasks.cancel_scope.cancel()


# The alarm: one of the waiting calls sleeps for all


TIMES = st.lists(
    st.tuples(st.sampled_from((COME, COME, COME, AWAY, PAUSE)), st.integers(0, 9), st.sampled_from(("g1", "g2", ""))),
    max_size=40,
)


@settings(max_examples=60, deadline=None)
@given(moves=TIMES, each_group=st.booleans(), places=st.sampled_from((1, 100)))
async def test_whoever_is_cancelled_the_others_leave_as_soon_as_their_rates_allow(moves, each_group, places):
    clock = EmulatedClock()
    limiter = admission(places, Rate(2), Rate(1, each_group=each_group, operations=(JoinGroup,)), clock=clock)
    waiting, left, scopes = {}, {}, {}

    async def visit(number: int, op, scope: CancelScope) -> None:
        with scope:
            left[number] = (await limiter.enter(op, **FOREVER), op)
            limiter.leave(op, clock.monotonic(), answered=True)
        waiting.pop(number, None)

    async with create_task_group() as tasks:
        for number, (move, which, group) in enumerate(moves):
            if move == COME:
                op = JoinGroup(group_id=group) if group else CreateGroup(name="x", type=GroupType.VIP)
                waiting[number], scopes[number] = op, CancelScope()
                tasks.start_soon(visit, number, op, scopes[number])
            elif move == AWAY and waiting:
                scopes[sorted(waiting)[which % len(waiting)]].cancel()
            else:
                await clock.advance(which / 8)
        await clock.advance(len(moves))  # the slowest rate is 1/s
        assert not waiting
    assert (limiter.free, limiter.waiting) == (places, 0)
    times = sorted(at for at, _ in left.values())
    assert all(after - before >= 0.5 - 1e-6 for before, after in itertools.pairwise(times))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_waiting_calls_have_neither_tasks_nor_timers_of_their_own():
    loop, before = asyncio.get_running_loop(), len(asyncio.all_tasks())
    limits = Limits(rates=[Rate(1, per=3600)], concurrency=10)
    async with client_over(Stub(), clock=None, limits=limits) as client, create_task_group() as tasks:
        view = client.tuned(deadline=1e7)
        for _ in range(500):
            tasks.start_soon(view.send, READ)
        while client.load.waiting < 499:
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) <= before + 500
        timers = [each for each in loop._scheduled if not each.cancelled()]
        assert len(timers) <= 3  # of the deadlines, of the rate, and one of the test's own
        deadlines = client._shared.admission.deadlines
        tasks.cancel_scope.cancel()
    assert not deadlines.scopes


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_token_that_was_promised_to_a_cancelled_call_is_there_for_the_next_one():
    clock, left = EmulatedClock(), []
    limiter = admission(2, Rate(1, per=60, each_group=True), clock=clock)

    async def visit(name: str) -> None:
        await limiter.enter(JoinGroup(group_id="g"), **FOREVER)
        left.append(name)

    for _ in range(2):
        await limiter.enter(CreateGroup(name="x", type=GroupType.VIP), **FOREVER)
    first, second = (asyncio.create_task(visit(name)) for name in ("first", "second"))
    await settle()
    leave(limiter)
    leave(limiter)
    first.cancel()  # it has its place and its token, and has not run since
    await settle()
    assert left == ["second"]
    await second
    assert limiter.free == 1


async def test_a_queue_that_never_empties_forgets_the_groups_that_are_gone():
    clock = EmulatedClock()
    limiter = admission(1, clock=clock)
    await enter(limiter)
    async with create_task_group() as tasks:
        tasks.start_soon(partial(limiter.enter, JoinGroup(group_id="g"), **FOREVER))  # waits all the time
        await settle()
        for number in range(2000):
            assert limiter._queue.next(clock.elapsed) is not None  # as when a place becomes free
            with CancelScope() as scope:
                scope.cancel()
                await limiter.enter(JoinGroup(group_id=f"g{number}"), **FOREVER)
        (lane,) = [lane for lane in limiter._queue._normal._lanes.values() if lane.lines]
        assert 3 <= max(len(heads._heap) for heads in lane._heads.values()) <= 200
        assert len(limiter._queue._normal._ranks) == limiter.waiting
        tasks.cancel_scope.cancel()


async def test_only_a_call_of_a_group_with_two_more_than_that_of_the_new_one_makes_way():
    limiter = admission(1, clock=EmulatedClock())
    await enter(limiter)
    new = Waiter(
        limiter._demands.of(JoinGroup(group_id="b"), 0.0), now=0.0, latest=9.0, deadline=9.0, attempt=9.0, level=NORMAL
    )
    found = []
    async with create_task_group() as tasks:
        for group in "baaa":
            tasks.start_soon(partial(limiter.enter, JoinGroup(group_id=group), **FOREVER))
            await settle()
            found.append(limiter._queue.last_of_most(new))
        tasks.cancel_scope.cancel()
    assert [each and each.number for each in found] == [None, None, None, 4]


async def given_up_before_its_time(waited):
    clock, order = EmulatedClock(), []
    stub = Stub(*[waits(2)] * (2 + waited), waits(100), answer(), clock=clock)
    async with client_over(stub, limits=Limits(rates=[Rate(1)])) as client, create_task_group() as tasks:

        async def call(number: int, scope: CancelScope) -> None:
            with scope:
                await client.send(QueryGroupDetail(group_id=f"g{number}"))
                order.append(number)

        for number in (100, 101):  # the second one waits, so times are noted: an attempt needs 2.2 s
            tasks.start_soon(call, number, CancelScope())
        await clock.advance(2 if waited else 10)
        if waited:  # for the token of the third second
            tasks.start_soon(call, 102, CancelScope())
            await settle()
        hung = CancelScope()
        tasks.start_soon(call, 103, hung)
        await clock.advance(1)
        for number in range(4):
            tasks.start_soon(call, number, CancelScope())
            await settle()
        hung.cancel()
        await settle()
        await clock.advance(20)
        tasks.cancel_scope.cancel()
    assert next(number for number in order if number < 100) == (3 if waited else 0)


async def test_a_caller_that_gives_up_before_an_attempt_had_its_time_counts_if_its_call_had_waited():
    """Then the calls that came last go first: the others are about to give up, too."""
    for waited in [False, True]:
        await given_up_before_its_time(waited)


async def test_calls_without_a_deadline_keep_their_order_while_callers_give_up():
    """Those with a deadline go first meanwhile, and the newest of them before the others."""
    clock, order = EmulatedClock(), []
    limiter = admission(1, clock=clock)
    await enter(limiter)
    gives_up = CancelScope()

    async def call(name: str, deadline: float, scope: CancelScope) -> None:
        with scope:
            op = QueryGroupDetail(group_id=name)
            await limiter.enter(op, latest=clock.monotonic() + deadline, deadline=deadline, attempt=10.0)
            order.append(name)

    async with create_task_group() as tasks:
        for name, deadline in (("a", inf), ("b", 30.0), ("c", inf), ("d", 30.0), ("e", 30.0), ("f", inf)):
            tasks.start_soon(call, name, deadline, gives_up if name == "e" else CancelScope())
            await settle()
        await clock.advance(1)
        gives_up.cancel()
        await settle()
        for number in range(5):
            leave(limiter)
            await settle()
            assert len(order) == number + 1
    assert order == ["d", "b", "a", "c", "f"]


async def test_the_newest_go_first_for_twice_as_long_as_the_caller_had_waited_that_gave_up():
    clock, order, gives_up = EmulatedClock(), [], CancelScope()
    await clock.advance(100)
    limiter = admission(1, clock=clock)
    await enter(limiter)

    async def call(name: str) -> None:
        with gives_up if name == "x" else CancelScope():
            await limiter.enter(READ, latest=clock.monotonic() + 60, deadline=60.0, attempt=10.0)
            order.append(name)

    async with create_task_group() as tasks:
        for name in "abxcd":
            tasks.start_soon(call, name)
            await settle()
        await clock.advance(4)
        gives_up.cancel()
        await settle()
        for seconds in (5, 2, 2):
            await clock.advance(seconds)
            limiter.leave(READ, clock.monotonic(), answered=True)
            await settle()
        tasks.cancel_scope.cancel()
    assert order == ["d", "c", "a"]


async def test_one_turn_in_eight_is_of_low_priority():
    limiter, order = admission(1, clock=EmulatedClock()), []
    await enter(limiter)

    async def call(level: int) -> None:
        await limiter.enter(READ, **FOREVER, level=level)
        order.append(level)

    async with create_task_group() as tasks:
        for level in [LOW] * 2 + [NORMAL] * 20:
            tasks.start_soon(call, level)
            await settle()
        for _ in range(22):
            leave(limiter)
            await settle()
    assert [place for place, level in enumerate(order, 1) if level == LOW] == [8, 16]


def test_a_rate_that_allows_nothing_in_any_time_sends_once():
    stub = admission(100, Rate(5e-324))
    assert stub.enter_at_once(READ, inf) is not None
    assert stub.enter_at_once(READ, inf) is None
    stub.give_back(READ)
    assert stub.enter_at_once(READ, inf) is not None
    assert stub.enter_at_once(READ, inf) is None


# Deadlines


async def test_a_deadline_in_the_queue_is_exact():
    for deadline in [0.1, 5]:
        stub = Stub(waits(100))
        async with client_over(stub, limits=Limits(concurrency=1)) as client, create_task_group() as tasks:
            tasks.start_soon(client.tuned(deadline=200, timeout=150).send, READ)
            await settle()
            assert stub.in_flight == 1
            error = await failing(client.tuned(deadline=deadline).send(READ))
            assert isinstance(error, DeadlineExceeded)
            assert error.outcome is Outcome.NOT_SENT
            assert stub.clock.elapsed == pytest.approx(deadline)
            assert "needs up to" not in str(error)  # no attempt has ended yet
            tasks.cancel_scope.cancel()


async def send_at(client: AsyncClient, stub: Stub, ended: dict[str, list[float]], **options: float) -> None:
    """Send a call, and note when it was answered or refused."""
    clock = stub.clock
    try:
        await client.tuned(**options).send(READ)
    except DeadlineExceeded:
        ended["refused"].append(clock.monotonic())
    else:
        ended["answered"].append(clock.monotonic())


async def test_calls_that_cannot_be_met_by_the_places_in_flight_are_refused_at_once():
    stub, ended = Stub(waits(1.0)), {"refused": [], "answered": []}
    async with client_over(stub, limits=Limits(concurrency=1), retry=ONCE) as client:
        async with create_task_group() as tasks:
            for _ in range(5):  # the client learns that an attempt takes a second
                tasks.start_soon(client.tuned(deadline=60.0).send, READ)
        start = stub.clock.monotonic()
        async with create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(partial(send_at, client, stub, ended, deadline=5.0))
    assert len(ended["answered"]) >= 3
    assert client._shared.admission.refused == len(ended["refused"])
    assert ended["refused"] == [start] * (10 - len(ended["answered"]))


async def test_a_call_that_can_leave_when_the_one_in_flight_ends_is_not_refused():
    stub, ended = Stub(waits(1.0)), {"refused": [], "answered": []}
    async with client_over(stub, limits=Limits(concurrency=1), retry=ONCE) as client:
        async with create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(client.tuned(deadline=60.0).send, READ)
        start = stub.clock.monotonic()
        async with create_task_group() as tasks:
            tasks.start_soon(client.send, READ)
            await settle()
            tasks.start_soon(partial(send_at, client, stub, ended, deadline=3.0))
    assert ended == {"refused": [], "answered": [start + 2]}


async def test_calls_ahead_that_cannot_be_answered_in_time_refuse_none_behind_them():
    """A caller has given up, so that more calls wait than are answered in time. They cost the rate nothing."""
    stub, ended = Stub(), {"refused": [], "answered": []}
    clock = stub.clock = EmulatedClock()
    limits = Limits(rates=[Rate(1, burst=1)])
    async with client_over(stub, limits=limits, retry=ONCE) as client, create_task_group() as tasks:
        gives_up = CancelScope()

        async def impatient() -> None:
            with gives_up:
                await client.send(READ)

        tasks.start_soon(client.send, READ)
        await settle()
        tasks.start_soon(client.send, READ)
        await settle()
        tasks.start_soon(impatient)
        await settle()
        await clock.advance(0.5)
        gives_up.cancel()
        await settle()
        for _ in range(20):
            tasks.start_soon(partial(send_at, client, stub, ended, deadline=5.0))
        await settle()
        await clock.advance(2)  # the order is that of the deadlines again
        behind = {"refused": [], "answered": []}
        tasks.start_soon(partial(send_at, client, stub, behind, deadline=12.0))
        await settle()
        await clock.advance(20)
    assert len(behind["answered"]) == 1
    assert len(ended["refused"]) >= 10


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_call_that_failed_and_waits_again_in_vain_says_why():
    stub, errors = Stub(NotSent, waits(100)), []

    async def fail() -> None:
        errors.append(await failing(client.tuned(deadline=5).send(READ)))

    limits = Limits(concurrency=1)
    async with client_over(stub, limits=limits, deadline=200, timeout=150) as client, create_task_group() as tasks:
        tasks.start_soon(fail)
        tasks.start_soon(client.send, READ)
    (error,) = errors
    assert isinstance(error, DeadlineExceeded)
    assert isinstance(error.__cause__, NotSent)
    assert "again" in str(error)


async def test_the_outcome_of_an_earlier_attempt_is_not_forgotten_in_the_queue():
    stub = Stub(waits(50), answer())
    limits = Limits(rates=[Rate(1, per=60)])
    async with client_over(stub, limits=limits, retry=NO_PAUSES, timeout=2) as client:
        error = await failing(client.send(READ))
    assert isinstance(error, DeadlineExceeded)
    assert error.outcome is Outcome.UNKNOWN


# What an attempt needs


def test_the_need_of_attempts_covers_nearly_all_of_them():
    times = AttemptTimes()
    assert (times.typical, times.need) == (0, 0)
    for number in range(1, 101):
        times.add(number / 100, now=number / 100, answered=True)
    times.add(5.0, now=1.0005, answered=True)  # there are enough: one in a millisecond
    assert len(times.last) == 64
    assert times.typical == pytest.approx(0.69, abs=0.02)  # of the last 64: 0.37 to 1
    assert times.need == pytest.approx(0.97 + 0.28, abs=0.03)


async def test_more_than_four_tenths_of_a_deadline_are_kept_for_an_attempt_only_if_all_calls_have_waited_that_long():
    """Nine of ten attempts take a second, and one takes ten."""
    clock = EmulatedClock()
    limiter = admission(2, Rate(1, per=1000, each_group=True), clock=clock)
    for seconds in [1.0] * 9 + [10.0]:
        limiter.times.add(seconds, now=0.0, answered=True)

    def need() -> float:
        return limiter.need(READ, deadline=10.0, attempt=100.0)

    assert need() == 4
    async with create_task_group() as tasks:
        await enter(limiter)
        tasks.start_soon(enter, limiter)
        await settle()
        for seconds, expected in ((9.0, 4), (1.0, 9), (5.0, 9)):
            await clock.advance(seconds)
            assert need() == expected
        await limiter.enter(QueryGroupDetail(group_id="g2"), **FOREVER)  # at once: the other waits for its own group
        assert need() == 4
        tasks.cancel_scope.cancel()


def test_attempts_of_long_ago_are_forgotten_once_there_are_some_new_ones():
    times = AttemptTimes()
    for _ in range(64):
        times.add(5.0, now=0.0, answered=True)
    for _ in range(4):
        times.add(0.1, now=60.0, answered=True)
    assert times.typical == 0.1
    assert times.need == pytest.approx(0.11)


def test_an_attempt_that_was_cut_off_counts_as_longer_and_a_lost_one_not_at_all():
    times = AttemptTimes()
    times.add(0.1, now=0.0, answered=True)
    times.add(10.0, now=0.0, answered=False)
    assert times.need == pytest.approx(0.11)
    times.add(0.12, now=0.0, answered=False)
    assert times.need >= 0.24


def test_attempts_that_are_older_than_a_minute_are_forgotten_when_calls_wait_again():
    times = AttemptTimes()
    for _ in range(10):
        times.add(5.0, now=0.0, answered=True)
    times.expire(60.0)
    assert (len(times.last), times.typical) == (10, 5)
    times.expire(60.5)
    assert (len(times.last), times.typical, times.need) == (0, 0, 0)
    times.add(0.1, now=61.0, answered=True)
    assert (len(times.last), times.typical, times.need) == (1, 0.1, pytest.approx(0.11))

    times = AttemptTimes()
    times.add(1.0, now=0.0, answered=True)
    times.add(times.need / 2, now=0.0, answered=False)  # it may have lasted just as long as the others
    assert len(times.last) == 1


async def test_a_pause_that_begins_while_a_call_is_woken_holds_it_back():
    clock, entered = EmulatedClock(), []
    limiter = admission(1, clock=clock)

    async def waits_once() -> None:
        await enter(limiter)
        entered.append(clock.monotonic())

    def throttled(times: int) -> None:
        for _ in range(times):
            limiter.free -= 1
            limiter.leave(READ, clock.monotonic(), answered=True, asked=20.0)

    async with create_task_group() as tasks:
        await enter(limiter)
        throttled(5)  # from now on it has a rate
        tasks.start_soon(waits_once)
        await settle()
        throttled(1)
        await clock.advance(2)
        limiter.leave(READ, clock.monotonic(), answered=False)  # the other has the place, and is woken
        throttled(20)
        await settle()
        assert entered == []
        await clock.advance(30)
    assert entered == [pytest.approx(22, abs=0.5)]
    assert (limiter.free, limiter.waiting) == (0, 0)


@pytest.mark.parametrize(("share", "goes"), [(1.0, "first"), (0.5, "last")])
async def test_a_call_whose_attempt_had_all_the_time_that_it_needs_has_not_waited_too_long(share, goes):
    limiter, entered = admission(1, clock=EmulatedClock()), []
    limiter.times.add(1.0, now=0.0, answered=True)

    async def visit(name: str) -> None:
        await enter(limiter)
        entered.append(name)

    async with create_task_group() as tasks:
        await enter(limiter)
        for name in ("first", "last"):
            tasks.start_soon(visit, name)
            await settle()
        limiter.gave_up(-5.0, -share * limiter.times.need)
        leave(limiter)
        await settle()
        assert entered == [goes]
        tasks.cancel_scope.cancel()


async def test_calls_of_another_operation_do_not_know_what_attempts_took_a_minute_ago():
    clock = EmulatedClock()
    limiter = admission(1, clock=clock)
    other = JoinGroup(group_id="g1")
    for _ in range(2):
        await limiter.enter(READ, **FOREVER)
        assert limiter.need(other, deadline=30.0, attempt=10.0) == 0
        started = clock.monotonic()
        await clock.advance(5)
        limiter.leave(READ, started, answered=True)
        assert limiter.need(other, deadline=30.0, attempt=10.0) == pytest.approx(5.5)
        await clock.advance(61)


def test_tokens_that_are_granted_and_not_taken_are_not_lacking():
    demands = Demands((Rate(1, burst=3, each_group=True),), {})
    demand = demands.of(READ, 0.0)
    for taken, lacking in ((0, False), (1, False), (2, False), (3, True)):
        assert demand.lacks_only_granted(0.0) is not lacking, taken
        demand.take(0.0)
    assert demand.lacks_only_granted(10.0)


async def test_a_burst_is_served_though_few_attempts_take_many_times_as_long_as_most():
    """Attempts take 0.3 s and one in ten 2.8 s; the last of a burst waits for 1.5 s, so that all are answered within 5 s."""
    stub = Stub(*[waits(2.8 if number % 10 == 5 else 0.3) for number in range(61)])
    limits = Limits(concurrency=100, rates=[Rate(20, burst=1)])
    async with client_over(stub, limits=limits, retry=ONCE, timeout=5.0, deadline=5.0) as client:
        for _ in range(2):  # the client learns from the first burst
            async with create_task_group() as tasks:
                for _ in range(30):
                    tasks.start_soon(client.send, READ)
    assert len(stub.requests) == 60


async def test_calls_that_the_rate_of_their_group_holds_back_cost_the_others_no_turns():
    """Sixty calls of one group wait for its rate, more than it serves in time, because a caller has just given up."""
    stub, answered = Stub(waits(0.01)), set()

    async def call(group, scope):
        with scope, contextlib.suppress(DeadlineExceeded):
            await client.send(QueryGroupDetail(group_id=group))
            answered.add(group)

    limits = Limits(concurrency=100, rates=[Rate(20, burst=1), Rate(2, burst=1, each_group=True)])
    async with client_over(stub, limits=limits, retry=ONCE, deadline=2.0) as client, create_task_group() as tasks:
        scopes = [CancelScope() for _ in range(63)]
        for scope in scopes[:3]:
            tasks.start_soon(call, "hot", scope)
            await settle()  # trio starts tasks in any order
        await stub.clock.sleep(0.05)
        scopes[1].cancel()
        await settle()
        for scope in scopes[3:]:
            tasks.start_soon(call, "hot", scope)
        await stub.clock.sleep(0.2)
        assert client.load.waiting > 50
        for group in "abcdefghij":
            tasks.start_soon(call, group, CancelScope())
    assert answered == {*"abcdefghij", "hot"}


@pytest.fixture
def counted(monkeypatch):
    """Fail where the queue is asked again and again in one moment."""
    grants = itertools.count(1)

    def grant(limiter, now, *, grant=Admission._grant):
        assert next(grants) < 10_000, "it asks for ever"
        grant(limiter, now)

    monkeypatch.setattr(Admission, "_grant", grant)


def answers(limiter, clock, group, times, asked=None):
    for _ in range(times):
        limiter.free -= 1
        limiter.leave(QueryGroupDetail(group_id=group), clock.monotonic(), answered=True, asked=asked)


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("case", ["in one line", "newest first", "woken"])
async def test_calls_that_wait_obey_a_limit_that_begins_to_concern_their_group_alone(case):
    """Calls of a group stand in one line, or one of them is woken already, when the flow of their group begins."""
    clock, left = EmulatedClock(), []
    limiter = admission(1, clock=clock)

    async def waits_once() -> None:
        await limiter.enter(QueryGroupDetail(group_id="hot"), **FOREVER)
        left.append(clock.monotonic())
        limiter.leave(QueryGroupDetail(group_id="hot"), clock.monotonic(), answered=True)

    async with create_task_group() as tasks:
        await enter(limiter)
        for _ in range(3):
            tasks.start_soon(waits_once)
        await settle()
        if case == "newest first":
            limiter._queue.gave_up(5.0, clock.monotonic())
        answers(limiter, clock, "hot", 1, asked=2.0)
        for number in range(9):
            answers(limiter, clock, f"g{number}", 5)
        if case == "woken":
            leave(limiter)
        answers(limiter, clock, "hot", 60, asked=20.0)
        if case != "woken":
            leave(limiter)
        await settle()
        for _ in range(100):
            await clock.advance(0.01)
    assert len(left) == 3
    assert all(after - before > 0.02 for before, after in itertools.pairwise(left)), left
