"""Adaptive rate: follows the rate that the platform accepts, along the curve of TCP CUBIC, and knows noise from a limit."""

# Phases of the rate
#
# START       never throttled: doubles every 0.2 s in use. After 2 s in use: UNLIMITED (`rate` is None)
# LOWERED     throttled too much: 0.9 x the rate that passed lately (the peak), until a request sent since has passed
# RECOVERY    below 0.9 x peak: up to there by the same factor in each second, within 4 s in use or faster. That is the way
#             back after an outage or a block, and the way between what passed and what was tried, if they differ much
# GROWTH      from 0.9 x peak back to the peak, along the cubic curve, in 4 s in use or 30 requests; in 20 times the pause
#             if the platform asks for one, and longer if it does so again at the same peak
# PLATEAU     slowly beyond the peak, up to 1.3 x peak
# BEYOND      doubles every second in use, or every 3 latencies if that is longer
# TEST        at 0.7 x the rate that passed: is as large a share throttled as before? Then that share is noise
#
# START, UNLIMITED -> LOWERED   half of the last 16 answers were throttled
# START, UNLIMITED -> TEST      a share was throttled that neither known noise nor 2 % explain
# others -> LOWERED             a throttled answer, unless known noise explains it
# others -> TEST                the third one below the peak, where a limit throttles nothing; one after four lower peaks
# TEST -> as before             noise is proven; it is tested again after a minute, then after twice that, and so on
# TEST -> GROWTH, LOWERED       it is not: a limit; LOWERED if the platform throttles nearly everything now
#
# What is sent in the second after a lowering proves nothing: a platform that counts by the second may still be full.
#
# Always true: the rate grows only while it holds requests back, and only from what passed since. A request is counted when
# it leaves; until then it is pending, and only so many are pending as the rate allows.

from __future__ import annotations

from collections import deque
from math import inf, log2, sqrt

__all__ = ["FLOOR", "AdaptiveRate"]

RATE_START = 50.0  # requests per second
FLOOR = 0.2  # requests per second
START_DOUBLING = 0.2  # seconds in use in which the rate doubles in START
START_LASTS = 2.0  # seconds in use after which START ends and nothing is limited
BETA = 0.9  # share of the passed rate that is kept after a throttling
RECOVERY_DOUBLING = 0.5  # seconds in use in which the rate doubles in RECOVERY
GROWTH = 4.0  # seconds in use from BETA x peak to the peak; unit of the plateau's length too,
GROWTH_REQUESTS = 30.0  # but at least so many requests,
GROWTH_PER_HALT = 20.0  # and this times the pause that the platform asks for; if it does so again at the same peak,
LONGER = 2.0  # this times the last GROWTH, up to
LONGEST_GROWTH = 40.0  # seconds
CERTAIN = 0.7  # share of the rate that passed from which that is the limit; else it recovers up to the rate
SAME_PEAK = 0.15  # two peaks are the same if they differ by at most this share
PLATEAU = 1.44  # times GROWTH: end of the plateau, at 1.3 x peak
PROBE_DOUBLING = 1.0  # seconds in use in which the rate doubles in BEYOND,
PROBE_LATENCIES = 3.0  # but at least this times the usual latency
LONG_LATENCY = 0.3  # seconds
MAX_LATENCY = 3.0  # seconds; longer ones count as this
RATE_LEARN = 0.1  # weight of the last value in a moving average
LIMITS_SHARE = 0.5  # share of held requests from which the rate counts as limiting
SLACK = 0.02  # seconds that a timer may be late without loss of rate
MAX_CATCH_UP = 0.05  # seconds late from which nothing is caught up
WINDOW = 1.0  # seconds in which platforms count requests
WINDOW_REQUESTS = 20.0  # requests that the window holds at low rates, where it is longer,
FEW_REQUESTS = 5.0  # or so many, while the rate changes fast

TOLERATED = 0.02  # share of throttled answers that does no harm while no limit is known
SIGMAS = 3.0  # standard deviations that chance explains
FEW = 3  # throttled answers that are enough evidence, if their share is
BELOW = 0.97  # times the peak: below it a limit does not throttle
LAST = 16  # answers; a limit is certain if half of them were throttled
ENOUGH = 4  # answers from which half of them is evidence
MANY = 100  # answers from which a smaller share counts
SUSPICIOUS = 3  # throttled answers below the peak, after which noise is tested
FALLS = 4  # peaks in a row, each lower than the one before, after which noise is tested: a limit does not move so
FALL = 0.98  # times the peak before: a peak below it is lower
TEST_SHARE = 0.7  # share of the passed rate at which noise is tested
TEST_THROTTLED = 8.0  # throttled answers to expect in a test
TEST_LASTS = 5.0  # seconds, at most
SAME_SHARE = 0.4  # noise is proven if the test shows this part of the share before
MOST_NOISE = 0.5  # share of throttled answers that is no noise any more
FORGIVEN = 10.0  # seconds in which lowerings belong together
RETEST = 60.0  # seconds after which noise is tested again; twice that the next time


class _Test:
    """A test at a lower rate: are as many throttled as before? Then that is noise."""

    def __init__(self, rate: float | None, peak: float | None, passed: float, share: float, begins: float) -> None:
        self.rate = rate
        self.peak = peak
        self.passed = passed
        self._share = share
        self._ends = begins + TEST_LASTS
        self._answers = 0
        self._throttled = 0

    def count(self, *, throttled: bool) -> None:
        self._answers += 1
        self._throttled += throttled

    def is_over(self, now: float) -> bool:
        return self._answers * self._share >= TEST_THROTTLED or now >= self._ends or self.is_blocked

    @property
    def is_blocked(self) -> bool:
        return self._throttled >= LAST and self.is_mostly_throttled

    @property
    def is_mostly_throttled(self) -> bool:
        """Whether more was throttled than noise throttles, however few answers there were."""
        return self._throttled > MOST_NOISE * self._answers

    @property
    def measured(self) -> float:
        return self._throttled / self._answers

    @property
    def proves_noise(self) -> bool:
        return SAME_SHARE * self._share * self._answers <= self._throttled and not self.is_mostly_throttled


class AdaptiveRate:
    """Requests per second that the platform accepts, evenly spread. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.rate: float | None = RATE_START
        """Requests per second; None: no limit (in use for two seconds and never throttled)."""
        self.held = False
        """Set by the caller when the rate holds a request back: the rate grows only while it is in use."""
        self.noise = 0.0
        """Share of throttled answers that has nothing to do with the rate."""
        self.pending = 0
        """Requests that were handed out and have not left."""
        self._due = -inf
        self._certain = False  # the peak is what passed, and not only what was tried
        self._peak: float | None = None  # the rate that passed when it was last throttled
        self._in_use = 0.0  # seconds in use in START, or since GROWTH began
        self._growth = GROWTH
        self._doubling = RECOVERY_DOUBLING
        self._sent = -inf
        self._lowered = -inf
        self._confirmed = True  # a request sent since the rate was lowered has passed
        self._first = inf
        self._resumes = -inf  # the end of the last pause
        self._held_share = 1.0  # share of recent requests that the rate held back
        self._latency = 0.0
        self._passed = deque[float]()
        self._throttled = deque[float]()
        self._last = deque[bool](maxlen=LAST)
        self._before: tuple[float | None, float | None, float] | None = None  # the rate, peak and seconds in use then
        self._remembered = -inf
        self._below = [0, 0]  # answers to requests that were sent below the peak, and those of them that were throttled
        self._falls = 0  # peaks in a row that were lower than the one before
        self._falling = [0, 0]  # answers since the first of them, and those that were throttled
        self._test: _Test | None = None
        self._retest = inf
        self._retest_after = RETEST

    @classmethod
    def between(cls, low: float, high: float, now: float) -> AdaptiveRate:
        """Return the rate of something that is throttled at ``high`` requests per second; ``low`` passed."""
        rate = cls()
        rate.rate, rate._peak = max(FLOOR, BETA * low), max(FLOOR, high)
        rate._lowered, rate._confirmed = now, False
        return rate

    @property
    def limits(self) -> bool:
        """Whether the rate limits anything, or the platform has throttled before."""
        return self.rate is not None and (self._peak is not None or self._held_share > LIMITS_SHARE)

    def earliest(self, now: float) -> float:
        """Return the time from which one more request may leave, after those that are pending; -inf if at once."""
        if self.rate is None:
            return -inf
        if not self.pending:
            return self._due
        begins = max(self._due, now - SLACK) if now - self._due < MAX_CATCH_UP else now
        return begins + self.pending / self.rate

    def left(self, now: float) -> None:
        """Count a request that leaves now. The rate grows if it held the request back."""
        if self.rate is None:
            return
        late = now - self._due
        used = self.held or late <= SLACK
        self.held = False
        self._held_share += RATE_LEARN * (used - self._held_share)
        if used and self._confirmed and self._test is None:
            self._grow(now, self.rate, min(max(now - self._sent, 0.0), 1 / self.rate + SLACK))
        if late > SLACK:
            self._due = now - SLACK if late < MAX_CATCH_UP else now
        self._due += 1 / (self.rate or inf)
        self._sent = now
        self._first = min(self._first, now)

    def withdrawn(self) -> None:
        """Note that a request is not pending any more."""
        self.pending = max(0, self.pending - 1)

    def passed(self, now: float, sent_at: float, *, lost: bool = False) -> None:
        """Note a request that was not throttled: answered, or ``lost``."""
        self._passed.append(now)
        if not lost:
            self._last.append(False)
        self._forget(now - self._window())
        self._latency += RATE_LEARN * (min(now - sent_at, MAX_LATENCY) - self._latency)
        if sent_at >= self._lowered:
            self._confirmed = True
            self._count(now, sent_at, throttled=False)
        if now >= self._retest:
            self.noise, self._retest = 0.0, inf

    def throttled(self, now: float, sent_at: float, halt: float = 0.0) -> bool:
        """Lower the rate if it was too high. Return whether a pause that the platform asks for concerns all requests.

        ``halt``: seconds of that pause.
        """
        self._throttled.append(now)
        self._last.append(True)
        self._forget(now - self._window())
        if not self._is_settled(sent_at):
            return now < self._resumes
        test = self._test
        self._count(now, sent_at, throttled=True)
        if self._test is not None:
            halted = False  # a pause for each throttled answer would leave no time to measure their share
        elif test is not None:  # this answer has ended the test, whose result is the rate
            halted = not test.proves_noise
        elif not self._is_too_much(now, halt):
            halted = halt > 0 and not self.noise and self._peak is None and self._are_most_throttled
        elif self._peak is None and not self._is_blocked:
            self._begin_test(now, self._share, halt)
            halted = True
        elif self._below[1] >= SUSPICIOUS and not self._is_blocked:
            self._begin_test(now, self._below[1] / self._below[0], halt)
            halted = True
        elif self._falls >= FALLS and not self._is_blocked:
            self._begin_test(now, self._falling[1] / self._falling[0], halt)
            halted = True
        else:
            self._lower(now, halt)
            halted = True
        if halted:
            self._resumes = max(self._resumes, now + halt)
        return halted

    def _is_settled(self, sent_at: float) -> bool:
        """Return whether a request was sent so long after a lowering that its answer is due to the present rate."""
        return sent_at >= max(self._lowered + WINDOW, self._resumes)

    @property
    def _is_blocked(self) -> bool:
        """Whether most of the last answers were throttled, and there were enough to tell."""
        return len(self._last) >= ENOUGH and self._are_most_throttled

    @property
    def _are_most_throttled(self) -> bool:
        return 2 * sum(self._last) >= len(self._last)

    @property
    def _share(self) -> float:
        return len(self._throttled) / (len(self._throttled) + len(self._passed))

    def _count(self, now: float, sent_at: float, *, throttled: bool) -> None:
        """Count an answer below the peak, where a limit does not throttle; it may end the test."""
        if self._is_settled(sent_at):
            self._falling[0] += 1
            self._falling[1] += throttled
        if self._test is not None:
            if self._is_settled(sent_at):
                self._test.count(throttled=throttled)
                if self._test.is_over(now):
                    self._end_test(now, self._test)
        elif (
            self._certain and self.rate is not None and self.rate < BELOW * (self._peak or 0.0) and self._is_settled(sent_at)
        ):
            self._below[0] += 1
            self._below[1] += throttled

    def _begin_test(self, now: float, share: float, halt: float) -> None:
        """Lower the rate so far that a limit throttles nothing any more, after a pause of ``halt`` seconds."""
        self._remember(now)
        low, _ = self._passed_lately(now, max(self._first, self._resumes))
        self._test = _Test(self.rate, self._peak, low, share, now + halt)
        self.rate = max(FLOOR, TEST_SHARE * low)
        self._peak = self._peak or low
        self._lowered = now
        self._confirmed = False
        self._below = [0, 0]
        self._falls, self._falling = 0, [0, 0]

    def _end_test(self, now: float, test: _Test) -> None:
        """Return to the rate before the test, and below it if there is a limit."""
        self._test = None
        if test.proves_noise:
            self.noise = test.measured
            self.rate, self._peak = test.rate, test.peak
            if self._peak is not None:
                self._peak, self._in_use = self.rate, self._growth
            self._retest, self._retest_after = now + self._retest_after, 2 * self._retest_after
        elif test.is_mostly_throttled:
            self._peak = test.peak or test.passed
            self._lower(now, 0.0)
        else:
            self._peak, self._certain = test.passed, True
            self.rate = max(FLOOR, BETA * test.passed)
            self._growth, self._in_use = max(GROWTH, GROWTH_REQUESTS / self._peak), 0.0
            self._lowered = now

    def resumed(self) -> None:
        """Continue after an outage at half the rate, and recover the former rate soon."""
        if self.rate is not None and self._peak is not None:
            self._peak = max(self._peak, self.rate)
            self.rate = max(FLOOR, self.rate / 2)
            self._in_use = 0.0
            self._doubling = RECOVERY_DOUBLING
            self._lowered = -inf

    def forgive(self, now: float) -> None:
        """Return to the rate before the last lowerings: something else than the rate of all was throttled."""
        if self._before is not None and now < self._remembered + FORGIVEN:
            self.rate, self._peak, self._in_use = self._before
            self._before, self._test = None, None
            self._confirmed = True
            self._last.clear()

    def _remember(self, now: float) -> None:
        """Keep the rate before the lowerings of the last seconds."""
        if now >= self._remembered + FORGIVEN:
            self._before, self._remembered = (self.rate, self._peak, self._in_use), now

    def _is_too_much(self, now: float, halt: float) -> bool:
        """Return whether neither noise nor chance explains the recently throttled answers."""
        if not self.noise and self._peak is not None:
            return True
        throttled = len(self._throttled)
        if not self.noise and self._is_blocked and (sum(self._last) if halt else throttled) >= FEW:
            return True
        answers = throttled + len(self._passed)
        if self._peak is None and (answers < MANY or now < self._first + START_LASTS):
            return False
        expected = (self.noise + (TOLERATED if self._peak is None else 0.0)) * answers
        return throttled > expected + SIGMAS * sqrt(expected)

    def _lower(self, now: float, halt: float) -> None:
        """Lower the rate to a little less than what passed lately."""
        self._remember(now)
        begun = max(self._first, self._resumes)
        low, high = self._passed_lately(now, begun)
        self.rate = max(FLOOR, BETA * low)
        if self._confirmed or self._peak is None:
            self._certain = certain = low >= CERTAIN * high
            former, self._peak = self._peak or inf, sqrt(low * high) if certain else high
            self._growth = max(GROWTH, GROWTH_REQUESTS / self._peak)
            if certain and self._peak < FALL * former < inf:
                self._falls += 1
            else:
                self._falls, self._falling = 0, [0, 0]
            if certain:
                self._growth = max(self._growth, min(GROWTH_PER_HALT * halt, LONGEST_GROWTH))
                if halt and abs(self._peak - former) <= SAME_PEAK * former < inf:
                    self._growth = max(self._growth, min(LONGER * self._growth, LONGEST_GROWTH))
                self.rate = max(FLOOR, BETA * self._peak)
        self._doubling = max(RECOVERY_DOUBLING, GROWTH / max(1.0, log2(self._peak / self.rate)))
        if now < begun + WINDOW < inf:
            self._due = max(self._due, begun + WINDOW)  # what it lets through in a second is used up
        self._in_use = 0.0
        self._lowered = now
        self._confirmed = False

    def _passed_lately(self, now: float, begun: float) -> tuple[float, float]:
        """Return bounds of the rate that passes: what passed in a second, in which platforms count, and what was tried."""
        wanted = self._window() if self._certain else max(WINDOW, FEW_REQUESTS / (self.rate or inf))
        window = max(WINDOW, min(wanted, now - begun))
        self._forget(now - window)
        low = len(self._passed) / window
        if self.rate is None:
            return low, low
        tried = self.rate
        if self._latency > LONG_LATENCY:  # the rate of START is far ahead of the answers
            tried = min(tried, max(RATE_START, 2 * (low + len(self._throttled) / window)))
        return min(tried, max(low, tried * self._least_share(now))), tried

    def _least_share(self, now: float) -> float:
        """Return the least share of the rate that is kept: after a pause, few requests had passed."""
        if self._peak is None:
            return 0.0
        return 0.5 if self._resumes > now - WINDOW else 0.25

    def _grow(self, now: float, rate: float, seconds: float) -> None:
        """Grow by ``seconds`` in use; one request at most doubles the rate, in RECOVERY twice."""
        peak = self._peak
        if peak is None:
            self._in_use += seconds
            self.rate = None if self._in_use >= START_LASTS else rate * 2 ** min(seconds / START_DOUBLING, 1.0)
        elif rate < BETA * peak:
            if now >= self._lowered + WINDOW:
                self.rate = min(rate * 2 ** min(seconds / self._doubling, 2.0), BETA * peak)
        else:
            self._in_use += seconds
            curve = self._in_use - self._growth
            curve /= self._growth if curve < 0 else GROWTH
            if curve < PLATEAU:
                self.rate = max(rate, peak * (1 + (1 - BETA) * curve**3))
            else:
                self.rate = rate * 2 ** min(seconds / max(PROBE_DOUBLING, PROBE_LATENCIES * self._latency), 1.0)

    def _window(self) -> float:
        return WINDOW if self.rate is None else max(WINDOW, WINDOW_REQUESTS / self.rate)

    def _forget(self, begins: float) -> None:
        for times in (self._passed, self._throttled):
            while times and times[0] <= begins:
                times.popleft()
