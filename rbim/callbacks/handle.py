"""One attempt to handle one event: calls the handler, in time, and tells a failure from the end of the worker."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from math import inf
from typing import TYPE_CHECKING

from anyio import current_effective_deadline, get_cancelled_exc_class, to_thread
from anyio.lowlevel import checkpoint
from attrs import frozen

from rbim.message import one_line

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from anyio import CapacityLimiter

    from rbim.callbacks.router import Call
    from rbim.message import Clock

__all__ = ["Failure", "being_cancelled", "failure_of", "perform"]

TRACE = 20_000  # characters of a traceback that are kept, half of them from either end
LINE = 300


@frozen
class Failure:
    """Why an event was not handled: the whole traceback, and one line."""

    trace: str
    line: str


def failure_of(error: BaseException) -> Failure:
    """Return an exception as texts that any store can keep."""
    trace = _storable("".join(traceback.format_exception(error)))
    if len(trace) > TRACE:
        trace = f"{trace[: TRACE // 2]}\n[...]\n{trace[-TRACE // 2 :]}"
    return Failure(trace, one_line(_storable("".join(traceback.format_exception_only(error))), LINE))


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()  # halves of surrogate pairs are in no file


def being_cancelled() -> bool:
    """Return whether the scopes around the caller end: whether a cancellation that was caught here came from there."""
    return current_effective_deadline() == -inf


async def perform(
    call: Call,
    *,
    clock: Clock,
    timeout: float,  # noqa: ASYNC109  # by the clock
    limiter: CapacityLimiter,
) -> Failure | None:
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
    except BaseExceptionGroup as error:
        # on trio, what a handler's task group raises while it is cancelled has both in it
        if error.split((Exception, get_cancelled_exc_class()))[1] is not None or error.subgroup(Exception) is None:
            raise
        return failure_of(error)
    except Exception as error:
        return failure_of(error)
    return None


async def _in_time(handler: Awaitable[object], clock: Clock, seconds: float) -> None:
    with clock.scope(seconds) as scope:
        await handler
    if scope.cancelled_caught:
        reason = f"the handler took longer than {seconds:g} s"
        raise TimeoutError(reason)


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
