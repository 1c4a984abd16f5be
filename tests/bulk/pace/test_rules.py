"""The rules of the pace one by one: when a group has a rate of its own, when noise is proven."""

from math import inf

import pytest

from rbim.bulk.pace.groups import GroupRates
from rbim.bulk.pace.rate import BETA, FLOOR, TEST_LASTS, AdaptiveRate, _Test


def answers(groups, pattern, *, group="g", others=0, at=0.0):
    """Give a group answers (T: throttled, p: passed), the first one before those of others; return the last result."""
    concerns_group = False
    for number, kind in enumerate(pattern):
        if number == 1:
            for _ in range(others):
                groups.passed("other", at, at)
        if kind == "T":
            concerns_group = groups.throttled(group, at, at, 0.0)
        else:
            groups.passed(group, at, at)
    return concerns_group


@pytest.mark.parametrize(
    ("pattern", "others", "own"),
    [
        ("TTTT", 10, True),  # four in a row
        ("TTT", 10, False),
        ("TTTT", 9, False),  # what others had is too little to tell
        ("TTpTTT", 10, False),  # five of six, three in a row
        ("TTpTTpTpT", 10, False),  # of the last eight five
        ("TTpTTpTT", 10, True),  # six of eight
        ("TppTppTppTppTppT", 10, False),
    ],
)
def test_a_group_has_a_rate_of_its_own_when_it_is_throttled_often_and_others_are_not(pattern, others, own):
    groups = GroupRates()
    assert answers(groups, pattern, others=others) is own
    assert groups.made is own


def test_of_many_throttled_groups_eight_have_a_rate_of_their_own():
    groups = GroupRates()
    answers(groups, "T", group="first")
    for _ in range(200):
        groups.passed("other", 0.0, 0.0)
    own = [answers(groups, "TTTT", group=f"g{number}") for number in range(9)]
    assert own == [True] * 8 + [False]
    assert groups.throttled("g0", 0.0, 0.0, 0.0)


def test_what_others_had_in_an_earlier_watch_does_not_count():
    groups = GroupRates()
    answers(groups, "T", group="h")
    for _ in range(20):
        groups.passed("other", 1.0, 1.0)
    assert not answers(groups, "TTTT", at=100.0)
    assert not groups.made


def test_a_rate_of_a_group_holds_it_back_and_says_so():
    groups = GroupRates()
    assert answers(groups, "TTTT", others=10)
    rate = groups._lanes["g"].rate
    groups.reserved("g", 0.0)
    groups.left("g", 0.0)
    assert groups.earliest("g", 0.0) > 0.0
    assert rate.held
    rate.held = False
    groups.reserved("g", 50.0)
    assert rate.pending == 1
    groups.withdrawn("g")
    assert rate.pending == 0
    assert groups.earliest("g", 50.0) <= 50.0
    assert not rate.held
    assert groups.earliest("other", 0.0) == groups.earliest(None, 0.0) == -inf


def test_the_rate_of_a_group_grows_again_when_its_requests_pass():
    groups = GroupRates()
    assert answers(groups, "TTTT", others=10)
    rate = groups._lanes["g"].rate
    before, now = rate.rate, 1.0
    for _ in range(5):
        now = max(now, groups.earliest("g", now))
        groups.reserved("g", now)
        groups.left("g", now)
        groups.passed("g", now, now)
    assert rate.rate > 2 * before


@pytest.mark.parametrize(("bad", "own"), [(4, True), (5, True), (6, False)])
def test_where_others_are_throttled_too_it_is_a_quarter_of_their_answers_at_most(bad, own):
    """Of the twenty answers of another watched group; fewer than ten were of groups that are not watched."""
    groups = GroupRates()
    for number in range(20):
        if number < bad:
            assert not groups.throttled("h", 0.0, 0.0, 0.0)
        else:
            groups.passed("h", 0.0, 0.0)
    assert answers(groups, "TTTT") is own


def test_what_a_group_with_a_rate_of_its_own_had_does_not_count_for_the_others():
    groups = GroupRates()
    answers(groups, "TTTT" + 16 * "p", group="o")  # a fifth is throttled
    assert answers(groups, "TTpTTpTT")
    answers(groups, "TTT", group="o")  # by now seven of 23
    assert not answers(groups, "TTTT", group="h")


@pytest.mark.parametrize("low", [0.0, 80.0])
def test_the_rate_of_a_group_begins_below_what_passed(low):
    rate = AdaptiveRate.between(low, 100.0, 7.0)
    assert rate.rate == max(FLOOR, BETA * low)
    assert rate._peak == 100.0


def test_after_an_outage_the_rate_is_half_of_what_it_was_and_the_peak_is_kept():
    rate = AdaptiveRate.between(80.0, 100.0, 0.0)
    before, rate._in_use = rate.rate, 5.0
    rate.resumed()
    assert (rate.rate, rate._peak, rate._in_use) == (before / 2, 100.0, 0.0)
    for _ in range(50):
        rate.resumed()
    assert rate.rate == FLOOR
    fresh = AdaptiveRate()
    fresh.resumed()
    assert fresh.rate == AdaptiveRate().rate  # nothing was throttled yet


@pytest.mark.parametrize(
    ("throttled", "passed", "noise"),
    [(4, 6, True), (3, 7, False), (2, 3, True), (5, 5, True), (6, 4, False), (0, 10, False)],
)
def test_noise_is_proven_by_four_tenths_of_its_share_before_and_not_by_more_than_half_of_all(throttled, passed, noise):
    test = _Test(100.0, 120.0, 90.0, 1.0, 0.0)
    for number in range(throttled + passed):
        test.count(throttled=number < throttled)
    assert test.proves_noise is noise
    assert test.measured == throttled / (throttled + passed)


@pytest.mark.parametrize(
    ("throttled", "passed", "blocked"), [(16, 0, True), (15, 0, False), (16, 16, False), (17, 16, True)]
)
def test_a_test_is_over_at_once_if_most_of_many_answers_are_throttled(throttled, passed, blocked):
    test = _Test(100.0, 120.0, 90.0, 0.01, 0.0)
    for number in range(throttled + passed):
        test.count(throttled=number < throttled)
    assert test.is_blocked is test.is_over(0.0) is blocked
    assert test.is_over(TEST_LASTS)
