"""The worker: handles an inbox's events at least once, conversations concurrently, events of each in order."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING

import anyio

from rbim._support.event_loops import waker
from rbim.callbacks.observers import Observers
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.conversation import FIRST_PAUSE, LONGEST_PAUSE, ConversationRunner
from rbim.callbacks.worker.loop_guard import LoopGuard
from rbim.callbacks.worker.shared_run import GRACE, PATIENCE, SharedRun, WorkerSettings, for_at_most
from rbim.clock import SystemClock
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager

    from anyio.abc import TaskGroup, TaskStatus

    from rbim.callbacks.inbox.protocols import Backlog, Claim, Inbox
    from rbim.callbacks.worker.router import HandlerCalls
    from rbim.clock import Clock

__all__ = ["Worker"]


ABANDON_AFTER = GRACE + 1.0
"""Seconds that functions in threads have, where the loop goes on, to end after ``drain`` and ``GRACE``."""


RENEW_AGAIN = 1.0
"""Seconds after which a renewal of the leases that failed is tried again."""


class Worker:
    """Handles an inbox's events with ``handlers``, a :class:`~rbim.callbacks.Router`. Workers may share an inbox.

    It handles up to ``concurrency`` conversations at once (default: 16). Within one, an event is handled after the one
    before it has ended, and results are recorded in order. A handler that fails, or takes longer than ``timeout`` seconds
    (default: 60), is called again according to ``backoff`` and delays only its own conversation; after the last attempt the
    event becomes a dead letter, with the traceback. Plain functions run in threads: neither the timeout nor the worker's end
    stops them, and the worker waits for them. ``observers`` get the results (default: none). ``drain`` is in seconds
    (default: 10).

    ``budget`` is for a worker in the event loop of a server that must answer within so many seconds (default: None). Then
    async handlers that block the loop rest afterwards, and are reported (:class:`~rbim.callbacks.LoopBlocked`); and the
    worker's end waits for plain functions ``drain`` and 7 seconds only, and leaves their threads running.

    An event is handled again if the process ends, or the lease is lost, after the handler's end and before its record: at
    most ``2 * concurrency`` events. Those that were at hand when a process died are suspected, unless it was being stopped:
    a worker handles each of them alone, for at most ``timeout`` seconds, and ``backoff`` says how often.
    """

    def __init__(  # noqa: PLR0913  # options, each by keyword and with a default
        self,
        inbox: Inbox,
        handlers: HandlerCalls,
        *,
        clock: Clock | None = None,
        concurrency: int = 16,
        timeout: float = 60.0,
        backoff: Backoff | None = None,
        observers: Observers | None = None,
        drain: float = 10.0,
        budget: float | None = None,
    ) -> None:
        self._inbox = inbox
        self._settings = WorkerSettings(
            handlers=handlers,
            clock=clock or SystemClock(),
            backoff=backoff or Backoff(),
            observers=observers or Observers(),
            concurrency=concurrency,
            timeout=timeout,
            drain=drain,
            budget=budget,
        )
        self._stopped = False
        self._running = False
        self._call_stop: Callable[[], None] | None = None

    @property
    def settings(self) -> WorkerSettings:
        """Its validated settings."""
        return self._settings

    @property
    def lease(self) -> float:
        """Seconds that a lease of its inbox lasts."""
        return self._inbox.lease

    async def run(self, *, resource: object = None, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Handle events until :meth:`stop` is called. Cancelling it cancels the running handlers and releases their events.

        Handlers get ``resource`` in their :class:`~rbim.callbacks.HandlerContext`.
        Raises InvalidRequest if the router has no fallback or the worker runs already, and any error of opening the inbox.
        Errors of handlers, and later errors of the inbox, are not raised. Returns at once if it was stopped before.
        """
        self._settings.handlers.check()
        if self._running:
            raise InvalidRequest("this worker runs already; create another one")
        self._running = True
        try:
            call_soon = waker()
            async with self._guard() as guard, self._inbox.backlog() as backlog:
                lease = self._inbox.lease
                run = _Run(SharedRun(self._settings, backlog, resource, guard, lease), lease)
                self._call_stop = lambda: call_soon(run.stop)
                if not self._stopped:
                    task_status.started()
                    await run.run()
        finally:
            self._running, self._call_stop = False, None

    def _guard(self) -> AbstractAsyncContextManager[LoopGuard | None]:
        settings = self._settings
        if settings.budget is None:
            return nullcontext()
        return LoopGuard(clock=settings.clock, observers=settings.observers, budget=settings.budget)

    def stop(self) -> None:
        """Start no more handlers, and let :meth:`run` return when the running ones have ended.

        They have ``drain`` seconds; then they are cancelled and their events released. May be called from any thread. A
        stopped worker does not run again.
        """
        self._stopped = True
        if (call_stop := self._call_stop) is not None:
            call_stop()


class _Run:
    """One run of a worker: claims conversations while fewer than ``concurrency`` are being handled."""

    def __init__(self, shared: SharedRun, lease: float) -> None:
        self._shared = shared
        self._backlog: Backlog = shared.backlog
        self._clock = shared.settings.clock
        self._log = shared.settings.observers.log
        self._concurrency = shared.settings.concurrency
        self._lease = lease
        self._runners: set[ConversationRunner] = set()
        self._scope = anyio.CancelScope()
        self._interrupted = False
        self._watched = False  # the end of any runner is waited for
        self._waiting: anyio.CancelScope | None = None
        self._renewing: anyio.CancelScope | None = None
        self._stop_asked = anyio.Event()
        self._over = anyio.Event()

    async def run(self) -> None:
        async with anyio.create_task_group() as guarded:
            self._scope = guarded.cancel_scope
            guarded.start_soon(self._end_in_time)
            try:
                async with anyio.create_task_group() as tasks:
                    self._shared.start = tasks.start_soon
                    await self._claim_until_stopped(tasks)
            finally:
                self._over.set()
            self._scope.cancel()

    def stop(self) -> None:
        self._shared.stopping = True
        self._stop_asked.set()
        self._interrupt()

    async def _claim_until_stopped(self, tasks: TaskGroup) -> None:
        pause = FIRST_PAUSE
        while not self._shared.stopping:
            try:
                await self._claim(tasks)
                pause = FIRST_PAUSE
            except Exception:
                self._log.exception("no events could be claimed; next try in %g s", pause)
                await self._wait_until(self._clock.sleep(pause))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _claim(self, tasks: TaskGroup) -> None:
        """Claim as many conversations as are free to handle; unless all were claimed, wait until more may be possible."""
        free = self._concurrency - len(self._runners)
        if free == 0:
            await self._wait_until(anyio.sleep_forever())
            return
        conversations: dict[str, list[Claim]] = {}
        until = self._shared.now() + self._lease
        with self._shared.shielded():  # a cancellation must not lose claims
            for claim in await self._shared.ask(lambda: self._backlog.claim(free)):
                conversations.setdefault(claim.conversation, []).append(claim)
            runners = [ConversationRunner(self._shared, claims, until) for claims in conversations.values()]
            suspect = runners[0] if runners and runners[0].claim.crashes else None
            for runner in runners:
                self._hold(tasks, runner)
                if runner is not suspect:
                    tasks.start_soon(self._run_conversation, runner)
        if suspect is not None:
            await self._run_alone(tasks, suspect)
        elif len(runners) < free:
            await self._wait_until(self._wait_for_events())

    async def _wait_for_events(self) -> None:
        """Wait until a claim may succeed, for at most PATIENCE seconds of real time: the inbox may hang."""
        with for_at_most(PATIENCE):
            await self._backlog.wait()

    async def _run_alone(self, tasks: TaskGroup, suspect: ConversationRunner) -> None:
        """Run a suspect when all others have ended, and nothing beside it; both for at most ``timeout`` seconds."""
        shared = self._shared
        shared.waiting = True
        try:
            if not await self._wait_for(lambda: all(runner is suspect or runner.overdue for runner in self._runners)):
                for runner in self._runners:
                    runner.overdue = runner is not suspect
            suspect.alone = len(self._runners) == 1
        finally:
            shared.waiting = False
            tasks.start_soon(self._run_conversation, suspect)
        if not await self._wait_for(lambda: suspect not in self._runners) and not shared.stopping:
            suspect.overdue = True
            await self._clear(suspect)

    async def _wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition on the runners, until the run is stopped or ``timeout`` has passed; return the condition."""
        self._watched = True
        try:
            with self._clock.scope(self._shared.settings.timeout):
                while not condition() and not self._shared.stopping:
                    await self._wait_until(anyio.sleep_forever())
        finally:
            self._watched = False
        return condition()

    async def _absolve(self, *runners: ConversationRunner) -> None:
        """Suspect no event of these runners if the process dies from now on."""
        try:
            await self._shared.ask(lambda: self._backlog.absolve([runner.claim for runner in runners]))
        except Exception:
            self._log.exception("the end of this process may be taken for a crash of what is being handled")

    async def _clear(self, suspect: ConversationRunner) -> None:
        """Suspect an event no more that did not end in time: it holds up other suspects no longer."""
        try:
            await self._shared.ask(lambda: self._backlog.clear(suspect.claim))
        except Exception:
            self._log.exception(
                "other suspects wait for event %d (%s), which does not end", suspect.claim.number, suspect.claim.key
            )

    async def _wait_until(self, until: Awaitable[object]) -> None:
        """Wait for an awaitable, or until :meth:`_interrupt` is called."""
        with anyio.CancelScope() as self._waiting:
            if self._interrupted:
                self._waiting.cancel()
            await until
        self._interrupted = False

    def _interrupt(self) -> None:
        self._interrupted = True
        if self._waiting is not None:
            self._waiting.cancel()

    def _hold(self, tasks: TaskGroup, runner: ConversationRunner) -> None:
        """Have a runner's lease renewed until it has ended."""
        if not self._runners and isfinite(self._lease):
            self._renewing = anyio.CancelScope()
            tasks.start_soon(self._renew, self._renewing)
        self._runners.add(runner)
        self._shared.running = len(self._runners)

    async def _run_conversation(self, runner: ConversationRunner) -> None:
        try:
            await runner.run()
        except BaseException:  # an error of the whole run, or its cancellation
            self._scope.cancel()
            raise
        finally:
            if runner.yielded or self._watched or len(self._runners) == self._concurrency:
                self._interrupt()
            self._runners.remove(runner)
            self._shared.running = len(self._runners)
            if not self._runners and self._renewing is not None:
                self._renewing.cancel()

    async def _renew(self, scope: anyio.CancelScope) -> None:
        """Renew the leases, only while conversations are handled: an emulated clock would otherwise run for ever."""
        pause = self._lease / 3
        with scope:
            while True:
                await self._clock.sleep(pause)
                try:
                    await self._renew_all()
                    pause = self._lease / 3
                except Exception:
                    pause = min(RENEW_AGAIN, self._lease / 6)
                    self._log.exception("the leases could not be renewed; next try in %g s", pause)

    async def _renew_all(self) -> None:
        runners, until = {runner.claim.conversation: runner for runner in self._runners}, self._shared.now() + self._lease
        claims = [runner.claim for runner in runners.values()]
        for claim in await self._shared.ask(partial(self._backlog.renew, claims), part=6):
            lost = runners.pop(claim.conversation)
            lost.lost = lost.claim.fence == claim.fence
        for runner in runners.values():
            runner.leased_until = max(runner.leased_until, until)

    async def _end_in_time(self) -> None:
        """Cancel a stopped run when its ``drain`` is over, and end its shields when ``GRACE`` is over, too."""
        try:
            await self._stop_asked.wait()
            with self._clock.scope(self._shared.settings.drain):
                await self._absolve(*self._runners)
                await self._over.wait()
            self._scope.cancel()
        finally:
            with anyio.CancelScope(shield=True):
                with self._clock.scope(GRACE):
                    await self._over.wait()
            self._shared.end_shields()
            if self._shared.settings.budget is not None:
                with anyio.CancelScope(shield=True), self._clock.scope(ABANDON_AFTER):
                    await self._over.wait()
                self._shared.threads.abandon()
