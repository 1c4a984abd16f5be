"""How long attempts take: learned from those that ended while calls waited or were refused, or soon after."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque

__all__ = ["LEAST", "LEAST_MARGIN", "RECENT", "AttemptTimes"]

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
