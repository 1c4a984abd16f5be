"""The phases of the adaptive rate one by one, by the figures of its description: times in use, shares of the peak."""

import pytest

from rbim.bulk.pace.controller import AdaptiveConcurrency
from rbim.bulk.pace.rate import AdaptiveRate


def use(rate, begins, ends, latency=0.0):
    """Send as fast as the rate allows, and let all pass, at once or after the latency."""
    now = begins
    while rate.rate is not None and (now := max(now, rate.earliest(now))) < ends:
        rate.held = True
        rate.left(now)
        rate.passed(now, now - latency)


def known(peak, passed, at=0.0):
    """A rate that was lowered at a time; the peak is certain, and requests have passed since."""
    rate = AdaptiveRate.between(passed, peak, at)
    rate._certain = True
    rate.passed(at, at)
    return rate


def pass_evenly(rate, begins, seconds, each_second):
    """Let so many requests of each second pass, at the rate as it is; return the end."""
    for number in range(round(seconds * each_second)):
        now = begins + (number + 0.5) / each_second
        rate.passed(now, now)
    return begins + seconds


def under_test(peak, passed, at):
    """A rate that is tested from a time on: the third answer below the peak was throttled."""
    rate = known(peak, passed)
    rate._below = [198, 2]
    pass_evenly(rate, at - 1, 1, passed)
    rate.rate = passed
    assert rate.throttled(at, at)
    return rate


# START


def test_the_rate_doubles_each_fifth_of_a_second_and_is_no_limit_after_two():
    rate = AdaptiveRate()
    now = 0.0
    for then in (0.2, 0.4, 1.0):
        use(rate, now, then)
        assert rate.rate == pytest.approx(50 * 2 ** (then / 0.2), rel=0.2)  # a timer may be late by 0.02 s
        now = then
    use(rate, 1.0, 1.95)
    assert rate.rate is not None
    use(rate, 1.95, 2.05)
    assert rate.rate is None
    assert not rate.limits


@pytest.mark.parametrize(("latency", "peak"), [(0.01, 800.0), (1.0, 2 * (40 + 8))])
def test_what_was_tried_is_the_rate_or_twice_what_was_answered_if_answers_are_late(latency, peak):
    """Eight of sixteen are throttled at 800 a second, of which forty have passed."""
    rate = AdaptiveRate()
    rate.rate = 800.0
    for number in range(40):
        rate.passed(5.0 + number / 100, 5.0 + number / 100 - latency)
    for _ in range(8):
        assert rate._peak is None
        rate.throttled(5.5, 5.5 - latency)
    assert rate._peak == peak
    assert rate.rate == 0.9 * 40


def test_a_few_quick_answers_are_not_late():
    rate = AdaptiveRate()
    rate.rate = 800.0
    for _ in range(3):
        rate.passed(5.0, 4.99)
    for _ in range(3):
        rate.throttled(5.0, 4.99)
    assert rate._peak == 800.0


# LOWERED, RECOVERY


@pytest.mark.parametrize(("sent", "share"), [(25.5, 0.5), (26.5, 0.25)])
def test_right_after_a_pause_half_of_the_rate_is_kept_and_a_quarter_otherwise(sent, share):
    """Nothing has passed: in the second after a pause that says little."""
    rate = known(100.0, 100.0)
    pass_evenly(rate, 19.0, 1, 90)
    assert rate.throttled(20.0, 20.0, halt=5.0)
    before = rate.rate
    assert rate.throttled(sent, sent)
    assert rate.rate == pytest.approx(0.9 * share * before)


def test_the_way_back_to_nine_tenths_of_the_peak_takes_four_seconds_and_grows_by_one_factor():
    rate = known(100.0, 100.0)
    now = pass_evenly(rate, 19.0, 1, 50)  # half of what was tried
    assert rate.throttled(now, now)
    assert rate._peak == 90
    assert rate.rate == 45
    rate.passed(now, now)
    for after, doublings in ((0.9, 0), (3.0, (3 - 1) / 4), (4.4, (4.4 - 1) / 4)):  # the first second proves nothing
        use(rate, now, 20 + after)
        assert rate.rate == pytest.approx(45 * 2**doublings, rel=0.03)
        now = 20 + after
    use(rate, now, 24.9)
    assert 0.9 * 90 < rate.rate < 90


def test_lowerings_of_ten_seconds_are_taken_back_together():
    for after, taken_back in ((9.99, True), (10.0, False)):
        rate = known(100.0, 100.0)
        pass_evenly(rate, 19.0, 1, 90)
        before = rate.rate
        rate.throttled(20.0, 20.0)
        lowered = rate.rate
        rate.throttled(22.0, 22.0)
        assert rate.rate < lowered < before
        last = rate.rate
        rate.forgive(20.0 + after)
        assert rate.rate == (before if taken_back else last)


# GROWTH, PLATEAU, BEYOND


def test_the_rate_returns_to_its_peak_in_four_seconds_stays_near_it_and_leaves_it_fast():
    rate = known(100.0, 100.0)
    now = 0.0
    for then, share in ((2.0, 1 - 0.1 / 8), (4.0, 1.0), (6.0, 1 + 0.1 / 8), (8.0, 1.1), (9.7, 1.3)):
        use(rate, now, then)
        assert rate.rate == pytest.approx(100 * share, rel=0.01)
        now = then
    use(rate, 9.8, 10.8)
    assert rate.rate == pytest.approx(260, rel=0.1)


def test_where_answers_are_late_it_leaves_its_peak_as_slowly_as_they_tell():
    rate = known(100.0, 100.0)
    use(rate, 0.0, 9.8, latency=2.0)
    assert rate.rate == pytest.approx(130, rel=0.02)
    use(rate, 9.8, 15.8, latency=2.0)  # three times their latency
    assert rate.rate == pytest.approx(260, rel=0.1)


def test_a_rate_that_is_not_used_stays():
    rate = known(100.0, 100.0)
    for number in range(100):
        rate.left(number * 0.5)
        rate.passed(number * 0.5, number * 0.5)
    assert rate.rate == 90.0


# TEST


def test_the_third_throttled_answer_below_the_peak_begins_a_test():
    rate = known(100.0, 80.0)
    now, answers = 2.0, 0
    for share in (0.9, 0.9, 0.7):  # lowered, lowered again, tested
        passed = round(rate.rate)
        rate.rate = float(passed)
        now = pass_evenly(rate, now, 2, passed)
        answers += 2 * passed + 1
        assert rate.throttled(now, now)
        assert rate.rate == pytest.approx(share * passed, rel=0.03)
        now += 1
    assert rate._test._share == 3 / answers


@pytest.mark.parametrize("tested", [False, True])
def test_after_four_peaks_each_lower_than_the_one_before_it_begins_a_test_too(tested):
    """As chance makes them, and no limit: none of the answers is below the peak. Those since the last test count."""
    peaks = [0.975, 0.975, 0.975, 0.975, 0.975]
    if tested:
        rate, now, answers = under_test(100.0, 80, 10.0), 12.0, 0
        while rate._test is not None:  # a limit is found
            rate.passed(now, now)
            now, answers = now + 0.1, answers + 1
        now += 2.0
    else:
        rate, now, answers = known(100.0, 100.0), 2.0, 0
        peaks.insert(0, 1.02)
    for number, peak in enumerate(peaks, 1):
        passed = round(peak * rate._peak)
        rate.rate = float(passed)
        now = pass_evenly(rate, now, 2, passed)
        assert rate.throttled(now, now)
        assert rate.rate == pytest.approx((0.7 if number == len(peaks) else 0.9) * passed, rel=0.03)
        answers += (2 * passed + 1) * (peak < 1)
        now += 1
    assert rate._test._share == 5 / answers


def test_after_an_outage_during_the_test_of_a_rate_that_knew_no_limit_it_is_half():
    rate = AdaptiveRate()
    rate.rate = 1000.0
    rate.left(0.0)
    now = pass_evenly(rate, 3.0, 1, 1000)
    throttled = 0
    while rate.rate == 1000.0:  # five in a hundred, while one second holds a thousand
        throttled += 1
        rate.throttled(now, now)
        now = pass_evenly(rate, now, 0.019, 1000)
    assert 30 <= throttled <= 40  # from two in a hundred and three deviations on
    tested = rate.rate
    assert tested == pytest.approx(0.7 * 1000)
    rate.resumed()
    assert rate.rate == tested / 2


@pytest.mark.parametrize("throttled", [True, False])
def test_noise_is_a_share_and_the_rate_goes_on_from_where_it_was(throttled):
    rate = under_test(100.0, 80, 10.0)
    now = 11.5
    for number in range(800):
        now += 0.005
        if throttled and number % 50 == 0:
            rate.throttled(now, now)
        else:
            rate.passed(now, now)
    rate.passed(15.1, 15.1)
    if throttled:
        assert rate.noise == pytest.approx(0.02, abs=0.003)
        assert (rate.rate, rate._peak) == (80, 80)
        assert not rate.throttled(15.2, 15.2)  # it is explained now
        use(rate, 16.0, 18.0)
        assert 80 <= rate.rate <= 81.1  # on the plateau: a cubic curve is flat at its start
    else:
        assert rate.noise == 0.0
        assert rate._peak == 80
        assert rate.rate == 0.9 * 80


def test_a_limit_that_a_test_finds_holds_though_its_last_answer_is_throttled():
    rate = under_test(100.0, 80, 10.0)
    pass_evenly(rate, 11.5, 3, 200)
    assert rate._test is not None
    assert rate.throttled(15.2, 15.2, halt=3.0)
    assert rate._test is None
    assert rate._peak == 80
    assert rate.rate == 0.9 * 80
    assert rate.throttled(16.0, 16.0)  # the pause concerns all


def test_a_block_during_a_test_ends_it_and_the_peak_is_kept():
    rate = under_test(100.0, 80, 10.0)
    assert rate.rate == pytest.approx(0.7 * 80)
    for number in range(16):
        assert rate._test is not None
        rate.throttled(11.2 + number / 100, 11.2)
    assert rate._test is None
    assert rate.noise == 0.0
    assert rate._peak == 100.0
    assert rate.rate == pytest.approx(0.9 * 0.25 * 0.7 * 80)  # nothing has passed


# The concurrency


def test_after_outages_again_and_again_one_request_at_a_time_is_left():
    concurrency = AdaptiveConcurrency(100)
    for number in range(10):
        concurrency.resumed(float(number))
    assert concurrency.limit == 1


def batch(concurrency, now, latency):
    """Let answers come after a latency until the limit has been judged; return the time."""
    concurrency.sent(concurrency.limit)
    for _ in range(max(20, concurrency.limit)):
        concurrency.answered(now, latency)
    return now + 10.0


@pytest.mark.parametrize(("then", "slower"), [(0.25, True), (0.23, False)])
def test_a_latency_that_stays_at_half_the_limit_is_a_slower_platform_and_one_that_falls_a_queue(then, slower):
    concurrency, now = AdaptiveConcurrency(100), 10.0
    now = batch(concurrency, now, 0.1)
    assert concurrency.limit == 20
    now = batch(concurrency, now, 0.3)  # more than twice as long
    assert concurrency.limit == 10
    batch(concurrency, now, then)  # at eight tenths of it or less, requests had queued
    assert (concurrency.limit >= 20) is slower


def test_answers_to_what_was_sent_since_the_limit_changed_count():
    for sent, counts in ((9.5, False), (10.0, True), (10.5, True)):
        concurrency = AdaptiveConcurrency(100)
        concurrency.resumed(10.0)
        before = concurrency.limit
        concurrency.sent(before)
        for _ in range(20):
            concurrency.answered(sent + 0.5, 0.5)
        assert (concurrency.limit > before) is counts
