"""How fast a job goes, against a platform simulated in virtual time: where it settles, what it wastes, how it comes back."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from itertools import pairwise
from time import process_time

import pytest
from hypothesis import given, settings, strategies as st

from helpers.platform_simulation import INVITE, LOST, THROTTLED, Platform, simulate
from rbim import InvalidRequest, InviteJoinGroup, JoinGroup, QueryGroupDetail, Rate
from rbim.bulk.pace.controller import LONGEST_HALT, PaceController

OTHER = InviteJoinGroup(group_id="g2", members=["1001"])
JOIN = JoinGroup(group_id="g1")


def limited(limit: float, **rest) -> Platform:
    return Platform(limit=lambda _now: limit, **rest)


def depart(pace: PaceController, now: float, op=INVITE) -> None:
    pace.reserved(op, now)
    pace.left(op, now)


def send(pace: PaceController, now: float, op=INVITE) -> None:
    assert pace.earliest(op, now) <= now
    depart(pace, now, op)


def lose(pace: PaceController, times: int, now: float) -> None:
    """Lose so many in a row, a hundredth of a second apart, at once after each was sent; the last one now."""
    for number in range(times - 1, -1, -1):
        depart(pace, now - number / 100)
        pace.lost(INVITE, now - number / 100)


# What a limit of 200 in any second lets through


@pytest.mark.parametrize(
    ("latency", "sigma", "retry_after", "least"),
    [
        (0.001, 0.0, None, 0.92),
        (0.1, 0.0, None, 0.92),
        (1.0, 0.0, None, 0.92),
        (0.001, 0.0, 1.0, 0.9),
        (0.1, 0.0, 1.0, 0.9),
        (1.0, 0.0, 1.0, 0.85),  # it takes 30 s to find the limit
        (0.1, 0.3, None, 0.92),
        (0.1, 0.3, 1.0, 0.9),
    ],
)
def test_nearly_all_of_a_limit_is_used_and_little_is_throttled(latency, sigma, retry_after, least):
    record = simulate(
        PaceController(concurrency=1000), limited(200, latency=latency, sigma=sigma, retry_after=retry_after), 75
    )
    assert 200 * least <= record.rate(15, 75) <= 200
    assert record.throttled(15, 75) < 0.05
    assert record.number(THROTTLED, 0, 15) < 300


@pytest.mark.slow
@pytest.mark.parametrize("limit", [5, 20, 1000])
@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize("latency", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("seed", [1, 2])
def test_other_limits_are_used_as_well(limit, retry_after, latency, seed):
    platform = limited(limit, latency=latency, sigma=0.3, retry_after=retry_after, seed=seed)
    record = simulate(PaceController(concurrency=400), platform, 120)
    assert record.rate(20, 120) >= 0.88 * limit
    assert record.throttled(20, 120) < 0.05


@pytest.mark.parametrize("latency", [0.001, 0.1])
def test_a_limit_that_changes_is_followed_within_fifteen_seconds(latency):
    platform = Platform(limit=lambda now: 200 if now < 30 else 50 if now < 60 else 400, latency=latency)
    record = simulate(PaceController(concurrency=400), platform, 95)
    assert record.rate(15, 30) >= 0.92 * 200
    assert record.rate(45, 60) >= 0.92 * 50
    assert record.throttled(32, 60) < 0.05
    assert record.rate(75, 95) >= 0.92 * 400
    assert record.recovery(60, 0.9 * 400) < 15


@pytest.mark.parametrize("timer", [0.001, 0.004, 0.016])
def test_two_thousand_a_second_pass_where_timers_ring_late(timer):
    record = simulate(PaceController(concurrency=200), limited(2000, latency=0.02), 12, timer=timer)
    assert record.rate(6, 12) >= 0.92 * 2000


def test_what_is_sent_is_spread_evenly():
    record = simulate(PaceController(concurrency=400), limited(200, latency=0.1), 40)
    tenths = defaultdict(int)
    for at in record.sent:
        tenths[int(at * 10)] += 1
    assert max(tenths[tenth] for tenth in range(200, 400)) <= 23  # 20 and what comes with probing and with one late timer


@pytest.mark.parametrize("latency", [0.001, 0.1])
def test_throttling_of_everything_for_a_while_leaves_a_trickle_and_the_rate_comes_back(latency):
    pace = PaceController(concurrency=100)
    record = simulate(pace, Platform(limit=lambda now: 0 if 20 <= now < 40 else 200, latency=latency), 75)
    assert record.number(THROTTLED, 25, 40) <= 15 * 0.6
    assert record.recovery(40, 0.9 * 200) < 15
    assert record.rate(60, 75) >= 0.92 * 200


def test_a_platform_that_throttles_at_first_is_no_slow_platform():
    record = simulate(PaceController(concurrency=100), Platform(limit=lambda now: 0 if now < 0.9 else 200, latency=0.05), 60)
    assert record.rate(30, 60) >= 0.92 * 200


# What a platform without a limit, or with one of its own strength, gets


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_a_fast_platform_is_soon_held_back_by_nothing(sigma):
    pace = PaceController(concurrency=100)
    record = simulate(pace, Platform(latency=0.01, sigma=sigma), 3)
    assert record.rate(2, 3) >= 0.9 * 10_000 / math.exp(sigma**2 / 2)
    assert pace.rate is None
    assert pace.concurrency(3.0) == 100


@pytest.mark.parametrize("latency", [0.01, 0.1])
def test_a_hundred_are_in_flight_within_about_a_second(latency):
    record = simulate(PaceController(concurrency=100), Platform(latency=latency, sigma=0.3), 2)
    assert next(at for at, limit in record.concurrency if limit == 100) < 1.7
    assert min(limit for _, limit in record.concurrency) == 10


@pytest.mark.parametrize("share", [0.2, 0.3])
def test_random_losses_slow_nothing_down(share):
    without = simulate(PaceController(concurrency=100), Platform(latency=0.02), 4)
    pace = PaceController(concurrency=100)
    losing = simulate(pace, Platform(latency=0.02, loss=share), 4)
    assert losing.rate(2, 4) / (1 - share) >= 0.95 * without.rate(2, 4)
    assert pace.concurrency(4.0) == 100


def test_random_losses_do_not_hide_a_limit():
    record = simulate(PaceController(concurrency=100), limited(200, latency=0.05, loss=0.2), 60)
    assert record.rate(15, 60) >= 0.92 * 200  # losses are lost before they count


@pytest.mark.parametrize("sigma", [0.0, 0.3])
def test_a_platform_that_queues_is_kept_busy_and_no_more(sigma):
    record = simulate(PaceController(concurrency=200), Platform(servers=20, latency=0.05, sigma=sigma), 40)
    assert record.rate(2, 40) >= 0.9 * 400 / math.exp(sigma**2 / 2)
    waits = sorted(seconds for at, seconds in record.latencies if at > 2)
    assert statistics.mean(waits) < 0.11
    assert waits[len(waits) * 98 // 100] < 3 * 0.05


def test_a_platform_that_becomes_slower_is_not_mistaken_for_one_that_queues():
    class Slower(Platform):
        def serve(self, now, op=INVITE):
            self.latency = 0.05 if now < 6 else 0.2
            return super().serve(now, op)

    record = simulate(PaceController(concurrency=100), Slower(), 12)
    assert record.rate(4, 6) >= 0.9 * 2000
    assert record.rate(8, 12) >= 0.9 * 500
    changes = [(at, limit) for at, limit in record.concurrency if at > 6]
    assert [limit for _, limit in changes] == [50, 100]
    assert changes[-1][0] < 7


def test_where_one_at_a_time_is_all_there_may_be_it_is_used():
    assert simulate(PaceController(concurrency=1), Platform(latency=0.1, sigma=0.3), 30).rate(5, 30) >= 9


def test_after_two_seconds_in_use_nothing_is_held_back_until_the_platform_wants_it():
    pace, now = PaceController(), 0.0
    while pace.earliest(INVITE, now) < math.inf and pace.rate is not None:
        now = max(now, pace.earliest(INVITE, now))
        depart(pace, now)
        pace.answered(INVITE, now, 0.0)
    assert now == pytest.approx(2, abs=0.1)
    for _ in range(1000):
        send(pace, now + 5)
        pace.answered(INVITE, now + 5, 0.0)
    for _ in range(8):
        assert pace.rate is None  # a few of so many are chance
        send(pace, now + 5)
        pace.throttled(INVITE, now + 5, None)
    assert pace.rate == pytest.approx(0.9 * 1000)


@pytest.mark.parametrize("per_second", [10, 40])
def test_a_rate_that_is_not_used_does_not_grow(per_second):
    pace = PaceController(concurrency=100)
    for number in range(2000):
        now = number / per_second
        send(pace, now)
        pace.answered(INVITE, now + 0.01, 0.01)
        assert pace.rate is None or number < 20  # nothing is held back by it
    assert pace._rate.rate < 80


def test_a_rate_grows_however_late_the_timers_are():
    record = simulate(PaceController(concurrency=100), Platform(latency=0.001), 8, timer=0.1)
    assert record.rate(6, 8) > 500


def test_a_concurrency_that_is_not_used_does_not_grow():
    record = simulate(PaceController(rates=(Rate(20),)), Platform(latency=0.1), 20)
    assert {limit for _, limit in record.concurrency} == {10}


# Rates that are given


def most(times, span: float) -> int:
    """Return how many there are at most in any span."""
    first, highest = 0, 0
    for last, end in enumerate(times):
        while end - times[first] >= span - 1e-9:
            first += 1
        highest = max(highest, last - first + 1)
    return highest


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_given_rate_holds_exactly(adaptive):
    rates = (Rate(50, burst=1),)
    record = simulate(PaceController(rates=rates, concurrency=100, adaptive=adaptive), Platform(latency=0.02), 20)
    assert min(after - before for before, after in pairwise(record.sent)) >= 0.02 - 1e-9
    assert len(record.sent) == pytest.approx(20 * 50, abs=2)


def test_two_rates_hold_and_one_for_each_group():
    rates = (Rate(50, burst=5), Rate(600, 60, each_group=True), Rate(1, operations=(JoinGroup,)))
    ops = [InviteJoinGroup(group_id=f"g{number}", members=["1"]) for number in range(8)]
    pace = PaceController(rates=rates, concurrency=100)
    record = simulate(pace, Platform(latency=0.02), 20, ops=ops)
    assert most(record.sent, 1.0) <= 50 + 5
    assert len(record.sent) == pytest.approx(20 * 50, rel=0.02)
    record = simulate(PaceController(rates=rates), Platform(latency=0.02), 20, ops=ops[:2])
    for first in (0, 1):
        assert most(record.sent[first::2], 1.0) <= 10
    assert len(record.sent) == pytest.approx(2 * 20 * 10, abs=4)


def test_what_a_group_alone_must_wait_for_does_not_hold_back_others():
    pace = PaceController(rates=(Rate(1, each_group=True), Rate(10)), adaptive=False)
    send(pace, 5.0)
    assert pace.earliest(INVITE, 5.0) == pytest.approx(6.0)
    assert pace.earliest_any_group(INVITE, 5.0) == pace.earliest(OTHER, 5.0) == pytest.approx(5.1)
    send(pace, 5.2, OTHER)
    assert pace.earliest_any_group(INVITE, 5.2) == pytest.approx(5.3)
    pace.throttled(INVITE, 5.3, 4.0)
    assert pace.earliest_any_group(INVITE, 5.3) == 9.3
    assert pace.earliest(INVITE, 5.3) == 9.3


def test_rates_for_other_operations_do_not_count():
    pace = PaceController(rates=(Rate(1, operations=(JoinGroup,)),), adaptive=False)
    send(pace, 0.0, JOIN)
    assert pace.earliest(JOIN, 0.0) == pace.earliest_any_group(JOIN, 0.0) == 1
    assert pace.earliest(QueryGroupDetail(group_id="g1"), 0.0) == 0


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True])
def test_a_concurrency_of_nothing_is_refused(wrong):
    with pytest.raises(InvalidRequest, match="at least 1"):
        PaceController(concurrency=wrong)


# Halts


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_pause_that_is_asked_for_is_kept_by_everything_and_the_longest_holds(adaptive):
    pace = PaceController(adaptive=adaptive)
    assert pace.halted_until == -math.inf
    for _ in range(3):
        depart(pace, 10.0)
    assert pace.state(10.0) == "running"
    pace.throttled(INVITE, 11.0, 5.0, 1.0)
    pace.throttled(INVITE, 11.1, 2.0, 1.1)
    assert pace.halted_until == 16.0
    assert pace.earliest(INVITE, 11.1) == 16.0
    assert (pace.state(15.9), pace.state(16.0)) == ("halted", "running")
    pace.throttled(INVITE, 12.0, 1e9, 2.0)
    assert pace.halted_until == pytest.approx(12 + LONGEST_HALT)


@pytest.mark.parametrize("retry_after", [0.0, -3.0, math.nan])
def test_a_pause_of_nothing_is_none(retry_after):
    pace = PaceController(adaptive=False)
    depart(pace, 1.0)
    pace.throttled(INVITE, 2.0, retry_after)
    assert pace.earliest(INVITE, 2.0) == 2.0


def test_not_adaptive_a_throttling_without_a_time_is_a_pause_of_a_second():
    pace = PaceController(concurrency=7, adaptive=False)
    send(pace, 1.0)
    pace.throttled(INVITE, 2.0, None)
    assert pace.earliest(INVITE, 2.0) == 3.0
    pace.answered(INVITE, 3.0, 2.0)
    assert (pace.rate, pace.concurrency(3.0)) == (None, 7)


@pytest.mark.parametrize(("good", "halts"), [(0, True), (1, True), (2, False), (15, False)])
def test_not_adaptive_a_pause_needs_half_of_the_last_answers_to_be_throttled(good, halts):
    pace = PaceController(adaptive=False)
    for _ in range(good + 1):
        send(pace, 1.0)
    for _ in range(good):
        pace.answered(INVITE, 1.0, 0.0)
    pace.throttled(INVITE, 1.0, 5.0)
    assert (pace.state(1.0) == "halted") is halts


def test_requests_in_flight_lower_the_rate_once():
    pace = PaceController()
    now = 0.0
    for _ in range(100):
        now = max(now, pace.earliest(INVITE, now))
        depart(pace, now)
        pace.answered(INVITE, now, 0.001)
    for _ in range(30):
        depart(pace, now)
    for _ in range(8):
        pace.throttled(INVITE, now + 0.1, None, 0.1)
    lowered = pace.rate
    assert lowered is not None
    for _ in range(22):
        pace.throttled(INVITE, now + 0.2, None, 0.2)
    assert pace.rate == lowered


# Outages


@pytest.mark.parametrize("timeout", [None, 10.0])
@pytest.mark.parametrize("latency", [0.001, 0.1])
@pytest.mark.parametrize("limit", [200, math.inf])
def test_within_ten_seconds_after_an_outage_all_is_as_before(limit, latency, timeout):
    if limit == math.inf:
        latency = max(latency, 0.05)  # fewer requests to simulate
    outage = (20, 50)
    record = simulate(
        PaceController(concurrency=100), limited(limit, latency=latency, outages=[outage], timeout=timeout), 65
    )
    former = record.rate(10, 20)
    assert record.rate(60, 65) >= 0.9 * former
    assert record.recovery(50, 0.9 * former, span=1.0) < 10
    if timeout or limit == 200:  # refusals while earlier answers still come say nothing yet, and take a millisecond each
        assert record.number(LOST, 0, 65) <= 100 + 20


def test_after_an_outage_the_concurrency_doubles():
    record = simulate(PaceController(concurrency=100), Platform(latency=0.1, outages=[(3, 10)]), 15)
    back = [(at, limit) for at, limit in record.concurrency if at > 10]
    assert [limit for _, limit in back] == [50, 100]
    assert back[1][0] - back[0][0] < 0.5


def test_in_an_outage_probes_go_one_by_one_at_growing_intervals():
    record = simulate(PaceController(concurrency=100), Platform(latency=0.01, outages=[(1, 26)]), 30)
    probes = [at for at in record.sent if 1.2 < at < 26]
    gaps = [after - before for before, after in pairwise(probes)]
    assert gaps[:3] == pytest.approx([0.5, 1, 2])
    assert gaps[3:] == pytest.approx([3] * len(gaps[3:]))


def test_a_run_of_losses_is_an_outage_and_an_answer_ends_it():
    pace = PaceController(concurrency=100)
    send(pace, 0.0)
    pace.answered(INVITE, 0.1, 0.1)
    lose(pace, 7, 10.0)
    assert pace.state(10.0) == "running"
    lose(pace, 1, 10.01)
    assert pace.state(10.01) == "probing"
    assert pace.concurrency(10.01) == 1
    assert pace.earliest(INVITE, 10.01) == pace.earliest_any_group(INVITE, 10.01) == pytest.approx(10.26)
    send(pace, 10.26)
    assert pace.concurrency(10.26) == 2  # it hangs; the next one need not wait for it, but for its time
    assert pace.earliest(INVITE, 10.26) == pytest.approx(10.76)
    pace.answered(INVITE, 10.3, 0.04)
    assert pace.state(10.3) == "running"
    assert pace.concurrency(10.3) == 5


def test_a_throttling_ends_an_outage_as_well():
    pace = PaceController(adaptive=False)
    lose(pace, 8, 1.0)
    assert pace.state(1.0) == "probing"
    send(pace, 2.0)
    pace.throttled(INVITE, 2.1, None, 0.1)
    assert pace.state(2.1) == "halted"
    assert pace.state(3.1) == "running"
    assert pace.concurrency(3.1) == 100


def test_answers_to_what_was_sent_before_an_outage_do_not_end_it():
    pace = PaceController()
    send(pace, 0.0)
    lose(pace, 8, 1.0)
    pace.answered(INVITE, 1.1, 1.1)
    assert pace.state(1.1) == "probing"


def test_losses_that_arrive_late_are_no_new_outage():
    pace = PaceController()
    for _ in range(50):
        depart(pace, 0.0)
    for _ in range(8):
        pace.lost(INVITE, 10.0, 10.0)
    assert pace.state(10.0) == "probing"
    send(pace, 10.25)
    pace.answered(INVITE, 10.3, 0.05)
    for _ in range(42):
        pace.lost(INVITE, 10.4, 10.4)
    assert pace.state(10.4) == "running"


def test_with_few_in_flight_fewer_losses_are_an_outage_if_they_take_long():
    pace = PaceController(concurrency=1)
    for now in (0.0, 10.0):
        assert pace.state(now) == "running"
        send(pace, now)
        pace.lost(INVITE, now + 10, 10.0)
    assert pace.state(20.0) == "probing"
    assert pace.concurrency(20.0) == 1


def test_losses_at_one_instant_do_not_go_on_forever():
    pace = PaceController()
    for _ in range(99):
        depart(pace, 0.0)
        pace.lost(INVITE, 0.0)
    assert pace.state(0.0) == "running"
    depart(pace, 0.0)
    pace.lost(INVITE, 0.0)
    assert pace.state(0.0) == "probing"


def test_an_outage_during_the_test_of_a_smaller_concurrency_forgets_the_test():
    pace, now = PaceController(concurrency=100), 0.0
    for latency in (0.05,) * 10 + (0.5,) * 10:
        now += 1.0
        before = pace.concurrency(now)
        for _ in range(100):
            depart(pace, now)
        for _ in range(100):
            pace.answered(INVITE, now + latency, latency)
        if pace.concurrency(now) < before:
            break
    assert pace.concurrency(now) == 50
    lose(pace, 8, now + 2)
    depart(pace, now + 3)
    pace.answered(INVITE, now + 3.1, 0.1)
    assert pace.concurrency(now + 3.1) == 50


def test_silence_counts_from_the_last_answer_or_from_a_sending_after_which_none_came():
    pace = PaceController()
    assert pace.silent_since is None
    lose(pace, 3, 1.0)
    assert pace.silent_since == pytest.approx(0.98)
    depart(pace, 2.0)
    pace.answered(INVITE, 3.0, 1.0)
    assert pace.silent_since == 3.0
    depart(pace, 1000.0)  # nothing was in flight meanwhile
    assert pace.silent_since == 1000.0
    depart(pace, 1001.0)
    assert pace.silent_since == 1000.0
    pace.throttled(INVITE, 1002.0, 60.0)
    assert pace.silent_since == 1062.0  # it was asked for


# Whatever comes

STEPS = st.lists(
    st.tuples(
        st.sampled_from(("answered", "throttled", "lost", "send", "send", "send")),
        st.sampled_from((0.0, 0.0, 1e-9, 0.001, 0.3, 10.0, 1e9)),
        st.sampled_from((0.0, 1e-12, 0.01, 1.0, 1e9)),
        st.sampled_from((None, 0.0, -1.0, 0.5, 1e12, math.inf, math.nan)),
    ),
    max_size=120,
)


@settings(max_examples=200, deadline=None)
@given(
    steps=STEPS, most=st.integers(1, 120), adaptive=st.booleans(), rates=st.sampled_from(((), (Rate(3, each_group=True),)))
)
def test_whatever_comes_the_limits_are_limits_and_times_are_times(steps, most, adaptive, rates):
    pace, now = PaceController(rates=rates, concurrency=most, adaptive=adaptive), 0.0
    for what, gap, latency, retry_after in steps:
        now += gap
        if what == "answered":
            pace.answered(INVITE, now, latency)
        elif what == "throttled":
            pace.throttled(INVITE, now, retry_after, latency)
        elif what == "lost":
            pace.lost(INVITE, now, latency)
        elif pace.earliest(INVITE, now) <= now:
            depart(pace, now)
        assert 1 <= pace.concurrency(now) <= most
        assert now <= pace.earliest(INVITE, now) <= now + 10 + LONGEST_HALT
        assert pace.earliest_any_group(INVITE, now) <= pace.earliest(INVITE, now)
        assert pace.rate is None or pace.rate >= 0.2
        assert pace.state(now) in {"running", "halted", "probing"}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(("answered", "throttled", "lost")), min_size=8, max_size=100))
def test_where_time_stands_still_the_answers_come_to_an_end(ends):
    pace = PaceController()
    for end in ends:
        for _ in range(20):
            depart(pace, 7.0)
            if end == "answered":
                pace.answered(INVITE, 7.0, 0.0)
            elif end == "throttled":
                pace.throttled(INVITE, 7.0, None)
            else:
                pace.lost(INVITE, 7.0)
    assert math.isfinite(pace.earliest(INVITE, 7.0))


def test_a_decision_costs_as_much_after_many_as_after_few():
    def cost(pace, now):
        began = process_time()
        for _ in range(10_000):
            now = max(now, pace.earliest(INVITE, now))
            depart(pace, now)
            pace.answered(INVITE, now + 0.01, 0.01)
        return process_time() - began, now

    pace, now, costs = PaceController(rates=(Rate(1e4),)), 0.0, []
    for _ in range(8):
        taken, now = cost(pace, now)
        costs.append(taken)
    assert min(costs[4:]) < 4 * min(costs[:4])


def test_what_was_not_sent_after_all_is_no_longer_in_flight():
    pace = PaceController(concurrency=4)
    for _ in range(3):
        depart(pace, 0.0)
    pace.withdrawn(INVITE, 0.0, left=True)
    pace.withdrawn(INVITE, 0.0, left=True)
    for _ in range(100):  # an outage: a probe beside the one that is still in flight
        pace.lost(INVITE, 1.0)
        depart(pace, 1.0)
    assert pace.state(1.0) == "probing"
    assert pace.concurrency(1.0) == 2
