"""Emulated time: it stands still until it is advanced, or jumps to the next time that a task waits for."""

from __future__ import annotations

import heapq
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["ROUNDS", "SLEEPERS", "EmulatedClock"]

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
END = datetime(9999, 12, 30, tzinfo=UTC)  # a day before Python's last, for zones ahead of UTC
ROUNDS = 25  # turns of the event loop without use of the clock, before it jumps

SLEEPERS: ContextVar[set[object] | None] = ContextVar("rbim.emulator.clock.sleepers", default=None)
"""Set it to a set before starting tasks: the set then holds their sleeps on an emulated clock, as long as those last."""


class EmulatedClock:
    """A clock for tests, on asyncio and trio; ``start`` is its first wall-clock time.

    :meth:`advance` lets time pass and fires the due timers, in order. With ``auto`` it advances by itself: as soon as all
    tasks wait, it jumps to the next time that a task sleeps until. It never waits for real time.
    """

    def __init__(self, start: datetime = START, *, auto: bool = False) -> None:
        self.start = start
        self.auto = auto
        self.elapsed = 0.0
        self._timers: list[tuple[float, int]] = []  # a heap of the times and numbers of timers
        self._callbacks: dict[int, Callable[[], object]] = {}  # of the timers that are not cancelled
        self._order = count()
        self._touched = 0
        self._sleepers: dict[_Sleeper, None] = {}

    def now(self) -> datetime:
        """Return the emulated wall-clock time."""
        self._touched += 1
        return self.start + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        """Return the emulated seconds since the clock was created."""
        self._touched += 1  # a task that reads the clock is not idle
        return self.elapsed

    async def sleep(self, seconds: float, /) -> None:
        """Wait until ``seconds`` of emulated time have passed."""
        if seconds <= 0:
            await checkpoint()
            return
        sleeper, sleepers = _Sleeper(), SLEEPERS.get()
        timer = self._at(self.elapsed + seconds, sleeper.wake)
        if sleepers is not None:
            sleepers.add(sleeper)
        try:
            await (self._sleep_by_turns(sleeper) if self.auto else sleeper.called.wait())
        finally:
            self._cancel(timer)
            if sleepers is not None:
                sleepers.discard(sleeper)

    @contextmanager
    def scope(self, seconds: float, /) -> Generator[anyio.CancelScope]:
        """Return a cancel scope that expires after ``seconds`` of emulated time."""
        with anyio.CancelScope() as scope:
            timer = self._at(self.elapsed + max(0.0, seconds), scope.cancel)
            if seconds <= 0:
                scope.cancel()
            try:
                yield scope
            finally:
                self._cancel(timer)

    async def advance(self, seconds: float = 0.0, *, hours: float = 0.0) -> None:
        """Let time pass, ``seconds`` plus ``hours``, and fire the timers that fall due, each at its own time."""
        until = self.after(seconds + hours * 3600)
        await self._settle()
        while (due := self.next_due()) is not None and due <= until:
            self._fire_next()
            await self._settle()
        self.elapsed = max(self.elapsed, until)

    def after(self, seconds: float) -> float:
        """Return the value that ``elapsed`` will have in ``seconds``.

        Raises InvalidRequest if ``seconds`` is negative, or if the time would be past the last day that has a date.
        """
        if seconds < 0:
            raise InvalidRequest(f"time does not run backwards: advance by at least 0 seconds, not {seconds:g}")
        until = self.elapsed + seconds
        if not until <= (END - self.start).total_seconds():
            raise InvalidRequest(f"emulated time ends on {END:%Y-%m-%d}: {seconds:g} more seconds would pass it")
        return until

    def _at(self, when: float, callback: Callable[[], object]) -> int:
        """Call a function at a time; return the number of the timer."""
        self._touched += 1
        number = next(self._order)
        self._callbacks[number] = callback
        heapq.heappush(self._timers, (when, number))
        return number

    def _cancel(self, timer: int) -> None:
        self._callbacks.pop(timer, None)

    def next_due(self) -> float | None:
        """Return the emulated seconds of the next timer, or None if there is none."""
        while self._timers and self._timers[0][1] not in self._callbacks:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _fire_next(self) -> None:
        when, number = heapq.heappop(self._timers)
        self.elapsed = max(self.elapsed, when)
        self._touched += 1
        self._callbacks.pop(number)()

    async def _settle(self) -> None:
        for _ in range(ROUNDS):
            await checkpoint()

    async def _sleep_by_turns(self, sleeper: _Sleeper) -> None:
        """Sleep; the first of all sleepers advances the time meanwhile, then the next one takes over."""
        self._sleepers[sleeper] = None
        self._wake_first()
        try:
            await sleeper.called.wait()
            while not sleeper.over:
                await self._jump_when_all_wait()
        finally:
            del self._sleepers[sleeper]
            self._wake_first()

    def _wake_first(self) -> None:
        if self._sleepers:
            next(iter(self._sleepers)).called.set()

    async def _jump_when_all_wait(self) -> None:
        touched = self._touched
        for _ in range(ROUNDS):
            await checkpoint()
            if self._touched != touched:
                return
        if self.next_due() is not None:
            self._fire_next()


class _Sleeper:
    """A sleeping task: ``called`` is set at the end of its sleep, or earlier to let it advance the time."""

    def __init__(self) -> None:
        self.called = anyio.Event()
        self.over = False

    def wake(self) -> None:
        self.over = True
        self.called.set()
