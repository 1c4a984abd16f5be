"""Errors of tasks before their task group wraps them in an exception group, and cancellations that no one requested."""

from __future__ import annotations

from asyncio import CancelledError, current_task
from math import inf
from typing import TYPE_CHECKING, NoReturn, cast

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup

__all__ = ["TaskErrors", "is_being_cancelled"]


def is_being_cancelled() -> bool:
    """Return whether the current task is cancelled, by a scope around it or by asyncio.

    If not, a cancellation that it gets is that of something it awaited, such as a future that was cancelled.
    """
    if anyio.current_effective_deadline() == -inf:
        return True
    if anyio.get_cancelled_exc_class() is not CancelledError:
        return False  # trio: only scopes cancel
    task = current_task()
    return task is not None and task.cancelling() > 0


class TaskErrors:
    """A context manager for tasks: it records errors in order of time and cancels the task group.

    No error passes through the task group, which would wrap it. Cancellations pass; beside errors in a group (trio) they are
    left out, because the scope that they are for takes no note of them any more.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self.errors: list[BaseException] = []
        self._tasks = tasks
        self._cancelled = anyio.get_cancelled_exc_class()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if isinstance(error, BaseExceptionGroup):
            group = cast("BaseExceptionGroup[BaseException]", error)
            cancelled, others = group.split(self._cancelled)
            error = group if cancelled is None else others
        if error is None or isinstance(error, self._cancelled):
            return False
        self.errors.append(error)
        self._tasks.cancel_scope.cancel()
        return True

    def raise_first(self) -> NoReturn:
        """Raise the first error unchanged, the others as its notes; a KeyboardInterrupt or the like comes first."""
        first = next((each for each in self.errors if not isinstance(each, Exception)), self.errors[0])
        for other in self.errors:
            if other is not first:
                first.add_note(f"at the same time: {type(other).__name__}: {other}")
        context = first.__context__
        try:
            raise first
        finally:
            first.__context__ = context  # not the cancellation of the block
