"""The queue of calls that wait for the client's limits: which call leaves next, and when.

It only computes with times that are arguments; :mod:`rbim.client.admission` waits.
"""

# Theory of operation
#
# A call that waits holds nothing: no place in flight, no token of any rate. When a place or a token becomes free,
# `next` chooses, among the calls whose rates and congestion all allow them to leave now, the one that leaves.
#
# Waiting calls stand in lines: one for each operation, group and deadline. All calls of a line need the same tokens and
# have the same patience, so only its ends matter. The lines of one operation are a lane; those that wait for something
# of their own (a rate or congestion of a group) stand aside until that time. So a choice looks at a few operations, and
# in each at the top of a heap of lines: O(log n).
#
# There are two levels. A call of the level LOW leaves when none of the level NORMAL can, and in one of `TURN` choices.
# Within a level there are two orders:
#
# EARLIEST   the call whose deadline is nearest; with equal deadlines first come, first served. A call that
#            cannot be answered before its deadline, behind the calls ahead of it, is refused at once, or in its place the
#            last call of the group with most waiting calls. So the queue is never longer than its callers wait, as far as
#            their deadlines say, and a busy group leaves the others their share.
# NEWEST     the newest call first. Callers may give up earlier than their deadline says (asyncio.timeout); a queue that is
#            longer than they wait would serve only calls that are about to give up.
#
# EARLIEST -> NEWEST   when a call is cancelled that waits or has waited, while others wait
# NEWEST -> EARLIEST   when none was cancelled for twice the age that such a call had; or the queue is empty
#
# The level LOW is always in the order EARLIEST: no one looks at a clock behind those calls.
#
# A request that a sender has prepared waits without a deadline. It leaves behind all calls that have one, in either order
# first come, first served, and in the turns below; it is never refused, and no call is refused because it waits.
#
# No call starves: one in eight choices is the call that has waited longest, if that is longer than half its deadline or
# `TURN_AFTER`, or in the order NEWEST clearly longer than the calls that gave up.
#
# A line whose group has no token left stands aside until that time. If only granted tokens are missing (`Bucket.granted`),
# it is held until the call that has them leaves or gives them back (`settled`).

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import partial
from heapq import heapify, heappop, heappush
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from rbim.client.limits import LOW, NORMAL, ROUNDING, ready_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sized

    from rbim.client.limits import Demand, Kind

__all__ = ["EARLIEST", "Queue", "Room", "Waiter"]

TURN_AFTER = 60.0
"""Seconds that a call waits at most until it has turns before calls with nearer deadlines."""

STEPS = 16
"""Parts in which the calls ahead of a new one are looked at."""

MOST_LINES = 128
"""Lines set aside that are looked at for a new call."""

TURN = 8
"""One in so many choices is the call that has waited longest, if it has waited long; and so for a call of low priority."""

PATIENT = 1.5
"""In the order NEWEST: how many times as long as the calls that gave up it must have waited."""

NOTED = 2.0
"""How many times as long as it had waited a call that gave up is remembered."""

FADE = 0.9
"""What remains of the longest such time with each call that gives up."""

FRESH = 0.95
"""Share of its deadline that a call has left when it waits for the first time, at least."""


COMPACT = 64
"""Entries of calls that are gone, which a heap may have at least."""


class Waiter:
    """A call that waits since ``since`` and must be answered before ``latest``.

    ``deadline`` is the seconds of its whole call, ``attempt`` those of one attempt, ``level`` is its priority. Without a
    deadline it and ``latest`` are infinite.
    """

    __slots__ = (
        "attempt",
        "deadline",
        "demand",
        "latest",
        "level",
        "line",
        "number",
        "since",
        "state",
        "wake",
    )

    def __init__(  # noqa: PLR0913  # the facts of a call, by keyword
        self, demand: Demand, *, now: float, latest: float, deadline: float, attempt: float, level: int
    ) -> None:
        self.demand = demand
        self.since = now
        self.latest = latest
        self.deadline = deadline
        self.attempt = attempt
        self.level = level
        self.number = 0
        self.line: _CallLine | None = None
        self.state = "new"  # the states are explained in rbim.client.admission
        self.wake: Callable[[], object] | None = None

    def cancel(self) -> None:
        """End the wait: the call then looks at its state and at the time."""
        if self.wake is not None:
            self.wake()


LineKey = tuple[object, float, bool]
Rank = tuple[float, int]
Order = Callable[["_CallLine"], Rank]


class _CallLine:
    """The waiting calls of one operation, group and deadline, in the order in which they came.

    Calls that wait again, for a retry, have lines of their own: less of their deadline is left.
    """

    __slots__ = ("aside", "demand", "key", "number", "waiters")

    def __init__(self, demand: Demand, key: LineKey, number: int) -> None:
        self.demand = demand
        self.key = key
        self.number = number
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.aside = False

    def first(self) -> Waiter:
        """Return the call that came first."""
        return next(iter(self.waiters))

    def last(self) -> Waiter:
        """Return the call that came last."""
        return next(reversed(self.waiters))

    def next(self, order: Order) -> Waiter:
        """Return the call that leaves next in an order."""
        return self.last() if order is _NEWEST and self.key[1] < inf else self.first()

    def earliest(self) -> Rank:
        """Return the rank of the line in the order EARLIEST."""
        first = self.first()
        return first.latest, first.number

    def oldest(self) -> Rank:
        """Return the rank of the line in the order OLDEST."""
        return 0.0, self.first().number

    def newest(self) -> Rank:
        """Return the rank of the line in the order NEWEST; calls without a deadline do not give up, and keep their order."""
        if self.key[1] == inf:
            return self.earliest()
        number = self.last().number
        return -number, number


EARLIEST, _NEWEST, _OLDEST = _CallLine.earliest, _CallLine.newest, _CallLine.oldest
"""The orders of lines: by the deadline of their first call, by their last call, by their first call."""


class _Heads:
    """Lines by the rank of the call that would leave first: a heap whose ranks are checked when they come to the top."""

    def __init__(self, order: Order, lines: Sized) -> None:
        self._rank = order
        self._lines = lines
        self._heap: list[tuple[Rank, _CallLine]] = []
        self._listed: dict[_CallLine, Rank] = {}

    def __bool__(self) -> bool:
        return bool(self._listed)

    def push(self, line: _CallLine) -> None:
        """Add a line, or raise it if its rank has become better."""
        rank, before = self._rank(line), self._listed.get(line)
        if before is not None and before <= rank:
            return
        self._listed[line] = rank
        heappush(self._heap, (rank, line))
        if len(self._heap) > 2 * len(self._lines) + COMPACT:  # entries of former ranks, and of lines that are gone
            self._listed = {line: rank for line, rank in self._listed.items() if line.waiters}
            self._heap = [(rank, line) for line, rank in self._listed.items()]
            heapify(self._heap)

    def top(self) -> tuple[Rank, _CallLine] | None:
        """Return the best line with its rank, or None if there is none."""
        while self._heap:
            rank, line = self._heap[0]
            if self._listed.get(line) != rank:  # it was raised, or popped
                heappop(self._heap)
            elif not line.waiters:
                self.pop(line)
            elif (now_ranked := self._rank(line)) != rank:
                self.pop(line)
                self._listed[line] = now_ranked
                heappush(self._heap, (now_ranked, line))
            else:
                return rank, line
        return None

    def pop(self, line: _CallLine) -> None:
        """Remove the line at the top."""
        heappop(self._heap)
        del self._listed[line]


class _Lane:
    """The waiting calls of one operation: their lines, by the call that goes first in each order."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.lines: dict[LineKey, _CallLine] = {}
        self._heads: dict[Order, _Heads] = {}
        """By order, from the first choice in this order on."""
        self._held: dict[object, list[_CallLine]] = {}
        """By group: lines that only granted tokens keep from leaving."""
        self.aside: list[tuple[float, int, _CallLine]] = []
        """Lines that wait for something of their own, by the earliest time at which they may be ready."""

    def push(self, line: _CallLine) -> None:
        """Let a line be chosen, after a call has come to it: in the order NEWEST it has moved, in the others only if new."""
        if not line.aside:
            for order, heads in self._heads.items():
                if len(line.waiters) == 1 or order is _NEWEST:
                    heads.push(line)

    def _bring_back(self, line: _CallLine) -> None:
        line.aside = False
        if line.waiters:
            for heads in self._heads.values():
                heads.push(line)

    def best(self, order: Order, now: float) -> tuple[Rank, _CallLine] | None:
        """Return the line whose call leaves first, with its rank, if one may leave now."""
        soon = now + ROUNDING
        if ready_at(self.kind.shared, now) > soon:
            return None
        while self.aside and self.aside[0][0] <= soon:
            self._bring_back(heappop(self.aside)[2])
        heads = self._heads.get(order)
        if heads is None:
            heads = self._heads[order] = _Heads(order, self.lines)
            for each in self.lines.values():
                if not each.aside:
                    heads.push(each)
        while (best := heads.top()) is not None:
            line = best[1]
            ready = ready_at(line.demand.own, now)
            if ready <= soon:
                return best
            heads.pop(line)
            self._put_aside(line, ready, now)
        return None

    def settled(self, group: object) -> bool:
        """List the lines of a group again whose granted tokens were taken or given back; return whether there are any."""
        held = self._held.pop(group, ())
        for line in held:
            self._bring_back(line)
        return bool(held)

    def due(self, order: Order, now: float) -> float:
        """Return the earliest time at which a call may leave, after :meth:`best` has found none."""
        shared = ready_at(self.kind.shared, now)
        if self._heads.get(order, self.lines):
            return shared
        return max(self.aside[0][0], shared) if self.aside else inf

    def _put_aside(self, line: _CallLine, until: float, now: float) -> None:
        if line.aside:
            return
        line.aside = True
        if line.demand.lacks_only_granted(now):
            self._held.setdefault(line.demand.group, []).append(line)
            return
        heappush(self.aside, (until, line.number, line))
        if len(self.aside) > 2 * len(self.lines) + COMPACT:  # lines that are gone
            self.aside = [each for each in self.aside if each[2].waiters]
            heapify(self.aside)


class Room(NamedTuple):
    """The places in flight, and the seconds for which an attempt needs one: usually, and at most."""

    places: int
    free: int
    typical: float
    need: float

    def fits(self, until: float, *, now: float) -> float:
        """Return how many requests can leave in time for an answer at ``until``."""
        return self.free + self.places * (until - self.need - now) / self.typical if self.typical else inf


class _Level:
    """The waiting calls of one priority, the ``number`` of the level; :class:`Queue` says what its methods do."""

    def __init__(self, number: int) -> None:
        self._level = number
        self._waiters: OrderedDict[Waiter, None] = OrderedDict()
        self._ranks: list[float] = []
        self._lanes: dict[Kind, _Lane] = {}
        """The operations that wait."""
        self._number = 0
        self._newest_until = -inf
        self._gave_up_after = 0.0
        self._turn = 0

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def oldest(self) -> Waiter:
        return next(iter(self._waiters))

    @property
    def with_deadline(self) -> int:
        return bisect_left(self._ranks, inf)  # a request without a deadline keeps no call from leaving in time

    def __iter__(self) -> Iterator[Waiter]:
        return iter(self._waiters)

    def add(self, waiter: Waiter) -> None:
        demand = waiter.demand
        key = (demand.group, waiter.deadline, waiter.latest - waiter.since < FRESH * waiter.deadline)
        self._number += 1
        waiter.number = self._number
        lane = self._lanes.get(demand.kind)
        if lane is None:
            lane = self._lanes[demand.kind] = _Lane(demand.kind)
        line = lane.lines.get(key)
        if line is None:
            line = lane.lines[key] = _CallLine(demand, key, self._number)
        waiter.line, waiter.state = line, "waiting"
        line.waiters[waiter] = None
        self._waiters[waiter] = None
        insort(self._ranks, waiter.latest)
        for bucket in demand.buckets:
            insort(bucket.waiting[self._level], waiter.latest)
        lane.push(line)

    def remove(self, waiter: Waiter) -> None:
        line = waiter.line
        assert line is not None  # noqa: S101  # it was added
        waiter.line = None
        kind = line.demand.kind
        del line.waiters[waiter]
        del self._waiters[waiter]
        if not line.waiters:
            lines = self._lanes[kind].lines
            del lines[line.key]
            if not lines:
                del self._lanes[kind]
        del self._ranks[bisect_left(self._ranks, waiter.latest)]
        for bucket in waiter.demand.buckets:
            ranks = bucket.waiting[self._level]
            del ranks[bisect_left(ranks, waiter.latest)]
        if not self._waiters:
            self._newest_until = -inf

    def last_of_most(self, waiter: Waiter) -> Waiter | None:
        # Calls without a group are no group: none of them makes way, or has another make way.
        if waiter.demand.group is None:
            return None
        waiting = Counter[object]()
        for lane in self._lanes.values():
            for line in lane.lines.values():
                if line.demand.group is not None:
                    waiting[line.demand.group] += len(line.waiters)
        (group, most), *_ = waiting.most_common(1) or [(None, 0)]
        if most <= waiting[waiter.demand.group] + 1:
            return None
        lines = (line for lane in self._lanes.values() for line in lane.lines.values() if line.demand.group == group)
        return max((line.last() for line in lines), key=lambda each: (each.latest, each.number))

    def gave_up(self, age: float, now: float) -> None:
        if self._waiters:
            self._newest_until = max(self._newest_until, now + NOTED * age)
            self._gave_up_after = max(age, self._gave_up_after * FADE)

    def order(self, now: float) -> Order:
        return _NEWEST if now < self._newest_until else EARLIEST

    def earliest_start(self, waiter: Waiter, now: float, room: Room, *, exact: bool, before: int) -> float:
        demand = waiter.demand
        if now < self._newest_until:
            return max(now, ready_at(demand.buckets, now))
        start = now
        held_back = self._held_back(waiter.latest, now, room) if exact else 0
        for bucket in demand.buckets:
            waiting = bucket.waiting[self._level]
            ahead = bisect_right(waiting, waiter.latest)
            if exact:
                ahead = self._served(waiting, ahead, partial(bucket.fits, now=now, need=room.need))
                ahead = max(0, ahead - held_back) if bucket in demand.kind.shared else ahead
            for first in bucket.waiting[: self._level]:
                ahead += bisect_left(first, inf)
            start = max(start, bucket.ready_at(now, ahead))
        ahead = bisect_right(self._ranks, waiter.latest)
        if exact:
            ahead = max(0, self._served(self._ranks, ahead, partial(room.fits, now=now)) - held_back)
        return max(start, now + (ahead + before + 1 - room.free) / room.places * room.typical)

    def _held_back(self, latest: float, now: float, room: Room) -> int:
        """Return how many calls with deadlines up to ``latest`` the rates of their groups keep from leaving before that.

        They are in the queue ahead of another group's call, and do not take its turns. At most ``MOST_LINES`` lines count.
        """
        lines = islice((line for lane in self._lanes.values() for *_, line in lane.aside if line.waiters), MOST_LINES)
        held = 0.0
        for bucket in dict.fromkeys(bucket for line in lines for bucket in line.demand.own):
            ahead = bisect_right(bucket.waiting[self._level], latest)
            held += max(0.0, ahead - max(0.0, bucket.fits(latest, now=now, need=room.need)))
        return int(held)

    @staticmethod
    def _served(ranks: list[float], ahead: int, fits: Callable[[float], float]) -> int:
        """Return about how many of the first ``ahead`` calls can be served, each before its own deadline.

        ``fits`` is the number of requests that can leave in time for an answer at a time. The calls are looked at in up
        to ``STEPS`` parts; the result is exact where all of them can be served.
        """
        done, served = 0, 0.0
        for step in range(1, STEPS + 1):
            last = ahead * step // STEPS
            if last > done:
                served = min(served + last - done, max(0.0, fits(ranks[last - 1])))
                done = last
        return int(served)

    def next(self, now: float) -> Waiter | None:
        if not self._waiters:
            return None
        if self._turn + 1 >= TURN and self._has_waited_long(self.oldest, now):
            waiter = self._choose(_OLDEST, now)
            if waiter is not None and self._has_waited_long(waiter, now):
                self._turn = 0
                return waiter
        waiter = self._choose(self.order(now), now)
        if waiter is not None:
            self._turn += 1
        return waiter

    def _has_waited_long(self, waiter: Waiter, now: float) -> bool:
        long = PATIENT * self._gave_up_after if now < self._newest_until else min(TURN_AFTER, waiter.deadline / 2)
        return now - waiter.since >= long

    def settled(self, demand: Demand) -> bool:
        return sum(lane.settled(demand.group) for lane in self._lanes.values()) > 0

    def due(self, now: float) -> float:
        if not self._waiters:
            return inf
        order = self.order(now)
        return min(lane.due(order, now) for lane in self._lanes.values())

    def _choose(self, order: Order, now: float) -> Waiter | None:
        best = [found for lane in self._lanes.values() if (found := lane.best(order, now)) is not None]
        return min(best)[1].next(order) if best else None


class Queue:
    """The calls that wait for the limits of one client."""

    def __init__(self) -> None:
        self._levels = self._normal, self._low = _Level(NORMAL), _Level(LOW)
        self._turn = 0
        self.size = 0
        """The number of waiting calls."""

    def __iter__(self) -> Iterator[Waiter]:
        for level in self._levels:
            yield from tuple(level)

    @property
    def oldest(self) -> Waiter:
        """The call that has waited longest."""
        return min((level.oldest for level in self._levels if level), key=lambda waiter: waiter.since)

    def add(self, waiter: Waiter) -> None:
        """Let a call wait."""
        self.size += 1
        self._levels[waiter.level].add(waiter)

    def remove(self, waiter: Waiter) -> None:
        """Let a call wait no longer."""
        self.size -= 1
        self._levels[waiter.level].remove(waiter)

    def last_of_most(self, waiter: Waiter) -> Waiter | None:
        """Return the last call of the group with most waiting calls, if it has two more than the group of a new call."""
        return self._levels[waiter.level].last_of_most(waiter)

    def gave_up(self, age: float, now: float) -> None:
        """Note that the caller of a normal call gave up, ``age`` seconds after it came; it waits, or has waited."""
        self._normal.gave_up(age, now)

    def earliest_start(self, waiter: Waiter, now: float, room: Room, *, exact: bool) -> float:
        """Return when a new call can leave at the earliest, if none of the calls ahead of it gives up.

        Without ``exact`` it is an upper bound that is found faster: it counts also those calls ahead that cannot be
        answered in time themselves.
        """
        before = self._normal.with_deadline if waiter.level == LOW else 0
        return self._levels[waiter.level].earliest_start(waiter, now, room, exact=exact, before=before)

    def next(self, now: float) -> Waiter | None:
        """Return the call that is to leave now, if there is one. It still waits: :meth:`remove` it."""
        low = len(self._low) > 0
        if low and self._turn + 1 >= TURN and (waiter := self._low.next(now)) is not None:
            self._turn = 0
            return waiter
        waiter = self._normal.next(now)
        if waiter is None:
            return self._low.next(now) if low else None
        self._turn += 1
        return waiter

    def settled(self, demand: Demand) -> bool:
        """Note that granted tokens were taken or given back; return whether lines were held for them."""
        return bool(demand.own) and sum(level.settled(demand) for level in self._levels) > 0

    def due(self, now: float) -> float:
        """Return the earliest time at which a call may leave, after :meth:`next` has found none: inf if none waits."""
        return min(self._normal.due(now), self._low.due(now))
