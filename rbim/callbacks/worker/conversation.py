"""The runner of one conversation: handles its events in order and records their results in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from attrs import frozen

from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.observers import (
    DeadLettered,
    Handled,
    HandlingEnded,
    HandlingFailed,
    HandlingStarted,
    HungHandler,
    SuspectedOfCrash,
)
from rbim.callbacks.worker.attempt import (
    HandlerFailure,
    NoThread,
    ThreadAbandoned,
    being_cancelled,
    failure_of,
    perform,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from rbim.callbacks.inbox.protocols import Claim
    from rbim.callbacks.worker.router import HandlerCall
    from rbim.callbacks.worker.shared_run import SharedRun

__all__ = [
    "CRASHED",
    "ENDED",
    "FIRST_PAUSE",
    "LONGEST_PAUSE",
    "MOST_IN_A_ROW",
    "ConversationRunner",
]

# Theory of operation: a conversation while this worker has its lease.
#
#   leased      Claims are at hand: the conversation's oldest events, of which none has begun.
#   handling    The handler of one event runs, under its timeout.
#   ahead       The same, while successes of earlier events are being recorded: all that there are in one command.
#   recording   Nothing is handled. Results are written to the backlog, again and again until that succeeds or the lease is
#               lost.
#   ended       The runner has no claim any more.
#
# leased -> handling     unless the event has used up its attempts or crashes, or has no handler call: then -> recording
# leased -> ended        the worker is stopping, or others go first: the claims are released
# handling -> ahead      success, and the next event is at hand, and the run may be further ahead
# handling -> recording  success otherwise; failure: retry, or dead letter after the last attempt
# handling -> ended      cancelled: earlier successes are recorded, the claims released; if that fails, the lease runs out
# recording -> leased    done or dead letter, and the conversation has other events: next claims under the same lease
# recording -> ended     no event is left; retry (the conversation pauses); stopping; MOST_IN_A_ROW events handled (other
#                        conversations go first); or LeaseLost (nothing was recorded)
#
# What must always hold:
# - An event is handled after the one before it has ended, and never beside it.
# - Results are recorded in order: a failure or dead letter only after all earlier successes.
# - A runner goes ahead only before its lease can have expired: else another worker may handle what it has not recorded.
# - A runner goes ahead only while fewer than ``concurrency`` successes of the whole run are not recorded; without going
#   ahead, it has one. So a crash repeats at most ``2 * concurrency`` events.
# - A result counts only with the current fence: after LeaseLost another worker has the event, and this one must stop.
# - Recording and releasing are shielded from cancellation, but only until the grace after the end of the run is over.
# - The worker renews the leases of all its runners at a third of the lease, from leased to ended.

MOST_IN_A_ROW = 32
"""Events of one conversation that are handled before other conversations go first."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two tries with a backlog that failed
ENDED = "every attempt began and none ended: the lease expired each time; does an async handler block?"
CRASHED = "its process ended %d times while it was handled, the last %d times with nothing else beside it"

T = TypeVar("T")


@frozen
class _Success:
    """An event that was handled, and the seconds that it took."""

    claim: Claim
    elapsed: float


class ConversationRunner:
    """Handles one conversation while it is leased.

    ``claim`` is the event at hand, ``alone`` whether a suspect is alone, ``overdue`` whether suspects have waited for it
    long enough. ``leased_until`` is in epoch seconds; ``lost`` says that the lease is lost before that.
    """

    def __init__(self, shared: SharedRun, claims: Sequence[Claim], leased_until: float) -> None:
        self.claim = claims[0]
        self.leased_until = leased_until
        self.alone = True
        self.overdue = False
        self.lost = False
        self._shared = shared
        self._settings = shared.settings
        self._log = shared.settings.observers.log
        self._queue = deque(claims)  # not begun
        self._begun: set[int] = set()  # numbers of the event at hand and of the successes that are not recorded
        self._successes: list[_Success] = []  # not recorded
        self._handled = 0
        self._last = False  # no other event is begun
        self._left = False  # the lease has ended
        self._recorded: anyio.Event | None = None  # while a task records successes

    @property
    def yielded(self) -> bool:
        """Whether it ended to let other conversations go first."""
        return self._handled >= MOST_IN_A_ROW

    async def run(self) -> None:
        """Handle events until none is left or others go first; release the claims that are not settled."""
        try:
            if self.claim.crashes:
                await self._begin_suspect()
            while await self._next():
                await self._handle(self.claim)
        except LeaseLost:
            lost = "event %d (%s): the lease was lost to another worker; does an async handler block?"
            self._log.warning(lost, self.claim.number, self.claim.key)
        except ThreadAbandoned:
            left = "event %d (%s): its handler did not end and is left running in its thread; the lease will expire"
            self._log.error(left, self.claim.number, self.claim.key)
            await self._leave(more=1)
        except BaseException as error:
            await self._leave()
            if isinstance(error, anyio.get_cancelled_exc_class()) and not being_cancelled():
                self._log.exception(
                    "event %d (%s): a stray cancellation; its claim is released", self.claim.number, self.claim.key
                )
                return
            raise
        finally:
            self._shared.unrecorded -= len(self._successes)
            self._successes.clear()

    async def _begin_suspect(self) -> None:
        claim, backlog = self.claim, self._shared.backlog
        if claim.crashes > self._settings.backoff.crashes or self._shared.stopping:
            return
        await self._record(lambda: backlog.begin(claim))
        if not self.alone or self._shared.stopping:
            await self._record(lambda: backlog.absolve((claim,)))
        observers = self._settings.observers
        observers.notify(
            SuspectedOfCrash(
                receiver=observers.receiver, key=claim.key, crashes=claim.crashes, alone=self.alone, app_id=claim.app_id
            )
        )

    async def _next(self) -> bool:
        """Take the next claim, and return whether there is one. Raises LeaseLost."""
        await checkpoint()  # so that handlers that never wait let other tasks run
        if self._may_not_begin():
            self._last = True
        if self._successes or self._recorded is not None:
            if self._queue and not self._last and self._may_go_ahead():
                self._record_beside()
            else:
                await self._record_all()
        if self._left:
            return False
        if self._may_not_begin():
            await self._leave()
            return False
        self.claim = self._queue.popleft()
        self.overdue = False
        self._begun.add(self.claim.number)
        self._handled += 1
        return True

    def _may_not_begin(self) -> bool:
        return self._last or self._shared.stopping or self._shared.waiting or self._handled >= MOST_IN_A_ROW

    def _may_go_ahead(self) -> bool:
        shared = self._shared
        expired = self.lost or shared.now() >= self.leased_until
        return shared.unrecorded < shared.settings.concurrency and not expired

    async def _handle(self, claim: Claim) -> None:
        """Handle one event and record its failure, or keep its success to be recorded. Raises LeaseLost."""
        settings, began = self._settings, self._settings.clock.monotonic()
        if claim.crashes > settings.backoff.crashes:
            crashed = CRASHED % (claim.crashes, claim.crashes - 1)
            await self._dead_letter(claim, None, HandlerFailure(crashed, crashed), crashes=claim.crashes)
            return
        if claim.attempt > settings.backoff.attempts:
            await self._dead_letter(claim, None, HandlerFailure(ENDED, ENDED))
            return
        try:
            call = settings.handlers.handler_call(claim, self._shared.resource)
        except Exception as error:  # an older version may have accepted a body that this one cannot read
            await self._dead_letter(claim, None, failure_of(error))
            return
        if not call.blocking and self._shared.guard is not None:
            await self._shared.guard.rested()
            if self._shared.stopping:
                self._begun.discard(claim.number)
                return
        try:
            failure = await self.attempt(claim, call)
        except NoThread as none:
            self._log.warning("event %d (%s): its handler is called later: %s", claim.number, claim.key, none)
            await settings.clock.sleep(FIRST_PAUSE)
            self._begun.discard(claim.number)
            self._last = True
            return
        if failure is None:
            self._successes.append(_Success(claim, settings.clock.monotonic() - began))
            self._shared.unrecorded += 1
            return
        pause = settings.backoff.pause(claim.attempt)
        if pause is None:
            await self._dead_letter(claim, call, failure)
            return
        await self._record_all()
        await self._record(lambda: self._shared.backlog.retry(claim, error=failure.trace, pause=pause))
        self._left = True
        facts = self._failed(claim, call, failure)
        settings.observers.notify(HandlingFailed(pause=pause, **facts), failure.shown)

    async def attempt(self, claim: Claim, call: HandlerCall) -> HandlerFailure | None:
        """Call the handler, between the observations of its start and its end; return its failure, or None."""
        settings, failure, cancelled = self._settings, None, True
        observers, began = settings.observers, settings.clock.monotonic()
        facts: dict[str, Any] = {"receiver": observers.receiver, "key": claim.key, "attempt": claim.attempt}
        if observers.present:
            about: dict[str, Any] = {
                "event": call.event,
                "handler": call.handler,
                "app_id": claim.app_id,
                "headers": claim.headers,
            }
            observers.notify(HandlingStarted(**about, **facts))
        try:
            failure = await perform(
                call,
                clock=settings.clock,
                timeout=settings.timeout,
                threads=self._shared.threads,
                hung=lambda: self._report_hung(claim, call),
                guard=self._shared.guard,
            )
            cancelled = False
        finally:
            if observers.present:
                error, elapsed = None if failure is None else failure.error, settings.clock.monotonic() - began
                observers.notify(HandlingEnded(elapsed=elapsed, error=error, cancelled=cancelled, **facts))
        return failure

    def _report_hung(self, claim: Claim, call: HandlerCall) -> None:
        observers = self._settings.observers
        observers.notify(
            HungHandler(
                receiver=observers.receiver,
                key=claim.key,
                attempt=claim.attempt,
                seconds=self._settings.timeout,
                event=call.event,
                handler=call.handler,
                app_id=claim.app_id,
            )
        )

    def _failed(self, claim: Claim, call: HandlerCall | None, failure: HandlerFailure) -> dict[str, Any]:
        """Return the fields of an observation on a failure."""
        return {
            "receiver": self._settings.observers.receiver,
            "key": claim.key,
            "attempt": claim.attempt,
            "error": failure.line,
            "event": call.event if call else "",
            "handler": call.handler if call else "",
            "app_id": claim.app_id,
            "trace": failure.trace,
        }

    async def _dead_letter(
        self, claim: Claim, call: HandlerCall | None, failure: HandlerFailure, *, crashes: int = 0
    ) -> None:
        await self._record_all()
        more = self._more(1)
        found = await self._record(lambda: self._shared.backlog.dead_letter(claim, error=failure.trace, more=more))
        self._take((claim,), found)
        buried = DeadLettered(crashes=crashes, **self._failed(claim, call, failure))
        self._settings.observers.notify(buried, failure.shown)

    def _record_beside(self) -> None:
        """Let a task record successes while other events of the conversation are handled."""
        if self._recorded is None:
            self._recorded = anyio.Event()
            self._shared.start(self._record_while_handling)

    async def _record_while_handling(self) -> None:
        recorded = self._recorded
        assert recorded is not None  # noqa: S101  # set by who started this task
        try:
            while self._successes:
                await self._record_successes()
        except LeaseLost:
            self.lost = True
        finally:
            self._recorded = None
            recorded.set()

    async def _record_all(self) -> None:
        """Record all successes. Raises LeaseLost."""
        while self._recorded is not None:
            await self._recorded.wait()
        if self._successes and not self.lost:
            await self._record_successes()
        if self.lost:
            raise LeaseLost

    async def _record_successes(self) -> None:
        successes = tuple(self._successes)
        claims = tuple(success.claim for success in successes)
        more = self._more(len(claims))
        found = await self._record(lambda: self._shared.backlog.done(claims, more=more))
        del self._successes[: len(claims)]
        self._shared.unrecorded -= len(claims)
        self._take(claims, found)
        observers = self._settings.observers
        for success in successes:
            key, attempt = success.claim.key, success.claim.attempt
            observers.notify(Handled(receiver=observers.receiver, key=key, attempt=attempt, elapsed=success.elapsed))

    def _more(self, settled: int) -> int:
        """Return how many events to ask for while so many are settled: those that have begun, and those to begin next."""
        if self._may_not_begin():
            self._last = True
            self._queue.clear()  # without other events the lease ends
            return len(self._begun) - settled
        return len(self._begun) - settled + max(1, self._settings.concurrency // max(1, self._shared.running))

    def _take(self, settled: Sequence[Claim], found: Sequence[Claim]) -> None:
        self._begun.difference_update(claim.number for claim in settled)
        self._queue = deque(claim for claim in found if claim.number not in self._begun)
        self._left = not found

    async def _record(self, record: Callable[[], Awaitable[T]]) -> T:
        """Record a result, with retries until that succeeds. Raises LeaseLost."""
        pause = FIRST_PAUSE
        while True:
            try:
                began = self._shared.now()
                with self._shared.shielded():
                    result = await self._shared.ask(record)
                    self.leased_until = began + self._shared.lease
                    return result
            except LeaseLost:
                raise
            except Exception:
                self._log.exception(
                    "the result of event %d could not be recorded; next try in %g s", self.claim.number, pause
                )
            await self._settings.clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _leave(self, *, more: int = 0) -> None:
        """Record the successes once more if that is to be done, and give the rest back; keep the lease with ``more``."""
        backlog = self._shared.backlog
        try:
            with self._shared.shielded():
                while self._recorded is not None:
                    await self._recorded.wait()
                if self._left or self.lost:
                    return
                if self._successes:
                    claims = [success.claim for success in self._successes]
                    await self._shared.ask(lambda: backlog.done(claims, more=more))
                elif not more:
                    claim = self.claim if self.claim.number in self._begun or not self._queue else self._queue[0]
                    await self._shared.ask(lambda: backlog.release(claim))
        except LeaseLost:
            pass
        except Exception:
            self._log.exception(
                "event %d (%s) could not be released; its lease will expire", self.claim.number, self.claim.key
            )
