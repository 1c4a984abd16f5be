"""Adaptive pace: a rate that follows TCP CUBIC, and a limit of requests in flight that follows the latency."""

# Phases of the rate (AdaptiveRate)
#
# START       never throttled: doubles every 0.2 s in use. After 2 s in use: UNLIMITED (`rate` is None)
# LOWERED     throttled: 0.9 x the rate that passed lately (the peak), until a request sent since has passed (`_confirmed`)
# RECOVERY    below 0.9 x peak (throttled again while LOWERED, or after an outage): doubles every 0.5 s in use up to there
# GROWTH      from 0.9 x peak back to the peak, in 4 s in use or longer, along the cubic curve of TCP CUBIC
# PLATEAU     slowly beyond the peak, up to 1.3 x peak
# BEYOND      doubles every second in use, or every 3 latencies if that is longer
#
# Any phase -> LOWERED by a throttled request that was sent since the last lowering. Repeated throttling at the same peak
# makes GROWTH longer. Always true: the rate grows only while it holds requests back, and only from what passed since.
#
# The limit of requests in flight (AdaptiveConcurrency) is judged once per batch of answers. It doubles until the latency
# exceeds 1.5 x base, then grows by its square root. Above 2 x base it is halved as a probe. In the next batch a latency
# that fell to 0.8 or less proves queueing: the half stays. Otherwise the platform is slower: that latency becomes the base
# and the former limit returns. After an outage it starts at half and doubles up to the former limit.

from __future__ import annotations

from collections import deque
from math import inf, sqrt

__all__ = ["AdaptiveConcurrency", "AdaptiveRate"]


RATE_START = 50.0  # requests per second
FLOOR = 0.2  # requests per second
START_DOUBLING = 0.2  # seconds in use in which the rate doubles in START
START_LASTS = 2.0  # seconds in use after which START ends and nothing is limited
BETA = 0.9  # share of the passed rate that is kept after a throttling
RECOVERY_DOUBLING = 0.5  # seconds in use in which the rate doubles in RECOVERY
RECOVERY = 4.0  # seconds in use from BETA x peak to the peak; unit of the plateau's length too
RECOVERY_PER_HALT = 20.0  # repeated throttling at the same peak: GROWTH lasts this times the halt at most,
RECOVERY_GROWTH = 2.5  # and this times the last GROWTH at most
SAME_PEAK = 0.15  # two peaks are the same if they differ by at most this share
PLATEAU = 1.44  # times RECOVERY: end of the plateau, at 1.3 x peak
PROBE_DOUBLING = 1.0  # seconds in use in which the rate doubles in BEYOND,
PROBE_LATENCIES = 3.0  # but at least this times the usual latency
MAX_LATENCY = 3.0  # seconds; longer ones count as this
RATE_LEARN = 0.1  # weight of the last value in a moving average
LIMITS_SHARE = 0.5  # share of held requests from which the rate counts as limiting
SLACK = 0.02  # seconds that a timer may be late without loss of rate
MAX_CATCH_UP = 0.05  # seconds late from which nothing is caught up
WINDOW = 1.0  # seconds in which platforms count requests
WINDOW_REQUESTS = 20.0  # requests that the window holds at low rates, where it is longer


class AdaptiveRate:
    """Requests per second that the platform accepts, evenly spread. Times are seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.rate: float | None = RATE_START
        """Requests per second; None: no limit (in use for two seconds and never throttled)."""
        self.due = -inf
        """The time from which the next request may leave."""
        self.held = False
        """Set by the caller when the rate holds a request back: the rate grows only while it is in use."""
        self._peak: float | None = None  # the rate that passed when it was last throttled
        self._in_use = 0.0  # seconds in use in START, or since GROWTH began
        self._recovery = RECOVERY
        self._sent = -inf
        self._lowered = -inf
        self._confirmed = True  # a request sent since the rate was lowered has passed
        self._first = inf
        self._held_share = 1.0  # share of recent requests that the rate held back
        self._latency = 0.0
        self._passed = deque[float]()

    def sent(self, now: float) -> None:
        """Count a request that leaves now. The rate grows if it held the request back."""
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
        """Whether the rate limits anything, or the platform has throttled before."""
        return self.rate is not None and (self._peak is not None or self._held_share > LIMITS_SHARE)

    def passed(self, now: float, sent_at: float) -> None:
        """Note a request that was let through: answered or lost, but not throttled."""
        self._passed.append(now)
        self._forget(now - self._window())
        self._latency += RATE_LEARN * (min(now - sent_at, MAX_LATENCY) - self._latency)
        if sent_at >= self._lowered:
            self._confirmed = True

    def throttled(self, now: float, sent_at: float, *, halt: float = 0.0, halted_until: float = -inf) -> None:
        """Lower the rate, unless the request was sent before the rate was last lowered.

        ``halt``: seconds of pause that the platform asks for. ``halted_until``: the end of the pause before.
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
        """Return the least share of the rate that is kept: after a pause, few requests had passed."""
        begins = now - WINDOW
        if halted_until > begins:
            return 0.5
        return 0.25 if self._peak is not None or self._first > begins else 0.0

    def resumed(self) -> None:
        """Continue after an outage at half the rate, and recover the former rate soon."""
        if self.rate is not None and self._peak is not None:
            self._peak = max(self._peak, self.rate)
            self.rate = max(FLOOR, self.rate / 2)
            self._in_use = 0.0

    def _grow(self, rate: float, seconds: float) -> None:
        """Grow by ``seconds`` in use; one request at most doubles the rate."""
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
BATCH = 20  # answers of which the mean latency is taken, at least
NO_QUEUE = 1.5  # times the base latency: below it nothing queues
QUEUED = 2.0  # times the base latency: above it requests queue
NOISE = 0.005  # seconds of difference that mean nothing
OUTLIER = 4.0  # times the usual latency: a single latency counts as this at most
CONCURRENCY_LEARN = 0.2  # weight of a lower latency in the base latency
SHORTER = 0.8  # queueing is proven if half the limit cuts the latency to this share


class AdaptiveConcurrency:
    """Limit of requests in flight, from 1 to ``most``. Times are seconds of a monotonic clock.

    It grows while it is in use and the latency stays near the best one. It is halved when the latency is more than twice
    that; if the latency then stays, the platform is slower, not overloaded, and the former limit returns.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(most, CONCURRENCY_START))
        self._doubles_until = inf
        self._base = 0.0  # seconds; 0: unknown
        self._latency = 0.0  # seconds: the mean of the last batch
        self._halved_from: tuple[float, float] | None = None  # limit and latency before the probe that halved it
        self._changed = -inf
        self._count = 0
        self._total = 0.0
        self._used = False

    @property
    def limit(self) -> int:
        """The limit of requests in flight."""
        return int(self._limit)

    def sent(self, in_flight: int) -> None:
        """Note the number in flight, this new request included."""
        if in_flight >= int(self._limit):
            self._used = True

    def answered(self, now: float, latency: float) -> None:
        """Note an answer after ``latency`` seconds."""
        if now - latency < self._changed:
            return  # sent under another limit
        usual = max(self._base, self._latency)
        self._total += min(latency, OUTLIER * usual + NOISE) if usual else latency
        self._count += 1
        if self._count >= BATCH and self._count >= self._limit:
            self._end_batch(now, self._total / self._count)

    def resumed(self, now: float) -> None:
        """Continue after an outage with half the limit, and recover the former limit soon."""
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
