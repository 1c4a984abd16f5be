"""The runner of one conversation: handles its events in order and records each result before the next."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from attrs import field, frozen

from rbim._support.text import quoted
from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.observers import DeadLettered, Handled, HandlingEnded, HandlingFailed, HandlingStarted
from rbim.callbacks.worker.attempt import HandlerFailure, ThreadAbandoned, Threads, being_cancelled, failure_of, perform
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one, or_none

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    import attrs

    from rbim.callbacks.inbox.protocols import Backlog, Claim
    from rbim.callbacks.observers import Observers
    from rbim.callbacks.worker.backoff import Backoff
    from rbim.callbacks.worker.loop_guard import LoopGuard
    from rbim.callbacks.worker.router import HandlerCall, HandlerCalls
    from rbim.clock import Clock

__all__ = ["FIRST_PAUSE", "GRACE", "LONGEST_PAUSE", "MOST_IN_A_ROW", "ConversationRunner", "SharedRun", "WorkerSettings"]

# Theory of operation: a conversation while this worker has its lease.
#
#   leased      A claim is at hand; its attempt is counted already.
#   handling    The handler runs, under its timeout.
#   recording   The result is written to the backlog, again and again until that succeeds or the lease is lost.
#   ended       The runner has no claim any more.
#
# leased -> handling     unless the event has used up its attempts, or has no handler call: then -> recording (dead letter)
# leased -> ended        the worker is stopping: the claim is released, and its attempt does not count
# handling -> recording  success: done; failure: retry, or dead letter after the last attempt
# handling -> ended      cancelled: the claim is released; after a release that fails, the lease runs out
# recording -> leased    done or dead letter, and the conversation has another event: next claim under the same lease
# recording -> ended     no event is left; retry (the conversation pauses); stopping; MOST_IN_A_ROW events handled (other
#                        conversations go first); or LeaseLost (nothing was recorded)
#
# What must always hold:
# - An event's result is recorded before the next event of the conversation is handled.
# - A result counts only with the current fence: after LeaseLost another worker has the event, and this one must stop.
# - Recording and releasing are shielded from cancellation, but only until the grace after the end of the run is over.
# - The worker renews the leases of all its runners at a third of the lease, from leased to ended.

MOST_IN_A_ROW = 32
"""Events of one conversation that are handled before other conversations go first."""

GRACE = 3.0
"""Seconds that a cancelled worker has to record results and to release other claims."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds between two tries with a backlog that failed
ENDED = "every attempt began and none ended: the process ended, or the lease expired"

T = TypeVar("T")


def _not_below_zero(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
        raise InvalidRequest(
            f"{attribute.name}: use a number of seconds from 0 on, not {quoted(value)}", field=attribute.name
        )


@frozen(kw_only=True)
class WorkerSettings:
    """The validated settings of a worker; times are in seconds."""

    handlers: HandlerCalls
    clock: Clock
    backoff: Backoff
    observers: Observers
    concurrency: int = field(validator=at_least_one)
    timeout: float = field(validator=above_zero)
    drain: float = field(validator=_not_below_zero)
    budget: float | None = field(default=None, validator=or_none(above_zero))


class SharedRun:
    """State that the runners of one run share: the backlog, the stop flag, and shields against cancellation."""

    def __init__(self, settings: WorkerSettings, backlog: Backlog, resource: object, guard: LoopGuard | None) -> None:
        self.settings = settings
        self.backlog = backlog
        self.resource = resource
        self.guard = guard
        self.stopping = False
        self.threads = Threads(settings.concurrency)
        self._shields: set[anyio.CancelScope] = set()
        self._over = False

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        """Shield the block from cancellation; after :meth:`end_shields`, for at most ``GRACE`` seconds."""
        with anyio.CancelScope(shield=True) as scope:
            self._shields.add(scope)
            try:
                with self.settings.clock.scope(GRACE) if self._over else nullcontext():
                    yield
            finally:
                self._shields.discard(scope)

    def end_shields(self) -> None:
        """Cancel all shielded blocks. A function in a thread may end later; recording its result has its own grace."""
        self._over = True
        for scope in self._shields:
            scope.cancel()


class ConversationRunner:
    """Handles one conversation while it is leased, from its first claim on. ``claim`` is the current one."""

    def __init__(self, shared: SharedRun, claim: Claim) -> None:
        self.claim = claim
        self._shared = shared
        self._settings = shared.settings
        self._log = shared.settings.observers.log
        self._handled = 0

    @property
    def yielded(self) -> bool:
        """Whether it ended to let other conversations go first."""
        return self._handled >= MOST_IN_A_ROW

    async def run(self) -> None:
        """Handle events until none is left or others go first; release the current claim if it is not settled."""
        following: Claim | None = self.claim
        try:
            while following is not None:
                self.claim = following
                await checkpoint()  # so that handlers that never wait let other tasks run
                if self._shared.stopping:
                    await self._release()
                    return
                self._handled += 1
                following = await self._handle(following)
        except LeaseLost:
            lost = "event %d (%s): the lease was lost to another worker; does an async handler block?"
            self._log.warning(lost, self.claim.number, self.claim.key)
        except ThreadAbandoned:
            left = "event %d (%s): its handler did not end and is left running in its thread; the lease will expire"
            self._log.error(left, self.claim.number, self.claim.key)
        except BaseException as error:
            await self._release()
            if isinstance(error, anyio.get_cancelled_exc_class()) and not being_cancelled():
                self._log.exception(
                    "event %d (%s): a stray cancellation; its claim is released", self.claim.number, self.claim.key
                )
                return
            raise

    async def _handle(self, claim: Claim) -> Claim | None:
        """Handle one event, record the result, and return the next claim of the conversation. Raises LeaseLost."""
        settings, began = self._settings, self._settings.clock.monotonic()
        if claim.attempt > settings.backoff.attempts:
            return await self._dead_letter(claim, None, HandlerFailure(ENDED, ENDED))
        try:
            call = settings.handlers.handler_call(claim, self._shared.resource)
        except Exception as error:  # an older version may have accepted a body that this one cannot read
            return await self._dead_letter(claim, None, failure_of(error))
        if not call.blocking and self._shared.guard is not None:
            await self._shared.guard.rested()
            if self._shared.stopping:
                await self._release()
                return None
        failure = await self._attempt(claim, call)
        if failure is None:
            elapsed = settings.clock.monotonic() - began
            following = await self._record(lambda: self._shared.backlog.done(claim, more=self._more()))
            receiver = settings.observers.receiver
            settings.observers.notify(Handled(receiver=receiver, key=claim.key, attempt=claim.attempt, elapsed=elapsed))
            return following
        pause = settings.backoff.pause(claim.attempt)
        if pause is None:
            return await self._dead_letter(claim, call, failure)
        await self._record(lambda: self._shared.backlog.retry(claim, error=failure.trace, pause=pause))
        facts = self._failed(claim, call, failure)
        settings.observers.notify(HandlingFailed(pause=pause, **facts), failure.shown)
        return None

    async def _attempt(self, claim: Claim, call: HandlerCall) -> HandlerFailure | None:
        """Call the handler, between the observations of its start and its end; return its failure, or None."""
        settings, failure, cancelled = self._settings, None, True
        observers, began = settings.observers, settings.clock.monotonic()
        facts: dict[str, Any] = {"receiver": observers.receiver, "key": claim.key, "attempt": claim.attempt}
        if observers.present:
            observers.notify(HandlingStarted(event=call.event, handler=call.handler, app_id=claim.app_id, **facts))
        try:
            failure = await perform(
                call,
                clock=settings.clock,
                timeout=settings.timeout,
                threads=self._shared.threads,
                guard=self._shared.guard,
            )
            cancelled = False
        finally:
            if observers.present:
                error, elapsed = None if failure is None else failure.error, settings.clock.monotonic() - began
                observers.notify(HandlingEnded(elapsed=elapsed, error=error, cancelled=cancelled, **facts))
        return failure

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

    async def _dead_letter(self, claim: Claim, call: HandlerCall | None, failure: HandlerFailure) -> Claim | None:
        following = await self._record(
            lambda: self._shared.backlog.dead_letter(claim, error=failure.trace, more=self._more())
        )
        self._settings.observers.notify(DeadLettered(**self._failed(claim, call, failure)), failure.shown)
        return following

    def _more(self) -> bool:
        return self._handled < MOST_IN_A_ROW and not self._shared.stopping

    async def _record(self, record: Callable[[], Awaitable[T]]) -> T:
        """Record a result, with retries until that succeeds. Raises LeaseLost."""
        pause = FIRST_PAUSE
        while True:
            try:
                with self._shared.shielded():
                    return await record()
            except LeaseLost:
                raise
            except Exception:
                self._log.exception(
                    "the result of event %d could not be recorded; next try in %g s", self.claim.number, pause
                )
            await self._settings.clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _release(self) -> None:
        try:
            with self._shared.shielded():
                await self._shared.backlog.release(self.claim)
        except Exception:
            self._log.exception(
                "event %d (%s) could not be released; its lease will expire", self.claim.number, self.claim.key
            )
