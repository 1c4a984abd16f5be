"""The client's limits: rates and requests in flight, and the arithmetic of rates.

Everything here only computes with times that are arguments, seconds of a monotonic clock; nothing waits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import inf
from typing import TYPE_CHECKING, Any, cast

from attrs import Factory, field, frozen

from rbim._support.text import quoted
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one

if TYPE_CHECKING:
    from rbim.operations.base import Operation

__all__ = ["LOW", "NORMAL", "Bucket", "Buckets", "Limits", "Rate", "RateLimiter"]

NORMAL, LOW = 0, 1
"""The levels of waiting calls: those of normal and of low priority."""


_RATE = r"([0-9]+(?:\.[0-9]+)?)\s*/\s*([0-9]+(?:\.[0-9]+)?)?\s*(s|sec|second|m|min|minute|h|hour)"
_UNIT = {"s": 1.0, "m": 60.0, "h": 3600.0}


BURST_SECONDS = 0.05
"""Seconds of a rate that may be sent at once after a quiet time, unless the rate has its own ``burst``."""


def _operations(value: Iterable[type[Operation[Any]]]) -> tuple[type[Operation[Any]], ...]:
    if isinstance(value, type):
        raise InvalidRequest(f"operations: a tuple of classes is needed: write ({value.__name__},)", field="operations")
    return tuple(value)


def _burst(rate: Rate) -> int:
    try:
        return max(1, int(BURST_SECONDS * rate.limit / rate.per))
    except (TypeError, ValueError, ArithmeticError):
        return 1  # the validators refuse such a limit


@frozen
class Rate:
    """A rate limit: at most ``limit`` requests in ``per`` seconds (default: 1), evenly spread.

    After a quiet time or a stall up to ``burst`` requests may start at once (default: what the rate allows in 50 ms, at
    least 1). It counts requests, including retries, at the moment they are sent: no period of t seconds has more than
    ``burst + limit * t / per``. With ``operations`` it counts only those classes; with ``each_group`` it applies to each
    group separately (requests without a group are not limited).
    """

    limit: float = field(validator=above_zero)
    per: float = field(default=1.0, validator=above_zero)
    burst: int = field(default=Factory(_burst, takes_self=True), kw_only=True, validator=at_least_one)
    operations: tuple[type[Operation[Any]], ...] = field(default=(), kw_only=True, converter=_operations)
    each_group: bool = field(default=False, kw_only=True)

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Return the rate from a text such as ``50/s``, ``600/min``, ``1000/h`` or ``100/10s``. Raises InvalidRequest."""
        match = re.fullmatch(_RATE, text.strip(), re.ASCII)
        if match is None:
            raise InvalidRequest(f"invalid rate {quoted(text)}: use 50/s, 600/min or 100/10s", field="rate")
        return cls(float(match[1]), float(match[2] or 1) * _UNIT[match[3][0]])

    def key(self, op: Operation[Any]) -> object:
        """Return the key under which a request is counted, or None if this rate does not count it."""
        if self.operations and type(op) not in self.operations:
            return None
        return getattr(op, "group_id", None) if self.each_group else self


def _rates(value: Iterable[Rate | str] | Rate | str) -> tuple[Rate, ...]:
    if isinstance(value, (Rate, str)):
        value = (value,)
    if not isinstance(cast("object", value), Iterable):
        raise InvalidRequest(
            f"rates: a list of rates such as Rate(50) or '50/s' is needed, not {quoted(value)}", field="rates"
        )
    rates = tuple(Rate.parse(each) if isinstance(each, str) else each for each in value)
    for each in rates:
        if not isinstance(cast("object", each), Rate):
            raise InvalidRequest(f"rates: a rate such as Rate(50) or '50/s' is needed, not {quoted(each)}", field="rates")
    return rates


@frozen(kw_only=True)
class Limits:
    """The client's limits: requests in flight, and rates.

    At most ``concurrency`` requests (default: 100) are in flight at once. All ``rates`` (default: none) apply; each is a
    Rate or a text such as ``50/s``. A request leaves when there is a place in flight and all rates that count it allow
    it; before that it takes nothing from any of them. Raises InvalidRequest.
    """

    concurrency: int = field(default=100, validator=at_least_one)
    rates: tuple[Rate, ...] = field(default=(), converter=_rates)


ROUNDING = 1e-9
"""Seconds that do not count: a wait until some time may end that much too early, by the arithmetic of floats."""

PRUNE = 1024


class Bucket:
    """A token bucket in the form of GCRA: ``due`` is when an even stream would send its next request.

    A request that was admitted and has not left yet is ``granted``: it counts as if it left now, and takes its token
    only when it leaves (:meth:`take`).
    """

    __slots__ = ("due", "granted", "interval", "slack", "waiting")

    def __init__(self, rate: Rate) -> None:
        self.interval = rate.per / rate.limit
        self.slack = self.interval * (rate.burst - 1) if rate.burst > 1 else 0.0  # the interval may be infinite
        self.due = -inf
        self.granted = 0
        self.waiting: tuple[list[float], list[float]] = ([], [])
        """By level: the deadlines of the waiting calls that this rate counts, sorted."""

    @property
    def is_used(self) -> bool:
        """Whether requests have or want its tokens."""
        return bool(self.granted or any(self.waiting))

    def ready_at(self, now: float, ahead: int = 0) -> float:
        """Return when one more request may leave, after those that are granted and ``ahead`` others; -inf if now."""
        if before := self.granted + ahead:
            when = max(self.due, now) + before * self.interval - self.slack
        else:
            when = self.due - self.slack
        return when if when > now + ROUNDING else -inf

    def fits(self, until: float, *, now: float, need: float) -> float:
        """Return how many more requests may leave at least ``need`` seconds before a time."""
        return (until - need - max(self.due, now) + self.slack) / self.interval + 1 - self.granted

    def take(self, now: float) -> None:
        """Count a request that leaves now."""
        self.due = max(self.due, now) + self.interval

    def give_back(self) -> None:
        """Count the last request no more: it has not left."""
        self.due = self.due - self.interval if self.interval < inf else -inf


class Buckets:
    """The buckets of one rate, one for each key that it counts separately."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._by_key: dict[object, Bucket] = {}
        self._prune_at = PRUNE

    def __len__(self) -> int:
        return len(self._by_key)

    def of(self, key: object, now: float) -> Bucket:
        """Return the bucket of a key."""
        bucket = self._by_key.get(key)
        if bucket is None:
            if len(self._by_key) >= self._prune_at:  # full buckets are not needed; the growing threshold amortizes the cost
                self._by_key = {k: b for k, b in self._by_key.items() if b.due > now or b.is_used}
                self._prune_at = max(PRUNE, 2 * len(self._by_key))
            bucket = self._by_key[key] = Bucket(self.rate)
        return bucket


class RateLimiter:
    """Rates with one common halt, for a sender that decides itself what leaves next."""

    def __init__(self, rates: tuple[Rate, ...] = ()) -> None:
        self._rates = tuple(Buckets(rate) for rate in rates)
        self.halted_until = -inf

    def halt(self, until: float) -> None:
        """Let no request leave until ``until``. Of several halts the latest end counts."""
        self.halted_until = max(self.halted_until, until)

    def earliest(self, op: Operation[Any], now: float, *, each_group: bool = True) -> float:
        """Return the time from which the request may leave, ``now`` if at once.

        Without ``each_group``, rates that apply to each group separately are ignored.
        """
        when = max(now, self.halted_until)
        for buckets in self._rates:
            if (each_group or not buckets.rate.each_group) and (key := buckets.rate.key(op)) is not None:
                ready = buckets.of(key, now).ready_at(now)
                when = max(when, ready)
        return when

    def grant(self, op: Operation[Any], now: float) -> None:
        """Count a request that will leave soon, until it leaves (:meth:`take`) or not; see :meth:`withdraw`."""
        for bucket in self._buckets(op, now):
            bucket.granted += 1

    def withdraw(self, op: Operation[Any], now: float) -> None:
        """Forget a request that was granted."""
        for bucket in self._buckets(op, now):
            bucket.granted = max(0, bucket.granted - 1)

    def take(self, op: Operation[Any], now: float) -> None:
        """Count a request that leaves now. The caller checks that :meth:`earliest` is not later."""
        for bucket in self._buckets(op, now):
            bucket.take(now)

    def _buckets(self, op: Operation[Any], now: float) -> list[Bucket]:
        keys = ((buckets, buckets.rate.key(op)) for buckets in self._rates)
        return [buckets.of(key, now) for buckets, key in keys if key is not None]
