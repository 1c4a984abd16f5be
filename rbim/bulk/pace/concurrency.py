"""Adaptive concurrency: a limit of requests in flight that follows the latency."""

# The limit is judged once per batch of answers. It doubles until the latency exceeds 1.5 x base, then grows by its square
# root. Above 2 x base it is halved as a probe. In the next batch a latency that fell to 0.8 or less proves queueing: the
# half stays. Otherwise the platform is slower: that latency becomes the base and the former limit returns. After an outage
# it starts at half and doubles up to the former limit.

from __future__ import annotations

from math import inf, sqrt

__all__ = ["AdaptiveConcurrency"]

START = 10
BATCH = 20  # answers of which the mean latency is taken, at least
NO_QUEUE = 1.5  # times the base latency: below it nothing queues
QUEUED = 2.0  # times the base latency: above it requests queue
NOISE = 0.005  # seconds of difference that mean nothing
OUTLIER = 4.0  # times the usual latency: a single latency counts as this at most
LEARN = 0.2  # weight of a lower latency in the base latency
SHORTER = 0.8  # queueing is proven if half the limit cuts the latency to this share


class AdaptiveConcurrency:
    """Limit of requests in flight, from 1 to ``most``. Times are seconds of a monotonic clock.

    It grows while it is in use and the latency stays near the best one. It is halved when the latency is more than twice
    that; if the latency then stays, the platform is slower, not overloaded, and the former limit returns.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(min(most, START))
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
            self._base += LEARN * (latency - self._base)
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
