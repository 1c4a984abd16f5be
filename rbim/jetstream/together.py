"""Several calls to the servers at once, also inside the cancel scopes of anyio.

Why not ``asyncio.gather``: if it is cancelled after its last call has ended, its CancelledError does not say which scope it
is of. No scope takes such an error for its own, so ``move_on_after`` and ``fail_after`` let it through, and the caller ends.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from anyio import CancelScope

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

__all__ = ["outcomes", "together"]

T = TypeVar("T")


async def outcomes(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T | Exception]:
    """Run calls at once; when all have ended, return what each has returned or raised, in their order.

    If it is cancelled, it cancels them, and ends when they have ended.
    """
    tasks = [asyncio.create_task(call) for call in calls]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks)
    except asyncio.CancelledError:
        for task in tasks:
            task.cancel()
        with CancelScope(shield=True):
            await asyncio.wait(tasks)
        for task in tasks:
            _outcome(task)  # asyncio would report an error that no one asks for
        raise
    return [_outcome(task) for task in tasks]


def _outcome(task: asyncio.Task[T]) -> T | Exception:
    if task.cancelled():  # by something that it awaited
        return RuntimeError("a call to the servers was cancelled")
    error = task.exception()
    return error if isinstance(error, Exception) else task.result()


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run calls at once and return their results, in their order. Raises the first error, when all have ended."""
    found = await outcomes(calls)
    for each in found:
        if isinstance(each, Exception):
            raise each
    return [each for each in found if not isinstance(each, Exception)]
