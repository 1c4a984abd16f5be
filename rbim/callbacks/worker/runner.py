"""Runners of a worker: in a separate thread with its own event loop, or as a task in the same loop."""

from __future__ import annotations

import sys
import traceback
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack, nullcontext
from math import isfinite
from threading import Thread, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any

import anyio
from anyio.abc import TaskStatus

from rbim._support.event_loops import backend, later, waker
from rbim.callbacks.observers import HungHandler, LoopBlocked
from rbim.callbacks.worker.attempt import ForeignCode
from rbim.callbacks.worker.backoff import Supervision
from rbim.callbacks.worker.conversation import ConversationRunner
from rbim.callbacks.worker.shared_run import GRACE
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from rbim.callbacks.observers import Observers
    from rbim.callbacks.worker.worker import Worker

__all__ = ["THREAD_GRACE", "Heartbeat", "WorkerTask", "WorkerThread"]

# Theory of operation: the worker's loop, as the loop of the receiver sees it. A timer here asks the loop there to call back.
#
#   beating   The last question was answered, or its answer is not late yet.
#   blocked   The answer is late: something in the loop does not let it go on. Reported once, with its stack.
#
# beating -> blocked   there is no answer after ``limit`` seconds of real time
# blocked -> beating   the answer came: reported with the time that it took
#
# What must always hold:
# - While it is blocked, no second worker begins beside it. Its leases expire, because only its loop renews them: workers of
#   other processes take its conversations over.
# - No lock is shared with the blocked thread.

LOOKS = 4  # at one question before it is late
SHORTEST_LIMIT = 1.0  # seconds: a busy machine holds up a loop for less


class Heartbeat:
    """Watches the loop of a worker's thread, from the event loop that calls :meth:`start`.

    A loop that does not go on for ``limit`` seconds (at least 1) is reported to ``supervision`` and ``observers``.
    """

    def __init__(self, limit: float, *, supervision: Supervision, observers: Observers) -> None:
        self._limit = max(limit, SHORTEST_LIMIT)
        self._supervision = supervision
        self._observers = observers
        self._cancel: Callable[[], object] = _nothing
        self._thread = 0
        self._call_soon: Callable[[Callable[[], object]], None] = _nothing
        self._asked = 0.0
        self._answered: float | None = None
        self._reported: HungHandler | None = None

    def start(self, thread: int, call_soon: Callable[[Callable[[], object]], None]) -> None:
        """Watch a thread, with the function that schedules a call in its loop."""
        self._thread, self._call_soon = thread, call_soon
        if isfinite(self._limit):
            self._ask()

    def stop(self) -> None:
        """Watch it no more."""
        self._cancel()
        self._cancel = _nothing
        self._supervision.blocked = False

    def _ask(self) -> None:
        self._asked, self._answered, self._reported = monotonic(), None, None
        self._call_soon(self._answer)
        self._cancel = later(self._limit / LOOKS, self._look)

    def _answer(self) -> None:
        self._answered = monotonic()  # in the other thread

    def _look(self) -> None:
        answered = self._answered
        if answered is not None:
            if self._reported is not None:
                self._goes_on(self._reported, answered - self._asked)
            self._ask()
            return
        if self._reported is None and monotonic() - self._asked >= self._limit:
            self._reported = self._hung()
            self._supervision.blocked, self._supervision.error = True, self._reported.summary
            self._observers.notify(self._reported)
        self._cancel = later(self._limit / LOOKS, self._look)

    def _goes_on(self, hung: HungHandler, seconds: float) -> None:
        self._supervision.blocked = False
        self._observers.log.warning("the event loop of the worker's thread goes on, after %.1f s", seconds)
        self._observers.notify(LoopBlocked(receiver=hung.receiver, handler=hung.handler, seconds=seconds, stack=hung.stack))

    def _hung(self) -> HungHandler:
        """Return the observation on what runs in the thread now; its handler is unknown if it is a task beside one."""
        frame: Any = sys._current_frames().get(self._thread)  # noqa: SLF001  # the documented way to another thread's frames
        stack = "".join(traceback.format_list(traceback.extract_stack(frame)))
        while frame is not None and frame.f_code is not ConversationRunner.attempt.__code__:
            frame = frame.f_back
        facts: dict[str, Any] = {"key": "", "attempt": 0, "event": "", "handler": "", "app_id": ""}
        if frame is not None:
            claim, call = frame.f_locals["claim"], frame.f_locals["call"]
            facts = {"key": claim.key, "attempt": claim.attempt, "event": call.event, "handler": call.handler}
            facts["app_id"] = claim.app_id
        return HungHandler(receiver=self._observers.receiver, seconds=self._limit, stack=stack, **facts)


def _nothing(*_: object) -> None:
    pass


# Theory of operation: a worker under supervision.
#
#   starting  ``around`` is being entered, and the worker opens its backlog.
#   running   It handles events. A thread of its own has a heartbeat (heartbeat.py), which tells whether its loop goes on.
#   pausing   It ended by itself; it is started again when the pause is over.
#   over      It was stopped, or could not be started the first time.
#
# starting -> running   the worker reports that it runs
# starting -> over      an error the first time: entering raises it
# starting -> pausing   an error after a restart
# running -> pausing    ``around`` or the worker ended, in whatever way: reported (PartEnded)
# pausing -> starting   the pause is over; reported once it runs (PartRestarted)
# any -> over           the block is left. An error on the way is raised; one from before was reported, and is not raised
#
# What must always hold:
# - At most one run of the worker at a time; a thread that does not end is left running only when the block is left.
# - Only leaving, cancelling the block, Ctrl-C in the main thread and the end of the event loop end the supervision.

THREAD_GRACE = 2 * GRACE + 1.0
"""Seconds that the thread has to end after the worker's ``drain``: to cancel handlers, record results, release claims."""


class _Run(TaskStatus[None]):
    """One run of a worker inside ``around``. ``error`` is the error that ended it, if any."""

    def __init__(
        self,
        worker: Worker,
        around: Callable[[], AbstractAsyncContextManager[object]] | None,
        *,
        running: Callable[[], object],
    ) -> None:
        self._worker = worker
        self._around = around
        self._running = running
        self._runs = False
        self.thread = 0
        self.call_soon: Callable[[Callable[[], object]], None] | None = None
        self.error: Exception | None = None
        self.ended = anyio.Event()

    def started(self, value: None = None) -> None:
        del value
        self._runs = True
        self._running()

    async def run(self) -> None:
        self.thread, self.call_soon = get_ident(), waker()
        async with self._around() if self._around is not None else nullcontext() as resource:
            await self._worker.run(resource=resource, task_status=self)
        if not self._runs:
            reason = "the worker was stopped before it ran; create another one"
            raise InvalidRequest(reason)

    def failed(self, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.error = error
        else:
            self.error = RuntimeError(f"the worker was ended by {error!r}")
            self.error.__cause__ = error


class _SupervisedWorker(ABC):
    """What the two runners share: the supervision."""

    def __init__(
        self,
        worker: Worker,
        *,
        around: Callable[[], AbstractAsyncContextManager[object]] | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        settings = worker.settings
        self.supervision = supervision or Supervision("worker", settings.observers, settings.clock)
        self._worker = worker
        self._around = around
        self._clock = settings.clock
        self._log = settings.observers.log
        self._begun = anyio.Event()
        self._started = False
        self._stopping = False
        self._error: Exception | None = None
        self._waiting: anyio.CancelScope | None = None  # for a thread's end, or for the end of a pause
        self._entered = AsyncExitStack()

    async def __aenter__(self) -> Self:
        self._begun = anyio.Event()
        async with AsyncExitStack() as entered:
            tasks = await entered.enter_async_context(anyio.create_task_group())
            entered.callback(self._stop)
            tasks.start_soon(self._supervise)
            await self._begun.wait()
            if self._started:
                self._entered = entered.pop_all()
        if not self._started and self._error is not None:
            raise self._error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        await self._entered.__aexit__(None, None, None)  # without the block's error: a task group would wrap it
        if self._error is not None and error is None:
            raise self._error

    def _stop(self) -> None:
        self._stopping = True
        self._worker.stop()
        if self._waiting is not None:
            self._waiting.deadline = self._last_moment()

    def _is_stopping(self) -> bool:
        return self._stopping

    async def _supervise(self) -> None:
        try:
            while not self._is_stopping():
                run = _Run(self._worker, self._around, running=self._when_running())
                await self._run_once(run)
                if run.error is None or self._is_stopping() or not self._started:
                    self._error = run.error
                    break
                await self._pause(self.supervision.ended(run.error))
        finally:
            self.supervision.running = False
            self._begun.set()
        if self._started and self._error is not None:
            self._log.error("the worker ended with an error: no more events are handled", exc_info=self._error)

    def _running(self) -> None:
        self._started = True
        self.supervision.started()
        self._begun.set()

    async def _pause(self, seconds: float) -> None:
        code = ForeignCode()
        try:
            with anyio.CancelScope() as self._waiting:
                await self._clock.sleep(seconds)
        except BaseException as error:
            if not code.failed(error):
                raise
        finally:
            self._waiting = None

    def _last_moment(self) -> float:
        """Return the event loop's time at which a stopped supervision waits no longer."""
        return anyio.current_time()

    @abstractmethod
    def _when_running(self) -> Callable[[], object]:
        """Return a function that reports that the worker runs; it is called where the worker runs."""

    @abstractmethod
    async def _run_once(self, run: _Run) -> None:
        """Run the worker until it ends; ``run`` says how."""


class WorkerThread(_SupervisedWorker):
    """Runs a worker in a separate thread during the ``async with`` block; a handler that blocks delays nothing here.

    ``around`` returns an async context manager for resources that handlers share (``around=lambda: client``). It is entered
    in the thread's event loop, which is of the same kind as the current one. Entering waits until the worker runs, and
    raises the error that prevents it. Whatever ends the worker later is reported
    (:class:`~rbim.callbacks.PartEnded`), and the worker is started again, with ``around``, in a new thread. Leaving
    stops the worker and waits for its ``drain`` and 7 seconds more; a thread that has not ended by then (a handler blocks)
    is left running, with a log record, and ends with the process. A handler that blocks the thread's event loop for longer
    than half a lease, or than ``timeout``, is reported (:class:`~rbim.callbacks.HungHandler`).
    """

    def __init__(
        self,
        worker: Worker,
        *,
        around: Callable[[], AbstractAsyncContextManager[object]] | None = None,
        supervision: Supervision | None = None,
    ) -> None:
        super().__init__(worker, around=around, supervision=supervision)
        limit = min(worker.settings.timeout, worker.lease / 2)
        self._heartbeat = Heartbeat(limit, supervision=self.supervision, observers=worker.settings.observers)
        self._run: _Run | None = None

    async def _run_once(self, run: _Run) -> None:
        self._run = run
        Thread(target=_run_in_thread, args=(run, backend(), waker()), name="rbim-worker", daemon=True).start()
        with anyio.CancelScope(shield=True) as self._waiting:
            if self._stopping:
                self._waiting.deadline = self._last_moment()
            while not run.ended.is_set():
                code = ForeignCode()
                try:
                    await run.ended.wait()
                except BaseException as error:  # the thread still runs
                    if not code.failed(error):
                        raise
        self._waiting = None
        self._heartbeat.stop()
        if not run.ended.is_set():
            seconds = self._worker.settings.drain + THREAD_GRACE
            self._log.error("the worker's thread has not ended after %g s: a handler blocks; it is left running", seconds)

    def _running(self) -> None:
        super()._running()
        if self._run is not None and self._run.call_soon is not None and not self._stopping:
            self._heartbeat.start(self._run.thread, self._run.call_soon)

    def _last_moment(self) -> float:
        return anyio.current_time() + self._worker.settings.drain + THREAD_GRACE

    def _when_running(self) -> Callable[[], object]:
        call_soon = waker()
        return lambda: call_soon(self._running)


def _run_in_thread(run: _Run, kind: str, call_soon: Callable[[Callable[[], object]], None]) -> None:
    try:
        anyio.run(run.run, backend=kind)
    except BaseException as error:  # a thread has no caller to raise it to
        run.failed(error)
    call_soon(run.ended.set)


class WorkerTask(_SupervisedWorker):
    """Runs a worker in the current event loop during the ``async with`` block; a handler that blocks delays all its tasks.

    Otherwise like :class:`WorkerThread`; but if the block is cancelled, running handlers are too, without their ``drain``.
    """

    async def _run_once(self, run: _Run) -> None:
        code = ForeignCode()
        try:
            await run.run()
        except Exception as error:
            run.failed(error)
        except BaseException as error:
            if not code.failed(error):
                raise
            run.failed(error)  # a cancellation that no scope requested: it must not cancel the block

    def _when_running(self) -> Callable[[], object]:
        return self._running
