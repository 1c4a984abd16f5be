"""The seconds that each delivery has, kept by one timer for all of them.

A cancel scope with a deadline for each would cost a third of what a delivery does. Deliveries that have equally long end in
the order in which they began, so that on asyncio one timer is enough, which looks at the oldest. With another clock than the
machine's, and on trio, each has a scope.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from rbim.callbacks.wake import backend
from rbim.clock import SystemClock

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task
    from contextlib import AbstractContextManager
    from types import TracebackType

    from rbim.message import Clock

__all__ = ["Budget"]


class Budget:
    """Gives each block of :meth:`turn` the same number of ``seconds``, after which the block is left without an error."""

    def __init__(self, seconds: float, clock: Clock) -> None:
        self.seconds = seconds
        self._clock = clock
        self._shared: _Timer | None = None

    def turn(self) -> AbstractContextManager[object, bool]:
        """Return a context manager for the time from now on."""
        if self._shared is None:
            return cast("AbstractContextManager[object, bool]", self._clock.scope(self.seconds))
        return _Turn(self._shared)

    def open(self) -> None:
        """Prepare for the event loop of the caller."""
        if isinstance(self._clock, SystemClock) and backend() == "asyncio":
            self._shared = _Timer(self.seconds)


class _Timer:
    """What asyncio has instead of deadlines: whoever is over time is cancelled."""

    def __init__(self, seconds: float) -> None:
        import asyncio

        self.loop: AbstractEventLoop = asyncio.get_running_loop()
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
        for turn, until in tuple(self.turns.items()):
            if until > now:
                self.loop.call_at(until, self._look)
                return
            del self.turns[turn]
            turn.end()
        self._ticks = False


class _Turn:
    """One block. It swallows the cancellation that came of its timer, and no other."""

    __slots__ = ("_cancels", "_over", "_task", "_timer")

    def __init__(self, timer: _Timer) -> None:
        self._timer = timer
        self._over = False

    def __enter__(self) -> None:
        task: Task[Any] | None = self._timer.task()
        assert task is not None  # noqa: S101  # coroutines run in tasks
        self._task = task
        self._cancels = task.cancelling()
        self._timer.begin(self)

    def end(self) -> None:
        self._over = True
        self._task.cancel()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if not self._over:
            del self._timer.turns[self]
            return False
        return self._task.uncancel() <= self._cancels and kind is self._timer.cancelled
