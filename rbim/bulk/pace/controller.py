"""Pace controller of a job: configured rates, adaptive rate and concurrency, and probing during an outage.

It only calculates with times that are passed in, seconds of a monotonic clock; nothing here waits. One dispatcher uses it:
it sends only while fewer requests are in flight than :meth:`PaceController.concurrency` and
:meth:`PaceController.earliest` is not later than now. It reports each request that it hands to the sender (``reserved``),
the moment at which that leaves (``left``), and its end once (``answered``, ``throttled``, ``lost`` or ``withdrawn``).
"""

# States (see `state`)
#
# RUNNING   the configured rates and, if adaptive, AdaptiveRate and AdaptiveConcurrency decide
# HALTED    the platform asked for a pause (Retry-After, at most 300 s; without adaptive 1 s by default), and neither chance
#           nor a single group explains that (AdaptiveRate, GroupRates; not adaptive: half of the last 16 answers were
#           throttled); nothing is sent
# PROBING   an outage: one probe at a time, after 0.25 s, then at twice the interval each, at most every 3 s
#
# RUNNING -> HALTED    `throttled` with a pause; ends by time
# RUNNING -> PROBING   `lost` so often in a row that it is an outage (see `_is_outage`)
# PROBING -> RUNNING   an answer of any kind, also a throttling, to a request sent during the outage; rate and concurrency
#                      then continue at half and recover soon
#
# HALTED has precedence over PROBING. Always true: configured rates and the maximum concurrency are never exceeded; any
# answer sets the count of losses in a row to 0; a request counts when it leaves, and is pending from `reserved` until then.

from __future__ import annotations

from collections import deque
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal

from rbim.bulk.pace.groups import GroupRates
from rbim.bulk.pace.rate import AdaptiveRate
from rbim.client.limits import Limits, Rate, RateLimiter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim.operations.base import Operation

__all__ = ["AdaptiveConcurrency", "PaceController"]

# The limit is judged once per batch of answers. It doubles until the latency exceeds 1.5 x base, then grows by its square
# root. Above 2 x base it is halved as a probe. In the next batch a latency that fell to 0.8 or less proves queueing: the
# half stays. Otherwise the platform is slower: that latency becomes the base and the former limit returns. After an outage
# it starts at half and doubles up to the former limit.

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


DEFAULT_HALT = 1.0  # seconds of pause after a throttling without Retry-After, if not adaptive
LONGEST_HALT = 300.0
LAST = 16  # answers; if not adaptive, a pause needs half of them to be throttled
OUTAGE_LOSSES = 8  # losses in a row that are an outage
OUTAGE_SILENCE = 0.05  # if there was no answer for these seconds;
OUTAGE_BURST = 100  # losses in a row that are an outage at once;
SLOW_OUTAGE_LOSSES = 3  # losses in a row that are an outage
SLOW_OUTAGE_SILENCE = 5.0  # if there was no answer for these seconds
FIRST_PROBE = 0.25  # seconds; each interval is twice the one before
LONGEST_PROBE = 3.0


class PaceController:
    """Decide when the next request may leave, and how many may be in flight: at most ``concurrency`` (1 or more).

    ``rates`` always apply. ``adaptive`` (default: True): also follow the rate that the platform accepts, and its latency.
    Without it, a throttling that asks for no pause causes a pause of one second, if half of the answers are throttled.
    Raises InvalidRequest.
    """

    def __init__(self, *, rates: Iterable[Rate] = (), concurrency: int = 100, adaptive: bool = True) -> None:
        limits = Limits(rates=tuple(rates), concurrency=concurrency)
        self._max_concurrency = limits.concurrency
        self._limiter = RateLimiter(limits.rates)
        self._rate = AdaptiveRate() if adaptive else None
        self._concurrency = AdaptiveConcurrency(self._max_concurrency) if adaptive else None
        self._groups = GroupRates()
        self._last = deque[bool](maxlen=LAST)  # answers, and whether they were throttled; if not adaptive
        self._in_flight = 0  # with those that are reserved
        self._left = 0
        self._silent_since: float | None = None
        self._losses = 0  # in a row
        self._probing_since: float | None = None
        self._next_probe = -inf  # when the next probe may leave
        self._probe_interval = FIRST_PROBE  # seconds from that one to the one after
        self._resumed = -inf

    @property
    def rate(self) -> float | None:
        """Requests per second that the platform accepts, as far as known; None while nothing limits them."""
        return self._rate.rate if self._rate is not None and self._rate.limits else None

    @property
    def halted_until(self) -> float:
        """End of the pause that the platform asked for; -inf if it never did."""
        return self._limiter.halted_until

    @property
    def silent_since(self) -> float | None:
        """Time since which requests went out without any answer and without a pause of the platform.

        That is the time of the last answer, or, if nothing was in flight, of the next sending. None before the first.
        """
        return None if self._silent_since is None else max(self._silent_since, self._limiter.halted_until)

    def state(self, now: float) -> Literal["running", "halted", "probing"]:
        """Return ``halted`` (the platform wants a pause), ``probing`` (an outage) or ``running``."""
        if now < self._limiter.halted_until:
            return "halted"
        return "running" if self._probing_since is None else "probing"

    def concurrency(self, _now: float) -> int:
        """Return the limit of requests in flight, 1 or more.

        In an outage it leaves room for one probe beside the requests that wait in vain.
        """
        if self._probing_since is not None:
            return min(self._in_flight + 1, self._max_concurrency)
        return self._max_concurrency if self._concurrency is None else self._concurrency.limit

    def earliest(self, op: Operation[Any], now: float) -> float:
        """Return the time from which the request may leave, ``now`` if at once. Nothing is reserved."""
        allowed = max(self._limiter.earliest(op, now), self._groups.earliest(_group(op), now))
        due = self._due(now)
        if due <= allowed:
            return allowed
        if self._rate is not None:
            self._rate.held = True
        return due

    def earliest_any_group(self, op: Operation[Any], now: float) -> float:
        """Return the same time, but without the rates that count each group separately.

        If :meth:`earliest` is later than this, other groups may go first.
        """
        return max(self._limiter.earliest(op, now, each_group=False), self._due(now))

    def _due(self, now: float) -> float:
        due = -inf if self._rate is None else self._rate.earliest(now)
        return due if self._probing_since is None else max(due, self._next_probe)

    def reserved(self, op: Operation[Any], now: float) -> None:
        """Count a request that is handed to the sender: it leaves at once, or when the sender's own limits allow it."""
        self._in_flight += 1
        self._limiter.grant(op, now)
        self._groups.reserved(_group(op), now)
        if self._rate is not None:
            self._rate.pending += 1
        if self._concurrency is not None:
            self._concurrency.sent(self._in_flight)
        if self._probing_since is not None:
            self._probe_interval = min(2 * self._probe_interval, LONGEST_PROBE)
            self._next_probe = now + self._probe_interval

    def left(self, op: Operation[Any], now: float) -> None:
        """Count a reserved request that leaves now; from now on the platform may be silent."""
        if self._silent_since is None or not (self._left or self._losses):
            self._silent_since = now
        self._left += 1
        self._limiter.withdraw(op, now)
        self._limiter.take(op, now)
        self._groups.left(_group(op), now)
        if self._rate is not None:
            self._rate.withdrawn()
            self._rate.left(now)

    def answered(self, op: Operation[Any], now: float, latency: float) -> None:
        """Note that the platform answered or refused a request, ``latency`` seconds after it was sent."""
        self._note_answer(now, now - latency)
        self._passed(op, now, now - latency)
        self._last.append(False)
        if self._concurrency is not None:
            self._concurrency.answered(now, latency)

    def throttled(self, op: Operation[Any], now: float, retry_after: float | None, latency: float = 0.0) -> None:
        """Note that the platform throttled a request that was sent ``latency`` seconds ago.

        ``retry_after``: seconds in which it wants no request (at most 300 count), or None.
        """
        self._note_answer(now, now - latency)
        halt = min(retry_after, LONGEST_HALT) if retry_after is not None and retry_after > 0 else 0.0
        if self._rate is None:
            self._last.append(True)
            if 2 * sum(self._last) >= len(self._last):
                self._limiter.halt(now + (DEFAULT_HALT if retry_after is None else halt))
        elif self._groups.throttled(_group(op), now, now - latency, halt):
            if self._groups.made:
                self._rate.forgive(now)
        elif self._rate.throttled(now, now - latency, halt):
            self._limiter.halt(now + halt)

    def lost(self, op: Operation[Any], now: float, latency: float = 0.0) -> None:
        """Note that a request sent ``latency`` seconds ago did not reach a working platform.

        Many in a row are an outage. Requests sent before the end of the last outage do not count.
        """
        self._ended()
        self._passed(op, now, now - latency, lost=True)
        if self._probing_since is None and now - latency >= self._resumed:
            self._losses += 1
            if self._is_outage(now):
                self._probing_since = now
                self._probe_interval = FIRST_PROBE
                self._next_probe = now + FIRST_PROBE

    def withdrawn(self, op: Operation[Any], now: float, *, left: bool) -> None:
        """Note that a request ended for a reason that says nothing of the platform; ``left``: it had left."""
        self._ended(left=left)
        if not left:
            self._limiter.withdraw(op, now)
            self._groups.withdrawn(_group(op))
            if self._rate is not None:
                self._rate.withdrawn()

    def _passed(self, op: Operation[Any], now: float, sent_at: float, *, lost: bool = False) -> None:
        if self._rate is not None:
            self._rate.passed(now, sent_at, lost=lost)
            self._groups.passed(_group(op), now, sent_at)

    def _ended(self, *, left: bool = True) -> None:
        self._in_flight = max(0, self._in_flight - 1)
        self._left = max(0, self._left - left)

    def _is_outage(self, now: float) -> bool:
        silence = now - (now if (since := self.silent_since) is None else since)
        return (
            self._losses >= OUTAGE_BURST
            or (self._losses >= OUTAGE_LOSSES and silence >= OUTAGE_SILENCE)
            or (self._losses >= min(SLOW_OUTAGE_LOSSES, self._max_concurrency + 1) and silence >= SLOW_OUTAGE_SILENCE)
        )

    def _note_answer(self, now: float, sent_at: float) -> None:
        """Note an answer of any kind. It ends an outage if its request was sent during the outage."""
        self._ended()
        self._silent_since = now
        self._losses = 0
        if self._probing_since is not None and sent_at >= self._probing_since:
            self._probing_since = None
            self._resumed = now
            if self._rate is not None:
                self._rate.resumed()
            if self._concurrency is not None:
                self._concurrency.resumed(now)


def _group(op: Operation[Any]) -> str | None:
    return getattr(op, "group_id", None)
