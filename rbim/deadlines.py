"""The scope around each call, on asyncio: what anyio's cancel scope does for it, at a fifth of the price.

anyio's scopes shield, and cancel at every turn of the loop until they are left; a call needs a way to end one task at a time
of its own or when told to, and time for that task to clean up. All calls of a client share one timer. Elsewhere than on
asyncio, and by any clock but the machine's own, the clock's scopes do it.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from rbim.clock import SystemClock

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from rbim.message import Clock, Scope

__all__ = ["Deadlines", "deadlines_of"]

AGAIN = 5.0
"""Seconds that a call may take to clean up; one that has not ended by then has not heeded, and is cancelled once more."""


def deadlines_of(clock: Clock) -> Deadlines | None:
    """Return what makes the scopes of calls in the running event loop, or None where that is the clock's part."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # trio
        task = None
    if task is None or type(clock) is not SystemClock:  # there is no task where trio is a guest of asyncio's loop
        return None
    return Deadlines(task.get_loop())


class Deadlines:
    """One timer for all scopes of one event ``loop``: it goes off when the first of them is due."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._scopes: dict[_Scope, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._rings = 0.0

    def scope(self, seconds: float) -> AbstractContextManager[Scope]:
        """Return a scope that cancels its task ``seconds`` from when it is entered."""
        return _Scope(self, seconds)

    def close(self) -> None:
        """Give the timer up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def enter(self, scope: _Scope) -> None:
        """Look after a scope, until it leaves."""
        self._scopes[scope] = None
        self.expect(scope.due)

    def expect(self, due: float) -> None:
        """See to it that the timer goes off by then."""
        if self._timer is None or due < self._rings:
            self._set(due)

    def leave(self, scope: _Scope) -> None:
        """Look after it no more."""
        del self._scopes[scope]

    def _set(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings = due
        self._timer = self.loop.call_later(max(0.0, due - time.monotonic()), self._ring)

    def _ring(self) -> None:
        self._timer = None
        now = time.monotonic()
        for scope in self._scopes:
            if scope.due <= now:
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
            self.due = time.monotonic() + AGAIN
            self._deadlines.expect(self.due)

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        if task is None or task.get_loop() is not self._deadlines.loop:
            reason = "a client serves the event loop in which it was entered, and no other"
            raise RuntimeError(reason)
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
