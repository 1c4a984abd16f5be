"""The seconds that each delivery has, kept by one timer for all of them.

Half of what a cancel scope costs is its timer. Deliveries that have equally long end in the order in which they began, so
that on asyncio one timer is enough, set for the oldest. With any other clock, and on trio, each has its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from anyio import CancelScope

from rbim.callbacks.wake import backend
from rbim.clock import SystemClock

if TYPE_CHECKING:
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

    def close(self) -> None:
        """Undo :meth:`open`: who comes later may come from another event loop."""
        self._shared = None


class _Timer:
    """Ends the scopes whose time is over. One timer of the event loop is enough: it is set for the oldest."""

    def __init__(self, seconds: float) -> None:
        from asyncio import get_running_loop

        self.loop = get_running_loop()
        self.turns: dict[CancelScope, float] = {}
        self._seconds = seconds
        self._ticks = False

    def begin(self, scope: CancelScope) -> None:
        now = self.loop.time()
        self.turns[scope] = now + self._seconds
        if not self._ticks:
            self._ticks = True
            self.loop.call_at(now + self._seconds, self._look)

    def _look(self) -> None:
        now = self.loop.time()
        for scope, until in tuple(self.turns.items()):
            if until > now:
                self.loop.call_at(until, self._look)
                return
            del self.turns[scope]
            scope.cancel()
        self._ticks = False


class _Turn:
    """One block: a cancel scope without a deadline of its own."""

    __slots__ = ("_scope", "_timer")

    def __init__(self, timer: _Timer) -> None:
        self._timer = timer
        self._scope = CancelScope()

    def __enter__(self) -> None:
        self._scope.__enter__()
        self._timer.begin(self._scope)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self._timer.turns.pop(self._scope, None)
        return bool(self._scope.__exit__(kind, error, trace))
