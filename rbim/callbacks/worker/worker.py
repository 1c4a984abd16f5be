"""Handles what an inbox gives out: many conversations at once, each in its own order, every event at least once."""

from __future__ import annotations

import logging
from math import isfinite
from typing import TYPE_CHECKING

import anyio

from rbim._support.event_loops import waker
from rbim.callbacks.observers import Observers
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.conversation import (
    FIRST_PAUSE,
    GRACE,
    LONGEST_PAUSE,
    ConversationRunner,
    SharedRun,
    WorkerSettings,
)
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from anyio.abc import TaskGroup, TaskStatus

    from rbim.callbacks.inbox.protocols import Backlog, Inbox
    from rbim.callbacks.worker.router import HandlerCalls
    from rbim.clock import Clock

__all__ = ["Worker"]

logger = logging.getLogger("rbim.callbacks")


class Worker:
    """Handles the events of an inbox as ``calls`` says, a :class:`~rbim.callbacks.Router`. Several may work on one.

    Up to ``concurrency`` conversations at once; within one, an event's turn comes when the end of the one before it is
    recorded. A handler that fails, or takes longer than ``timeout`` seconds, is called again as ``backoff`` says, and holds
    up its own conversation only; after its last attempt the event is among the dead letters, with the traceback. Plain
    functions run in threads: no time-out and no end of the worker stops them, they are waited for.

    An event is handled again where the process ends, or its lease is lost, between the handler's end and the record of it.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        inbox: Inbox,
        calls: HandlerCalls,
        *,
        clock: Clock | None = None,
        concurrency: int = 16,
        timeout: float = 60.0,
        backoff: Backoff | None = None,
        watch: Observers | None = None,
        drain: float = 10.0,
    ) -> None:
        self._inbox = inbox
        self._settings = WorkerSettings(
            calls=calls,
            clock=clock or SystemClock(),
            backoff=backoff or Backoff(),
            watch=watch or Observers(),
            concurrency=concurrency,
            timeout=timeout,
            drain=drain,
        )
        self._stopped = False
        self._runs = False
        self._wake: Callable[[], None] | None = None

    @property
    def drain(self) -> float:
        """The seconds that running handlers have when the worker is stopped."""
        return self._settings.drain

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Handle events until :meth:`stop` is called. Who cancels it cancels the running handlers; their events go back.

        Raises InvalidRequest where the router has no fallback, what the inbox raises on opening, and nothing that a handler
        or the inbox raises later. Returns at once if it was stopped before.
        """
        self._settings.calls.check()
        if self._runs:
            raise InvalidRequest("this worker runs already")
        self._runs = True
        try:
            call_soon = waker()
            async with self._inbox.backlog() as backlog:
                run = _Run(SharedRun(self._settings, backlog), self._inbox.lease)
                self._wake = lambda: call_soon(run.stop)
                if not self._stopped:
                    task_status.started()
                    await run.run()
        finally:
            self._runs, self._wake = False, None

    def stop(self) -> None:
        """Take on nothing new, and let :meth:`run` return: at once, or when the running handlers have ended.

        They have ``drain`` seconds, then they are cancelled and their events given back. May be called from any thread. A
        worker that was stopped does not run again.
        """
        self._stopped = True
        if (wake := self._wake) is not None:
            wake()


class _Run:
    """One run of a worker: claims events while there are free places."""

    def __init__(self, shift: SharedRun, lease: float) -> None:
        self._shift = shift
        self._backlog: Backlog = shift.backlog
        self._clock = shift.settings.clock
        self._places = shift.settings.concurrency
        self._lease = lease
        self._lanes: set[ConversationRunner] = set()
        self._all = anyio.CancelScope()
        self._nudged = False
        self._resting: anyio.CancelScope | None = None
        self._renewing: anyio.CancelScope | None = None
        self._stop_asked = anyio.Event()
        self._over = anyio.Event()

    async def run(self) -> None:
        async with anyio.create_task_group() as guarded:
            self._all = guarded.cancel_scope
            guarded.start_soon(self._end_in_time)
            try:
                async with anyio.create_task_group() as tasks:
                    await self._claim_until_stopped(tasks)
            finally:
                self._over.set()
            self._all.cancel()

    def stop(self) -> None:
        self._shift.stopping = True
        self._stop_asked.set()
        self._nudge()

    async def _claim_until_stopped(self, tasks: TaskGroup) -> None:
        pause = FIRST_PAUSE
        while not self._shift.stopping:
            try:
                await self._claim(tasks)
                pause = FIRST_PAUSE
            except Exception:
                logger.exception("no events could be claimed; next try in %g s", pause)
                await self._rest(self._clock.sleep(pause))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _claim(self, tasks: TaskGroup) -> None:
        """Fill the free places; where something stays free, or nothing was, wait until that may change."""
        free = self._places - len(self._lanes)
        if free == 0:
            await self._rest(anyio.sleep_forever())
            return
        with self._shift.shielded():  # what is claimed while a cancellation comes must not be lost
            claims = await self._backlog.claim(free)
            for claim in claims:
                self._start(tasks, ConversationRunner(self._shift, claim))
            if len(claims) == free:
                return
        await self._rest(self._backlog.wait())

    async def _rest(self, until: Awaitable[object]) -> None:
        """Wait for something, or until somebody nudges."""
        with anyio.CancelScope() as self._resting:
            if self._nudged:
                self._resting.cancel()
            await until
        self._nudged = False

    def _nudge(self) -> None:
        self._nudged = True
        if self._resting is not None:
            self._resting.cancel()

    def _start(self, tasks: TaskGroup, lane: ConversationRunner) -> None:
        if not self._lanes and isfinite(self._lease):
            self._renewing = anyio.CancelScope()
            tasks.start_soon(self._renew, self._renewing)
        self._lanes.add(lane)
        tasks.start_soon(self._see_through, lane)

    async def _see_through(self, lane: ConversationRunner) -> None:
        try:
            await lane.run()
        except BaseException:  # of the whole run, or its end
            self._all.cancel()
            raise
        finally:
            if lane.gave_back or len(self._lanes) == self._places:
                self._nudge()
            self._lanes.remove(lane)
            if not self._lanes and self._renewing is not None:
                self._renewing.cancel()

    async def _renew(self, scope: anyio.CancelScope) -> None:
        """Renew the leases while anything runs, and no longer: emulated time would go on with it for ever."""
        with scope:
            while True:
                await self._clock.sleep(self._lease / 3)
                try:
                    await self._backlog.renew([lane.claim for lane in self._lanes])
                except Exception:
                    logger.exception("the leases could not be renewed")

    async def _end_in_time(self) -> None:
        """Cancel a run that was stopped when its drain is over, and end what is shielded when the grace is over, too."""
        try:
            await self._stop_asked.wait()
            with self._clock.scope(self._shift.settings.drain):
                await self._over.wait()
            self._all.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                with self._clock.scope(GRACE):
                    await self._over.wait()
            self._shift.end_shields()
