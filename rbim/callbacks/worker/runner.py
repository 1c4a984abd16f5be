"""Where a worker runs while a receiver accepts: in a thread and an event loop of its own, or beside it in the same loop."""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack, nullcontext
from threading import Thread
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus

from rbim._support.event_loops import backend, waker
from rbim.callbacks.worker.conversation import GRACE
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.worker.worker import Worker

__all__ = ["LEAVING", "WorkerTask", "WorkerThread"]

logger = logging.getLogger("rbim.callbacks")

LEAVING = 2 * GRACE + 1.0
"""Seconds that the thread has to end, beyond the worker's ``drain``: to record and give back what it cancels then."""


class _WorkerMain(TaskStatus[None]):
    """Runs a worker inside ``around``. ``error`` is what ended it; ``runs``, ``begun`` and ``ended`` tell how far it is."""

    def __init__(
        self,
        worker: Worker,
        around: Callable[[], AbstractAsyncContextManager[object]] | None,
        tell: Callable[[Callable[[], object]], None],
    ) -> None:
        self._worker = worker
        self._around = around
        self._tell = tell
        self.runs = False
        self.error: Exception | None = None
        self.begun = anyio.Event()
        self.ended = anyio.Event()

    def started(self, value: None = None) -> None:
        del value
        self.runs = True
        self._tell(self.begun.set)

    async def run(self) -> None:
        async with self._around() if self._around is not None else nullcontext():
            await self._worker.run(task_status=self)

    def end(self, error: BaseException | None) -> None:
        if error is None and not self.runs:
            reason = "the worker was stopped before it ran"
            error = InvalidRequest(reason)
        if isinstance(error, Exception):
            self.error = error
        elif error is not None:
            self.error = RuntimeError(f"the worker was ended by {error!r}")
            self.error.__cause__ = error
        if self.runs and error is not None:
            logger.error("the worker ended: no more events are handled", exc_info=error)
        self._tell(self.ended.set)
        self._tell(self.begun.set)

    def settle(self, error: BaseException | None) -> None:
        """Raise what ended the worker, unless there is an error already."""
        if self.error is not None and error is None:
            raise self.error


class WorkerThread:
    """Runs a worker in a thread of its own while the ``async with`` block lasts: a handler that blocks delays nobody here.

    ``around`` gives an async context manager that is entered in that thread's event loop, of the same kind as the one here,
    for what handlers share: ``around=lambda: client``. Entering waits until the worker runs, and raises what keeps it from
    that. What ends the worker later is logged at once, and raised on leaving. Leaving stops the worker and waits for its
    ``drain`` and a few seconds more; a thread that has not ended by then (a handler blocks) is left behind, which is logged,
    and ends with the process.
    """

    def __init__(self, worker: Worker, *, around: Callable[[], AbstractAsyncContextManager[object]] | None = None) -> None:
        self._worker = worker
        self._around = around
        self._main: _WorkerMain | None = None

    async def __aenter__(self) -> Self:
        self._main = _WorkerMain(self._worker, self._around, waker())
        Thread(target=_run, args=(self._main, backend()), name="rbim-worker", daemon=True).start()
        try:
            await self._main.begun.wait()
            if not self._main.runs:
                self._main.settle(None)
        except BaseException:
            await self._leave(self._main)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self._main is not None  # noqa: S101  # entered
        await self._leave(self._main)
        self._main.settle(error)

    async def _leave(self, main: _WorkerMain) -> None:
        self._worker.stop()
        seconds = self._worker.drain + LEAVING
        with anyio.move_on_after(seconds, shield=True):
            await main.ended.wait()
        if not main.ended.is_set():
            logger.error("the worker's thread has not ended after %g s: a handler blocks; it is left behind", seconds)


def _run(main: _WorkerMain, kind: str) -> None:
    error: BaseException | None = None
    try:
        anyio.run(main.run, backend=kind)
    except BaseException as raised:  # a thread has nobody to raise it to
        error = raised
    main.end(error)


class WorkerTask:
    """Runs a worker in the event loop here while the ``async with`` block lasts: a handler that blocks delays everybody.

    Otherwise as :class:`WorkerThread`; but where the block is cancelled, running handlers are too, without their ``drain``.
    """

    def __init__(self, worker: Worker, *, around: Callable[[], AbstractAsyncContextManager[object]] | None = None) -> None:
        self._worker = worker
        self._around = around
        self._main: _WorkerMain | None = None
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        main = self._main = _WorkerMain(self._worker, self._around, _at_once)
        async with AsyncExitStack() as entered:
            tasks = await entered.enter_async_context(anyio.create_task_group())
            entered.callback(self._worker.stop)
            tasks.start_soon(self._run, main)
            await main.begun.wait()
            if main.runs:
                self._entered = entered.pop_all()
        if not main.runs:
            main.settle(None)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        assert self._main is not None  # noqa: S101  # entered
        await self._entered.__aexit__(None, None, None)  # what the block raised is not the tasks' to wrap
        self._main.settle(error)

    async def _run(self, main: _WorkerMain) -> None:
        try:
            await main.run()
        except anyio.get_cancelled_exc_class():
            main.end(None)
            raise
        except Exception as error:
            main.end(error)
        else:
            main.end(None)


def _at_once(do: Callable[[], object]) -> None:
    do()
