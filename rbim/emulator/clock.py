"""Emulated time: it stands still until it is told to go on, or jumps to the next thing that waits for it."""

from __future__ import annotations

import heapq
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["EmulatedClock"]

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
ROUNDS = 25  # turns of the event loop in which nothing touches the clock before it jumps


class EmulatedClock:
    """A clock for tests, on asyncio and trio; ``start`` is its first wall-clock time.

    :meth:`advance` lets time pass and fires what is due, in order. With ``auto`` it passes by itself: as soon as everybody
    waits, it jumps to the next moment that somebody waits for. Nothing ever waits for real time.
    """

    def __init__(self, start: datetime = START, *, auto: bool = False) -> None:
        self.start = start
        self.auto = auto
        self.elapsed = 0.0
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._touched = 0

    def now(self) -> datetime:
        """Return the emulated wall-clock time."""
        return self.start + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        """Return the emulated seconds since the clock was made."""
        return self.elapsed

    async def sleep(self, seconds: float, /) -> None:
        """Wait until the emulated time has passed."""
        if seconds <= 0:
            await checkpoint()
            return
        event = anyio.Event()
        self._at(self.elapsed + seconds, event.set)
        if not self.auto:
            await event.wait()
            return
        while not event.is_set():
            await self._jump_when_all_wait()

    def scope(self, seconds: float, /) -> _Scope:
        """Return a cancel scope that ends when the emulated time has passed."""
        return _Scope(self, seconds)

    async def advance(self, seconds: float = 0.0, *, hours: float = 0.0) -> None:
        """Let time pass and fire what falls due on the way, each at its own time."""
        until = self.elapsed + seconds + hours * 3600
        await self._settle()
        while self._timers and self._timers[0][0] <= until:
            self._fire_next()
            await self._settle()
        self.elapsed = until

    def _at(self, when: float, do: Callable[[], object]) -> None:
        self._touched += 1
        heapq.heappush(self._timers, (when, next(self._order), do))

    def _fire_next(self) -> None:
        when, _, do = heapq.heappop(self._timers)
        self.elapsed = max(self.elapsed, when)
        self._touched += 1
        do()

    async def _settle(self) -> None:
        for _ in range(ROUNDS):
            await checkpoint()

    async def _jump_when_all_wait(self) -> None:
        touched = self._touched
        for _ in range(ROUNDS):
            await checkpoint()
            if self._touched != touched:
                return
        if self._timers:
            self._fire_next()


class _Scope:
    """An anyio cancel scope whose deadline is in emulated time."""

    def __init__(self, clock: EmulatedClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._scope = anyio.CancelScope()
        self._over = False

    @property
    def cancelled_caught(self) -> bool:
        return self._scope.cancelled_caught

    def cancel(self) -> None:
        self._scope.cancel()

    def _expire(self) -> None:
        if not self._over:
            self._scope.cancel()

    def __enter__(self) -> Self:
        self._clock._at(self._clock.elapsed + self._seconds, self._expire)  # noqa: SLF001  # two halves of one thing
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._over = True
        return self._scope.__exit__(kind, error, trace)
