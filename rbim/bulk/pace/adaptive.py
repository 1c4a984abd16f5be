"""The pace of a job as the platform bears it: a rate that follows TCP CUBIC, and a number of requests in flight."""

from __future__ import annotations

from collections import deque
from math import inf, sqrt

__all__ = ["AdaptiveConcurrency", "AdaptiveRate"]


RATE_START = 50.0  # requests per second
FLOOR = 0.2
START_DOUBLING = 0.2  # seconds in use in which a rate that was never throttled doubles
START_LASTS = 2.0  # seconds in use after which such a rate ends
BETA = 0.9  # of what went through is gone on with after a throttling
RECOVERY_DOUBLING = 0.5  # seconds in use, far below the peak
RECOVERY = 4.0  # seconds in use from there back to the peak; as many again on the plateau
RECOVERY_PER_HALT = 20.0  # times the halt that a throttling costs: as long the way back may become, step by step,
RECOVERY_GROWTH = 2.5  # times as long as the last,
SAME_PEAK = 0.15  # where the peaks differ by no more than that share
PLATEAU = 1.44  # times those seconds, after them: there the rate is 1.3 times the peak
PROBE_DOUBLING = 1.0  # seconds in use, from there on,
PROBE_LATENCIES = 3.0  # but at least so many times the usual latency
MAX_LATENCY = 3.0  # seconds of one that count
RATE_LEARN = 0.1  # share by which what is usual follows the last one
LIMITS_SHARE = 0.5  # of the requests at least are held back by a rate that limits
SLACK = 0.02  # seconds that a timer may be late without cost
MAX_CATCH_UP = 0.05  # seconds: after these nothing is caught up
WINDOW = 1.0  # seconds in which platforms count
WINDOW_REQUESTS = 20.0  # requests that the window should hold: it is longer at rates below


class AdaptiveRate:
    """How many requests may go in a second, evenly spread. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.rate: float | None = RATE_START
        """Requests per second; None: it was in use for two seconds and never throttled, and is none any more."""
        self.due = -inf
        """The time from which the next request may go."""
        self.held = False
        """Set by who wants to send and may not yet: a rate grows only while it is in use."""
        self._peak: float | None = None  # what went through when it was last throttled
        self._in_use = 0.0  # seconds in use since the start, or since it was last lowered (or recovered from that)
        self._recovery = RECOVERY
        self._sent = -inf
        self._lowered = -inf
        self._confirmed = True  # something that was sent since the rate was lowered was let through
        self._first = inf
        self._held_share = 1.0  # share of the requests lately that it held back
        self._latency = 0.0
        self._passed = deque[float]()

    def sent(self, now: float) -> None:
        """Count a request that goes now. The rate grows by it, if it was held back by the rate."""
        if self.rate is None:
            return
        late = now - self.due
        used = self.held or late <= SLACK
        self.held = False
        self._held_share += RATE_LEARN * (used - self._held_share)
        if used and self._confirmed:
            self._grow(self.rate, min(max(now - self._sent, 0.0), 1 / self.rate + SLACK))
        if late > SLACK:
            self.due = now - SLACK if late < MAX_CATCH_UP else now
        self.due += 1 / (self.rate or inf)
        self._sent = now
        self._first = min(self._first, now)

    @property
    def limits(self) -> bool:
        """Whether it holds anything back, or the platform wanted it once."""
        return self.rate is not None and (self._peak is not None or self._held_share > LIMITS_SHARE)

    def passed(self, now: float, sent_at: float) -> None:
        """Note that a request was let through: it was answered, or got lost, but was not throttled."""
        self._passed.append(now)
        self._forget(now - self._window())
        self._latency += RATE_LEARN * (min(now - sent_at, MAX_LATENCY) - self._latency)
        if sent_at >= self._lowered:
            self._confirmed = True

    def throttled(self, now: float, sent_at: float, *, halt: float = 0.0, halted_until: float = -inf) -> None:
        """Lower the rate, unless the request had been sent before the rate was last lowered.

        The platform wants a pause of ``halt`` seconds; the last one before ended at ``halted_until``.
        """
        if sent_at < self._lowered:
            return
        window = max(WINDOW, min(self._window(), now - max(self._first, halted_until)))
        self._forget(now - window)
        lower = BETA * len(self._passed) / window
        if self.rate is not None:
            lower = min(self.rate, max(lower, self.rate * self._least_share(now, halted_until)))
        self.rate = max(FLOOR, lower)
        if self._confirmed or self._peak is None:
            former, self._peak = self._peak or inf, self.rate / BETA
            same_peak = abs(self._peak - former) <= SAME_PEAK * former < inf
            self._recovery = (
                max(RECOVERY, min(RECOVERY_PER_HALT * halt, RECOVERY_GROWTH * self._recovery)) if same_peak else RECOVERY
            )
        self._in_use = 0.0
        self._lowered = now
        self._confirmed = False

    def _least_share(self, now: float, halted_until: float) -> float:
        """Return which share of the rate is left at least: what went through says less if nothing went for a while."""
        begins = now - WINDOW
        if halted_until > begins:
            return 0.5
        return 0.25 if self._peak is not None or self._first > begins else 0.0

    def resumed(self) -> None:
        """Go on after an outage: at half the rate, back to the former one soon."""
        if self.rate is not None and self._peak is not None:
            self._peak = max(self._peak, self.rate)
            self.rate = max(FLOOR, self.rate / 2)
            self._in_use = 0.0

    def _grow(self, rate: float, seconds: float) -> None:
        """Let ``seconds`` in use take effect; one request doubles the rate at most."""
        peak = self._peak
        if peak is None:
            self._in_use += seconds
            self.rate = None if self._in_use >= START_LASTS else rate * 2 ** min(seconds / START_DOUBLING, 1.0)
        elif rate < BETA * peak:
            self.rate = min(rate * 2 ** min(seconds / RECOVERY_DOUBLING, 1.0), BETA * peak)
        else:
            self._in_use += seconds
            curve = self._in_use - self._recovery
            curve /= self._recovery if curve < 0 else RECOVERY
            if curve < PLATEAU:
                self.rate = max(rate, peak * (1 + (1 - BETA) * curve**3))
            else:
                self.rate = rate * 2 ** min(seconds / max(PROBE_DOUBLING, PROBE_LATENCIES * self._latency), 1.0)

    def _window(self) -> float:
        return WINDOW if self.rate is None else max(WINDOW, WINDOW_REQUESTS / self.rate)

    def _forget(self, begins: float) -> None:
        passed = self._passed
        while passed and passed[0] <= begins:
            passed.popleft()


CONCURRENCY_START = 10
BATCH = 20  # answers, at least, from which a latency is taken
NO_QUEUE = 1.5  # times the base latency: up to there nothing queues
QUEUED = 2.0  # times the base latency: from there the platform has more than it works on
NOISE = 0.005  # seconds more or less that say nothing about the platform
OUTLIER = 4.0  # times what is usual: a single latency counts for no more
CONCURRENCY_LEARN = 0.2  # share by which the base latency follows a lower one
SHORTER = 0.8  # of the latency is left, at most, if half as many in flight wait for each other less


class AdaptiveConcurrency:
    """A limit of requests in flight, from 1 to ``most``. Times are seconds of a monotonic clock.

    It grows while it is in use and answers take about as long as they do at best. It is halved when they take more than
    twice as long; if they then take as long as before, the platform is slower, not overfull, and the limit comes back.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(most, CONCURRENCY_START))
        self._doubles_until = inf
        self._base = 0.0  # seconds; 0: not known yet
        self._latency = 0.0  # seconds: the mean of the last batch
        self._halved_from: tuple[float, float] | None = None  # limit and latency before it was halved to see what that does
        self._changed = -inf
        self._count = 0
        self._total = 0.0
        self._used = False

    @property
    def limit(self) -> int:
        """The number of requests that may be in flight."""
        return int(self._limit)

    def sent(self, in_flight: int) -> None:
        """Note how many are in flight now that another one is."""
        if in_flight >= int(self._limit):
            self._used = True

    def answered(self, now: float, latency: float) -> None:
        """Note an answer that came after ``latency`` seconds."""
        if now - latency < self._changed:
            return  # sent when the limit was another
        usual = max(self._base, self._latency)
        self._total += min(latency, OUTLIER * usual + NOISE) if usual else latency
        self._count += 1
        if self._count >= BATCH and self._count >= self._limit:
            self._end_batch(now, self._total / self._count)

    def resumed(self, now: float) -> None:
        """Go on after an outage: with half as many, back to the former limit soon."""
        former = self._limit if self._halved_from is None else self._halved_from[0]
        self._doubles_until = max(former, self._doubles_until)
        self._halved_from = None
        self._set(now, former / 2)

    def _end_batch(self, now: float, latency: float) -> None:
        before, self._halved_from = self._halved_from, None
        limit = self._limit
        if not self._base:
            self._base = latency
        elif latency < self._base:
            self._base += CONCURRENCY_LEARN * (latency - self._base)
        if before is not None and latency > SHORTER * before[1]:
            self._base = latency
            limit = max(limit, before[0])
        elif latency > QUEUED * (self._base + NOISE):
            self._halved_from = (limit, latency)
            self._doubles_until = 0.0
            limit /= 2
        elif self._used:
            limit = self._larger(latency)
        self._latency = latency
        self._set(now, limit)

    def _larger(self, latency: float) -> float:
        if latency > NO_QUEUE * (self._base + NOISE):
            self._doubles_until = 0.0
        doubling = self._limit < self._doubles_until
        return min(2 * self._limit, self._doubles_until) if doubling else self._limit + sqrt(self._limit)

    def _set(self, now: float, limit: float) -> None:
        limit = min(max(1.0, limit), self._most)
        if limit != self._limit:
            self._limit = limit
            self._changed = now
        self._count = 0
        self._total = 0.0
        self._used = False
