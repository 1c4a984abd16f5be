"""How many calls may run at once and how fast they may start: rates, halts, and the gate where calls queue.

:class:`RateLimiter` is arithmetic over times that are handed in and never waits; :class:`ConcurrencyLimiter` is the one
place where calls wait.
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
        raise InvalidRequest(f"operations: several are meant; write ({value.__name__},)", field="operations")
    return tuple(value)


@frozen
class Rate:
    """At most ``limit`` requests in ``per`` seconds, evenly spread; up to ``burst`` at once after a quiet time.

    It counts requests, retries included. With ``operations`` only those count; with ``each_group`` every group has the
    rate for itself (requests that name no group are not held back).
    """

    limit: float = field(validator=above_zero)
    per: float = field(default=1.0, validator=above_zero)
    burst: int = field(default=1, kw_only=True, validator=at_least_one)
    operations: tuple[type[Operation[Any]], ...] = field(default=(), kw_only=True, converter=_operations)
    each_group: bool = field(default=False, kw_only=True)

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Read ``50/s``, ``600/min``, ``1000/h`` or ``100/10s``. Raises InvalidRequest."""
        match = re.fullmatch(_RATE, text.strip(), re.ASCII)
        if match is None:
            raise InvalidRequest(f"rate: 50/s, 600/min or 100/10s is meant, not {text!r}", field="rate")
        return cls(float(match[1]), float(match[2] or 1) * _UNIT[match[3][0]])

    def key(self, op: Operation[Any]) -> object:
        """Return what the request is counted under, or None where this rate does not count it."""
        if self.operations and type(op) not in self.operations:
            return None
        return getattr(op, "group_id", None) if self.each_group else self


@frozen(kw_only=True)
class Limits:
    """What a client allows itself: requests in flight at once, and rates, each of which holds.

    A request's place in the rates is taken before it waits for its place among those in flight: where all of these are
    taken for long, requests whose time came meanwhile follow each other closely.
    """

    concurrency: int = field(default=100, validator=at_least_one)
    rates: tuple[Rate, ...] = field(default=(), converter=tuple[Rate, ...])


PRUNE = 1024


class _Bucket:
    """One rate: for each key, the time at which an evenly spread stream would send its next request (GCRA)."""

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
        if len(self.due) > self.prune_at:  # keys of the past say nothing: forget them, at a cost shared by many
            self.due = {k: due for k, due in self.due.items() if due > now}
            self.prune_at = max(PRUNE, 2 * len(self.due))


class RateLimiter:
    """The rates of one client and its halt. Times are seconds of the client's monotonic clock.

    While a halt lasts, the clock of the rates stands still: the places taken before it move behind it as they are, and do
    not all come at once when it ends.
    """

    def __init__(self, rates: tuple[Rate, ...] = ()) -> None:
        self._buckets = tuple(_Bucket(rate) for rate in rates)
        self.halted_until = -inf
        self.halted_for = 0.0
        """Seconds that all halts so far have taken."""

    def free(self, now: float) -> bool:
        """Whether nothing holds any request back: there are no rates, and no halt."""
        return not self._buckets and now >= self.halted_until

    def halt(self, until: float, now: float) -> None:
        """Let nothing go from ``now`` until ``until``. Halts merge: the later end holds."""
        begins = max(now, self.halted_until)
        if until > begins:
            self.halted_for += until - begins
            self.halted_until = until

    def postponed(self, when: float, halted_for: float) -> float:
        """Return the time of a place that was taken for ``when``, when all halts had taken ``halted_for`` seconds."""
        if self.halted_for == halted_for:
            return when
        return max(when + self.halted_for - halted_for, self.halted_until)

    def reserve(self, op: Operation[Any], now: float, latest: float) -> float | None:
        """Take the earliest place that every rate allows and return its time.

        Returns None, and takes nothing, where that would not be before ``latest``.
        """
        when, present, place = self._first(op, now)
        if when >= latest:
            return None
        self._count(op, place, present)
        return when

    def earliest(self, op: Operation[Any], now: float, *, each_group: bool = True) -> float:
        """Return the time of the place that :meth:`reserve` would take, and take nothing.

        Without ``each_group`` the rates that every group has for itself are left out.
        """
        return self._first(op, now, each_group=each_group)[0]

    def take(self, op: Operation[Any], now: float) -> None:
        """Count a request that goes now. It is the caller's part that :meth:`earliest` says no later time."""
        present = max(now, self.halted_until) - self.halted_for
        self._count(op, present, present)

    def _first(self, op: Operation[Any], now: float, *, each_group: bool = True) -> tuple[float, float, float]:
        """Return the time of the earliest place, and by the clock of the rates the present and that place."""
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
    """``places`` places; ``free`` of them are not taken, ``waiting`` calls wait for one."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.free = places
        self._waiters: OrderedDict[Event, None] = OrderedDict()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiters)

    def take(self) -> bool:
        """Take a place if one is free and nobody waits for it; tell whether it was so."""
        if not self.free or self._waiters:
            return False
        self.free -= 1
        return True

    async def enter(self) -> None:
        """Take a place, waiting for one if need be."""
        if self.take():
            return
        event: Event = late_anyio().Event()
        self._waiters[event] = None
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self.leave()  # the place came in the moment of the cancellation: the next one has it
            else:
                del self._waiters[event]
            raise

    def leave(self) -> None:
        """Give the place back: to the first who waits, or to the free ones."""
        if self._waiters:
            event, _ = self._waiters.popitem(last=False)
            event.set()
        else:
            self.free += 1
