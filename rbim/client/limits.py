"""The client's limits: the rate limiter with its halts, and the concurrency limiter.

:class:`RateLimiter` only computes with times that are arguments, it never waits; calls queue in
:class:`ConcurrencyLimiter`.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from math import inf
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

from rbim._support.lazy_names import late_anyio
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anyio import Event

    from rbim.operations.base import Operation

__all__ = ["ConcurrencyLimiter", "Limits", "Rate", "RateLimiter"]


_RATE = r"([0-9]+(?:\.[0-9]+)?)\s*/\s*([0-9]+(?:\.[0-9]+)?)?\s*(s|sec|second|m|min|minute|h|hour)"
_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0}


def _operations(value: Iterable[type[Operation[Any]]]) -> tuple[type[Operation[Any]], ...]:
    if isinstance(value, type):
        raise InvalidRequest(f"operations: a tuple of classes is needed: write ({value.__name__},)", field="operations")
    return tuple(value)


@frozen
class Rate:
    """A rate limit: at most ``limit`` requests in ``per`` seconds (default: 1), evenly spread.

    After a quiet time up to ``burst`` requests (default: 1) may start at once. It counts requests, including retries. With
    ``operations`` it counts only those classes; with ``each_group`` it applies to each group separately (requests without
    a group are not limited).
    """

    limit: float = field(validator=above_zero)
    per: float = field(default=1.0, validator=above_zero)
    burst: int = field(default=1, kw_only=True, validator=at_least_one)
    operations: tuple[type[Operation[Any]], ...] = field(default=(), kw_only=True, converter=_operations)
    each_group: bool = field(default=False, kw_only=True)

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Return the rate from a text such as ``50/s``, ``600/min``, ``1000/h`` or ``100/10s``. Raises InvalidRequest."""
        match = re.fullmatch(_RATE, text.strip(), re.ASCII)
        if match is None:
            raise InvalidRequest(f"invalid rate {text!r}: use 50/s, 600/min or 100/10s", field="rate")
        return cls(float(match[1]), float(match[2] or 1) * _UNIT[match[3][0]])

    def key(self, op: Operation[Any]) -> object:
        """Return the key under which a request is counted, or None if this rate does not count it."""
        if self.operations and type(op) not in self.operations:
            return None
        return getattr(op, "group_id", None) if self.each_group else self


@frozen(kw_only=True)
class Limits:
    """The client's limits: requests in flight, and rates.

    At most ``concurrency`` requests (default: 100) are in flight at once. All ``rates`` (default: none) apply. A request
    passes the rate limiter first and then waits for the concurrency limiter. If that is full for long, the requests that
    the rate limiter has passed meanwhile start in quick succession.
    """

    concurrency: int = field(default=100, validator=at_least_one)
    rates: tuple[Rate, ...] = field(default=(), converter=tuple[Rate, ...])


PRUNE = 1024


class _Bucket:
    """The state of one rate: for each key, the time at which an even stream sends its next request (GCRA)."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self.interval = rate.per / rate.limit
        self.slack = self.interval * (rate.burst - 1)
        self.due: dict[object, float] = {}
        self.prune_at = PRUNE

    def earliest(self, key: object) -> float:
        return self.due.get(key, -inf) - self.slack

    def take(self, key: object, when: float, now: float) -> None:
        self.due[key] = max(self.due.get(key, -inf), when) + self.interval
        if len(self.due) > self.prune_at:  # keys with a past time are not needed; the growing threshold amortizes the cost
            self.due = {k: due for k, due in self.due.items() if due > now}
            self.prune_at = max(PRUNE, 2 * len(self.due))


class RateLimiter:
    """The rate limiter of one client, with its halts. Times are seconds of the client's monotonic clock.

    During a halt the rates' own clock stops: reserved places move behind the halt with their distances, so that they do not
    all come at once when it ends.
    """

    def __init__(self, rates: tuple[Rate, ...] = ()) -> None:
        self._buckets = tuple(_Bucket(rate) for rate in rates)
        self.halted_until = -inf
        self.halted_for = 0.0
        """Total seconds of all halts so far."""

    def free(self, now: float) -> bool:
        """Return whether no request has to wait: there are no rates, and no halt."""
        return not self._buckets and now >= self.halted_until

    def halt(self, until: float, now: float) -> None:
        """Let no request start from ``now`` until ``until``. Overlapping halts merge: the later end counts."""
        begins = max(now, self.halted_until)
        if until > begins:
            self.halted_for += until - begins
            self.halted_until = until

    def postponed(self, when: float, halted_for: float) -> float:
        """Return the current time of a place reserved for ``when`` at a total halt time of ``halted_for`` seconds."""
        if self.halted_for == halted_for:
            return when
        return max(when + self.halted_for - halted_for, self.halted_until)

    def reserve(self, op: Operation[Any], now: float, latest: float) -> float | None:
        """Reserve the earliest place that all rates allow and return its time.

        If it is not before ``latest``, reserve nothing and return None.
        """
        when, present, place = self._first(op, now)
        if when >= latest:
            return None
        self._count(op, place, present)
        return when

    def earliest(self, op: Operation[Any], now: float, *, each_group: bool = True) -> float:
        """Return the time of the place that :meth:`reserve` would take, without reserving it.

        Without ``each_group``, rates that apply to each group separately are ignored.
        """
        return self._first(op, now, each_group=each_group)[0]

    def take(self, op: Operation[Any], now: float) -> None:
        """Count a request that starts now. The caller checks that :meth:`earliest` is not later."""
        present = max(now, self.halted_until) - self.halted_for
        self._count(op, present, present)

    def _first(self, op: Operation[Any], now: float, *, each_group: bool = True) -> tuple[float, float, float]:
        """Return the time of the earliest place; and, by the rates' own clock, the current time and that place."""
        begins = max(now, self.halted_until)
        present = place = begins - self.halted_for
        for bucket in self._buckets:
            if (each_group or not bucket.rate.each_group) and (key := bucket.rate.key(op)) is not None:
                place = max(place, bucket.earliest(key))
        return begins + (place - present), present, place

    def _count(self, op: Operation[Any], place: float, present: float) -> None:
        for bucket in self._buckets:
            if (key := bucket.rate.key(op)) is not None:
                bucket.take(key, place, present)


class ConcurrencyLimiter:
    """The concurrency limiter, a FIFO queue: ``free`` of its ``places`` are not taken, ``waiting`` calls wait."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.free = places
        self._waiters: OrderedDict[Event, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return len(self._waiters)

    def take(self) -> bool:
        """Take a place if one is free and no call waits for it; return whether it was taken."""
        if not self.free or self._waiters:
            return False
        self.free -= 1
        return True

    async def enter(self) -> None:
        """Take a place; wait until one is free."""
        if self.take():
            return
        event: Event = late_anyio().Event()
        self._waiters[event] = None
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self.leave()  # the place was assigned at the moment of the cancellation: pass it on
            else:
                del self._waiters[event]
            raise

    def leave(self) -> None:
        """Return the place: the first waiting call gets it, otherwise it is free."""
        if self._waiters:
            event, _ = self._waiters.popitem(last=False)
            event.set()
        else:
            self.free += 1
