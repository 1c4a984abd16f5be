"""The client's limits: rates and requests in flight, the arithmetic of rates, and what a request needs to leave.

Everything here only computes with times that are arguments, seconds of a monotonic clock; nothing waits.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable, Mapping
from math import ceil, inf
from typing import TYPE_CHECKING, Any, cast

from attrs import Factory, field, frozen

from rbim._support.text import quoted
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one

if TYPE_CHECKING:
    from collections.abc import Callable

    from rbim.operations.base import Operation

__all__ = [
    "LOW",
    "NORMAL",
    "SPACING",
    "AttemptTimes",
    "Bucket",
    "Buckets",
    "Demand",
    "Demands",
    "Kind",
    "Limits",
    "Rate",
    "SharedBucket",
    "ready_at",
]

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


def _shared(rate: Rate, _: object, address: str | None) -> None:
    if address is None:
        return
    if not isinstance(cast("object", address), str) or not address.startswith(("postgresql://", "postgres://")):
        raise InvalidRequest("shared: a PostgreSQL server is needed, such as postgresql://HOST/DATABASE", field="shared")
    if rate.each_group:
        raise InvalidRequest("shared: a rate of each group cannot be shared", field="shared")


def _fallback(rate: Rate, attribute: Any, value: float | None) -> None:
    if value is not None:
        above_zero(rate, attribute, value)
        if rate.shared is None:
            raise InvalidRequest("fallback: only for a rate with shared=", field="fallback")


def _without_password(address: str | None) -> str:
    return repr(address and re.sub(r"(?<=//)([^/@:]*):[^/@]*@", r"\1:***@", address))


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

    ``shared``: several processes keep this rate together, by a row on a PostgreSQL server, such as
    ``postgresql://host/database#name`` (default name: main; needs ``rbim[postgres]``). Only the limits of a client can have
    such a rate. While the server cannot be asked, its calls wait, and raise NotSent at their deadline; with ``fallback``
    each process sends that many requests in ``per`` seconds meanwhile.
    """

    limit: float = field(validator=above_zero)
    per: float = field(default=1.0, validator=above_zero)
    burst: int = field(default=Factory(_burst, takes_self=True), kw_only=True, validator=at_least_one)
    operations: tuple[type[Operation[Any]], ...] = field(default=(), kw_only=True, converter=_operations)
    each_group: bool = field(default=False, kw_only=True)
    shared: str | None = field(default=None, kw_only=True, validator=_shared, repr=_without_password)
    fallback: float | None = field(default=None, kw_only=True, validator=_fallback)

    @classmethod
    def parse(cls, text: str) -> Rate:
        """Return the rate from a text such as ``50/s``, ``600/min``, ``1000/h`` or ``100/10s``. Raises InvalidRequest.

        ``50/s@postgresql://host/database#name`` is a shared rate; its address must have no password.
        """
        rate, _, shared = text.partition("@")
        match = re.fullmatch(_RATE, rate.strip(), re.ASCII)
        if match is None:
            raise InvalidRequest(f"invalid rate {quoted(rate)}: use 50/s, 600/min or 100/10s", field="rate")
        if "***" in _without_password(shared) or "password=" in shared:
            how = "let PGPASSWORD or ~/.pgpass have it"
            raise InvalidRequest(f"the address of a shared rate must have no password: {how}", field="rate")
        return cls(float(match[1]), float(match[2] or 1) * _UNIT[match[3][0]], shared=shared.strip() or None)


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
        due = self.due
        if before := self.granted + ahead:
            due = (max(now, due)) + before * self.interval
        when = due - self.slack
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


SPACING = 1.02
"""Slots of a shared rate are so many times as far apart as its limit demands, because they may be used late."""

LATE = BURST_SECONDS
"""Seconds for which a slot may be used, if the rate has no greater burst: else a busy event loop would lose many."""

SILENCE = 2.0
"""Seconds without an answer after which the server of a shared rate counts as away."""

ASK_AGAIN = 0.5
"""Seconds until it is asked again after an error."""

LEAST_WAIT = 0.01
"""Seconds until somebody looks again whether slots have come, at least."""


class SharedBucket(Bucket):
    """A rate that several processes keep together: a request takes a slot, a time that no other process has.

    Slots are reserved by ``ask`` (:mod:`rbim.postgres.shared_rate`) while calls wait, some at once, and the next ones when
    half of them are used. A process never holds more than those: the order in which processes ask is that in which they
    send, and one that dies loses a few. A slot that is not used in time is lost.
    """

    def __init__(self, rate: Rate) -> None:
        super().__init__(rate)
        self.rate = rate
        self._late = max(LATE, self.slack)
        self._spacing: float = self.interval
        self._most = max(1, ceil(BURST_SECONDS / self.interval))
        self.slots: deque[float] = deque()
        self.ask: Callable[[int], object] | None = None
        """Reserves that many slots, and has :meth:`told` called afterwards; None while the client is not open."""
        self.failure = ""
        """Why the server cannot be asked now."""
        self._asked_at: float | None = None
        self._again_at = -inf
        self._alone = self._taken = -inf

    def reserve(self, now: float) -> None:
        """Ask for slots if calls need them and it is time to."""
        while self.slots and self.slots[0] < now - self._late:
            self.slots.popleft()
        have, wanted = len(self.slots), self.granted + sum(map(len, self.waiting))
        if self.ask is None or have > self._most // 2 or wanted <= have:
            return
        if self._asked_at is not None:
            if now - self._asked_at > SILENCE and not self.failure:
                self.failure = f"no answer for {SILENCE:g} s"
        elif now >= self._again_at:
            self._asked_at = now
            self.ask(min(self._most, wanted - have))
        if self.failure and self.rate.fallback and not have:
            self._alone = max(self._alone + self.rate.per / self.rate.fallback, now)
            self.slots.append(self._alone)

    def told(self, slots: Iterable[float], failure: str, now: float) -> None:
        """Note the slots that were reserved, or why not."""
        self._asked_at, self.failure = None, failure
        if failure:
            self._again_at = now + ASK_AGAIN
        self.slots.extend(slots)
        if self.slots:  # reserved behind those of other processes, they tell how fast this one may send now
            self.interval = max(self._spacing, (self.slots[-1] - now) / len(self.slots))

    def ready_at(self, now: float, ahead: int = 0) -> float:
        """Return when one more request may leave, as far as known: a slot that is not reserved yet is never now."""
        while self.slots and self.slots[0] < now - self._late:
            self.slots.popleft()
        place, have = self.granted + ahead, len(self.slots)
        if place < have:
            return when if (when := self.slots[place]) > now + ROUNDING else -inf
        last = max(now, self.slots[-1]) if have else now
        return last + max(LEAST_WAIT, (place + 1 - have) * self.interval)

    def fits(self, until: float, *, now: float, need: float) -> float:
        """Return how many more requests may leave at least ``need`` seconds before a time, as far as known."""
        end, last = until - need, max(now, self.slots[-1]) if self.slots else now
        have = len(self.slots) if last <= end else sum(slot <= end for slot in self.slots)
        return have - self.granted + max(0.0, end - last) / self.interval

    def take(self, now: float) -> None:
        """Use the first slot."""
        self._taken = self.slots.popleft() if self.slots else now

    def give_back(self) -> None:
        """Use the last slot again."""
        self.slots.appendleft(self._taken)


def ready_at(buckets: Iterable[Bucket], now: float) -> float:
    """Return when all buckets let one more request leave; -inf if now."""
    when = -inf
    for bucket in buckets:
        if (its := bucket.ready_at(now)) > when:
            when = its
    return when


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
            bucket = self._by_key[key] = Bucket(self.rate) if self.rate.shared is None else SharedBucket(self.rate)
        return bucket


MOST = 64
LEAST = 4
"""Attempts that are enough to know what one needs."""

RECENT = 10.0
"""Seconds in which an attempt is recent."""

LONG_AGO = 60.0
"""Seconds after which the last attempts say nothing any more."""

SPACE = 0.001
"""Seconds after an attempt in which no other one is noted, if there are ``MOST``: that would cost more than it tells."""

HIGH = 0.95
LEAST_MARGIN = 1.1
LOST = 2.0
"""An attempt without answer that lasted longer than so many times ``need`` was lost: it says nothing of others."""


class AttemptTimes:
    """The times of recent attempts in seconds: of the last 10 s, at least 4 and at most 64 (then one in a millisecond).

    ``typical`` is their median. ``need`` is what is allowed for one attempt: the 95th percentile, and its distance from the
    median once more (or a tenth, if that is more). A request that leaves that long before its deadline is answered in time,
    but for fewer than one in a hundred. Both are 0 before the first attempt. An attempt that was cut off without answer took
    longer than it lasted: it counts as twice as long.
    """

    def __init__(self) -> None:
        self.last: deque[tuple[float, float]] = deque()
        self._sorted: list[float] = []
        self.typical = 0.0
        self.need = 0.0

    def expire(self, now: float) -> None:
        """Forget everything if the last attempt was long ago."""
        if self.last and self.last[-1][0] < now - LONG_AGO:
            self.last.clear()
            self._sorted.clear()
            self.typical = self.need = 0.0

    def add(self, seconds: float, *, now: float, answered: bool) -> None:
        """Note an attempt that has ended now."""
        if not answered:
            if not self.need / LOST < seconds <= self.need * LOST:
                return
            seconds *= LOST
        last, times = self.last, self._sorted
        if len(last) == MOST and now - last[-1][0] < SPACE:
            return
        last.append((now, seconds))
        insort(times, seconds)
        number = len(times)
        while number > LEAST and (number > MOST or last[0][0] < now - RECENT):
            del times[bisect_left(times, last.popleft()[1])]
            number -= 1
        high = times[int(HIGH * number)]
        self.typical = typical = times[number // 2]
        self.need = max(LEAST_MARGIN * high, 2 * high - typical)


class Kind:
    """One operation: the rates that count it, the scopes of its flows (:mod:`rbim.client.congestion`), its attempt times."""

    __slots__ = ("narrow", "per_group", "rates", "shared", "times", "wide")

    def __init__(self, operation: type[Operation[Any]], counting: list[tuple[Rate, Buckets]], now: float) -> None:
        self.times = AttemptTimes()
        """The times of attempts of this operation."""
        self.rates: tuple[Bucket, ...] = tuple(buckets.of(rate, now) for rate, buckets in counting if not rate.each_group)
        self.shared = self.rates
        """The buckets of all its requests: those of rates, and that of its flow if there is one."""
        self.per_group = tuple(buckets for rate, buckets in counting if rate.each_group)
        named = [rate for rate, _ in counting if rate.operations and not rate.each_group]
        self.wide: object = min(named, key=lambda rate: len(rate.operations), default=operation)
        self.narrow: object = self.per_group[0].rate if self.per_group else operation

    def narrow_of(self, group: object) -> object:
        """Return the scope of the requests for a group; that of the operation without one."""
        return self.wide if group is None else (self.narrow, group)


class Demand:
    """The tokens that a request needs: those of its ``kind``, and its ``own``, those of its group."""

    __slots__ = ("buckets", "group", "kind", "own")

    def __init__(self, kind: Kind, group: object, own: tuple[Bucket, ...]) -> None:
        self.kind = kind
        self.group = group
        self.own = own
        self.buckets: tuple[Bucket, ...] = (*kind.shared, *own)

    def lacks_only_granted(self, now: float) -> bool:
        """Whether nothing but granted tokens keeps the group from sending now."""
        return all(bucket.due - bucket.slack <= now + ROUNDING for bucket in self.own)

    def take(self, now: float) -> None:
        """Take a token from each bucket: the request leaves now."""
        for bucket in self.buckets:
            bucket.take(now)


class Demands:
    """Finds the demand of an operation: the rates that count it, and the ``flows`` that it belongs to, by their scopes."""

    def __init__(self, rates: tuple[Rate, ...], flows: Mapping[object, Bucket]) -> None:
        self._rates = tuple((rate, Buckets(rate)) for rate in rates)
        self._flows = flows
        self._kinds: dict[type[Operation[Any]], Kind] = {}
        made = [buckets.of(rate, 0.0) for rate, buckets in self._rates if rate.shared is not None]
        self.shared = tuple(bucket for bucket in made if isinstance(bucket, SharedBucket))
        """The buckets of shared rates."""

    @property
    def most_need(self) -> float:
        """The seconds that an attempt needs of the operation whose attempts need most."""
        return max((kind.times.need for kind in self._kinds.values()), default=0.0)

    def of(self, op: Operation[Any], now: float) -> Demand:
        """Return the demand of an operation."""
        return self.demand(self.kind_of(op, now), getattr(op, "group_id", None), now)

    def demand(self, kind: Kind, group: object, now: float) -> Demand:
        """Return the demand of an operation's requests for a group."""
        if group is None:
            return Demand(kind, group, ())
        own: tuple[Bucket, ...] = tuple(buckets.of(group, now) for buckets in kind.per_group)
        if self._flows and (flow := self._flows.get((kind.narrow, group))) is not None:
            own = (*own, flow)
        return Demand(kind, group, own)

    def kind_of(self, op: Operation[Any], now: float) -> Kind:
        """Return what all operations of this type have in common."""
        operation = type(op)
        kind = self._kinds.get(operation)
        if kind is None:
            counting = [each for each in self._rates if not each[0].operations or operation in each[0].operations]
            kind = self._kinds[operation] = Kind(operation, counting, now)
            self._add_flow(kind)
        return kind

    def flows_changed(self) -> None:
        """Let operations belong to the flows that there are now."""
        for kind in self._kinds.values():
            self._add_flow(kind)

    def _add_flow(self, kind: Kind) -> None:
        flow = self._flows.get(kind.wide)
        kind.shared = kind.rates if flow is None else (*kind.rates, flow)
