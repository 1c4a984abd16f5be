"""Emulated time: it stands still until it is told to go on, or jumps to the next thing that waits for it."""

from __future__ import annotations

import heapq
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import TYPE_CHECKING

import anyio
from anyio.lowlevel import checkpoint

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

__all__ = ["ROUNDS", "SLEEPERS", "EmulatedClock"]

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
END = datetime(9999, 12, 30, tzinfo=UTC)  # a day before Python's, which is another day in other zones
ROUNDS = 25  # turns of the event loop in which nothing touches the clock before it jumps

SLEEPERS: ContextVar[set[object] | None] = ContextVar("rbim.emulator.clock.sleepers", default=None)
"""Who sleeps on an emulated clock, for whoever puts a set here before starting what may: only time makes that go on."""


class EmulatedClock:
    """A clock for tests, on asyncio and trio; ``start`` is its first wall-clock time.

    :meth:`advance` lets time pass and fires what is due, in order. With ``auto`` it passes by itself while somebody sleeps:
    as soon as nobody does anything else, it jumps to the next moment that somebody waits for. Nothing ever waits for real
    time.
    """

    def __init__(self, start: datetime = START, *, auto: bool = False) -> None:
        self.start = start
        self.auto = auto
        self.elapsed = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        self._order = count()
        self._touched = 0
        self._sleepers: dict[_Sleeper, None] = {}

    def now(self) -> datetime:
        """Return the emulated wall-clock time."""
        self._touched += 1
        return self.start + timedelta(seconds=self.elapsed)

    def monotonic(self) -> float:
        """Return the emulated seconds since the clock was made."""
        self._touched += 1  # who looks at the clock does not wait for it
        return self.elapsed

    async def sleep(self, seconds: float, /) -> None:
        """Wait until the emulated time has passed."""
        if seconds <= 0:
            await checkpoint()
            return
        me, sleepers = _Sleeper(), SLEEPERS.get()
        timer = self._at(self.elapsed + seconds, me.wake)
        if sleepers is not None:
            sleepers.add(me)
        try:
            await (self._sleep_by_turns(me) if self.auto else me.called.wait())
        finally:
            timer.drop()
            if sleepers is not None:
                sleepers.discard(me)

    def scope(self, seconds: float, /) -> _Scope:
        """Return a cancel scope that ends when the emulated time has passed."""
        return _Scope(self, seconds)

    async def advance(self, seconds: float = 0.0, *, hours: float = 0.0) -> None:
        """Let time pass and fire what falls due on the way, each at its own time."""
        until = self.after(seconds + hours * 3600)
        await self._settle()
        while (due := self.next_due()) is not None and due <= until:
            self._fire_next()
            await self._settle()
        self.elapsed = max(self.elapsed, until)

    def after(self, seconds: float) -> float:
        """Return what ``elapsed`` will be in so many seconds.

        Raises InvalidRequest where time would run backwards, or past the last day that has a date.
        """
        if seconds < 0:
            raise InvalidRequest("time does not run backwards")
        until = self.elapsed + seconds
        if not until <= (END - self.start).total_seconds():
            raise InvalidRequest(f"time ends on {END:%Y-%m-%d}")
        return until

    def _at(self, when: float, do: Callable[[], object]) -> _Timer:
        self._touched += 1
        timer = _Timer(do)
        heapq.heappush(self._timers, (when, next(self._order), timer))
        return timer

    def next_due(self) -> float | None:
        """Return the emulated seconds at which somebody waits for the clock next; None where nobody does."""
        while self._timers and self._timers[0][2].do is None:
            heapq.heappop(self._timers)
        return self._timers[0][0] if self._timers else None

    def _fire_next(self) -> None:
        when, _, timer = heapq.heappop(self._timers)
        self.elapsed = max(self.elapsed, when)
        self._touched += 1
        if timer.do is not None:
            timer.do()

    async def _settle(self) -> None:
        for _ in range(ROUNDS):
            await checkpoint()

    async def _sleep_by_turns(self, me: _Sleeper) -> None:
        """Sleep, or be the one who lets time pass while all sleep: the first of them, and after it the next."""
        self._sleepers[me] = None
        self._call_first()
        try:
            await me.called.wait()
            while not me.over:
                await self._jump_when_all_wait()
        finally:
            del self._sleepers[me]
            self._call_first()

    def _call_first(self) -> None:
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


class _Timer:
    """What to do at some time, unless it is dropped before."""

    def __init__(self, do: Callable[[], object]) -> None:
        self.do: Callable[[], object] | None = do

    def drop(self) -> None:
        self.do = None


class _Sleeper:
    """Who sleeps: ``called`` at the end of it, or before that to let time pass."""

    def __init__(self) -> None:
        self.called = anyio.Event()
        self.over = False

    def wake(self) -> None:
        self.over = True
        self.called.set()


class _Scope:
    """An anyio cancel scope whose deadline is in emulated time."""

    def __init__(self, clock: EmulatedClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._scope = anyio.CancelScope()
        self._timer: _Timer | None = None

    @property
    def cancelled_caught(self) -> bool:
        return self._scope.cancelled_caught

    def cancel(self) -> None:
        self._scope.cancel()

    def __enter__(self) -> Self:
        if self._seconds > 0:
            self._timer = self._clock._at(self._clock.elapsed + self._seconds, self.cancel)  # noqa: SLF001  # two halves of one thing
        else:
            self._scope.cancel()
        self._scope.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._timer is not None:
            self._timer.drop()
        return self._scope.__exit__(kind, error, trace)
