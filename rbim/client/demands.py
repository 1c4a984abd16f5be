"""What a request needs to leave: tokens of the rates that count it, and that no halt concerns it.

Everything here computes with times that are arguments, seconds of a monotonic clock; nothing waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbim.client.attempt_times import AttemptTimes
from rbim.client.limits import ROUNDING, Bucket, Buckets

if TYPE_CHECKING:
    from rbim.client.halts import Halts
    from rbim.client.limits import Rate
    from rbim.operations.base import Operation

__all__ = ["Demand", "Demands", "Kind"]


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
