"""How fast a job goes, against platforms in virtual time: what it uses of a limit, what it wastes, how it comes back."""

from __future__ import annotations

import math
import random
from itertools import pairwise, product

import pytest
from hypothesis import given, settings, strategies as st

from helpers.platform_simulation import INVITE, THROTTLED, Fixed, Platform, Sliding, TokenBucket, simulate
from helpers.tables import each_row
from rbim import InvalidRequest, InviteJoinGroup, JoinGroup, Rate
from rbim.bulk.pace import Pace
from rbim.client.congestion import LONGEST_PAUSE

RATES = (5, 50, 200)
LATENCIES = (0.001, 0.1)
KINDS = ("second", "any second", "bucket", "small bucket", "bucket, Retry-After", "small bucket, Retry-After")
NOISE = {0.001: 0.97, 0.01: 0.85, 0.05: 0.6}
"""Shares of throttled requests, and the share of the speed that they leave at least."""
OTHER = InviteJoinGroup(group_id="g2", members=["1001"])


def depart(pace: Pace, now: float, op=INVITE) -> None:
    pace.reserved(op, now)
    pace.left(op, now)


def send(pace: Pace, now: float, op=INVITE) -> None:
    assert pace.earliest(op, now) <= now
    depart(pace, now, op)


def lose(pace: Pace, times: int, now: float) -> None:
    """Lose so many in a row, a hundredth of a second apart, at once after each was sent; the last one now."""
    for number in range(times - 1, -1, -1):
        depart(pace, now - number / 100)
        pace.lost(now - number / 100)


# Hidden limits


class Minutes:
    """A limit of requests in each minute."""

    def __init__(self, limit):
        self.limit, self.minute, self.number = limit, -1, 0

    def allows(self, now):
        if (minute := int(now // 60)) != self.minute:
            self.minute, self.number = minute, 0
        self.number += 1
        return self.number <= self.limit


def limited(kind, rate, *, latency, seed=1):
    """Return a platform with a limit. A bucket holds the tokens of a second, a small one those of a tenth."""
    if kind == "second":
        limiter = Fixed(rate, random.Random(seed).random())
    elif kind == "any second":
        limiter = Sliding(rate)
    else:
        limiter = TokenBucket(rate, max(1, rate // 10 if "small" in kind else rate))
    return Platform(limiter=limiter, latency=latency, retry_after=1.0 if "Retry" in kind else None, seed=seed)


def groups(number):
    return [InviteJoinGroup(group_id=f"g{each}", members=["1001"]) for each in range(number)]


def used(kind, rate, *, latency, seed=1):
    """Return the shares from second 10 to 70: of the limit that was used, and of the requests that were throttled."""
    record = simulate(Pace(), limited(kind, rate, latency=latency, seed=seed), 70)
    return record.rate(10, 70) / rate, record.throttled(10, 70)


def speed(platform, *, adaptive=True, seconds=70):
    return simulate(Pace(adaptive=adaptive), platform(), seconds, ops=groups(40)).rate(0, seconds)


def hot(number, of, *, rate, latency, retry_after=None):
    """Simulate a job of which the first groups are limited.

    ``rate``: requests per second; 0: they are always throttled. Returns the answers in a second of the others, and the
    shares of their limit that the limited groups used.
    """
    names = [f"g{each}" for each in range(number)]
    platform = Platform(latency=latency, groups={name: Sliding(rate) for name in names}, retry_after=retry_after)
    record = simulate(Pace(), platform, 70, ops=groups(of))
    of_group = {group: sum(10 <= at < 70 for at in times) / 60 for group, times in record.answered_of.items()}
    limits = [of_group.pop(name, 0.0) / (rate or 1.0) for name in names]
    return sum(of_group.values()), limits, record


def too_little(cases, seed=1):
    """Return what is used and throttled of those limits of which too little is used, or too much is throttled.

    A bucket of a single token throttles what comes a moment too early; of five requests in a second, one is a lot.
    """
    found = {case: used(*case[:2], latency=case[2], seed=seed) for case in cases}
    return {
        case: each
        for case, each in found.items()
        if each[0] < (0.8 if case[1] == 5 else 0.85) or each[1] > (0.15 if case[1] == 5 else 0.05)
    }


def test_most_of_a_hidden_limit_is_used_and_little_is_throttled():
    assert too_little([*((kind, 50, 0.001) for kind in KINDS), ("small bucket", 5, 0.1), ("second", 200, 0.1)]) == {}


@pytest.mark.ci
@pytest.mark.no_cover
@pytest.mark.parametrize("rate", RATES)
def test_each_limit_is_found_whatever_the_chance(rate):
    assert too_little(product(KINDS, [rate], LATENCIES), seed=2) == {}


@each_row("rate, retry_after", [(50, None), (200, 2.0)])
def test_most_of_a_strict_bucket_of_one_token_is_used(rate, retry_after):
    platform = Platform(limiter=TokenBucket(rate, 1), latency=0.1, retry_after=retry_after)
    assert simulate(Pace(), platform, 70).rate(10, 70) >= 0.8 * rate


@each_row("latency, retry_after", [(0.001, None), (0.1, 2.0)])
def test_ten_seconds_after_a_limit_fell_to_a_fifth_little_is_throttled(latency, retry_after):
    platform = Platform(limit=lambda now: 200 if now < 30 else 40, latency=latency, retry_after=retry_after)
    record = simulate(Pace(concurrency=400), platform, 70)
    assert record.rate(15, 30) >= 0.85 * 200
    assert record.throttled(40, 70) <= 0.1
    assert record.rate(40, 70) >= 0.8 * 40


def test_a_limit_that_rises_is_followed():
    record = simulate(Pace(), Platform(limit=lambda now: 50 if now < 30 else 400, latency=0.1), 90)
    assert record.recovery(30, 0.85 * 400) <= 45


@each_row("retry_after", [None, 30.0])
def test_throttling_of_everything_leaves_a_trickle_and_the_rate_comes_back(retry_after):
    platform = Platform(limit=lambda now: 0 if 20 <= now < 40 else 200, latency=0.1, retry_after=retry_after)
    record = simulate(Pace(), platform, 90)
    assert record.number(THROTTLED, 22, 40) <= 60
    assert record.recovery(40, 0.8 * 200) < 25


@pytest.mark.ci
@pytest.mark.no_cover
def test_a_limit_in_each_minute_costs_little():
    platform = Platform(limiter=Minutes(600), latency=0.1, retry_after=30.0)
    record = simulate(Pace(), platform, 420, ops=groups(40))
    assert record.rate(60, 420) >= 0.9 * 10
    assert record.throttled(60, 420) <= 0.5


@pytest.mark.parametrize(("seconds", "most"), [(15, 0.01), pytest.param(70, 0.05, marks=pytest.mark.ci)])
def test_throttling_by_chance_slows_a_job_little(seconds, most):
    quiet = speed(lambda: Platform(latency=0.1), seconds=seconds)
    shares = [share for share in NOISE if share <= most]
    found = {share: speed(lambda share=share: Platform(latency=0.1, noise=share), seconds=seconds) for share in shares}
    assert {share: each for share, each in found.items() if each < NOISE[share] * quiet} == {}


def test_random_losses_slow_nothing_down():
    losing = simulate(Pace(), Platform(latency=0.05, loss=0.3), 4)
    assert losing.rate(2, 4) / (1 - 0.3) >= 0.95 * 100 / 0.05


@pytest.mark.parametrize("rate", [2, pytest.param(5, marks=pytest.mark.ci)])
def test_a_group_that_is_throttled_slows_only_itself(rate):
    others, limits, _ = hot(1, 40, rate=rate, latency=0.2)
    assert others >= 0.9 * 500 * 39 / 40
    assert min(limits) >= 0.7


@pytest.mark.ci
@pytest.mark.no_cover
@each_row("retry_after", [1.0, 5.0, 10.0])
def test_a_group_that_is_always_throttled_does_not_slow_the_others(retry_after):
    others, _, record = hot(1, 40, rate=0, latency=0.1, retry_after=retry_after)
    assert others >= 0.9 * 1000
    assert record.throttled(10, 70) <= 0.01


def test_a_hundred_are_in_flight_within_a_second_and_a_slow_platform_gets_no_herd_at_first():
    record = simulate(Pace(), Platform(latency=0.1), 2)
    assert min(limit for _, limit in record.concurrency) <= 11
    assert next(at for at, limit in record.concurrency if limit == 100) < 1


# Rates that are given, and when a request counts


@each_row("adaptive", [True, False])
def test_a_given_rate_holds_exactly(adaptive):
    record = simulate(Pace(rates=(Rate(50, burst=1),), adaptive=adaptive), Platform(latency=0.02), 20)
    assert min(after - before for before, after in pairwise(record.sent)) >= 0.02 - 1e-9
    assert len(record.sent) == pytest.approx(20 * 50, abs=2)


def test_rates_of_all_of_a_group_and_of_another_operation():
    rates = (Rate(50, burst=5), Rate(600, 60, each_group=True), Rate(1, operations=(JoinGroup,)))
    for number, expected in ((8, 20 * 50), (2, 2 * 20 * 10)):
        record = simulate(Pace(rates=rates), Platform(latency=0.02), 20, ops=groups(number))
        assert len(record.sent) == pytest.approx(expected, rel=0.02)


def test_what_a_group_alone_must_wait_for_does_not_hold_back_others():
    pace = Pace(rates=(Rate(1, each_group=True), Rate(10)), adaptive=False)
    send(pace, 5.0)
    assert pace.earliest(INVITE, 5.0) == pytest.approx(6.0)
    assert pace.earliest_any_group(INVITE, 5.0) == pace.earliest(OTHER, 5.0) == pytest.approx(5.1)


def test_reserved_requests_are_pending_and_count_when_they_leave():
    pace = Pace(rates=(Rate(10, burst=2),), adaptive=False)
    for _ in range(2):
        assert pace.earliest(INVITE, 0.0) <= 0.0
        pace.reserved(INVITE, 0.0)
    for now in (0.0, 1.0, 5.0):  # they wait, for a disk or in the client's limits
        assert pace.earliest(INVITE, now) > now
    for _ in range(2):
        pace.left(INVITE, 5.0)
    assert pace.earliest(INVITE, 5.0) == pytest.approx(5.1)


def test_requests_that_do_not_leave_leave_no_trace():
    pace = Pace(rates=(Rate(10, burst=1),))
    for _ in range(50):
        pace.reserved(INVITE, 0.0)
        assert pace.earliest(INVITE, 0.0) > 0.0
        pace.withdrawn(INVITE, 0.0, left=False)
    assert pace.earliest(INVITE, 0.0) <= 0.0


@each_row("wrong", [0, -1, 1.5, True])
def test_a_concurrency_of_nothing_is_refused(wrong):
    with pytest.raises(InvalidRequest, match="at least 1"):
        Pace(concurrency=wrong)


def test_not_adaptive_throttling_holds_nothing_back():
    pace = Pace(concurrency=7, adaptive=False)
    for _ in range(50):
        send(pace, 1.0)
        pace.throttled(INVITE, 2.0, 5.0, 1.0)
    assert (pace.rate, pace.concurrency(), pace.state(2.0), pace.earliest(INVITE, 2.0)) == (None, 7, "running", 2.0)
    adaptive = Pace(concurrency=7)
    for number in range(9):
        depart(adaptive, number / 100)
        adaptive.throttled(INVITE, number / 100, 5.0)
    assert 0 < adaptive.rate <= 20


# Outages


def test_in_an_outage_probes_go_one_by_one_at_growing_intervals():
    record = simulate(Pace(), Platform(latency=0.01, outages=[(1, 26)]), 30)
    probes = [at for at in record.sent if 1.2 < at < 26]
    gaps = [after - before for before, after in pairwise(probes)]
    assert gaps[:3] == pytest.approx([0.5, 1, 2])
    assert gaps[3:] == pytest.approx([3] * len(gaps[3:]))


def test_a_run_of_losses_is_an_outage_and_an_answer_ends_it():
    pace = Pace()
    send(pace, 0.0)
    pace.answered(INVITE, 0.1, 0.1)
    lose(pace, 7, 10.0)
    assert pace.state(10.0) == "running"
    lose(pace, 1, 10.01)
    assert pace.state(10.01) == "probing"
    assert pace.concurrency() == 1
    assert pace.earliest(INVITE, 10.01) == pace.earliest_any_group(INVITE, 10.01) == pytest.approx(10.26)
    send(pace, 10.26)
    assert pace.concurrency() == 2  # it hangs; the next one need not wait for it, but for its time
    assert pace.earliest(INVITE, 10.26) == pytest.approx(10.76)
    pace.answered(INVITE, 10.3, 0.04)
    assert (pace.state(10.3), pace.concurrency()) == ("running", 11)
    for _ in range(8):
        depart(pace, 10.3)
        pace.lost(10.4, latency=5.0)  # sent before the end of the outage
    assert pace.state(10.4) == "running"


def test_answers_to_what_was_sent_before_an_outage_do_not_end_it():
    pace = Pace()
    depart(pace, 0.0)
    lose(pace, 7, 0.99)
    assert pace.state(0.99) == "running"
    lose(pace, 1, 1.0)
    pace.answered(INVITE, 1.1, 1.1)
    assert pace.state(1.1) == "probing"


# Whatever comes

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("answered", "throttled", "lost", "withdrawn", "send", "send", "send")),
        st.sampled_from((0.0, 0.0, 1e-9, 0.001, 0.3, 10.0, 1e9)),
        st.sampled_from((0.0, 1e-12, 0.01, 1.0, 1e9)),
        st.sampled_from((None, 0.0, -1.0, 0.5, 1e12, math.inf, math.nan)),
    ),
    max_size=120,
)


@settings(max_examples=60, deadline=None)
@given(
    steps=STEPS, most=st.integers(1, 120), adaptive=st.booleans(), rates=st.sampled_from(((), (Rate(3, each_group=True),)))
)
def test_whatever_comes_the_limits_are_limits_and_times_are_times(steps, most, adaptive, rates):
    pace, now = Pace(rates=rates, concurrency=most, adaptive=adaptive), 0.0
    for what, gap, latency, retry_after in steps:
        now += gap
        if what == "send":
            if pace.earliest(INVITE, now) <= now:
                depart(pace, now)
        elif what == "answered":
            pace.answered(INVITE, now, latency)
        elif what == "throttled":
            pace.throttled(INVITE, now, retry_after, latency)
        elif what == "lost":
            pace.lost(now, latency)
        else:
            pace.withdrawn(INVITE, now, left=True)
        assert 1 <= pace.concurrency() <= most
        assert now <= pace.earliest(INVITE, now) <= now + 10 + LONGEST_PAUSE
        assert pace.earliest_any_group(INVITE, now) <= pace.earliest(INVITE, now)
        assert pace.rate is None or pace.rate >= 0.4
        assert pace.state(now) in {"running", "halted", "probing"}
