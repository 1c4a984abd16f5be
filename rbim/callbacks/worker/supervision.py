"""The restart loop of a receiver's parts: a task in which an async context manager is entered, left and entered again."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Literal, cast

import anyio

from rbim._support.event_loops import backend, later, spawn
from rbim.callbacks.observers import PartEnded, PartRestarted
from rbim.callbacks.worker.attempt import failure_of
from rbim.callbacks.worker.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.observers import Observers
    from rbim.clock import Clock

__all__ = ["RESTARTS", "HostTask", "Supervision"]

RESTARTS = Backoff(attempts=sys.maxsize, first=0.5, factor=2.0, most=30.0)
"""The pauses before restarts. A part that has run for ``most`` seconds begins again with the first one."""


class Supervision:
    """The record of one part: whether it is ``running``, the number of ``restarts``, the last ``error`` ("" without one).

    ``part``: "worker" (with ``around``), "sink" (with the worker) or "receiver" (all of it).
    """

    def __init__(self, part: Literal["worker", "sink", "receiver"], observers: Observers, clock: Clock) -> None:
        self.part: Literal["worker", "sink", "receiver"] = part
        self.running = False
        self.restarts = 0
        self.error = ""
        self.log = observers.log
        self._observers = observers
        self._clock = clock
        self._failures = 0
        self._ended = False
        self._since = 0.0

    def started(self) -> None:
        """Record that the part runs, and report it if it was restarted."""
        self.running, self._since = True, self._clock.monotonic()
        if self._ended:
            self.restarts += 1
            self._observers.notify(PartRestarted, part=self.part, restarts=self.restarts)

    def ended(self, error: BaseException) -> float:
        """Record and report that the part ended by itself; return the seconds to wait before it is started again."""
        if self.running and self._clock.monotonic() - self._since >= RESTARTS.most:
            self._failures = 0
        self._failures += 1
        self.running, self._ended = False, True
        self.error = failure_of(error).line
        pause = RESTARTS.pause(self._failures) or RESTARTS.most
        self._observers.notify(PartEnded, part=self.part, error=self.error, pause=pause, exception=error)
        return pause


# Theory of operation: what is hosted, under supervision.
#
#   starting  A task of its own enters a new one of what ``make`` returns.
#   running   The task waits to leave it.
#   pausing   It ended by itself, and there is no task; a timer of the event loop starts the next one. A task that waited
#             would hold up an event loop that ends: it cancels all tasks and waits for them.
#   over      It was left, or could not be entered the first time.
#
# starting -> running   entered
# starting -> over      an error the first time: entering raises it
# starting -> pausing   an error after a restart, or one that is over later
# running -> pausing    an error of a background task, or a cancellation of the task by something else: reported
# pausing -> starting   the timer; reported once it runs
# any -> over           it is left, entering or leaving is cancelled, KeyboardInterrupt, SystemExit, or trio's loop ends


class HostTask:
    """Enters and leaves what ``make`` returns in a task of its own, with the context variables of the task that enters.

    Task groups in it may be left in any order and by any task. What ends it does not cancel the ``async with`` block: it is
    reported to ``supervision``, and a new one is made and entered after a pause; an error of the first entering likewise, if
    ``tries_later`` is true of it. If entering or leaving is cancelled, the task is cancelled too. Raises the errors of
    entering and leaving; those of leaving are logged if the block has raised one. A cancellation from elsewhere is a
    RuntimeError.
    """

    def __init__(
        self,
        make: Callable[[], AbstractAsyncContextManager[object]],
        supervision: Supervision,
        tries_later: Callable[[BaseException], bool] = lambda _: False,
    ) -> None:
        self.supervision = supervision
        self._make = make
        self._tries_later = tries_later
        self._scope = anyio.CancelScope()
        self._begun, self._leaving, self._ended = anyio.Event(), anyio.Event(), anyio.Event()
        self._error: BaseException | None = None
        self._task: object = None  # asyncio keeps no strong reference
        self._cancel_restart: Callable[[], object] | None = None

    async def __aenter__(self) -> Self:
        self._start()
        await self._wait(self._begun)
        if self._error is not None:
            raise self._error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self._leaving.set()
        if self._cancel_restart is not None:
            self._cancel_restart()
            self._ended.set()
        await self._wait(self._ended)
        if self._error is not None:
            if error is None:
                raise self._error
            self.supervision.log.error("the %s ended with an error", self.supervision.part, exc_info=self._error)

    def cancel(self) -> None:
        """Cancel the task, before it is left."""
        self._leaving.set()
        self._scope.cancel()

    async def _wait(self, event: anyio.Event) -> None:
        try:
            await event.wait()
        except BaseException:
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await self._ended.wait()
            raise

    def _start(self) -> None:
        self._cancel_restart = None
        self._task = spawn(self._run, name="rbim-receiver")

    async def _run(self) -> None:
        try:
            with self._scope:
                async with self._make():
                    self.supervision.started()
                    self._begun.set()
                    await self._leaving.wait()
                if not self._leaving.is_set() and not self._scope.cancel_called:
                    raise RuntimeError(f"the {self.supervision.part} was ended without an error")  # noqa: TRY301
        except BaseException as error:  # for the task that enters or leaves
            self._failed(_single(error))
        finally:
            self.supervision.running = False
            if self._cancel_restart is None:
                self._ended.set()
                self._begun.set()

    def _failed(self, error: BaseException) -> None:
        cancelled = isinstance(error, anyio.get_cancelled_exc_class())
        if cancelled or isinstance(error, GeneratorExit):
            foreign = RuntimeError(f"the {self.supervision.part} was ended by {error!r}")
            foreign.__cause__ = error
        else:
            foreign = None
        begun = self._begun.is_set() or self._tries_later(error)
        by_itself = begun and not self._leaving.is_set() and not self._scope.cancel_called
        loop_ends = (
            _has(error, KeyboardInterrupt, SystemExit)
            or isinstance(error, GeneratorExit)
            or (cancelled and backend() == "trio")
        )
        if not by_itself or loop_ends:
            self._error = foreign or error
            if by_itself and _has(error, KeyboardInterrupt) and backend() == "trio":  # asyncio has ended its loop already
                signal.raise_signal(signal.SIGINT)  # trio raises it in its main task
            return
        self._scope = anyio.CancelScope()
        self._cancel_restart = later(self.supervision.ended(foreign or error), self._start)
        self._begun.set()


def _single(error: BaseException) -> BaseException:
    """Return the only error of a group, which a task group has made of it."""
    group = cast("ExceptionGroup[Exception]", error)
    single = isinstance(cast("object", error), ExceptionGroup) and len(group.exceptions) == 1
    return _single(group.exceptions[0]) if single else error


def _has(error: BaseException, *kinds: type[BaseException]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).subgroup(kinds) is not None
    return isinstance(error, kinds)
