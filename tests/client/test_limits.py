"""Limits: rates as arithmetic, without waiting."""

from collections import defaultdict
from itertools import pairwise

import pytest
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
    Retry,
    SearchPublicGroups,
)
from rbim.client.limits import PRUNE, Bucket, Buckets, Demands, ready_at

DETAIL = QueryGroupDetail(group_id="g1")
JOIN = JoinGroup(group_id="g1")
SEARCH = SearchPublicGroups(name="x")
CREATE = CreateGroup(name="x", type=GroupType.TEMPORARY)


class RateLimiter:
    """Rates as a client asks them, one request after the other."""

    def __init__(self, rates=()):
        self.demands = Demands(rates, {})

    def earliest(self, op, now):
        return max(now, ready_at(self.demands.of(op, now).buckets, now))

    def take(self, op, now):
        self.demands.of(op, now).take(now)


def sent(limiter: RateLimiter, ops, now: float = 0.0) -> list[float]:
    """Send one request after the other, each as early as it may leave."""
    times = []
    for op in ops:
        now = limiter.earliest(op, now)
        limiter.take(op, now)
        times.append(now)
    return times


TEXTS = {
    "50/s": Rate(50, 1),
    "50 / s": Rate(50, 1),
    " 50/sec ": Rate(50, 1),
    "50/second": Rate(50, 1),
    "600/min": Rate(600, 60),
    "600/m": Rate(600, 60),
    "1/minute": Rate(1, 60),
    "1000/h": Rate(1000, 3600),
    "1000/hour": Rate(1000, 3600),
    "100/10s": Rate(100, 10),
    "100/10 s": Rate(100, 10),
    "2.5/1.5min": Rate(2.5, 90),
    "7/2h": Rate(7, 7200),
}


def test_a_rate_is_read_from_text():
    assert {text: Rate.parse(text) for text in TEXTS} == TEXTS


def test_a_text_that_is_no_rate_is_refused():
    unknown = ["", "50", "s", "/s", "50/", "50/d", "50/ms", "1e3/s", "5/s/s", "nan/s", "٣/s", "5 per s", "5/S"]
    for text in [*unknown, "-5/s", "0/s", "5/0s"]:
        with pytest.raises(InvalidRequest):
            Rate.parse(text)


def test_limits_below_anything_useful_are_refused():
    for make in [
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
    ]:
        with pytest.raises(InvalidRequest, match=r"above 0|at least 1"):
            make()


def test_a_number_that_no_float_can_hold_is_refused_when_it_is_given():
    huge = 10**400
    for make, field in [
        (lambda: Rate(huge), "limit"),
        (lambda: Rate(1, huge), "per"),
        (lambda: Rate(1, burst=huge), "burst"),
        (lambda: Limits(concurrency=huge), "concurrency"),
        (lambda: Retry(cap=huge), "cap"),
        (lambda: Retry(base=-huge), "base"),
    ]:
        with pytest.raises(InvalidRequest, match=f"{field}: .* is too large"):
            make()


def test_a_rate_takes_its_operations_from_any_iterable_but_not_a_bare_one():
    rate = Rate(10, operations=[CreateGroup])
    assert rate.operations == (CreateGroup,)
    with pytest.raises(InvalidRequest, match=r"write \(CreateGroup,\)"):
        Rate(10, operations=CreateGroup)


def test_limits_take_rates_as_text_and_a_single_one():
    for rates in ["50/s", ["50/s"], Rate(50), (Rate(50),)]:
        assert Limits(rates=rates).rates == (Rate(50),)


def test_what_is_no_rate_is_refused_by_name():
    for rates in [50, None, [50], ["50"], [None], [["50/s"]], Rate, object()]:
        with pytest.raises(InvalidRequest, match="rate"):
            Limits(rates=rates)


def test_a_burst_is_what_50_ms_of_the_rate_allow_and_at_least_one():
    for rate, burst in [
        (Rate(1), 1),
        (Rate(39), 1),
        (Rate(40), 2),
        (Rate(2000), 100),
        (Rate(600, 60), 1),
        (Rate(2000, burst=1), 1),
        (Rate(1e-9), 1),
    ]:
        assert rate.burst == burst


def test_without_rates_everything_goes_at_once():
    assert sent(RateLimiter(), [DETAIL] * 1000, now=17.0) == [17.0] * 1000


def test_a_burst_goes_at_once_after_a_quiet_time_and_not_before():
    limiter = RateLimiter((Rate(1, burst=3),))
    assert sent(limiter, [DETAIL] * 5) == [0, 0, 0, 1, 2]
    assert sent(limiter, [DETAIL] * 2, now=2.5) == [3, 4]
    assert sent(limiter, [DETAIL] * 4, now=100.0) == [100, 100, 100, 101]


def test_a_rate_for_some_operations_leaves_the_others_alone():
    limiter = RateLimiter((Rate(1, operations=(JoinGroup, DeleteGroup)),))
    assert sent(limiter, [JOIN, DETAIL, DeleteGroup(group_id="g"), DETAIL, JOIN]) == [0, 0, 1, 1, 2]
    assert limiter.earliest(DETAIL, 1.5) == 1.5


def test_a_rate_for_each_group_counts_every_group_by_itself_and_nothing_without_a_group():
    limiter = RateLimiter((Rate(1, each_group=True),))
    other = QueryGroupDetail(group_id="g2")
    for op in (DETAIL, other, SEARCH, CREATE):
        assert limiter.earliest(op, 0.0) == 0
        limiter.take(op, 0.0)
    assert [limiter.earliest(op, 0.0) for op in (JOIN, other, SEARCH, CREATE)] == [1, 1, 0, 0]


def test_thousands_of_groups_are_forgotten_when_they_say_nothing_any_more():
    limiter = RateLimiter((Rate(1, each_group=True),))
    for number in range(20_000):
        now = number * 0.01  # each group is of interest for one second: a hundred at any time
        assert sent(limiter, [QueryGroupDetail(group_id=f"g{number}")], now=now) == [now]
        assert len(limiter.demands._rates[0][1]) <= PRUNE + 1
    assert limiter.earliest(QueryGroupDetail(group_id="g19999"), 199.99) == pytest.approx(200.99)


def test_groups_that_still_say_something_are_not_forgotten():
    limiter = RateLimiter((Rate(1, per=1e6, each_group=True),))
    groups = [QueryGroupDetail(group_id=f"g{number}") for number in range(3 * PRUNE)]
    for group in groups:
        limiter.take(group, 0.0)
    assert {limiter.earliest(group, 0.0) for group in groups} == {1e6}


def test_groups_that_are_in_use_are_looked_at_ever_more_rarely():
    """At 1024 groups, 2048, 4096: else each new group would cost a look at all others."""
    buckets, looks, before = Buckets(Rate(1, per=1e6, each_group=True)), -1, None
    for number in range(8 * PRUNE):
        buckets.of(number, 0.0).take(0.0)
        if buckets._by_key is not before:
            looks, before = looks + 1, buckets._by_key
    assert looks == 3


@given(burst=st.integers(1, 5), granted=st.integers(0, 3), taken=st.integers(0, 4), until=st.integers(4, 40))
def test_so_many_requests_fit_as_leave_one_after_the_other_in_time(burst, granted, taken, until):
    bucket, other = (Bucket(Rate(2, burst=burst)) for _ in range(2))
    for each in (bucket, other):
        for _ in range(taken):
            each.take(10.0)
    bucket.granted = granted
    last, now, leave = 10.0 + until / 4 - 1.0, 10.0, -granted
    while (now := max(now, other.ready_at(now))) <= last:
        other.take(now)
        leave += 1
    assert int(max(0.0, bucket.fits(10.0 + until / 4, now=10.0, need=1.0))) == max(0, leave)


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
CALLS = st.lists(st.tuples(st.floats(0, 3), st.sampled_from(OPS)), max_size=60)


def counted(rate: Rate, gone):
    """Return the times of the requests that a rate counts, group by group where it does."""
    times = defaultdict(list)
    for when, op in gone:
        group = getattr(op, "group_id", None)
        if (not rate.operations or type(op) in rate.operations) and not (rate.each_group and group is None):
            times[group if rate.each_group else ""].append(when)
    return times.values()


@settings(max_examples=300, deadline=None)
@given(rates=st.lists(RATES, min_size=1, max_size=3), calls=CALLS)
def test_over_any_window_every_rate_holds(rates, calls):
    limiter, now, gone = RateLimiter(tuple(rates)), 0.0, []
    for gap, op in calls:
        now += gap
        now = limiter.earliest(op, now)
        assert limiter.earliest(op, now) == now
        limiter.take(op, now)
        gone.append((now, op))
    for rate in rates:
        for times in counted(rate, gone):
            for first, begin in enumerate(times):
                for last, end in enumerate(times[first:], first):
                    assert last - first + 1 <= rate.burst + rate.limit * (end - begin) / rate.per + 1e-6


@settings(deadline=None)
@given(limit=st.floats(0.5, 50), burst=st.integers(1, 5), calls=st.integers(1, 80))
def test_a_single_rate_wastes_no_time(limit, burst, calls):
    went = sent(RateLimiter((Rate(limit, burst=burst),)), [DETAIL] * calls)
    assert went == pytest.approx([max(0, number - burst + 1) / limit for number in range(calls)])
    assert all(before <= after for before, after in pairwise(went))


@given(burst=st.integers(1, 5), granted=st.integers(0, 6), ahead=st.integers(0, 6), idle=st.floats(0, 3))
def test_granted_requests_and_those_ahead_count_as_if_they_left_now(burst, granted, ahead, idle):
    bucket, other = (Bucket(Rate(2, burst=burst)) for _ in range(2))
    for each in (bucket, other):
        each.take(10.0)
    bucket.granted = granted
    now = 10.0 + idle
    when = now
    for _ in range(granted + ahead):
        when = max(when, other.ready_at(when))
        other.take(when)
    assert max(now, bucket.ready_at(now, ahead)) == pytest.approx(max(when, other.ready_at(when)), abs=1e-6)
