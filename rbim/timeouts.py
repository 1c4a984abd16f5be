"""Cancel scopes that share one timer, on asyncio.

They cost a fifth of anyio's cancel scopes. A client's calls wait in them (except for an answer of a transport that keeps
its timeouts by itself, and for the client's limits: there the timer wakes them), and so does each delivery: for its body,
and for an inbox of rbim. anyio's scopes can shield, and cancel in every iteration of the loop until they are left; these
cancel once, on timeout or on request, and again every ``again`` seconds until the block has ended. On trio, and with any
clock but SystemClock, the clock's own scopes are used.
"""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeVar

from rbim.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from rbim.clock import Clock, Scope

__all__ = ["Deadlines", "EndableTasks", "deadlines_of", "is_unshielded", "unshielded"]

F = TypeVar("F", bound="Callable[..., object]")
T = TypeVar("T")

REST = 1e-6
"""Seconds between two firings of the timer for each entered scope, at least: walking through one takes a tenth of it."""


def deadlines_of(clock: Clock, *, again: float) -> Deadlines | None:
    """Return the scopes' factory for the running event loop, or None if the clock's own scopes are needed.

    A block that has not ended ``again`` seconds after its cancellation is cancelled once more.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:  # trio
        task = None
    if task is None or type(clock) is not SystemClock:  # no task: trio runs in guest mode inside asyncio's loop
        return None
    return Deadlines(task.get_loop(), again)


def unshielded(function: F) -> F:
    """Mark a function in which nothing is shielded from cancellation, so that a scope of :class:`Deadlines` can end it."""
    function.__dict__["unshielded"] = True
    return function


def is_unshielded(function: object) -> bool:
    """Return whether a function is marked: an overriding one must be marked itself."""
    return getattr(function, "unshielded", False) is True


class _Cancellable(Protocol):
    """A wait that ends when it is cancelled."""

    def cancel(self) -> object:
        """End the wait, soon."""
        ...


class Deadlines:
    """One timer for all ``scopes`` of one event ``loop``; it ``fires`` when the first of them is due, or earlier."""

    def __init__(self, loop: asyncio.AbstractEventLoop, again: float) -> None:
        self.loop = loop
        self.again = again
        self.scopes: dict[_Cancellable, float] = {}  # what is entered and not yet left, with the time of its end
        self.fires = inf
        self._timer: asyncio.TimerHandle | None = None

    def scope(self, seconds: float) -> AbstractContextManager[Scope]:
        """Return a scope that cancels its task ``seconds`` after it was entered."""
        return _Scope(self, seconds)

    def close(self) -> None:
        """Cancel the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.fires = inf

    def add(self, scope: _Cancellable, due: float) -> None:
        """Let something be cancelled at ``due`` (``time.monotonic()``), until it is removed from ``scopes``."""
        self.scopes[scope] = due
        if due < self.fires:
            self._expect(due)

    def _expect(self, due: float) -> None:
        """Set the timer anew: it fires at ``due``."""
        self.close()
        self.fires = due
        self._timer = self.loop.call_later(max(0.0, due - time.monotonic()), self._fire)

    def _fire(self) -> None:
        self.close()
        now, first = time.monotonic(), inf
        for scope, due in self.scopes.items():
            if due <= now:
                scope.cancel()
            first = min(first, self.scopes[scope])
        # thousands of scopes that end one after the other: not all of them are walked through for each
        due = max(first, now + REST * len(self.scopes))
        if due < self.fires:
            self._expect(due)


class _Scope:
    """A scope that cancels its block on timeout or :meth:`cancel`; the task then continues after the block."""

    __slots__ = ("_asked", "_before", "_deadlines", "_seconds", "_task", "cancelled_caught")

    def __init__(self, deadlines: Deadlines, seconds: float) -> None:
        self._deadlines = deadlines
        self._seconds = seconds
        self._asked = 0
        self._task: asyncio.Task[object] | None = None
        self.cancelled_caught = False

    def cancel(self) -> None:
        """Cancel the block if it still runs."""
        if self._task is not None:
            self._asked += 1
            self._task.cancel()
            self._deadlines.add(self, time.monotonic() + self._deadlines.again)

    def __enter__(self) -> Self:
        task, deadlines = asyncio.current_task(), self._deadlines
        if task is None or task.get_loop() is not deadlines.loop:
            raise RuntimeError("a client or a receiver works only in the event loop in which it was entered")
        self._task = task
        self._before = task.cancelling()
        deadlines.add(self, time.monotonic() + self._seconds)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        del self._deadlines.scopes[self]
        task, self._task = self._task, None
        if not self._asked:
            return False
        assert task is not None  # noqa: S101  # it was entered
        for _ in range(self._asked):
            task.uncancel()
        # a cancellation that another source requested at the same time must pass
        ours = task.cancelling() <= self._before
        self.cancelled_caught = ours and kind is not None and issubclass(kind, asyncio.CancelledError)
        return self.cancelled_caught


class EndableTasks:
    """Tasks of one event loop that wait without a scope and without a timer, until :meth:`end` cancels all of them."""

    __slots__ = ("_ending", "_tasks")

    def __init__(self) -> None:
        self._ending = False
        self._tasks: dict[asyncio.Task[object], int] = {}  # with the cancellations before

    def end(self) -> None:
        """Cancel all of them, once."""
        self._ending = True
        for task in self._tasks:
            task.cancel()

    async def run(self, waiting: Awaitable[T]) -> T | None:
        """Await ``waiting`` in the caller's task, and return its result; None if :meth:`end` cancelled it."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # a coroutine of asyncio runs in a task
        self._tasks[task] = before = task.cancelling()
        try:
            return await waiting
        except asyncio.CancelledError:
            if self._ending and task.cancelling() <= before + 1:
                return None
            raise  # also a cancellation that another source requested at the same time
        finally:
            del self._tasks[task]
            if self._ending:
                task.uncancel()
