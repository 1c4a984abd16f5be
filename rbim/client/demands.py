"""What a request needs to leave: tokens of the rates that count it, and that no halt concerns it.

Everything here computes with times that are arguments, seconds of a monotonic clock; nothing waits.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from typing import TYPE_CHECKING, Any

from rbim.client.limits import ROUNDING, Bucket, Buckets

if TYPE_CHECKING:
    from rbim.client.halts import Halts
    from rbim.client.limits import Rate
    from rbim.operations.base import Operation

__all__ = ["LEAST", "LEAST_MARGIN", "RECENT", "AttemptTimes", "Demand", "Demands", "Kind"]

MOST = 64
LEAST = 4
"""Attempts that are enough to know what one needs."""

RECENT = 10.0
"""Seconds in which an attempt is recent."""

LONG_AGO = 60.0
"""Seconds after which the last attempts say nothing any more."""

HIGH = 0.95
LEAST_MARGIN = 1.1
LOST = 2.0
"""An attempt without answer that lasted longer than so many times ``need`` was lost: it says nothing of others."""


class AttemptTimes:
    """The times of recent attempts, in seconds: those of the last 10 s, at least 4 and at most 64.

    ``typical`` is their median. ``need`` is what is allowed for one attempt: the 95th percentile, and its distance from the
    median once more (or a tenth, if that is more). A request that leaves that long before its deadline is answered in time,
    but for fewer than one in a hundred. Both are 0 before the first attempt. An attempt that was cut off without answer took
    longer than it lasted: it counts as twice as long.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[float, float]] = deque()
        self._sorted: list[float] = []
        self.typical = 0.0
        self.need = 0.0

    def __len__(self) -> int:
        return len(self._last)

    def expire(self, now: float) -> None:
        """Forget everything if the last attempt was long ago."""
        if self._last and self._last[-1][0] < now - LONG_AGO:
            self._last.clear()
            self._sorted.clear()
            self.typical = self.need = 0.0

    def add(self, seconds: float, *, now: float, answered: bool) -> None:
        """Note an attempt that has ended now."""
        if not answered:
            if not self.need / LOST < seconds <= self.need * LOST:
                return
            seconds *= LOST
        self._last.append((now, seconds))
        insort(self._sorted, seconds)
        while len(self._last) > MOST or (len(self._last) > LEAST and self._last[0][0] < now - RECENT):
            del self._sorted[bisect_left(self._sorted, self._last.popleft()[1])]
        high = self._sorted[int(HIGH * len(self._sorted))]
        self.typical = self._sorted[len(self._sorted) // 2]
        self.need = max(LEAST_MARGIN * high, 2 * high - self.typical)


class Kind:
    """One operation: the rates that count it, the scopes of its halts (:mod:`rbim.client.halts`), its attempt times."""

    __slots__ = ("_halts", "narrow", "per_group", "shared", "times", "wide")

    def __init__(
        self, operation: type[Operation[Any]], counting: list[tuple[Rate, Buckets]], halts: Halts, now: float
    ) -> None:
        self._halts = halts
        self.times = AttemptTimes()
        """The times of attempts of this operation."""
        self.shared = tuple(buckets.of(rate, now) for rate, buckets in counting if not rate.each_group)
        self.per_group = tuple(buckets for rate, buckets in counting if rate.each_group)
        named = [rate for rate, _ in counting if rate.operations and not rate.each_group]
        self.wide: object = min(named, key=lambda rate: len(rate.operations), default=operation)
        self.narrow: object = self.per_group[0].rate if self.per_group else operation

    def ready_at(self, now: float) -> float:
        """Return when the rates and halts of the whole operation let one more request leave."""
        when = self._halts.until(self.wide)
        for bucket in self.shared:
            when = max(when, bucket.ready_at(now))
        return when


class Demand:
    """The tokens and halts that a request needs: those of its ``kind``, and those of its group."""

    __slots__ = ("_halts", "buckets", "group", "kind", "narrow", "own")

    def __init__(self, kind: Kind, group: object, halts: Halts, now: float) -> None:
        self.kind = kind
        self.group = group
        self._halts = halts
        self.own = tuple(buckets.of(group, now) for buckets in kind.per_group) if group is not None else ()
        self.buckets: tuple[Bucket, ...] = (*kind.shared, *self.own)
        self.narrow = kind.wide if group is None else (kind.narrow, group)

    def lacks_only_granted(self, now: float) -> bool:
        """Whether nothing but granted tokens keeps the group from sending now."""
        if self._halts.until(self.narrow) > now + ROUNDING:
            return False
        return all(bucket.due - bucket.slack <= now + ROUNDING for bucket in self.own)

    def own_ready_at(self, now: float) -> float:
        """Return when the rates and halts of the group let one more request leave."""
        when = self._halts.until(self.narrow)
        for bucket in self.own:
            when = max(when, bucket.ready_at(now))
        return when

    @property
    def halted_until(self) -> float:
        """The end of the halts; -inf if there is none."""
        return max(self._halts.until(self.narrow), self._halts.until(self.kind.wide))

    def ready_at(self, now: float) -> float:
        """Return when all rates and halts let one more request leave."""
        when = self.halted_until
        for bucket in self.buckets:
            when = max(when, bucket.ready_at(now))
        return when

    def take(self, now: float) -> None:
        """Take a token from each bucket: the request leaves now."""
        for bucket in self.buckets:
            bucket.take(now)
        if self._halts.watching(now):
            self._halts.sent(self.narrow)
            if self.narrow != self.kind.wide:
                self._halts.sent(self.kind.wide)

    def give_back(self) -> None:
        """Give the last token back to each bucket: the request does not leave."""
        for bucket in self.buckets:
            bucket.give_back()


class Demands:
    """Finds the demand of an operation: the rates that count it, and the scopes of its halts."""

    def __init__(self, rates: tuple[Rate, ...], halts: Halts) -> None:
        self._rates = tuple((rate, Buckets(rate)) for rate in rates)
        self._halts = halts
        self._kinds: dict[type[Operation[Any]], Kind] = {}

    @property
    def most_need(self) -> float:
        """The seconds that an attempt needs of the operation whose attempts need most."""
        return max((kind.times.need for kind in self._kinds.values()), default=0.0)

    def of(self, op: Operation[Any], now: float) -> Demand:
        """Return the demand of an operation."""
        return Demand(self.kind_of(op, now), getattr(op, "group_id", None), self._halts, now)

    def kind_of(self, op: Operation[Any], now: float) -> Kind:
        """Return what all operations of this type have in common."""
        operation = type(op)
        kind = self._kinds.get(operation)
        if kind is None:
            counting = [each for each in self._rates if not each[0].operations or operation in each[0].operations]
            kind = self._kinds[operation] = Kind(operation, counting, self._halts, now)
        return kind
