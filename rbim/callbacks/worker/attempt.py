"""Code of the application in an attempt: threads for plain functions, and its failures apart from the worker's end."""

from __future__ import annotations

import asyncio
import re
import traceback
from math import inf
from threading import current_thread, main_thread
from time import monotonic
from types import coroutine
from typing import TYPE_CHECKING, Any, cast

from anyio import CancelScope, CapacityLimiter, current_effective_deadline, get_cancelled_exc_class, to_thread
from attrs import field, frozen

from rbim._support.event_loops import later
from rbim._support.task_errors import is_being_cancelled
from rbim._support.text import one_line, storable

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

__all__ = [
    "ForeignCode",
    "HandlerFailure",
    "NoThread",
    "ThreadAbandoned",
    "Threads",
    "being_cancelled",
    "caller_error",
    "failure_of",
    "result_of",
    "timed",
]

MOST_OF_TRACE = 20_000  # characters of a traceback that are kept, half of them from each end
MOST_OF_LINE = 300
BLOCKED = 0.5  # seconds for which a step of an async handler may hold the event loop without a report

# asyncio's words for a future or a lock of another loop, and asyncpg's for a connection that two loops use
_FOREIGN_LOOP = re.compile("different (event )?loop|loop other than the current|another operation is in progress")
FOREIGN_LOOP = (
    "rbim: a pool or client works in the event loop that made it only: make it where the receiver is entered, or in around="
)


@frozen
class HandlerFailure:
    """The failure of an attempt: the whole traceback, one line, and the exception (None if no handler was called).

    ``shown``: the exception if a log can show its traceback whole; otherwise it shows ``trace``.
    """

    trace: str
    line: str
    error: BaseException | None = field(default=None, repr=False, eq=False)
    shown: BaseException | None = field(default=None, repr=False, eq=False)


def failure_of(error: BaseException) -> HandlerFailure:
    """Return an exception as texts that any store can hold; one that names a foreign event loop gets a hint."""
    text = "".join(traceback.format_exception_only(error))  # also of an exception whose __str__ fails
    line = one_line(storable(text), MOST_OF_LINE)
    if _FOREIGN_LOOP.search(text):
        error.add_note(FOREIGN_LOOP)
        line = f"{line} ({FOREIGN_LOOP})"
    whole = "".join(traceback.format_exception(error))
    trace = storable(whole)
    if len(trace) > MOST_OF_TRACE:
        trace = f"{trace[: MOST_OF_TRACE // 2]}\n[...]\n{trace[-MOST_OF_TRACE // 2 :]}"
    return HandlerFailure(trace, line, error, error if trace == whole else None)


def being_cancelled() -> bool:
    """Return whether a scope around the caller is cancelled: then a cancellation caught here came from that scope."""
    return current_effective_deadline() == -inf


def caller_error(error: BaseException) -> BaseException | None:
    """Return the part of an error that the caller must raise again: its own cancellation, or the end of the process.

    None if the error belongs to the code that raised it, even if it is a cancellation that no scope requested.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup((get_cancelled_exc_class(), *_PROCESS_ENDS))
    if isinstance(error, get_cancelled_exc_class()):
        return error if is_being_cancelled() else None
    return error if isinstance(error, _PROCESS_ENDS) else None


_PROCESS_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)


class ForeignCode:
    """Judges what a handler or a provider raised, in the task that calls it. Make one before the call."""

    def __init__(self) -> None:
        self._cancels = _cancel_count()

    @property
    def cancelled_itself(self) -> bool:
        """Whether it cancelled its own task, and the cancellation is yet to come."""
        return _cancel_count() > self._cancels and not being_cancelled()

    def failed(self, error: BaseException) -> bool:
        """Return whether an error is its own failure, which takes back a cancellation of the task that no scope requested.

        Otherwise it must be raised again: Ctrl-C, the cancellation of a scope around it, or the end of the coroutine.
        """
        if isinstance(error, KeyboardInterrupt):
            return current_thread() is not main_thread()
        if isinstance(error, GeneratorExit) or (being_cancelled() and _has_no_error(error)):
            return False
        while _cancel_count() > self._cancels:
            cast("asyncio.Task[Any]", asyncio.current_task()).uncancel()
        return True


class ThreadAbandoned(Exception):
    """A plain function did not end in time after the worker's end: its thread is left running, its result unknown."""


class NoThread(Exception):
    """No thread could be started for a plain function, which was therefore not called."""


class Threads:
    """Threads for plain functions, at most ``limit`` at once. They are waited for until :meth:`abandon` is called."""

    def __init__(self, limit: int) -> None:
        self._limiter = CapacityLimiter(limit)
        self._waiting: set[CancelScope] = set()

    async def run(self, function: Callable[[], Any], *, timeout: float, hung: Callable[[], object]) -> Any:  # noqa: ASYNC109
        """Return what a function returns; if it takes longer than ``timeout`` seconds, call ``hung`` once.

        The seconds are of real time, since a thread knows no other. Raises ThreadAbandoned, or NoThread: the process has as
        many threads as it may have, or its main thread has ended.
        """
        called = False

        def call() -> tuple[Any]:
            nonlocal called
            called = True
            return result_of(function)

        with CancelScope(shield=True) as scope:
            self._waiting.add(scope)
            no_report = later(timeout, hung)
            try:
                (result,) = await to_thread.run_sync(call, limiter=self._limiter, abandon_on_cancel=True)
            except RuntimeError as failure:
                if called:
                    raise
                raise NoThread(str(failure)) from failure
            finally:
                no_report()
                self._waiting.discard(scope)
            return result
        raise ThreadAbandoned

    def abandon(self) -> None:
        """Wait for no thread any more."""
        for scope in self._waiting:
            scope.cancel()


def result_of(function: Callable[[], Any]) -> tuple[Any]:
    """Call a function in a thread; return its result in a tuple, since trio's threads refuse a bare awaitable.

    A GeneratorExit becomes a RuntimeError: an event loop that raised it would close the coroutine that waits for the thread.
    """
    try:
        return (function(),)
    except GeneratorExit as error:
        raise RuntimeError(f"it raised {error!r}") from error


@coroutine
def timed(awaitable: Awaitable[Any], blocked: Callable[[float], object]) -> Generator[Any, Any, Any]:
    """Await something; call ``blocked`` with the seconds of each step that held the event loop for too long.

    A GeneratorExit becomes a RuntimeError, unless the coroutine is closed from outside.
    """
    began = monotonic()
    steps = awaitable.__await__()
    value: Any = None
    error: BaseException | None = None
    while True:
        try:
            wait = steps.send(value) if error is None else steps.throw(error)
        except StopIteration as done:
            return done.value
        except GeneratorExit as raised:
            if isinstance(error, GeneratorExit):
                raise
            raise RuntimeError(f"it raised {raised!r}") from raised
        finally:
            if (took := monotonic() - began) > BLOCKED:
                blocked(took)
        value = error = None
        try:
            value = yield wait
        except BaseException as raised:  # for the handler
            error = raised
        began = monotonic()


def _has_no_error(error: BaseException) -> bool:
    """Return whether it is a cancellation, or the exception group of a cancelled task group (on trio) with nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return cast("BaseExceptionGroup[BaseException]", error).subgroup(Exception) is None
    return isinstance(error, get_cancelled_exc_class())


def _cancel_count() -> int:
    """Return how many times asyncio was asked to cancel this task; 0 on trio, which has no such count."""
    if get_cancelled_exc_class() is not asyncio.CancelledError:
        return 0
    task = asyncio.current_task()
    return task.cancelling() if task else 0
