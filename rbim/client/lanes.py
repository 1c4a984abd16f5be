"""Waiting calls in lines: one for each operation, group and deadline; the lines of an operation are a lane.

They only compute with times that are arguments; the order of lanes is in :mod:`rbim.client.queue`.
"""

from __future__ import annotations

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from math import inf
from typing import TYPE_CHECKING

from rbim.client.limits import ROUNDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sized

    from rbim.client.demands import Demand, Kind

__all__ = ["EARLIEST", "NEWEST", "OLDEST", "Lane", "Line", "LineKey", "Waiter"]

EARLIEST, NEWEST, OLDEST = "earliest", "newest", "oldest"
"""The orders of lines: by the deadline of their first call, by their last call, by their first call."""

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
        self.line: Line | None = None
        self.state = "new"  # the states are explained in rbim.client.admission
        self.wake: Callable[[], object] | None = None


LineKey = tuple[object, float, bool]


class Line:
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

    def next(self, order: str) -> Waiter:
        """Return the call that leaves next in an order."""
        return self.last() if order == NEWEST and self.key[1] < inf else self.first()

    def earliest(self) -> tuple[float, int]:
        """Return the rank of the line in the order EARLIEST."""
        first = self.first()
        return first.latest, first.number

    def oldest(self) -> tuple[float, int]:
        """Return the rank of the line in the order OLDEST."""
        return 0.0, self.first().number

    def newest(self) -> tuple[float, int]:
        """Return the rank of the line in the order NEWEST; calls without a deadline do not give up, and keep their order."""
        if self.key[1] == inf:
            return self.earliest()
        number = self.last().number
        return -number, number


class _Heads:
    """Lines by the rank of the call that would leave first: a heap whose ranks are checked when they come to the top."""

    def __init__(self, rank: Callable[[Line], tuple[float, int]], lines: Sized) -> None:
        self._rank = rank
        self._lines = lines
        self._heap: list[tuple[tuple[float, int], Line]] = []
        self._listed: dict[Line, tuple[float, int]] = {}

    def __bool__(self) -> bool:
        return bool(self._listed)

    def push(self, line: Line) -> None:
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

    def top(self) -> Line | None:
        """Return the best line, or None if there is none."""
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
                return line
        return None

    def pop(self, line: Line) -> None:
        """Remove the line at the top."""
        heappop(self._heap)
        del self._listed[line]


class Lane:
    """The waiting calls of one operation: their lines, by the call that goes first in each order."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.lines: dict[LineKey, Line] = {}
        self._heads = {
            EARLIEST: _Heads(Line.earliest, self.lines),
            NEWEST: _Heads(Line.newest, self.lines),
            OLDEST: _Heads(Line.oldest, self.lines),
        }
        self._held: dict[object, list[Line]] = {}
        """By group: lines that only granted tokens keep from leaving."""
        self._aside: list[tuple[float, int, Line]] = []
        """Lines that wait for something of their own, by the earliest time at which they may be ready."""

    @property
    def set_aside(self) -> Iterator[Line]:
        """The lines that wait for something of their own."""
        return (line for _, _, line in self._aside if line.waiters)

    def push(self, line: Line) -> None:
        """Let a line be chosen, after a call has come to it."""
        if not line.aside:
            for heads in self._heads.values():
                heads.push(line)

    def best(self, order: str, now: float) -> Line | None:
        """Return the line whose call leaves first, if one may leave now."""
        soon = now + ROUNDING
        if self.kind.ready_at(now) > soon:
            return None
        while self._aside and self._aside[0][0] <= soon:
            back = heappop(self._aside)[2]
            back.aside = False
            if back.waiters:
                self.push(back)
        heads = self._heads[order]
        while (line := heads.top()) is not None:
            ready = line.demand.own_ready_at(now)
            if ready <= soon:
                return line
            heads.pop(line)
            self._put_aside(line, ready, now)
        return None

    def settled(self, group: object) -> bool:
        """List the lines of a group again whose granted tokens were taken or given back; return whether there are any."""
        held = self._held.pop(group, ())
        for line in held:
            line.aside = False
            if line.waiters:
                self.push(line)
        return bool(held)

    def due(self, order: str, now: float) -> float:
        """Return the earliest time at which a call may leave, after :meth:`best` has found none."""
        shared = self.kind.ready_at(now)
        if self._heads[order]:
            return shared
        return max(self._aside[0][0], shared) if self._aside else inf

    def _put_aside(self, line: Line, until: float, now: float) -> None:
        if line.aside:
            return
        line.aside = True
        if line.demand.lacks_only_granted(now):
            self._held.setdefault(line.demand.group, []).append(line)
            return
        heappush(self._aside, (until, line.number, line))
        if len(self._aside) > 2 * len(self.lines) + COMPACT:  # lines that are gone
            self._aside = [each for each in self._aside if each[2].waiters]
            heapify(self._aside)
