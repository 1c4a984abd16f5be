"""Collect the errors of tasks before their task group wraps them in an exception group."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup

__all__ = ["TaskErrors"]


class TaskErrors:
    """A context manager for tasks: it records errors in order of time and cancels the task group.

    No error passes through the task group, which would wrap it. Cancellations pass.
    """

    def __init__(self, tasks: TaskGroup) -> None:
        self.errors: list[BaseException] = []
        self._tasks = tasks
        self._cancelled = anyio.get_cancelled_exc_class()

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
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
