"""How many requests are worth having in flight: as many as come back about as fast as few do."""

from __future__ import annotations

from math import inf, sqrt

__all__ = ["AdaptiveConcurrency"]

START = 10
BATCH = 20  # answers, at least, from which a latency is taken
FLAT = 1.5  # times the base latency: up to there nothing queues
QUEUED = 2.0  # times the base latency: from there the platform has more than it works on
UNSEEN = 0.005  # seconds more or less that say nothing about the platform
OUTLIER = 4.0  # times what is usual: a single latency counts for no more
LEARN = 0.2  # share by which the base latency follows a lower one
FELL = 0.8  # of the latency is left, at most, if half as many in flight wait for each other less


class AdaptiveConcurrency:
    """A limit of requests in flight, from 1 to ``most``. Times are seconds of a monotonic clock.

    It grows while it is in use and answers take about as long as they do at best. It is halved when they take more than
    twice as long; if they then take as long as before, the platform is slower, not overfull, and the limit comes back.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(most, START))
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
            self._base += LEARN * (latency - self._base)
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
