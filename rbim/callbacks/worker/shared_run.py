"""What the runners of one run of a worker share: settings, backlog, flags, shields from cancellation."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from attrs import field, frozen

from rbim._support.task_errors import is_being_cancelled
from rbim._support.text import quoted
from rbim.callbacks.worker.attempt import Threads
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one, or_none

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Generator

    import attrs

    from rbim.callbacks.inbox.protocols import Backlog
    from rbim.callbacks.observers import Observers
    from rbim.callbacks.worker.backoff import Backoff
    from rbim.callbacks.worker.loop_guard import LoopGuard
    from rbim.callbacks.worker.router import HandlerCalls
    from rbim.clock import Clock

__all__ = ["GRACE", "PATIENCE", "SharedRun", "WorkerSettings", "for_at_most"]

GRACE = 3.0
"""Seconds that a cancelled worker has to record results and to release other claims."""

PATIENCE = 15.0
"""Seconds of real time for one call of the backlog, at most; less if the lease is short."""

T = TypeVar("T")


def _not_below_zero(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
        raise InvalidRequest(
            f"{attribute.name}: use a number of seconds from 0 on, not {quoted(value)}", field=attribute.name
        )


@frozen(kw_only=True)
class WorkerSettings:
    """The validated settings of a worker; times are in seconds."""

    handlers: HandlerCalls
    clock: Clock
    backoff: Backoff
    observers: Observers
    concurrency: int = field(validator=at_least_one)
    timeout: float = field(validator=above_zero)
    drain: float = field(validator=_not_below_zero)
    budget: float | None = field(default=None, validator=or_none(above_zero))


class SharedRun:
    """State that the runners of one run share: the backlog, flags, the number of successes that are not recorded, shields.

    ``waiting`` is set while no runner may begin another event: the run is stopping, or a suspect waits until it is alone.
    ``running`` is the number of runners. ``lease`` is in seconds; inboxes measure it by the clock's epoch time (``now``).
    """

    def __init__(
        self, settings: WorkerSettings, backlog: Backlog, resource: object, guard: LoopGuard | None, lease: float
    ) -> None:
        self.settings = settings
        self.backlog = backlog
        self.resource = resource
        self.guard = guard
        self.stopping = False
        self.waiting = False
        self.running = 0
        self.unrecorded = 0
        self.start: Callable[[Callable[[], Coroutine[Any, Any, None]]], object]  # set when the run begins
        self.threads = Threads(settings.concurrency)
        self.lease = lease
        self._shields: set[anyio.CancelScope] = set()
        self._over = False

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        """Shield the block from cancellation; after :meth:`end_shields`, for at most ``GRACE`` seconds."""
        with anyio.CancelScope(shield=True) as scope:
            self._shields.add(scope)
            try:
                with self.settings.clock.scope(GRACE) if self._over else nullcontext():
                    yield
            finally:
                self._shields.discard(scope)

    def end_shields(self) -> None:
        """Cancel all shielded blocks. A function in a thread may end later; recording its result has its own grace."""
        self._over = True
        for scope in self._shields:
            scope.cancel()

    def now(self) -> float:
        """Return the time in epoch seconds."""
        return self.settings.clock.now().timestamp()

    async def ask(self, call: Callable[[], Awaitable[T]], *, part: float = 2) -> T:
        """Call the backlog, for at most 1/``part`` of a lease and ``PATIENCE``. Raises TimeoutError, which names the limit.

        By real time: an emulated clock does not wait for threads.
        """
        seconds = min(PATIENCE, self.lease / part)
        with for_at_most(seconds):
            return await call()
        raise TimeoutError(f"the inbox has not answered within {seconds:g} s")


@contextmanager
def for_at_most(seconds: float) -> Generator[None, None, None]:
    """Leave the block, which calls an inbox, after so many seconds, as ``move_on_after`` does.

    A cancellation that neither a scope nor a task requested is an error of the inbox like any other: it ends no worker.
    """
    scope = anyio.move_on_after(seconds)
    try:
        with scope:
            yield
    except anyio.get_cancelled_exc_class() as error:
        if is_being_cancelled():
            raise
        if not scope.cancel_called:  # else it is the scope's, from asyncio.gather, which does not say so
            raise RuntimeError("a call of the inbox was cancelled by something that it awaited") from error
