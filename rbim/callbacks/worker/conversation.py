"""The events of one conversation, one after the other: handle, record how that ended, go on."""

from __future__ import annotations

import logging
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from attrs import field, frozen

from rbim.callbacks.inbox.protocols import LeaseLost
from rbim.callbacks.observers import DeadLettered, Handled, HandlingFailed
from rbim.callbacks.worker.attempt import HandlerFailure, being_cancelled, failure_of, perform
from rbim.errors import InvalidRequest
from rbim.validators import above_zero, at_least_one

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator

    import attrs

    from rbim.callbacks.inbox.protocols import Backlog, Claim
    from rbim.callbacks.observers import Observers
    from rbim.callbacks.worker.backoff import Backoff
    from rbim.callbacks.worker.router import HandlerCalls
    from rbim.clock import Clock

__all__ = ["FIRST_PAUSE", "GRACE", "LONGEST_PAUSE", "TURN", "ConversationRunner", "SharedRun", "WorkerSettings"]

logger = logging.getLogger("rbim.callbacks")

TURN = 32
"""Events of one conversation after which others have their turn."""

GRACE = 3.0
"""Seconds that a cancelled worker has to record what was handled, and to give back the rest."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0  # seconds for which a backlog that failed is left alone
ENDED = "each attempt was begun and never ended: the process did, or the lease ran out"

T = TypeVar("T")


def _not_below_zero(_: object, attribute: attrs.Attribute[Any], value: float) -> None:
    if not value >= 0:
        raise InvalidRequest(f"{attribute.name}: a number of seconds is needed, not {value!r}", field=attribute.name)


@frozen(kw_only=True)
class WorkerSettings:
    """What a worker was told."""

    calls: HandlerCalls
    clock: Clock
    backoff: Backoff
    watch: Observers
    concurrency: int = field(validator=at_least_one)
    timeout: float = field(validator=above_zero)
    drain: float = field(validator=_not_below_zero)


class SharedRun:
    """What the lanes of one run share: the backlog, whether it stops, and shields against its cancellation."""

    def __init__(self, settings: WorkerSettings, backlog: Backlog) -> None:
        self.settings = settings
        self.backlog = backlog
        self.stopping = False
        self.limiter = anyio.CapacityLimiter(settings.concurrency)
        self._shields: set[anyio.CancelScope] = set()
        self._over = False

    @contextmanager
    def shielded(self) -> Generator[None, None, None]:
        """Let no cancellation through, for no longer than the grace once :meth:`end_shields` was called."""
        with anyio.CancelScope(shield=True) as scope:
            self._shields.add(scope)
            try:
                with self.settings.clock.scope(GRACE) if self._over else nullcontext():
                    yield
            finally:
                self._shields.discard(scope)

    def end_shields(self) -> None:
        """Cancel what is shielded now. A function in a thread may end later: what it did has its own grace."""
        self._over = True
        for scope in self._shields:
            scope.cancel()


class ConversationRunner:
    """One conversation while it is leased, from its first claim on. ``claim`` is the one at hand."""

    def __init__(self, shift: SharedRun, claim: Claim) -> None:
        self.claim = claim
        self._shift = shift
        self._settings = shift.settings
        self._turns = 0

    @property
    def gave_back(self) -> bool:
        """Whether it ended only because it was others' turn."""
        return self._turns >= TURN

    async def run(self) -> None:
        """Handle one event after the other until none is left or it is others' turn; give back the last one if need be."""
        following: Claim | None = self.claim
        try:
            while following is not None:
                self.claim = following
                await checkpoint()  # handlers that wait for nothing let others go on, too
                if self._shift.stopping:
                    await self._release()
                    return
                self._turns += 1
                following = await self._handle(following)
        except LeaseLost:
            logger.warning("the lease of event %d (%s) was lost; somebody else has it", self.claim.number, self.claim.key)
        except BaseException as error:
            await self._release()
            if isinstance(error, anyio.get_cancelled_exc_class()) and not being_cancelled():
                logger.exception("event %d (%s): a stray cancellation", self.claim.number, self.claim.key)
                return
            raise

    async def _handle(self, claim: Claim) -> Claim | None:
        """Handle one event, record how that ended, and return the next one of the conversation. Raises LeaseLost."""
        settings, began = self._settings, self._settings.clock.monotonic()
        if claim.attempt > settings.backoff.attempts:
            return await self._bury(claim, HandlerFailure(ENDED, ENDED))
        try:
            call = settings.calls.call(claim)
        except Exception as error:  # what an older version accepted
            return await self._bury(claim, failure_of(error))
        failure = await perform(call, clock=settings.clock, timeout=settings.timeout, limiter=self._shift.limiter)
        if failure is None:
            elapsed = settings.clock.monotonic() - began
            following = await self._insist(lambda: self._shift.backlog.done(claim, more=self._more()))
            settings.watch.tell(Handled(key=claim.key, attempt=claim.attempt, elapsed=elapsed))
            return following
        pause = settings.backoff.pause(claim.attempt)
        if pause is None:
            return await self._bury(claim, failure)
        await self._insist(lambda: self._shift.backlog.retry(claim, error=failure.trace, pause=pause))
        settings.watch.tell(HandlingFailed(key=claim.key, attempt=claim.attempt, error=failure.line, pause=pause))
        return None

    async def _bury(self, claim: Claim, failure: HandlerFailure) -> Claim | None:
        following = await self._insist(lambda: self._shift.backlog.bury(claim, error=failure.trace, more=self._more()))
        self._settings.watch.tell(DeadLettered(key=claim.key, attempt=claim.attempt, error=failure.line))
        return following

    def _more(self) -> bool:
        return self._turns < TURN and not self._shift.stopping

    async def _insist(self, record: Callable[[], Awaitable[T]]) -> T:
        """Record something, again and again until that succeeds. Raises LeaseLost."""
        pause = FIRST_PAUSE
        while True:
            try:
                with self._shift.shielded():
                    return await record()
            except LeaseLost:
                raise
            except Exception:
                logger.exception("how event %d ended could not be recorded; next try in %g s", self.claim.number, pause)
            await self._settings.clock.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _release(self) -> None:
        try:
            with self._shift.shielded():
                await self._shift.backlog.release(self.claim)
        except Exception:
            logger.exception("event %d (%s) could not be given back", self.claim.number, self.claim.key)
