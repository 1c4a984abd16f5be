"""Cancel scopes that share one timer, on asyncio.

They cost a fifth of anyio's cancel scopes. A client's calls wait in them (except for the client's limits: there the timer
wakes them), and so does each delivery: for its body, and for an inbox of rbim. anyio's scopes can shield, and cancel in
every iteration of the loop until they are left; these cancel once, on timeout or on request, and again every ``again``
seconds until the block has ended. On trio, and with any clock but SystemClock, the clock's own scopes are used.
"""

from __future__ import annotations

import asyncio
import time
from math import inf
from typing import TYPE_CHECKING, Protocol, TypeVar

from rbim.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Any, Self

    from rbim.clock import Clock, Scope

__all__ = ["Deadlines", "deadlines_of", "is_unshielded", "unshielded"]

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
        """Return a scope that cancels its task ``seconds`` from now; its block begins at once."""
        return self._begin(time.monotonic() + seconds)

    async def run(self, waiting: Coroutine[Any, Any, T], due: float, ended: Callable[[], Exception], /) -> T:
        """Await ``waiting`` in a scope; if it was cancelled at ``due``, or by :meth:`end`, raise ``ended()``."""
        try:
            scope = self._begin(due)
        except RuntimeError:
            waiting.close()  # else Python warns that it was never awaited
            raise
        try:  # `with scope`, in half the time
            return await waiting
        except asyncio.CancelledError:
            if not scope.is_cause():
                raise
        finally:
            del self.scopes[scope]
            if scope.asked:
                scope.take_back()
        raise ended()

    def _begin(self, due: float) -> _Scope:
        """Return a scope of the caller's task, which is entered."""
        task = asyncio.current_task()
        if task is None or task.get_loop() is not self.loop:
            raise RuntimeError("a client or a receiver works only in the event loop in which it was entered")
        scope = _Scope()  # set up here: the call of an `__init__` takes as long as all of this
        scope.deadlines = self
        scope.task = task
        scope.before = task.cancelling()
        scope.asked = 0
        self.scopes[scope] = due
        if due < self.fires:
            self._expect(due)
        return scope

    def end(self) -> None:
        """Cancel everything that waits now."""
        for scope in tuple(self.scopes):
            scope.cancel()

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

    __slots__ = ("asked", "before", "cancelled_caught", "deadlines", "task")
    deadlines: Deadlines
    task: asyncio.Task[object]
    before: int  # the cancellations of the task when the scope began
    asked: int  # those by the scope
    cancelled_caught: bool

    def cancel(self) -> None:
        """Cancel the block if it still runs."""
        if self in self.deadlines.scopes:
            self.asked += 1
            self.task.cancel()
            self.deadlines.add(self, time.monotonic() + self.deadlines.again)

    def is_cause(self) -> bool:
        """Return whether this scope alone has cancelled the task: a cancellation that another source requested must pass."""
        return self.asked > 0 and self.task.cancelling() - self.asked <= self.before

    def take_back(self) -> None:
        """Count the cancellations by this scope no more."""
        for _ in range(self.asked):
            self.task.uncancel()

    def __enter__(self) -> Self:
        self.cancelled_caught = False
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        del self.deadlines.scopes[self]
        if self.asked:
            self.cancelled_caught = kind is not None and issubclass(kind, asyncio.CancelledError) and self.is_cause()
            self.take_back()
        return self.cancelled_caught
