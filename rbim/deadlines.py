"""The scope around each call, on asyncio: what anyio's cancel scope does for it, at a fifth of the price.

anyio's scopes nest, shield and cancel again and again until they are left; a call needs none of that, but a way to end one
task at a time of its own or when told to. All calls of a client share one timer. Elsewhere than on asyncio, and by any
clock but the machine's own, the clock's scopes do it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from rbim.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from rbim.message import Clock, Scope

__all__ = ["Deadlines", "scopes"]

AGAIN = 1.0
"""Seconds after which a call that has not heeded its cancellation is cancelled once more."""


def scopes(clock: Clock) -> Callable[[float], AbstractContextManager[Scope]]:
    """Return what makes the scopes of calls in the running event loop."""
    if type(clock) is not SystemClock:
        return clock.scope
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # trio
        return clock.scope
    return Deadlines(loop).scope


class Deadlines:
    """One timer for all scopes of one event loop: it goes off when the first of them is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._scopes: dict[_Scope, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings = 0.0

    def scope(self, seconds: float) -> AbstractContextManager[Scope]:
        """Return a scope that cancels its task ``seconds`` from when it is entered."""
        return _Scope(self, seconds)

    def enter(self, scope: _Scope) -> None:
        """Look after a scope, until it leaves."""
        self._scopes[scope] = None
        if self._timer is None or scope.due < self._rings:
            self._set(scope.due)

    def leave(self, scope: _Scope) -> None:
        """Look after it no more."""
        del self._scopes[scope]

    def _set(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = due
        self._timer = self._loop.call_later(max(0.0, due - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = time.monotonic()
        for scope in self._scopes:
            if scope.due <= now:
                scope.due = now + AGAIN
                scope.cancel()
        if self._scopes:
            self._set(min(scope.due for scope in self._scopes))


class _Scope:
    """What runs inside is cancelled when the time is over; then whoever entered goes on behind the block."""

    __slots__ = ("_asked", "_before", "_deadlines", "_task", "cancelled_caught", "due")

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        self._deadlines = deadlines
        self.due = seconds
        self._asked = 0
        self._task: asyncio.Task[object] | None = None
        self.cancelled_caught = False

    def cancel(self) -> None:
        """Cancel what runs inside, if anything still does."""
        if self._task is not None:
            self._asked += 1
            self._task.cancel()

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine that no task runs cannot wait
        self._task = task
        self._before = task.cancelling()
        self.due += time.monotonic()
        self._deadlines.enter(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self._deadlines.leave(self)
        task, self._task = self._task, None
        if not self._asked:
            return False
        assert task is not None  # noqa: S101  # it was entered
        for _ in range(self._asked):
            task.uncancel()
        # somebody else's cancellation that came as well goes on through
        ours = task.cancelling() <= self._before
        self.cancelled_caught = ours and kind is not None and issubclass(kind, asyncio.CancelledError)
        return self.cancelled_caught
