"""The seconds that each delivery has: for its body to arrive, and for the sink to take it.

A cancel scope with a timer for each body would cost a third of what a delivery does, and a body is nearly always there. On
asyncio, by the machine's clock, bodies share one timer: they have equally long, so that they end in the order in which they
began. It cancels as asyncio does, again and again, what only waits for the server. What a sink does has a scope of its own,
whose shields hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from rbim._support.event_loops import backend
from rbim.clock import SystemClock

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType

    from rbim.clock import Clock

__all__ = ["Budget"]

AGAIN = 0.05  # seconds between two cancellations of what does not end


class Budget:
    """Gives each delivery ``seconds`` in all, after which a block is left without an error."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self._clock = clock
        self._shared: _Timer | None = None

    def reading(self) -> AbstractContextManager[object, bool]:
        """Return a context manager for as long as a body may take."""
        if self._shared is None:
            return cast("AbstractContextManager[object, bool]", self._clock.scope(self.seconds))
        return _Turn(self._shared)

    def rest(self, began: float) -> AbstractContextManager[object, bool]:
        """Return a context manager for what is left to a delivery that began at a time of the clock."""
        left = self.seconds - (self._clock.monotonic() - began)
        return cast("AbstractContextManager[object, bool]", self._clock.scope(left))

    def open(self) -> None:
        """Prepare for the event loop of the caller."""
        if isinstance(self._clock, SystemClock) and backend() == "asyncio":
            self._shared = _Timer(self.seconds)

    def close(self) -> None:
        """Undo :meth:`open`: who comes later may come from another event loop."""
        self._shared = None


class _Timer:
    """Cancels whose time is over. One timer of the event loop is enough: it is set for the oldest."""

    def __init__(self, seconds: float) -> None:
        import asyncio

        self.loop = asyncio.get_running_loop()
        self.task = asyncio.current_task
        self.cancelled = asyncio.CancelledError
        self.turns: dict[_Turn, float] = {}
        self._seconds = seconds
        self._ticks = False

    def begin(self, turn: _Turn) -> None:
        now = self.loop.time()
        self.turns[turn] = now + self._seconds
        if not self._ticks:
            self._ticks = True
            self.loop.call_at(now + self._seconds, self._look)

    def _look(self) -> None:
        now = self.loop.time()
        over = [turn for turn, until in self.turns.items() if until <= now]
        for turn in over:
            turn.end()
        if over:
            self.loop.call_at(now + AGAIN, self._look)
        elif self.turns:
            self.loop.call_at(next(iter(self.turns.values())), self._look)
        else:
            self._ticks = False


class _Turn:
    """One block. It swallows the cancellations that came of its timer, and no other."""

    __slots__ = ("_before", "_ended", "_task", "_timer")

    def __init__(self, timer: _Timer) -> None:
        self._timer = timer
        self._ended = 0

    def __enter__(self) -> None:
        task = self._timer.task()
        assert task is not None  # noqa: S101  # coroutines run in tasks
        self._task = task
        self._before = task.cancelling()
        self._timer.begin(self)

    def end(self) -> None:
        self._ended += 1
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        del self._timer.turns[self]
        for _ in range(self._ended):
            self._task.uncancel()
        return self._ended > 0 and kind is self._timer.cancelled and self._task.cancelling() <= self._before
