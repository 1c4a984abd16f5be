"""How fast a job sends: its configured rates, the rate that the platform accepts, its requests in flight, and outages.

It only calculates with times that are passed in, seconds of a monotonic clock; nothing here waits. One dispatcher uses it:
it sends only while fewer requests are in flight than :meth:`Pace.concurrency` and :meth:`Pace.earliest` is not later than
now. It reports each request that it hands to the sender (``reserved``), the moment at which that leaves (``left``), and its
end once (``answered``, ``throttled``, ``lost`` or ``withdrawn``).
"""

# Theory of operation
#
# Rates and congestion are those of the client (rbim.client.limits, rbim.client.congestion). Requests in flight start at
# `START` and grow by one with each answer, so they double in each round trip, up to the configured number.
#
# RUNNING   rates and congestion decide
# HALTED    congestion pauses all requests: nothing passed, or the platform asked for it
# PROBING   an outage: one probe at a time, after `FIRST_PROBE` s, then at twice the interval each, at most `LONGEST_PROBE`
#
# RUNNING -> PROBING   `lost` so often in a row that it is an outage (see `Pace.lost`)
# PROBING -> RUNNING   an answer of any kind to a request sent during the outage; requests in flight start anew
#
# Always true: configured rates and the number in flight are never exceeded; any answer sets the count of losses in a row
# to 0; a request counts when it leaves, and is pending from `reserved` until then.

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any, Literal

from rbim.client.congestion import Congestion
from rbim.client.limits import Demands, Limits, ready_at

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rbim.client.limits import Bucket, Rate
    from rbim.operations.base import Operation

__all__ = ["Pace"]

START = 10

LOSSES = 8
SILENCE = 0.05
MANY_LOSSES = 100
"""An outage: so many losses in a row, and no answer for so many seconds; or very many losses."""

FIRST_PROBE, LONGEST_PROBE = 0.25, 3.0


class Pace:
    """Decides when the next request may leave, and how many may be in flight: at most ``concurrency`` (1 or more).

    ``rates`` always apply. ``adaptive`` (default: True): also follow the rate that the platform accepts, and start with few
    requests in flight. Raises InvalidRequest.
    """

    def __init__(self, *, rates: Iterable[Rate] = (), concurrency: int = 100, adaptive: bool = True) -> None:
        limits = Limits(rates=tuple(rates), concurrency=concurrency)
        self._most = limits.concurrency
        self._adaptive = adaptive
        self._allowed = self._start()
        self._congestion = Congestion()
        self._demands = Demands(limits.rates, self._congestion.flows)
        self._in_flight = 0  # with those that are reserved
        self._answered_at: float | None = None  # the last answer, or the first request after nothing was in flight
        self._losses = 0  # in a row
        self._probing_since: float | None = None
        self._next_probe = -inf
        self._probe_interval = FIRST_PROBE
        self._resumed = -inf

    def _start(self) -> int:
        return min(self._most, START) if self._adaptive else self._most

    @property
    def rate(self) -> float | None:
        """Requests per second that the platform accepts, as far as known; None while nothing limits them."""
        return self._congestion.rate

    def state(self, now: float) -> Literal["running", "halted", "probing"]:
        """Return ``halted`` (the platform wants a pause), ``probing`` (an outage) or ``running``."""
        if now < self._congestion.all_paused_until:
            return "halted"
        return "running" if self._probing_since is None else "probing"

    def concurrency(self) -> int:
        """Return the limit of requests in flight, 1 or more; in an outage one more than those that wait in vain."""
        return self._allowed if self._probing_since is None else min(self._in_flight + 1, self._most)

    def earliest(self, op: Operation[Any], now: float) -> float:
        """Return the time from which the request may leave, ``now`` if at once. Nothing is reserved."""
        return max(now, self._next_probe, ready_at(self._demands.of(op, now).buckets, now))

    def earliest_any_group(self, op: Operation[Any], now: float) -> float:
        """Return the same time, but without what concerns its group alone.

        If :meth:`earliest` is later than this, other groups may go first.
        """
        return max(now, self._next_probe, ready_at(self._demands.kind_of(op, now).shared, now))

    def reserved(self, op: Operation[Any], now: float) -> None:
        """Count a request that is handed to the sender: it leaves at once, or when the sender's own limits allow it."""
        self._in_flight += 1
        for bucket in self._demands.of(op, now).buckets:
            bucket.granted += 1
        if self._probing_since is not None:
            self._probe_interval = min(2 * self._probe_interval, LONGEST_PROBE)
            self._next_probe = now + self._probe_interval

    def left(self, op: Operation[Any], now: float) -> None:
        """Count a reserved request that leaves now; from now on the platform may be silent."""
        if self._answered_at is None or (self._in_flight == 1 and not self._losses):
            self._answered_at = now
        for bucket in self._release(op, now):
            bucket.take(now)

    def answered(self, op: Operation[Any], now: float, latency: float) -> None:
        """Note that the platform answered or refused a request, ``latency`` seconds after it was sent."""
        self._note_answer(op, now, now - latency, None)
        self._allowed = min(self._allowed + 1, self._most)

    def throttled(self, op: Operation[Any], now: float, retry_after: float | None, latency: float = 0.0) -> None:
        """Note that the platform throttled a request that was sent ``latency`` seconds ago.

        ``retry_after``: seconds in which it wants no request (at most 300 count), or None.
        """
        self._note_answer(op, now, now - latency, max(0.0, retry_after or 0.0))

    def lost(self, now: float, latency: float = 0.0) -> None:
        """Note that a request sent ``latency`` seconds ago did not reach a working platform.

        Many in a row are an outage. Requests sent before the end of the last outage do not count.
        """
        self._in_flight -= 1
        if self._probing_since is None and now - latency >= self._resumed:
            self._losses += 1
            silence = now - (now if self._answered_at is None else self._answered_at)
            if self._losses >= MANY_LOSSES or (self._losses >= LOSSES and silence >= SILENCE):
                self._probing_since = now
                self._probe_interval = FIRST_PROBE
                self._next_probe = now + FIRST_PROBE

    def withdrawn(self, op: Operation[Any], now: float, *, left: bool) -> None:
        """Note that a request ended for a reason that says nothing of the platform; ``left``: it had left."""
        self._in_flight -= 1
        if not left:
            self._release(op, now)

    def _release(self, op: Operation[Any], now: float) -> tuple[Bucket, ...]:
        """Count a request as pending no more; a flow that has come since it was reserved knows nothing of it."""
        buckets = self._demands.of(op, now).buckets
        for bucket in buckets:
            bucket.granted = max(0, bucket.granted - 1)
        return buckets

    def _note_answer(self, op: Operation[Any], now: float, sent_at: float, asked: float | None) -> None:
        """Note an answer of any kind. It ends an outage if its request was sent during the outage."""
        self._in_flight -= 1
        self._answered_at, self._losses = now, 0
        if self._probing_since is not None and sent_at >= self._probing_since:
            self._probing_since, self._next_probe, self._resumed = None, -inf, now
            self._allowed = self._start()
        if self._adaptive and (asked is not None or self._congestion.flows):
            kind = self._demands.kind_of(op, now)
            narrow = kind.narrow_of(getattr(op, "group_id", None))
            if self._congestion.answered(narrow, kind.wide, sent_at=sent_at, now=now, asked=asked):
                self._demands.flows_changed()
