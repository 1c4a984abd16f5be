"""What tasks raise, outside their task group, which would wrap it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import anyio

if TYPE_CHECKING:
    from types import TracebackType

    from anyio.abc import TaskGroup

__all__ = ["TaskErrors"]


class TaskErrors:
    """Takes the errors of what runs inside it, in order of time, and ends all the rest.

    None of them passes through the task group, which would wrap it.
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
        """Raise what failed first, as it is, with the others as notes; what is no Exception (KeyboardInterrupt) leads."""
        first = next((each for each in self.errors if not isinstance(each, Exception)), self.errors[0])
        for other in self.errors:
            if other is not first:
                first.add_note(f"at the same time: {type(other).__name__}: {other}")
        context = first.__context__
        try:
            raise first
        finally:
            first.__context__ = context  # and not whatever the block was cancelled with
