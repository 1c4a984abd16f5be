"""Limits: rates and halts as arithmetic, without waiting; and the concurrency limiter, a FIFO queue."""

import asyncio
import heapq
from collections import defaultdict
from itertools import count
from math import inf

import pytest
from anyio import CancelScope, Event, create_task_group
from anyio.lowlevel import checkpoint
from hypothesis import given, settings, strategies as st

from rbim import (
    CreateGroup,
    DeleteGroup,
    GroupType,
    InvalidRequest,
    JoinGroup,
    Limits,
    QueryGroupDetail,
    Rate,
    SearchPublicGroups,
)
from rbim.client.limits import PRUNE, ConcurrencyLimiter, RateLimiter

DETAIL = QueryGroupDetail(group_id="g1")
JOIN = JoinGroup(group_id="g1")
SEARCH = SearchPublicGroups(name="x")
CREATE = CreateGroup(name="x", type=GroupType.TEMPORARY)


def places(limiter: RateLimiter, ops, now: float = 0.0, latest: float = inf) -> list[float | None]:
    return [limiter.reserve(op, now, latest) for op in ops]


@pytest.mark.parametrize(
    ("text", "limit", "per"),
    [
        ("50/s", 50, 1),
        ("50 / s", 50, 1),
        (" 50/sec ", 50, 1),
        ("50/second", 50, 1),
        ("600/min", 600, 60),
        ("600/m", 600, 60),
        ("1/minute", 1, 60),
        ("1000/h", 1000, 3600),
        ("1000/hour", 1000, 3600),
        ("100/10s", 100, 10),
        ("100/10 s", 100, 10),
        ("2.5/1.5min", 2.5, 90),
        ("7/2h", 7, 7200),
    ],
)
def test_a_rate_is_read_from_text(text, limit, per):
    assert Rate.parse(text) == Rate(limit, per)


@pytest.mark.parametrize(
    "text",
    ["", "50", "s", "/s", "50/", "50/d", "50/ms", "-5/s", "0/s", "5/0s", "1e3/s", "5/s/s", "nan/s", "٣/s", "5 per s", "5/S"],
)
def test_a_text_that_is_no_rate_is_refused(text):
    with pytest.raises(InvalidRequest):
        Rate.parse(text)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rate(0),
        lambda: Rate(-1),
        lambda: Rate(float("nan")),
        lambda: Rate(1, 0),
        lambda: Rate(1, burst=0),
        lambda: Limits(concurrency=0),
        lambda: Limits(concurrency=-1),
        lambda: Limits(concurrency=0.5),  # half a place would let everybody in
        lambda: Limits(concurrency=True),
        lambda: Rate("50/s"),
    ],
)
def test_limits_below_anything_useful_are_refused(make):
    with pytest.raises(InvalidRequest, match=r"above 0|at least 1"):
        make()


def test_a_rate_takes_its_operations_from_any_iterable_but_not_a_bare_one():
    rate = Rate(10, operations=[CreateGroup])
    assert rate.key(CreateGroup(name="a", type=GroupType.VIP)) is rate
    assert RateLimiter((rate,)).reserve(CreateGroup(name="a", type=GroupType.VIP), 0.0, 1.0) == 0.0
    with pytest.raises(InvalidRequest, match=r"write \(CreateGroup,\)"):
        Rate(10, operations=CreateGroup)


def test_limits_take_their_rates_from_any_iterable():
    assert Limits(rates=iter([Rate(1), Rate(2)])).rates == (Rate(1), Rate(2))


def test_without_rates_everything_goes_at_once():
    assert places(RateLimiter(), [DETAIL] * 1000, now=17.0) == [17.0] * 1000


def test_a_rate_spreads_requests_evenly():
    assert places(RateLimiter((Rate(4),)), [DETAIL] * 5) == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_a_burst_goes_at_once_after_a_quiet_time_and_not_before():
    limiter = RateLimiter((Rate(1, burst=3),))
    assert places(limiter, [DETAIL] * 5) == [0, 0, 0, 1, 2]
    assert places(limiter, [DETAIL] * 2, now=2.5) == [3, 4]
    assert places(limiter, [DETAIL] * 4, now=100.0) == [100, 100, 100, 101]


def test_quiet_times_save_up_no_more_than_the_burst():
    limiter = RateLimiter((Rate(10),))
    assert places(limiter, [DETAIL], now=0.0) == [0]
    assert places(limiter, [DETAIL] * 3, now=1000.0) == pytest.approx([1000, 1000.1, 1000.2])


def test_a_monotonic_clock_may_begin_below_zero():
    assert places(RateLimiter((Rate(1),)), [DETAIL] * 2, now=-50.0) == [-50, -49]


def test_of_several_rates_each_holds():
    limiter = RateLimiter((Rate(2, burst=2), Rate(3, per=10, burst=3)))
    assert places(limiter, [DETAIL] * 5) == pytest.approx([0, 0, 0.5, 10 / 3, 20 / 3])


def test_a_rate_for_some_operations_leaves_the_others_alone():
    limiter = RateLimiter((Rate(1, operations=(JoinGroup, DeleteGroup)),))
    assert places(limiter, [JOIN, DETAIL, DeleteGroup(group_id="g"), DETAIL, JOIN]) == [0, 0, 1, 0, 2]


def test_a_rate_for_each_group_counts_every_group_by_itself_and_nothing_without_a_group():
    limiter = RateLimiter((Rate(1, each_group=True),))
    other = QueryGroupDetail(group_id="g2")
    assert places(limiter, [DETAIL, other, JOIN, other, SEARCH, SEARCH, CREATE]) == [0, 0, 1, 1, 0, 0, 0]


def test_a_place_past_the_latest_time_is_not_given_and_not_taken():
    limiter = RateLimiter((Rate(1), Rate(1, per=10, operations=(JoinGroup,))))
    assert places(limiter, [JOIN]) == [0]
    assert places(limiter, [JOIN] * 3, latest=9.0) == [None] * 3
    assert places(limiter, [DETAIL] * 2) == [1, 2]
    assert places(limiter, [JOIN], latest=10.5) == [10]


def test_a_place_at_the_very_latest_time_would_leave_no_time_to_send():
    limiter = RateLimiter((Rate(1),))
    assert places(limiter, [DETAIL]) == [0]
    assert places(limiter, [DETAIL], latest=1.0) == [None]
    assert places(limiter, [DETAIL], latest=1.001) == [1]


def test_a_halt_lets_nothing_go_before_its_end_and_the_later_end_holds():
    limiter = RateLimiter()
    limiter.halt(10.0, 0.0)
    limiter.halt(5.0, 1.0)
    assert places(limiter, [DETAIL], now=2.0) == [10]
    assert places(limiter, [DETAIL], now=2.0, latest=9.0) == [None]
    assert places(limiter, [DETAIL], now=2.0, latest=10.0) == [None]
    limiter.halt(12.0, 3.0)
    assert places(limiter, [DETAIL], now=4.0) == [12]
    assert places(limiter, [DETAIL], now=13.0) == [13]


def test_after_a_halt_the_rates_go_on_where_they_were():
    limiter = RateLimiter((Rate(1),))
    assert places(limiter, [DETAIL] * 3) == [0, 1, 2]
    before = limiter.halted_for
    limiter.halt(20.5, 0.5)  # the places 1 and 2 are now 21 and 22
    assert [limiter.postponed(when, before) for when in (1, 2)] == [21, 22]
    assert places(limiter, [DETAIL] * 2, now=0.5) == [23, 24]


def test_halts_one_after_another_and_inside_one_another_add_up_once():
    limiter = RateLimiter()
    limiter.halt(10.0, 0.0)
    limiter.halt(8.0, 5.0)
    limiter.halt(15.0, 5.0)
    limiter.halt(30.0, 20.0)
    assert limiter.halted_for == 15 + 10
    assert limiter.postponed(16.0, 15.0) == 30
    assert limiter.postponed(22.0, 15.0) == 32


def test_thousands_of_groups_are_forgotten_when_they_say_nothing_any_more():
    limiter = RateLimiter((Rate(1, each_group=True),))
    for number in range(20_000):
        now = number * 0.01  # each group is of interest for one second: a hundred at any time
        assert limiter.reserve(QueryGroupDetail(group_id=f"g{number}"), now, inf) == now
        assert len(limiter._buckets[0].due) <= PRUNE + 1
    assert limiter.reserve(QueryGroupDetail(group_id="g19999"), 199.99, inf) == pytest.approx(200.99)


def test_groups_that_still_say_something_are_not_forgotten():
    limiter = RateLimiter((Rate(1, per=1e6, each_group=True),))
    groups = [QueryGroupDetail(group_id=f"g{number}") for number in range(3 * PRUNE)]
    assert places(limiter, groups) == [0] * len(groups)
    assert places(limiter, groups) == [1e6] * len(groups)


# The promise itself, checked the slow way: every window between two requests holds no more than it may.

OPS = (DETAIL, QueryGroupDetail(group_id="g2"), JOIN, JoinGroup(group_id="g2"), SEARCH, CREATE)
RATES = st.builds(
    Rate,
    st.floats(0.5, 20),
    st.sampled_from((1.0, 2.5, 10.0)),
    burst=st.integers(1, 4),
    operations=st.sampled_from(((), (JoinGroup,), (QueryGroupDetail, SearchPublicGroups))),
    each_group=st.booleans(),
)
CALLS = st.lists(st.tuples(st.floats(0, 3), st.sampled_from(OPS), st.sampled_from((2.0, 30.0, inf))), max_size=60)
HALTS = st.lists(st.tuples(st.floats(0, 40), st.floats(0, 5)), max_size=4)


def sent(rates, calls, halts):
    """Let calls come, wait and go over one limiter, as the client does, and return who went when."""
    limiter, order, now, events, gone = RateLimiter(rates), count(), 0.0, [], []
    for gap, op, patience in calls:
        now += gap
        heapq.heappush(events, (now, next(order), "come", op, now + patience))
    for at, seconds in halts:
        heapq.heappush(events, (at, next(order), "halt", seconds, None))
    while events:
        now, _, what, subject, detail = heapq.heappop(events)
        if what == "halt":
            limiter.halt(now + subject, now)
        elif what == "come":
            when = limiter.reserve(subject, now, detail)
            if when is not None:
                assert now <= when < detail
                heapq.heappush(events, (when, next(order), "wake", subject, (when, limiter.halted_for)))
        else:
            when, halted_for = detail
            later = limiter.postponed(when, halted_for)
            if later > now:
                heapq.heappush(events, (later, next(order), "wake", subject, (later, limiter.halted_for)))
            else:
                assert not any(at < now < at + seconds - 1e-6 for at, seconds in halts)
                gone.append((now, subject))
    return gone


def counted(rate: Rate, gone):
    """Return the times of the requests that a rate counts, group by group where it does."""
    times = defaultdict(list)
    for when, op in gone:
        group = getattr(op, "group_id", None)
        if (not rate.operations or type(op) in rate.operations) and not (rate.each_group and group is None):
            times[group if rate.each_group else ""].append(when)
    return times.values()


@settings(max_examples=300, deadline=None)
@given(rates=st.lists(RATES, min_size=1, max_size=3), calls=CALLS, halts=HALTS)
def test_over_any_window_every_rate_holds_with_halts_and_without(rates, calls, halts):
    gone = sent(tuple(rates), calls, halts)
    for rate in rates:
        for times in counted(rate, gone):
            for first, begin in enumerate(times):
                for last, end in enumerate(times[first:], first):
                    assert last - first + 1 <= rate.burst + rate.limit * (end - begin) / rate.per + 1e-6


@settings(deadline=None)
@given(limit=st.floats(0.5, 50), burst=st.integers(1, 5), calls=st.integers(1, 80))
def test_a_single_rate_wastes_no_time(limit, burst, calls):
    went = places(RateLimiter((Rate(limit, burst=burst),)), [DETAIL] * calls)
    assert went == pytest.approx([max(0, number - burst + 1) / limit for number in range(calls)])


# Asking first and taking then, as one does who may choose another request meanwhile


@settings(deadline=None)
@given(rates=st.lists(RATES, min_size=1, max_size=3), calls=CALLS, halts=HALTS)
def test_what_could_go_at_a_time_goes_then_as_if_it_had_been_reserved(rates, calls, halts):
    reserving, asking, now = RateLimiter(tuple(rates)), RateLimiter(tuple(rates)), 0.0
    for at, seconds in sorted(halts):
        reserving.halt(at + seconds, at)
        asking.halt(at + seconds, at)
        now = at
    for gap, op, _ in calls:
        now += gap
        when = asking.earliest(op, now)
        assert asking.earliest(op, now, each_group=False) <= when
        assert when == asking.earliest(op, now)
        assert reserving.reserve(op, now, inf) == pytest.approx(when)
        now = when
        asking.take(op, now)


def test_what_a_group_has_for_itself_can_be_left_out():
    limiter = RateLimiter((Rate(1, each_group=True), Rate(4)))
    limiter.take(DETAIL, 3.0)
    assert (limiter.earliest(DETAIL, 3.0), limiter.earliest(DETAIL, 3.0, each_group=False)) == (4.0, 3.25)
    limiter.halt(5.0, 3.0)
    assert (limiter.earliest(DETAIL, 3.0), limiter.earliest(DETAIL, 3.0, each_group=False)) == (6.0, 5.25)


# ------------------------------------------------------------------------------------------- places


async def settle() -> None:
    for _ in range(10):
        await checkpoint()


class Visitor:
    """One who enters, stays until told to go, and leaves; it may be sent away at any moment."""

    def __init__(self, limiter: ConcurrencyLimiter, entered: list["Visitor"]) -> None:
        self.scope = CancelScope()
        self.may_go = Event()
        self.inside = False
        self._limiter = limiter
        self._entered = entered

    async def visit(self) -> None:
        with self.scope:
            await self._limiter.enter()
            self._entered.append(self)
            self.inside = True
            try:
                await self.may_go.wait()
            finally:
                self.inside = False
                self._limiter.leave()


async def test_while_a_place_is_free_nobody_waits():
    limiter = ConcurrencyLimiter(2)
    steps = limiter.enter()
    with pytest.raises(StopIteration):  # done without giving way once
        steps.send(None)
    assert (limiter.free, limiter.waiting) == (1, 0)


@pytest.mark.parametrize("places", [1, 3])
async def test_first_come_first_served_and_never_more_than_its_places(places):
    limiter, entered, most = ConcurrencyLimiter(places), [], 0
    visitors = [Visitor(limiter, entered) for _ in range(20)]
    async with create_task_group() as tasks:
        for visitor in visitors:
            tasks.start_soon(visitor.visit)
            await settle()
        assert limiter.waiting == 20 - places
        for visitor in visitors:
            most = max(most, sum(each.inside for each in visitors))
            visitor.may_go.set()
            await settle()
    assert entered == visitors
    assert most == places
    assert (limiter.free, limiter.waiting) == (places, 0)


async def test_who_comes_while_others_wait_does_not_overtake_them():
    limiter, entered = ConcurrencyLimiter(1), []
    first, second, third = (Visitor(limiter, entered) for _ in range(3))
    async with create_task_group() as tasks:
        tasks.start_soon(first.visit)
        await settle()
        tasks.start_soon(second.visit)
        await settle()
        first.may_go.set()
        tasks.start_soon(third.visit)  # comes in the moment in which the place is handed over
        for visitor in (second, third):
            await settle()
            visitor.may_go.set()
    assert entered == [first, second, third]


async def test_a_place_handed_to_one_who_is_cancelled_in_that_moment_goes_to_the_next():
    limiter, entered = ConcurrencyLimiter(1), []
    second, third = Visitor(limiter, entered), Visitor(limiter, entered)
    await limiter.enter()
    async with create_task_group() as tasks:
        for visitor in (second, third):
            tasks.start_soon(visitor.visit)
            await settle()
        limiter.leave()
        second.scope.cancel()
        await settle()
        assert not second.inside
        assert third.inside
        third.may_go.set()
    assert (limiter.free, limiter.waiting) == (1, 0)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("turns", range(4))
async def test_asyncios_own_cancel_loses_no_place_in_any_turn_of_the_loop(turns):
    limiter = ConcurrencyLimiter(1)
    await limiter.enter()
    task = asyncio.create_task(limiter.enter())
    await asyncio.sleep(0)
    limiter.leave()
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    try:
        await task
    except asyncio.CancelledError:
        assert limiter.free == 1
    else:
        limiter.leave()
    assert (limiter.free, limiter.waiting) == (1, 0)


async def test_ten_thousand_cancelled_waiters_leave_nothing_behind():
    limiter = ConcurrencyLimiter(1)
    await limiter.enter()
    async with create_task_group() as tasks:
        for _ in range(10_000):
            tasks.start_soon(limiter.enter)
        await settle()
        assert limiter.waiting == 10_000
        tasks.cancel_scope.cancel()
    assert (limiter.free, limiter.waiting) == (0, 0)
    limiter.leave()
    assert limiter.free == 1


COME, GO, AWAY, PAUSE = "come", "go", "away", "pause"
MOVES = st.lists(st.tuples(st.sampled_from((COME, COME, GO, AWAY, PAUSE)), st.integers(0, 9)), max_size=40)


@settings(max_examples=60, deadline=None)
@given(places=st.integers(1, 3), moves=MOVES)
async def test_whatever_happens_in_whatever_moment_no_place_is_lost(places, moves):
    limiter, visitors, entered = ConcurrencyLimiter(places), [], []
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
    limiter, visitors, entered = ConcurrencyLimiter(places), [], []
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
