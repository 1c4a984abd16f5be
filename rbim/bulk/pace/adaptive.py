"""The pace of a job as the platform bears it: a rate that follows TCP CUBIC, and a number of requests in flight."""

from __future__ import annotations

from collections import deque
from math import inf, sqrt

__all__ = ["AdaptiveConcurrency", "AdaptiveRate"]


RATE_START = 50.0  # requests per second
FLOOR = 0.2
START_DOUBLES = 0.2  # seconds in use in which a rate that was never throttled doubles
START_LASTS = 2.0  # seconds in use after which such a rate ends
BETA = 0.9  # of what went through is gone on with after a throttling
RECOVERY_DOUBLES = 0.5  # seconds in use, far below the peak
RETURN = 4.0  # seconds in use from there back to the peak; as many again on the plateau
COST = 20.0  # times the halt that a throttling costs: as long the way back may become, step by step,
SLOWER = 2.5  # times as long as the last,
SAME = 0.15  # where the peaks differ by no more than that share
PLATEAU = 1.44  # times those seconds, after them: there the rate is 1.3 times the peak
BEYOND_DOUBLES = 1.0  # seconds in use, from there on,
BEYOND_TURNS = 3.0  # but at least so many times the usual latency
LONGEST_TURN = 3.0  # seconds of one that count
RATE_LEARN = 0.1  # share by which what is usual follows the last one
IN_USE = 0.5  # of the requests at least are held back by a rate that limits
SLACK = 0.02  # seconds that a timer may be late without cost
PAUSE = 0.05  # seconds: after these nothing is caught up
WINDOW = 1.0  # seconds in which platforms count
FEW = 20.0  # requests that the window should hold: it is longer at rates below


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
        self._grown = 0.0  # seconds in use since the start, or since it was last lowered (or recovered from that)
        self._return = RETURN
        self._sent = -inf
        self._lowered = -inf
        self._confirmed = True  # something that was sent since the rate was lowered was let through
        self._first = inf
        self._use = 1.0  # share of the requests lately that it held back
        self._latency = 0.0
        self._through = deque[float]()

    def sent(self, now: float) -> None:
        """Count a request that goes now. The rate grows by it, if it was held back by the rate."""
        if self.rate is None:
            return
        late = now - self.due
        used = self.held or late <= SLACK
        self.held = False
        self._use += RATE_LEARN * (used - self._use)
        if used and self._confirmed:
            self._grow(self.rate, min(max(now - self._sent, 0.0), 1 / self.rate + SLACK))
        if late > SLACK:
            self.due = now - SLACK if late < PAUSE else now
        self.due += 1 / (self.rate or inf)
        self._sent = now
        self._first = min(self._first, now)

    @property
    def limits(self) -> bool:
        """Whether it holds anything back, or the platform wanted it once."""
        return self.rate is not None and (self._peak is not None or self._use > IN_USE)

    def passed(self, now: float, sent_at: float) -> None:
        """Note that a request was let through: it was answered, or got lost, but was not throttled."""
        self._through.append(now)
        self._forget(now - self._window())
        self._latency += RATE_LEARN * (min(now - sent_at, LONGEST_TURN) - self._latency)
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
        lower = BETA * len(self._through) / window
        if self.rate is not None:
            lower = min(self.rate, max(lower, self.rate * self._least_share(now, halted_until)))
        self.rate = max(FLOOR, lower)
        if self._confirmed or self._peak is None:
            former, self._peak = self._peak or inf, self.rate / BETA
            again = abs(self._peak - former) <= SAME * former < inf
            self._return = max(RETURN, min(COST * halt, SLOWER * self._return)) if again else RETURN
        self._grown = 0.0
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
            self._grown = 0.0

    def _grow(self, rate: float, seconds: float) -> None:
        """Let ``seconds`` in use take effect; one request doubles the rate at most."""
        peak = self._peak
        if peak is None:
            self._grown += seconds
            self.rate = None if self._grown >= START_LASTS else rate * 2 ** min(seconds / START_DOUBLES, 1.0)
        elif rate < BETA * peak:
            self.rate = min(rate * 2 ** min(seconds / RECOVERY_DOUBLES, 1.0), BETA * peak)
        else:
            self._grown += seconds
            course = self._grown - self._return
            course /= self._return if course < 0 else RETURN
            if course < PLATEAU:
                self.rate = max(rate, peak * (1 + (1 - BETA) * course**3))
            else:
                self.rate = rate * 2 ** min(seconds / max(BEYOND_DOUBLES, BEYOND_TURNS * self._latency), 1.0)

    def _window(self) -> float:
        return WINDOW if self.rate is None else max(WINDOW, FEW / self.rate)

    def _forget(self, begins: float) -> None:
        through = self._through
        while through and through[0] <= begins:
            through.popleft()


CONCURRENCY_START = 10
BATCH = 20  # answers, at least, from which a latency is taken
FLAT = 1.5  # times the base latency: up to there nothing queues
QUEUED = 2.0  # times the base latency: from there the platform has more than it works on
UNSEEN = 0.005  # seconds more or less that say nothing about the platform
OUTLIER = 4.0  # times what is usual: a single latency counts for no more
CONCURRENCY_LEARN = 0.2  # share by which the base latency follows a lower one
FELL = 0.8  # of the latency is left, at most, if half as many in flight wait for each other less


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
        self._before: tuple[float, float] | None = None  # limit and latency before it was halved to see what that does
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
        self._total += min(latency, OUTLIER * usual + UNSEEN) if usual else latency
        self._count += 1
        if self._count >= BATCH and self._count >= self._limit:
            self._judge(now, self._total / self._count)

    def resumed(self, now: float) -> None:
        """Go on after an outage: with half as many, back to the former limit soon."""
        former = self._limit if self._before is None else self._before[0]
        self._doubles_until = max(former, self._doubles_until)
        self._before = None
        self._set(now, former / 2)

    def _judge(self, now: float, latency: float) -> None:
        before, self._before = self._before, None
        limit = self._limit
        if not self._base:
            self._base = latency
        elif latency < self._base:
            self._base += CONCURRENCY_LEARN * (latency - self._base)
        if before is not None and latency > FELL * before[1]:
            self._base = latency
            limit = max(limit, before[0])
        elif latency > QUEUED * (self._base + UNSEEN):
            self._before = (limit, latency)
            self._doubles_until = 0.0
            limit /= 2
        elif self._used:
            limit = self._grown(latency)
        self._latency = latency
        self._set(now, limit)

    def _grown(self, latency: float) -> float:
        if latency > FLAT * (self._base + UNSEEN):
            self._doubles_until = 0.0
        steep = self._limit < self._doubles_until
        return min(2 * self._limit, self._doubles_until) if steep else self._limit + sqrt(self._limit)

    def _set(self, now: float, limit: float) -> None:
        limit = min(max(1.0, limit), self._most)
        if limit != self._limit:
            self._limit = limit
            self._changed = now
        self._count = 0
        self._total = 0.0
        self._used = False
