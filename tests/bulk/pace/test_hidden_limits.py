"""A job that is given no rate, on platforms with hidden limits, with noise, and with groups that are limited alone."""

from __future__ import annotations

import pytest

from helpers.hidden_limits import ALL, KINDS, NOISE, Minutes, groups, hot, speed, used
from helpers.platform_simulation import INVITE, Platform, simulate
from rbim import InviteJoinGroup, Rate
from rbim.bulk.pace.controller import PaceController

OTHER = InviteJoinGroup(group_id="g2", members=["1001"])


def check_used(kind, rate, latency, seed):
    found = used(kind, rate, latency=latency, seed=seed)
    assert found.share >= 0.9
    assert found.throttled <= 0.05


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rate", "latency"), [(5, 0.1), (50, 0.001), (200, 0.1)])
def test_from_the_tenth_second_on_nine_tenths_of_a_hidden_limit_are_used(kind, rate, latency):
    check_used(kind, rate, latency, 1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(("kind", "rate", "latency"), ALL)
def test_each_limit_is_found_whatever_the_chance(kind, rate, latency, seed):
    check_used(kind, rate, latency, seed)


@pytest.mark.parametrize(("latency", "retry_after"), [(0.1, 30.0), (0.4, None)])
def test_a_limit_in_each_minute_is_never_taken_for_noise(latency, retry_after):
    pace = PaceController()
    platform = Platform(limiter=Minutes(600), latency=latency, retry_after=retry_after)
    record = simulate(pace, platform, 420, ops=groups(40))
    for begins in range(180, 420, 60):
        assert record.throttled(begins, begins + 60) <= 0.5
    assert pace._rate.noise == 0


def check_noise(share, seed, latency, seconds, **platform):
    quiet = speed(lambda: Platform(latency=latency), seconds=seconds)
    noisy = speed(lambda: Platform(latency=latency, noise=share, seed=seed, **platform), seconds=seconds)
    assert noisy >= NOISE[share] * quiet


@pytest.mark.parametrize("share", NOISE)
def test_throttling_by_chance_slows_a_job_little(share):
    check_noise(share, 1, 0.1, 20 if share < 0.05 else 30)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("retry_after", [None, 1.0])
@pytest.mark.parametrize("share", NOISE)
def test_throttling_by_chance_slows_a_job_little_for_a_minute(share, seed, retry_after):
    check_noise(share, seed, 0.1, 70, retry_after=retry_after)


@pytest.mark.parametrize(("share", "retry_after"), [(0.05, 5.0), (0.05, 30.0), (0.02, 10.0), (0.01, 60.0)])
def test_chance_that_asks_for_pauses_does_not_stop_a_job(share, retry_after):
    platform = Platform(latency=0.1, noise=share, retry_after=retry_after, seed=2)
    record = simulate(PaceController(), platform, 70, ops=groups(40))
    assert record.rate(10, 70) >= 0.5 * 1000


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_chance_beside_a_limit_does_not_lower_the_rate_again_and_again(seed):
    platform = Platform(limit=lambda _: 50, noise=0.05, latency=0.1, seed=seed)
    assert simulate(PaceController(), platform, 70, ops=groups(40)).rate(10, 70) >= 0.6 * 50


@pytest.mark.parametrize("share", NOISE)
@pytest.mark.parametrize("retry_after", [None, 1.0])
def test_throttling_by_chance_slows_a_job_little_that_is_not_adaptive(share, retry_after):
    quiet = speed(lambda: Platform(latency=0.1), adaptive=False, seconds=20)
    noisy = speed(lambda: Platform(latency=0.1, noise=share, retry_after=retry_after), adaptive=False, seconds=20)
    assert noisy >= NOISE[share] * quiet


def check_hot(number, of, rate, latency):
    alone = simulate(PaceController(), Platform(latency=latency), 10).rate(5, 10)
    others, limits, _ = hot(number, of, rate=rate, latency=latency)
    assert others >= 0.9 * alone * (of - number) / of
    assert min(limits) >= 0.9


def test_a_group_that_is_throttled_slows_only_itself():
    check_hot(1, 40, 2, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "of"), [(1, 40), (2, 40), (3, 40), (2, 10), (1, 2)])
@pytest.mark.parametrize("rate", [2, 5])
def test_some_groups_that_are_throttled_slow_only_themselves(number, of, rate):
    check_hot(number, of, rate, 0.1)


@pytest.mark.parametrize("of", [10, 40])
@pytest.mark.parametrize("retry_after", [1.0, 5.0, 10.0])
def test_a_group_that_is_always_throttled_does_not_slow_the_others(of, retry_after):
    others, _, record = hot(1, of, rate=0, latency=0.1, retry_after=retry_after)
    assert others >= 0.9 * 1000
    assert record.throttled(10, 70) <= 0.01


def throttle(pace, now, group, retry_after):
    pace.reserved(group, now)
    pace.left(group, now)
    pace.throttled(group, now, retry_after)


def answer(pace, now, number):
    """Send to other groups, which answer at once."""
    for each in range(number):
        at = now + each / 1000
        pace.reserved(OTHER, at)
        pace.left(OTHER, at)
        pace.answered(OTHER, at, 0.0)


@pytest.mark.parametrize("pause", [10.0, 30.0])
def test_a_group_is_known_as_throttled_across_the_pauses_it_is_asked_for(pause):
    pace = PaceController()
    answer(pace, 0.0, 100)
    for turn in range(4):
        now = 1.0 + turn * (pause + 1)
        answer(pace, now - 0.5, 100)
        throttle(pace, now, INVITE, pause)
    assert pace.earliest(INVITE, now) == now + pause
    assert pace.earliest(OTHER, now) < now + 0.5
    assert pace.halted_until < now


def test_a_group_that_returns_from_a_pause_sends_one_request_in_a_second_until_one_passes():
    pace = PaceController()
    answer(pace, 0.0, 100)
    throttle(pace, 1.0, INVITE, 10.0)
    answer(pace, 2.0, 100)
    assert pace.earliest(INVITE, 11.0) <= 11.0
    pace.reserved(INVITE, 11.0)
    pace.left(INVITE, 11.0)
    assert pace.earliest(INVITE, 11.1) == 12.0
    assert pace.earliest(OTHER, 11.1) < 11.2
    pace.answered(INVITE, 11.2, 0.2)
    assert pace.earliest(INVITE, 11.2) < 11.3


def test_throttling_of_all_groups_is_a_limit_of_the_whole():
    record = simulate(
        PaceController(),
        Platform(limit=lambda _: 50, latency=0.1),
        70,
        ops=[INVITE, OTHER, *(InviteJoinGroup(group_id=f"g{n}", members=["1"]) for n in range(3, 9))],
    )
    assert record.rate(10, 70) >= 0.9 * 50
    assert record.throttled(10, 70) <= 0.05


# When a request counts


def test_reserved_requests_are_pending_and_count_when_they_leave():
    pace = PaceController(rates=(Rate(10, burst=2),), adaptive=False)
    for _ in range(2):
        assert pace.earliest(INVITE, 0.0) <= 0.0
        pace.reserved(INVITE, 0.0)
    for now in (0.0, 1.0, 5.0):  # it waits, for a disk or in the client's limits
        assert pace.earliest(INVITE, now) > now
    for _ in range(2):
        pace.left(INVITE, 5.0)
    assert pace.earliest(INVITE, 5.0) == pytest.approx(5.1)


def test_a_reserved_request_that_does_not_leave_takes_nothing():
    pace = PaceController(rates=(Rate(10, burst=1),), adaptive=False)
    pace.reserved(INVITE, 0.0)
    assert pace.earliest(INVITE, 0.0) > 0.0
    pace.withdrawn(INVITE, 0.0, left=False)
    assert pace.earliest(INVITE, 0.0) == 0.0


def test_requests_of_an_adaptive_pace_that_do_not_leave_leave_no_trace():
    pace = PaceController()
    for _ in range(50):
        pace.reserved(INVITE, 0.0)
        assert pace.earliest(INVITE, 0.0) > 0.0
        pace.withdrawn(INVITE, 0.0, left=False)
    assert pace.earliest(INVITE, 0.0) <= 0.0


def test_an_adaptive_rate_hands_out_no_more_during_a_stall_than_it_allows():
    pace, handed_out = PaceController(), 0
    for step in range(500):  # nothing leaves for five seconds
        now = step / 100
        while pace.concurrency(now) > handed_out and pace.earliest(INVITE, now) <= now:
            pace.reserved(INVITE, now)
            handed_out += 1
    assert handed_out <= 2
