"""The worker: handles an inbox's events at least once, conversations concurrently, events of each in order."""

from __future__ import annotations

import inspect
from collections import deque
from contextlib import asynccontextmanager, contextmanager, nullcontext
from functools import partial
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from attrs import Factory, define, evolve, field, setters

from rbim._support.event_loops import waker
from rbim._support.task_errors import is_being_cancelled
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.observers import (
    DeadLettered,
    Handled,
    HandlingEnded,
    HandlingFailed,
    HandlingStarted,
    HungHandler,
    LoopBlocked,
    Observers,
    RetriedAlone,
)
from rbim.callbacks.worker.attempt import (
    ForeignCode,
    HandlerFailure,
    NoThread,
    ThreadAbandoned,
    Threads,
    being_cancelled,
    failure_of,
    timed,
)
from rbim.callbacks.worker.backoff import Backoff
from rbim.callbacks.worker.supervision import HostTask, Supervision
from rbim.clock import SystemClock, epoch_of, monotonic_of
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one, seconds

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
    from contextlib import AbstractAsyncContextManager
    from types import TracebackType
    from typing import Self

    from anyio.abc import TaskStatus

    from rbim.callbacks.inbox.protocols import Backlog, Claim, Inbox
    from rbim.callbacks.worker.router import HandlerCall, Router
    from rbim.clock import Clock

__all__ = ["CRASHED", "FIRST_PAUSE", "GRACE", "LONGEST_PAUSE", "MOST_IN_A_ROW", "Worker"]

# Theory of operation: a conversation while this worker has its lease.
#
#   leased      Claims are at hand: the conversation's oldest events, of which none has begun.
#   handling    The handler of one event runs, under its timeout.
#   ahead       The same, while successes of earlier events are being recorded: all that there are in one command.
#   recording   Nothing is handled. Results are written to the backlog, again and again until that succeeds or the lease is
#               lost.
#   ended       The worker has no claim of it any more.
#
# leased -> handling     unless the event has crashed too often, or has no handler call: then -> recording
# leased -> ended        the worker is stopping, or others go first: the claims are released
# handling -> ahead      success, and the next event is at hand, and the worker may be further ahead
# handling -> recording  success otherwise; failure: retry, or dead letter after the last attempt
# handling -> ended      cancelled: earlier successes are recorded, the claims released; if that fails, the lease runs out
# recording -> leased    done or dead letter, and the conversation has other events: next claims under the same lease
# recording -> ended     no event is left; retry (the conversation pauses); stopping; MOST_IN_A_ROW events handled (other
#                        conversations go first); or LeaseLost (nothing was recorded)
#
# An event that is retried alone (see inbox/protocols.py) is claimed by itself. It begins when all other conversations have
# ended, and nothing begins beside it; both waits last for ``timeout`` seconds at most. If others do not end, it begins
# beside them, and a death then does not count. If it does not end itself, it counts no longer, and others begin.
#
# What must always hold:
# - An event is handled after the one before it has ended, and never beside it.
# - Results are recorded in order: a failure or dead letter only after all earlier successes.
# - A handler begins only under a lease: one that may have expired meanwhile is renewed first, or found lost.
# - The worker goes ahead only before the lease can have expired: else another one may handle what it has not recorded.
# - It goes ahead only while fewer than ``concurrency`` successes of all conversations are not recorded; without going ahead,
#   each has one. So a crash repeats at most ``2 * concurrency`` events.
# - A result counts only with the current fence: after LeaseLost another worker has the event, and this one must stop.
# - What ends without ``stop``, whatever it is, leaves what had begun as after a death: it is retried alone.

MOST_IN_A_ROW = 32
"""Events of one conversation that are handled before other conversations go first."""

GRACE = 3.0
"""Seconds that a cancelled worker has to record results and to release claims, and then for functions in threads."""

CALL_TIMEOUT = 15.0
"""Seconds of real time for one call of the backlog, at most; less if the lease is short."""

RENEW_AGAIN = 1.0
"""Seconds after which a renewal of the leases that failed is tried again."""

CANCELLED_TURNS = 5  # turns of the loop in which a cancellation of all tasks has reached the worker
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two tries with a backlog that failed
NOT_RELEASED = "could not be released; its lease will expire"
CRASHED = "its process or its worker ended %d times while it was handled, the last %d times with nothing else beside it"

T = TypeVar("T")


def _clock(given: Clock | None) -> Clock:
    return SystemClock() if given is None else given


def _backoff(given: Backoff | None) -> Backoff:
    return Backoff() if given is None else given


def _observers(given: Observers | None) -> Observers:
    return Observers() if given is None else given


@define(eq=False, repr=False, slots=False, on_setattr=setters.frozen)
class Worker:
    """Handles an inbox's events with ``handlers``, a :class:`~rbim.callbacks.Router`. Workers may share an inbox.

    It handles up to ``concurrency`` conversations at once (default: 16). Within one, an event is handled after the one
    before it has ended, and results are recorded in order. A handler that fails, or takes longer than ``timeout`` seconds
    (default: 60), is called again according to ``backoff`` and delays only its own conversation; after the last attempt the
    event becomes a dead letter, with the traceback. ``observers`` get the results (default: none). ``drain``: seconds that
    running handlers have after :meth:`stop` (default: 10).

    An ``async def`` handler runs in the current event loop; one that blocks it for more than 0.5 s is logged, and observers
    get :class:`~rbim.callbacks.LoopBlocked`. A plain function runs in a thread: its timeout does not stop it, and at the end
    the worker waits for it 3 seconds longer and leaves its thread running. ``around`` returns an async context manager for
    what handlers share; its value is their ``HandlerContext.resource`` (default: none).

    ``async with worker`` handles events during the block, and starts again, with ``around``, after whatever else ends it; an
    error of the first start is raised. :meth:`run` does it once.

    An event is handled again if the process ends, or the lease is lost, after the handler's end and before its record: at
    most ``2 * concurrency`` events. What had begun when a process died, or when a worker ended without :meth:`stop`, is
    retried alone, for at most ``timeout`` seconds, and ``backoff`` says how often.
    """

    inbox: Inbox
    handlers: Router[Any]
    clock: Clock = field(default=None, kw_only=True, converter=_clock)
    concurrency: int = field(default=16, kw_only=True, validator=at_least_one)
    timeout: float = field(default=60.0, kw_only=True, validator=above_zero)
    backoff: Backoff = field(default=None, kw_only=True, converter=_backoff)
    observers: Observers = field(default=None, kw_only=True, converter=_observers)
    drain: float = field(default=10.0, kw_only=True, validator=seconds)
    around: Callable[[], AbstractAsyncContextManager[object]] | None = field(default=None, kw_only=True)
    supervision: Supervision = field(
        default=Factory(lambda self: Supervision("worker", self.observers, self.clock), takes_self=True), kw_only=True
    )

    def __attrs_post_init__(self) -> None:
        self._call_soon: Callable[[Callable[[], object]], None] | None = None
        self._stopped = False
        self._run: _Run | None = None

    def stop(self) -> None:
        """Start no more handlers, and end when the running ones have ended.

        They have ``drain`` seconds; then they are cancelled and their events released. May be called from any thread. A
        stopped worker does not run again.
        """
        self._stopped = True
        run, call_soon = self._run, self._call_soon
        if run is not None:
            run.call_soon(run.stop)
        if call_soon is not None:
            call_soon(self._stop_asked.set)

    async def __aenter__(self) -> Self:
        self._call_soon, self._stop_asked = waker(), anyio.Event()
        self._host = HostTask(self._running, self.supervision)
        await self._host.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if error is None or self._stopped:
            self.stop()
        else:
            self._host.cancel()
        await self._host.__aexit__(kind, error, trace)

    @asynccontextmanager
    async def _running(self) -> AsyncGenerator[None, None]:
        async with nullcontext() if self.around is None else self.around() as resource, anyio.create_task_group() as tasks:
            await tasks.start(partial(self.run, resource=resource))
            yield

    async def wait(self) -> None:
        """Wait in the ``async with`` block until the worker has ended, after :meth:`stop` in another task or thread."""
        if not self._stopped:
            await self._stop_asked.wait()
        while self._run is not None:
            await self._run.over.wait()

    async def run(self, *, resource: object = None, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Handle events until :meth:`stop` is called. If it is cancelled before, what had begun is retried alone later.

        Handlers get ``resource`` in their :class:`~rbim.callbacks.HandlerContext`.
        Raises InvalidRequest if the router has no fallback or the worker runs already, and any error of opening the inbox.
        Errors of handlers, and later errors of the inbox, are not raised. Returns at once if it was stopped before.
        """
        self.handlers.check()
        if self._run is not None:
            raise InvalidRequest("this worker runs already; create another one")
        try:
            async with self.inbox.backlog() as backlog:
                self._run = run = _Run(self, backlog, resource)
                task_status.started()
                if self._stopped:  # before there was a run to stop
                    run.stop()
                await run.run()
        finally:
            self._run = None


class _Leased:
    """A conversation under a lease: its claims, and what of them has begun, has succeeded and is recorded."""

    def __init__(self, claims: Sequence[Claim], until: float) -> None:
        self.claim = claims[0]  # at hand: handled now, or next
        self.queue = deque(claims)  # not begun
        self.begun: set[int] = set()  # numbers of the event at hand and of the successes that are not recorded
        self.successes: list[tuple[Claim, float]] = []  # not recorded, with the seconds that they took
        self.recording = anyio.Lock(fast_acquire=True)
        self.until = until  # the end of the lease, in epoch seconds
        self.lost = False  # it has ended before
        self.ended = False
        self.handled = 0
        self.last = False  # no other event is begun
        self.cancelled = False  # the handler's task, by something other than a scope
        self.overdue = False  # what is retried alone has waited for it long enough

    def take(self, settled: Sequence[Claim], found: Sequence[Claim]) -> None:
        """Go on with the claims that a result has brought; without any the lease has ended."""
        self.begun.difference_update(claim.number for claim in settled)
        self.queue = deque(claim for claim in found if claim.number not in self.begun)
        self.ended = not found


class _Run:
    """One run of a worker."""

    def __init__(self, settings: Worker, backlog: Backlog, resource: object) -> None:
        self.call_soon = waker()
        self._settings = settings
        self._clock, self._observers, self._log = settings.clock, settings.observers, settings.observers.log
        self._now = epoch_of(settings.clock)  # inboxes measure leases by it
        self._monotonic = monotonic_of(settings.clock)
        self._backlog = backlog
        self._resource = resource
        self._lease = settings.inbox.lease
        self._threads = Threads(settings.concurrency)
        self._leased: set[_Leased] = set()
        self._unrecorded = 0  # successes
        self._stopping = False
        self._waits_for_all = False  # something is to be retried alone: no other event is begun
        self._watched = False  # the end of any conversation is waited for
        self._interrupted = False
        self._waiting: anyio.CancelScope | None = None
        self._renewing: anyio.CancelScope | None = None
        self._stop_asked = anyio.Event()
        self.over = anyio.Event()

    async def run(self) -> None:
        """Handle events until it is stopped or cancelled."""
        async with anyio.create_task_group() as guarded:
            self._scope = guarded.cancel_scope
            guarded.start_soon(self._end_in_time)
            try:
                async with anyio.create_task_group() as self._tasks:
                    await self._claim_until_stopped()
            finally:
                self.over.set()
            self._scope.cancel()

    def stop(self) -> None:
        """Begin no more events, and end in time."""
        self._stopping = True
        self._stop_asked.set()
        self._interrupt()

    async def _end_in_time(self) -> None:
        """Cancel a stopped run when its ``drain`` is over, and leave threads alone when ``GRACE`` is over, too."""
        try:
            await self._stop_asked.wait()
            with self._clock.scope(self._settings.drain):
                await self._discount([leased.claim for leased in self._leased])
                await self.over.wait()
            self._scope.cancel()
        finally:
            with anyio.CancelScope(shield=True), self._clock.scope(GRACE):
                await self.over.wait()
            self._threads.abandon()

    async def _discount(self, claims: Sequence[Claim]) -> None:
        try:
            await self._ask(lambda: self._backlog.discount(claims))
        except Exception:
            self._log.exception("a death from now on may be taken for one of what is being handled")

    # ---------------------------------------------------------------------------------- claims

    async def _claim_until_stopped(self) -> None:
        pause = FIRST_PAUSE
        while not self._stopping:
            try:
                await self._claim()
                pause = FIRST_PAUSE
            except Exception:
                self._log.exception("no events could be claimed; next try in %g s", pause)
                await self._wait_until(self._clock.sleep(pause))
                pause = min(pause * 2, LONGEST_PAUSE)

    async def _claim(self) -> None:
        """Claim as many conversations as are free to handle; unless all were claimed, wait until more may be possible."""
        free = self._settings.concurrency - len(self._leased)
        if free == 0:
            await self._wait_until(anyio.sleep_forever())
            return
        conversations: dict[str, list[Claim]] = {}
        until = self._now() + self._lease
        for claim in await self._ask(lambda: self._backlog.claim(free)):
            conversations.setdefault(claim.conversation, []).append(claim)
        for claims in conversations.values():
            if not self._leased and isfinite(self._lease):
                self._renewing = anyio.CancelScope()
                self._tasks.start_soon(self._renew, self._renewing)
            leased = _Leased(claims, until)
            self._leased.add(leased)
            if leased.claim.crashes:
                await self._retry_alone(leased)
                return
            self._tasks.start_soon(self._handle, leased)
        if len(conversations) < free:
            with _for_at_most(CALL_TIMEOUT):  # the inbox may hang
                await self._wait_until(self._backlog.wait())

    async def _retry_alone(self, leased: _Leased) -> None:
        """Handle an event when all others have ended, and nothing beside it; both for at most ``timeout`` seconds."""
        self._waits_for_all, alone = True, False
        try:
            alone = await self._wait_for(lambda: all(each is leased or each.overdue for each in self._leased))
            for each in self._leased:
                each.overdue = each is not leased
            alone = alone and len(self._leased) == 1
        finally:
            self._waits_for_all = False
            self._tasks.start_soon(self._handle, leased, alone)
        if not await self._wait_for(lambda: leased not in self._leased) and not self._stopping:
            leased.overdue = True
            await self._discount([evolve(leased.claim, crashes=0)])

    async def _wait_for(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition on what is leased, until the run is stopped or ``timeout`` has passed; return it."""
        self._watched = True
        try:
            with self._clock.scope(self._settings.timeout):
                while not condition() and not self._stopping:
                    await self._wait_until(anyio.sleep_forever())
        finally:
            self._watched = False
        return condition()

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

    async def _renew(self, scope: anyio.CancelScope) -> None:
        """Renew the leases, only while conversations are handled: an emulated clock would otherwise run for ever."""
        pause = self._lease / 3
        with scope:
            while True:
                await self._clock.sleep(pause)
                leased, until = {each.claim.conversation: each for each in self._leased}, self._now() + self._lease
                claims = [each.claim for each in leased.values()]
                try:
                    lost = await self._ask(partial(self._backlog.renew, claims), part=6)
                    pause = self._lease / 3
                except Exception:
                    pause = min(RENEW_AGAIN, self._lease / 6)
                    self._log.exception("the leases could not be renewed; next try in %g s", pause)
                    continue
                for claim in lost:
                    each = leased.pop(claim.conversation)
                    each.lost = each.claim.fence == claim.fence
                for each in leased.values():
                    each.until = max(each.until, until)

    # -------------------------------------------------------------------------------- handling

    async def _handle(self, leased: _Leased, alone: bool = False) -> None:  # noqa: C901, FBT001, FBT002, PLR0912, PLR0915
        """Handle the events of one conversation in order, from its lease to the last record."""
        settings, observers, backlog = self._settings, self._observers, self._backlog
        try:
            if leased.claim.crashes and not self._stopping and leased.claim.crashes <= settings.backoff.crashes:
                if alone:
                    await self._until_recorded(leased, partial(backlog.begin, leased.claim))
                claim = leased.claim
                observers.notify(RetriedAlone, key=claim.key, crashes=claim.crashes, alone=alone, app_id=claim.app_id)
            while True:
                await checkpoint()  # so that handlers that never wait let other tasks run
                if leased.ended:
                    return
                if self._stopping or self._waits_for_all or leased.handled >= MOST_IN_A_ROW:
                    leased.last = True
                ahead = self._unrecorded < settings.concurrency and not leased.lost and self._now() < leased.until
                if leased.successes and leased.queue and not leased.last and ahead:
                    if not leased.recording.locked():
                        self._tasks.start_soon(self._record, leased)
                elif leased.successes:
                    await self._record_all(leased)
                    continue
                if not leased.last and self._now() >= leased.until:  # the process was stopped: the lease may be lost
                    leased.lost |= bool(await self._until_recorded(leased, partial(backlog.renew, [leased.claim])))
                if leased.lost:
                    raise LeaseLost  # noqa: TRY301  # handled like that of a record
                if leased.last:
                    await self._leave(leased)
                    return
                claim = leased.claim = leased.queue.popleft()
                leased.begun.add(claim.number)
                leased.handled += 1
                leased.overdue = False
                call, failure, began = None, None, self._monotonic()
                if claim.crashes > settings.backoff.crashes:
                    crashed = CRASHED % (claim.crashes, claim.crashes - 1)
                    failure = HandlerFailure(crashed, crashed)
                else:
                    try:
                        call = settings.handlers.handler_call(claim, self._resource)
                    except Exception as error:  # an older version may have accepted a body that this one cannot read
                        failure = failure_of(error)
                if call is not None:
                    try:
                        failure = await self._attempt(leased, claim, call)
                    except NoThread as none:
                        self._log.warning("event %d (%s): its handler is called later: %s", claim.number, claim.key, none)
                        await self._clock.sleep(FIRST_PAUSE)
                        leased.begun.discard(claim.number)
                        leased.queue.appendleft(claim)
                        leased.last = True
                        continue
                if failure is None:
                    leased.successes.append((claim, self._monotonic() - began))
                    self._unrecorded += 1
                    continue
                await self._record_all(leased)
                pause = None if call is None else settings.backoff.pause(claim.attempt)
                failed: dict[str, Any] = {"error": failure.line, "trace": failure.trace, "exception": failure.shown}
                if pause is not None:
                    retry = partial(backlog.retry, claim, error=failure.trace, pause=pause)
                    await self._until_recorded(leased, retry)
                    leased.ended = True
                    observers.notify(HandlingFailed, pause=pause, **_handled_by(claim, call), **failed)
                else:
                    letter = partial(backlog.dead_letter, claim, error=failure.trace, more=self._more(leased, 1))
                    leased.take((claim,), await self._until_recorded(leased, letter))
                    crashes = claim.crashes if call is None else 0
                    observers.notify(DeadLettered, crashes=crashes, **_handled_by(claim, call), **failed)
        except LeaseLost:
            lost = "event %d (%s): the lease was lost to another worker; does an async handler block?"
            self._log.warning(lost, leased.claim.number, leased.claim.key)
        except ThreadAbandoned:
            left = "event %d (%s): its handler did not end and is left running in its thread; the lease will expire"
            self._log.error(left, leased.claim.number, leased.claim.key)
            await self._leave(leased, keep=True)
        except BaseException as error:  # an error of the whole run, or its cancellation
            stray = isinstance(error, anyio.get_cancelled_exc_class()) and not being_cancelled()
            # a stop that comes after something has cancelled all tasks is its consequence
            await self._leave(leased, died=leased.cancelled or not (stray or self._stopping))
            if not stray:
                self._scope.cancel()
                raise
            self._log.exception(
                "event %d (%s): a stray cancellation; its claim is released", leased.claim.number, leased.claim.key
            )
        finally:
            self._unrecorded -= len(leased.successes)
            leased.successes.clear()
            if leased.handled >= MOST_IN_A_ROW or self._watched or len(self._leased) == settings.concurrency:
                self._interrupt()
            self._leased.discard(leased)
            if not self._leased and self._renewing is not None:
                self._renewing.cancel()

    async def _attempt(  # noqa: C901  # the whole attempt, in order
        self, leased: _Leased, claim: Claim, call: HandlerCall
    ) -> HandlerFailure | None:
        """Call the handler, between the observations of its start and its end; return its failure, or None.

        A coroutine has ``timeout`` seconds by the clock. A plain function runs in a thread and cannot be stopped: it is
        waited for until the threads are abandoned. Raises errors that also end the worker, ThreadAbandoned, and NoThread.
        """
        observers, timeout, about = self._observers, self._settings.timeout, _handled_by(claim, call)
        began, code, cancelled = self._monotonic(), ForeignCode(), True
        failure: HandlerFailure | None = None

        def report_blocked(seconds: float) -> None:
            observers.notify(LoopBlocked, handler=call.handler, seconds=seconds)

        observers.notify(HandlingStarted, **about)
        try:
            hung = partial(observers.notify, HungHandler, seconds=timeout, **about)
            running: Any = call.run(partial(self._threads.run, timeout=timeout, hung=hung))
            if call.blocking:
                running = await running
            if inspect.isawaitable(running):  # what a plain function returns, too: a decorator hid the async one
                with self._clock.scope(timeout) as scope:
                    await timed(running, report_blocked)
                if scope.cancelled_caught:
                    failure = failure_of(TimeoutError(f"the handler took longer than {timeout:g} s"))
            if code.cancelled_itself:
                await checkpoint()  # the cancellation is delivered here
            cancelled = False
        except (ThreadAbandoned, NoThread):
            raise
        except BaseException as error:  # sys.exit() in a handler is that handler's failure and ends no other
            if not code.failed(error):
                raise
            if isinstance(error, anyio.get_cancelled_exc_class()):
                leased.cancelled = True
                for _ in range(CANCELLED_TURNS):  # was the worker cancelled, too? Then this is its end
                    await checkpoint()
                leased.cancelled = False
            failure, cancelled = failure_of(error), False
        finally:
            raised, elapsed = None if failure is None else failure.error, self._monotonic() - began
            observers.notify(HandlingEnded, elapsed=elapsed, error=raised, cancelled=cancelled, **about)
        return failure

    # ------------------------------------------------------------------------------- recording

    def _more(self, leased: _Leased, settled: int) -> int:
        """Return how many events to ask for while so many are settled: those that have begun, and those to begin next."""
        begun = len(leased.begun) - settled
        if leased.last or self._stopping or self._waits_for_all:
            leased.last = True
            leased.queue.clear()  # without other events the lease ends
            return begun
        return begun + max(1, self._settings.concurrency // max(1, len(self._leased)))

    async def _record_all(self, leased: _Leased) -> None:
        """Record all successes. Raises LeaseLost."""
        await self._record(leased)
        if leased.lost:
            raise LeaseLost

    async def _record(self, leased: _Leased) -> None:
        """Record successes, all that there are in one command, until there are none."""
        async with leased.recording:
            while leased.successes and not leased.lost:
                successes = tuple(leased.successes)
                claims = tuple(claim for claim, _ in successes)
                done = partial(self._backlog.done, claims, more=self._more(leased, len(claims)))
                try:
                    found = await self._until_recorded(leased, done)
                except LeaseLost:
                    leased.lost = True
                    return
                del leased.successes[: len(claims)]
                self._unrecorded -= len(claims)
                leased.take(claims, found)
                for claim, elapsed in successes:
                    self._observers.notify(Handled, key=claim.key, attempt=claim.attempt, elapsed=elapsed)

    async def _until_recorded(self, leased: _Leased, record: Callable[[], Awaitable[T]]) -> T:
        """Record a result, with retries until that succeeds. Raises LeaseLost."""
        pause = FIRST_PAUSE
        while True:
            began = self._now()
            try:
                result = await self._ask(record)
            except LeaseLost:
                raise
            except Exception:
                again = "event %d: its result, or its lease, could not be recorded; next try in %g s"
                self._log.exception(again, leased.claim.number, pause)
            else:
                leased.until = began + self._lease
                return result
            await self._clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _leave(self, leased: _Leased, *, died: bool = False, keep: bool = False) -> None:
        """Record the successes once more, and give the rest back; ``keep``: leave the lease of the event at hand."""
        successes = [claim for claim, _ in leased.successes]
        begun = leased.claim.number in leased.begun and leased.claim not in successes
        try:
            with anyio.CancelScope(shield=True), self._clock.scope(GRACE) as scope:
                async with leased.recording:
                    if leased.ended or leased.lost:
                        return
                    if leased.successes:
                        claims = [claim for claim, _ in leased.successes]
                        await self._ask(partial(self._backlog.done, claims, more=int(begun and (died or keep))))
                    if not keep and (not leased.successes or (begun and died)):
                        claim = leased.claim if begun or not leased.queue else leased.queue[0]
                        await self._ask(partial(self._backlog.release, claim, died=died and begun))
            if scope.cancelled_caught:
                self._log.error("event %d (%s) %s", leased.claim.number, leased.claim.key, NOT_RELEASED)
        except LeaseLost:
            pass
        except Exception:
            self._log.exception("event %d (%s) %s", leased.claim.number, leased.claim.key, NOT_RELEASED)

    async def _ask(self, call: Callable[[], Awaitable[T]], *, part: float = 2) -> T:
        """Call the backlog, for 1/``part`` of a lease or ``CALL_TIMEOUT`` at most. Raises TimeoutError, which names it.

        By real time: an emulated clock does not wait for threads.
        """
        seconds = min(CALL_TIMEOUT, self._lease / part)
        with _for_at_most(seconds):
            return await call()
        raise TimeoutError(f"the inbox has not answered within {seconds:g} s")


@contextmanager
def _for_at_most(seconds: float) -> Generator[None, None, None]:
    """Leave the block, which calls an inbox, after so many seconds, as ``move_on_after`` does.

    A cancellation that neither a scope nor a task requested is an error of the inbox like any other: it ends no worker.
    """
    scope = anyio.move_on_after(seconds)
    try:
        with scope:
            yield
    except anyio.get_cancelled_exc_class() as error:
        if is_being_cancelled():
            raise
        if not scope.cancel_called:  # else it is the scope's, from asyncio.gather, which does not say so
            raise RuntimeError("a call of the inbox was cancelled by something that it awaited") from error


def _handled_by(claim: Claim, call: HandlerCall | None) -> dict[str, Any]:
    """Return the fields of an observation on the handling of an event."""
    names = {"event": call.event, "handler": call.handler} if call else {}
    return {"key": claim.key, "attempt": claim.attempt, "app_id": claim.app_id, **names}
