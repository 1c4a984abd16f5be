"""How fast a job may go: the rates it was given, what the platform bears, and how to wait for one that is out of reach.

Arithmetic over times that are handed in, seconds of a monotonic clock; nothing here waits. One dispatcher uses it: it sends
only while fewer requests are in flight than :meth:`PaceController.concurrency` and :meth:`PaceController.earliest` is not
later than now. It reports each sending (``sent``), and the end of each request once (``answered``, ``throttled``, ``lost``
or ``withdrawn``).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Literal

from rbim.bulk.pace.adaptive import AdaptiveConcurrency, AdaptiveRate
from rbim.client.limits import Limits, Rate, RateLimiter

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim.operations.base import Operation

__all__ = ["PaceController"]

DEFAULT_HALT = 1.0  # seconds after a throttling, where nothing else slows down
LONGEST_HALT = 300.0
OUTAGE_LOSSES = 8  # in a row are an outage, if that takes
OUTAGE_SILENCE = 0.05  # seconds at least,
OUTAGE_BURST = 100  # or are so many at once,
SLOW_OUTAGE_LOSSES = 3  # or so many
SLOW_OUTAGE_SILENCE = 5.0  # in so many seconds
FIRST_PROBE = 0.25  # seconds; each pause is twice as long as the one before
LONGEST_PROBE = 3.0


class PaceController:
    """Decides when the next request may go, and how many may be in flight, at most ``concurrency`` (1 or more).

    ``rates`` always hold. If ``adaptive``, which is the default, there is also a rate that follows what the platform lets
    through, and the concurrency follows its latency. Otherwise a throttling that asks for no pause is one of a second.
    Raises InvalidRequest.
    """

    def __init__(self, *, rates: Iterable[Rate] = (), concurrency: int = 100, adaptive: bool = True) -> None:
        limits = Limits(rates=tuple(rates), concurrency=concurrency)
        self._max_concurrency = limits.concurrency
        self._limiter = RateLimiter(limits.rates)
        self._rate = AdaptiveRate() if adaptive else None
        self._concurrency = AdaptiveConcurrency(self._max_concurrency) if adaptive else None
        self._in_flight = 0
        self._silent_since: float | None = None
        self._losses = 0  # in a row
        self._probing_since: float | None = None
        self._next_probe = -inf  # when the next one may go
        self._probe_interval = FIRST_PROBE  # after that
        self._resumed = -inf

    @property
    def rate(self) -> float | None:
        """Requests per second that the platform seems to bear; None while nothing is known that would limit them."""
        return self._rate.rate if self._rate is not None and self._rate.limits else None

    @property
    def halted_until(self) -> float:
        """The time until which the platform wanted nothing sent; -inf if it never did."""
        return self._limiter.halted_until

    @property
    def silent_since(self) -> float | None:
        """The time since which something was sent, the platform wanted no pause and nothing was answered.

        That is the time of the last answer, or, where nothing was in flight, of the next sending. None before the first.
        """
        return None if self._silent_since is None else max(self._silent_since, self._limiter.halted_until)

    def state(self, now: float) -> Literal["running", "halted", "probing"]:
        """Return ``halted`` while the platform wants a pause, ``probing`` during an outage, ``running`` otherwise."""
        if now < self._limiter.halted_until:
            return "halted"
        return "running" if self._probing_since is None else "probing"

    def concurrency(self, _now: float) -> int:
        """Return how many requests may be in flight, from 1 to the most there may be.

        In an outage those that wait in vain do not keep a probe from being sent.
        """
        if self._probing_since is not None:
            return min(self._in_flight + 1, self._max_concurrency)
        return self._max_concurrency if self._concurrency is None else self._concurrency.limit

    def earliest(self, op: Operation[Any], now: float) -> float:
        """Return the time from which the request may go, ``now`` if at once. Nothing is reserved."""
        allowed, due = self._limiter.earliest(op, now), self._due
        if due <= allowed:
            return allowed
        if self._rate is not None:
            self._rate.held = True
        return due

    def earliest_any_group(self, op: Operation[Any], now: float) -> float:
        """Return the same for a request of the kind to a group without a rate of its own.

        Where :meth:`earliest` is later, other groups may go first.
        """
        return max(self._limiter.earliest(op, now, each_group=False), self._due)

    @property
    def _due(self) -> float:
        due = -inf if self._rate is None else self._rate.due
        return due if self._probing_since is None else max(due, self._next_probe)

    def sent(self, op: Operation[Any], now: float) -> None:
        """Count a request that goes now."""
        if self._silent_since is None or not (self._in_flight or self._losses):
            self._silent_since = now
        self._in_flight += 1
        self._limiter.take(op, now)
        if self._rate is not None:
            self._rate.sent(now)
        if self._concurrency is not None:
            self._concurrency.sent(self._in_flight)
        if self._probing_since is not None:
            self._probe_interval = min(2 * self._probe_interval, LONGEST_PROBE)
            self._next_probe = now + self._probe_interval

    def answered(self, now: float, latency: float) -> None:
        """Note that the platform answered or refused a request that was sent ``latency`` seconds ago."""
        self._note_answer(now, now - latency)
        if self._rate is not None:
            self._rate.passed(now, now - latency)
        if self._concurrency is not None:
            self._concurrency.answered(now, latency)

    def throttled(self, now: float, retry_after: float | None, latency: float = 0.0) -> None:
        """Note that the platform wants it slower, for ``retry_after`` seconds (at most 300 count) not at all.

        The request was sent ``latency`` seconds ago: if that was before the rate was last lowered, it stays as it is.
        """
        self._note_answer(now, now - latency)
        halt = min(retry_after, LONGEST_HALT) if retry_after is not None and retry_after > 0 else 0.0
        if self._rate is not None:
            self._rate.throttled(now, now - latency, halt=halt, halted_until=self._limiter.halted_until)
        elif retry_after is None:
            halt = DEFAULT_HALT
        self._limiter.halt(now + halt, now)

    def lost(self, now: float, latency: float = 0.0) -> None:
        """Note that a request that was sent ``latency`` seconds ago found no platform, or one in trouble of its own.

        Many in a row are an outage. What had been sent before the last one was over does not count.
        """
        self._in_flight = max(0, self._in_flight - 1)
        if self._rate is not None:
            self._rate.passed(now, now - latency)
        if self._probing_since is None and now - latency >= self._resumed:
            self._losses += 1
            if self._is_outage(now):
                self._probing_since = now
                self._probe_interval = FIRST_PROBE
                self._next_probe = now + FIRST_PROBE

    def withdrawn(self) -> None:
        """Note that a request was not sent after all, for a reason that says nothing of the platform."""
        self._in_flight = max(0, self._in_flight - 1)

    def _is_outage(self, now: float) -> bool:
        silence = now - (now if (since := self.silent_since) is None else since)
        return (
            self._losses >= OUTAGE_BURST
            or (self._losses >= OUTAGE_LOSSES and silence >= OUTAGE_SILENCE)
            or (self._losses >= min(SLOW_OUTAGE_LOSSES, self._max_concurrency + 1) and silence >= SLOW_OUTAGE_SILENCE)
        )

    def _note_answer(self, now: float, sent_at: float) -> None:
        """Note an answer of any kind; it ends an outage that it was sent in."""
        self._in_flight = max(0, self._in_flight - 1)
        self._silent_since = now
        self._losses = 0
        if self._probing_since is not None and sent_at >= self._probing_since:
            self._probing_since = None
            self._resumed = now
            if self._rate is not None:
                self._rate.resumed()
            if self._concurrency is not None:
                self._concurrency.resumed(now)
