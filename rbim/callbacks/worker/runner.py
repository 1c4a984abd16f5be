"""Runners of a worker: in a separate thread with its own event loop, or as a task in the same loop."""

from __future__ import annotations

from contextlib import AsyncExitStack, nullcontext
from threading import Thread
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskStatus

from rbim._support.event_loops import backend, waker
from rbim.callbacks.worker.attempt import ForeignCode
from rbim.callbacks.worker.conversation import GRACE
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.worker.worker import Worker

__all__ = ["THREAD_GRACE", "WorkerTask", "WorkerThread"]

THREAD_GRACE = 2 * GRACE + 1.0
"""Seconds that the thread has to end after the worker's ``drain``: to cancel handlers, record results, release claims."""


class _WorkerMain(TaskStatus[None]):
    """Runs a worker inside ``around``. ``error`` is the error that ended it, if any.

    ``begun`` is set when the worker runs (``runs`` is True) or cannot run (False), ``ended`` when it has ended.
    """

    def __init__(
        self,
        worker: Worker,
        around: Callable[[], AbstractAsyncContextManager[object]] | None,
        call_soon: Callable[[Callable[[], object]], None],
    ) -> None:
        self._worker = worker
        self._around = around
        self._call_soon = call_soon
        self.runs = False
        self.error: Exception | None = None
        self.begun = anyio.Event()
        self.ended = anyio.Event()

    def started(self, value: None = None) -> None:
        del value
        self.runs = True
        self._call_soon(self.begun.set)

    async def run(self) -> None:
        async with self._around() if self._around is not None else nullcontext() as resource:
            await self._worker.run(resource=resource, task_status=self)

    def end(self, error: BaseException | None) -> None:
        if error is None and not self.runs:
            reason = "the worker was stopped before it ran; create another one"
            error = InvalidRequest(reason)
        if isinstance(error, Exception):
            self.error = error
        elif error is not None:
            self.error = RuntimeError(f"the worker was ended by {error!r}")
            self.error.__cause__ = error
        if self.runs and error is not None:
            self._worker.log.error(
                "the worker ended with an error: no more events are handled until the next start", exc_info=error
            )
        self._call_soon(self.ended.set)
        self._call_soon(self.begun.set)

    def settle(self, error: BaseException | None) -> None:
        """Raise the error that ended the worker, unless there is an error already."""
        if self.error is not None and error is None:
            raise self.error


class WorkerThread:
    """Runs a worker in a separate thread during the ``async with`` block; a handler that blocks delays nothing here.

    ``around`` returns an async context manager for resources that handlers share (``around=lambda: client``). It is entered
    in the thread's event loop, which is of the same kind as the current one. Entering waits until the worker runs, and
    raises the error that prevents it. An error that ends the worker later is logged at once and raised on leaving. Leaving
    stops the worker and waits for its ``drain`` and 7 seconds more; a thread that has not ended by then (a handler blocks)
    is left running, with a log record, and ends with the process.
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
        seconds = self._worker.drain + THREAD_GRACE
        with anyio.move_on_after(seconds, shield=True):
            await main.ended.wait()
        if not main.ended.is_set():
            self._worker.log.error(
                "the worker's thread has not ended after %g s: a handler blocks; it is left running", seconds
            )


def _run(main: _WorkerMain, kind: str) -> None:
    error: BaseException | None = None
    try:
        anyio.run(main.run, backend=kind)
    except BaseException as raised:  # a thread has no caller to raise it to
        error = raised
    main.end(error)


class WorkerTask:
    """Runs a worker in the current event loop during the ``async with`` block; a handler that blocks delays all its tasks.

    Otherwise like :class:`WorkerThread`; but if the block is cancelled, running handlers are too, without their ``drain``.
    """

    def __init__(self, worker: Worker, *, around: Callable[[], AbstractAsyncContextManager[object]] | None = None) -> None:
        self._worker = worker
        self._around = around
        self._main: _WorkerMain | None = None
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        main = self._main = _WorkerMain(self._worker, self._around, _call_now)
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
        await self._entered.__aexit__(None, None, None)  # without the block's error: a task group would wrap it
        self._main.settle(error)

    async def _run(self, main: _WorkerMain) -> None:
        code = ForeignCode()
        try:
            await main.run()
        except Exception as error:
            main.end(error)
        except BaseException as error:
            if not code.failed(error):
                main.end(None)
                raise
            main.end(error)  # a cancellation that no scope requested: it must not cancel the block
        else:
            main.end(None)


def _call_now(do: Callable[[], object]) -> None:
    do()
