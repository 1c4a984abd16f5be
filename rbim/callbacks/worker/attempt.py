"""One attempt to handle one event: calls the handler, in time, and tells a failure from the end of the worker."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from math import inf
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, cast

from anyio import current_effective_deadline, get_cancelled_exc_class, to_thread
from anyio.lowlevel import checkpoint
from attrs import frozen

from rbim._support.text import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from anyio import CapacityLimiter

    from rbim.callbacks.worker.router import HandlerCall
    from rbim.clock import Clock

__all__ = ["HandlerFailure", "being_cancelled", "failure_of", "of_the_caller", "perform"]

TRACE = 20_000  # characters of a traceback that are kept, half of them from either end
LINE = 300


@frozen
class HandlerFailure:
    """Why an event was not handled: the whole traceback, and one line."""

    trace: str
    line: str


def failure_of(error: BaseException) -> HandlerFailure:
    """Return an exception as texts that any store can keep."""
    trace = _storable("".join(traceback.format_exception(error)))
    if len(trace) > TRACE:
        trace = f"{trace[: TRACE // 2]}\n[...]\n{trace[-TRACE // 2 :]}"
    return HandlerFailure(trace, one_line(_storable("".join(traceback.format_exception_only(error))), LINE))


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # halves of surrogate pairs are in no file


def being_cancelled() -> bool:
    """Return whether the scopes around the caller end: whether a cancellation that was caught here came from there."""
    return current_effective_deadline() == -inf


def of_the_caller(error: BaseException) -> BaseException | None:
    """Return what is to be raised again of what somebody else's code raised: the caller is cancelled, or the process ends.

    None where the error is that code's own, a cancellation that nobody asked for included.
    """
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        return group.subgroup((get_cancelled_exc_class(), *_ENDS))
    if isinstance(error, get_cancelled_exc_class()):
        return error if being_cancelled() or _cancels() else None
    return error if isinstance(error, _ENDS) else None


_ENDS = (KeyboardInterrupt, SystemExit, GeneratorExit)


async def perform(
    call: HandlerCall,
    *,
    clock: Clock,
    timeout: float,  # noqa: ASYNC109  # by the clock
    limiter: CapacityLimiter,
) -> HandlerFailure | None:
    """Call a handler and return how it failed, or None. Raises only what ends the worker as well.

    A coroutine has ``timeout`` seconds by the clock. A plain function runs in a thread and cannot be stopped: whatever
    happens, it is waited for.
    """
    cancels = _cancels()
    try:
        if call.blocking:
            # in a tuple, because trio's threads refuse to return what is to be awaited
            (result,) = await to_thread.run_sync(lambda: (call.run(),), limiter=limiter)
            if inspect.isawaitable(result):  # a decorator hides an async function from us
                await _in_time(result, clock, timeout)
        else:
            await _in_time(call.run(), clock, timeout)
        if _cancels() > cancels and not being_cancelled():
            await checkpoint()  # it cancelled its own task, which hears of it only now
    except get_cancelled_exc_class() as error:
        if being_cancelled():
            raise
        _take_back(cancels)
        return failure_of(error)
    except BaseException as error:  # sys.exit() in a handler is its failure, and not the end of all others
        of_the_end = isinstance(error, GeneratorExit) or (isinstance(error, KeyboardInterrupt) and _in_main_thread())
        if of_the_end or (being_cancelled() and _has_no_error(error)):
            raise
        return failure_of(error)
    return None


def _has_no_error(error: BaseException) -> bool:
    """Return whether what a task group raised while it was cancelled, on trio, is the cancellation alone."""
    if not isinstance(error, BaseExceptionGroup):
        return False
    return cast("BaseExceptionGroup[BaseException]", error).subgroup(Exception) is None


def _in_main_thread() -> bool:
    return current_thread() is main_thread()


async def _in_time(handler: Awaitable[object], clock: Clock, seconds: float) -> None:
    with clock.scope(seconds) as scope:
        await handler
    if scope.cancelled_caught:
        raise TimeoutError(f"the handler took longer than {seconds:g} s")


def _cancels() -> int:
    """Return how often asyncio was told to cancel this task; trio has no such thing."""
    if get_cancelled_exc_class() is not asyncio.CancelledError:
        return 0
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _take_back(cancels: int) -> None:
    while _cancels() > cancels:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101  # it was counted
        task.uncancel()
