"""What becomes of one delivery: judged, offered to the sink, kept in the spool, and answered."""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from anyio import Event
from attrs import evolve

from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.observers import Accepted, OldToken, Quarantined, Refused, Spooled
from rbim.callbacks.receiver.replies import ACCEPTED, UNAVAILABLE, Reply, refusal
from rbim.callbacks.signature import Policy, Reason, Rejected, verify
from rbim.callbacks.worker.attempt import of_the_caller
from rbim.timeouts import deadlines_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Sink
    from rbim.callbacks.observers import Observers
    from rbim.callbacks.receiver.spool import Spool
    from rbim.callbacks.signature import Headers, Keys
    from rbim.clock import Clock
    from rbim.timeouts import Deadlines

__all__ = ["Intake"]

logger = logging.getLogger("rbim.callbacks")

SPOOLING = 1.0  # seconds in which the spool must have a delivery
AGAIN = 0.05  # seconds between two cancellations of a body that does not end
PROBE = 16  # bytes that an empty object has at most, white space and all


class Intake:
    """Takes deliveries while it is ``open``; what is not needed for the answer waits for a worker.

    ``spool`` takes what the ``sink`` does not, if ``spools`` is set; whatever it holds comes before what follows.
    """

    def __init__(  # noqa: PLR0913  # the parts that the receiver puts together
        self,
        *,
        keys: Keys,
        policy: Policy,
        late_resends: bool,
        sink: Sink,
        spool: Spool | None,
        spools: bool,
        budget: float,
        clock: Clock,
        watch: Observers,
    ) -> None:
        self.open = False
        self.policy = policy
        self.budget = budget
        self.clock = clock
        self._deadlines: Deadlines | None = None
        self._keys = keys
        self._sink = sink
        self._spool = spool
        self._spools = spools
        self._watch = watch
        self._accept_now: Callable[[Delivery], bool | None] | None = getattr(sink, "accept_now", None)
        self._turns: dict[str, deque[Event]] = {}
        # what may be a late resend is let pass for as long as the sink would know it again, and looked at then
        late = policy.back is not None and late_resends and sink.durable
        self._window = evolve(policy, back=max(policy.back or 0, sink.retention)) if late else policy

    def begin(self) -> None:
        """Take deliveries, in the running event loop."""
        self._deadlines = deadlines_of(self.clock, again=AGAIN)
        self.open = True

    def end(self) -> None:
        """Take no more: a later delivery may come in another event loop."""
        self.open = False
        self._deadlines = None

    def reading(self) -> AbstractContextManager[object, bool]:
        """Return a context manager for the time that a body has to arrive; it is left without an error when that is over.

        A timer for each body would cost a third of what a delivery does, and a body is nearly always there. The sink has
        a scope of the clock's, whose shields hold.
        """
        scopes = self._deadlines or self.clock
        return cast("AbstractContextManager[object, bool]", scopes.scope(self.budget))

    def judge(self, headers: Headers, body: bytes) -> Delivery | Reply:
        """Return the delivery that is to be offered to the sink, or what to answer where there is none."""
        now = self.clock.now()
        verified = verify(headers, body, credentials=self._keys, now=now, policy=self._window)
        if isinstance(verified, Rejected):
            return self.refuse(verified)
        if not verified.key.current:
            self._watch.tell(OldToken(key=verified.key))
        back = self.policy.back
        late = back is not None and verified.age > back
        if not late and len(body) <= PROBE and b"".join(body.split()) == b"{}":
            return ACCEPTED
        delivery = delivery_of(body, app_id=verified.key.app_id, received=now)
        if late and not delivery.resent:
            detail = f"it is {verified.age:.3f} s old and no resend, at most {back:g} s are accepted"
            return self.refuse(Rejected(reason=Reason.STALE, detail=detail))
        return delivery if self.open else UNAVAILABLE

    def refuse(self, rejected: Rejected) -> Reply:
        """Tell those who watch that a delivery is not accepted, and return what to answer."""
        self._watch.tell(Refused(reason=rejected.reason, detail=rejected.detail))
        return refusal(rejected.reason)

    async def take(self, delivery: Delivery, began: float) -> Reply:
        """Return what to answer to a delivery that began at a time of the clock."""
        reply = self._at_once(delivery, began)
        if reply is not None:
            return reply
        why = ""
        with self.clock.scope(self.budget - (self.clock.monotonic() - began)):
            answer = await self._in_turn(delivery, began)
            if isinstance(answer, Reply):
                return answer
            why = answer
        return await self._save(delivery, why, began)

    def _at_once(self, delivery: Delivery, began: float) -> Reply | None:
        """Return what to answer where the sink need not wait for anything."""
        if self._accept_now is None:
            return None
        if self._spool is not None and (self._spool.holds(delivery.conversation) or delivery.conversation in self._turns):
            return None
        new = self._accept_now(delivery)
        return None if new is None else self._accepted(delivery, began, new=new)

    async def _in_turn(self, delivery: Delivery, began: float) -> Reply | str:
        """Return what to answer once the sink has a delivery, or why it has not.

        Where there is a spool, a conversation's deliveries are offered one after the other: what comes behind one that the
        sink does not take finds that one in the spool, and does not overtake it.
        """
        if self._spool is None:
            return await self._offer(delivery, began)
        await self._own_turn(delivery.conversation)
        try:
            if self._spool.holds(delivery.conversation):
                return "what came before it is in the spool"
            return await self._offer(delivery, began)
        finally:
            self._next(delivery.conversation)

    async def _own_turn(self, conversation: str) -> None:
        ahead = self._turns.get(conversation)
        if ahead is None:
            self._turns[conversation] = deque()
            return
        called = Event()
        ahead.append(called)
        try:
            await called.wait()
        except BaseException:
            if called.is_set():
                self._next(conversation)
            else:
                ahead.remove(called)
            raise

    def _next(self, conversation: str) -> None:
        waiting = self._turns[conversation]
        if waiting:
            waiting.popleft().set()
        else:
            del self._turns[conversation]

    async def _offer(self, delivery: Delivery, began: float) -> Reply | str:
        try:
            new = await self._sink.accept(delivery)
        except BaseException as error:
            if (ours := of_the_caller(error)) is not None:
                raise ours from None
            logger.warning("the sink failed", exc_info=True)
            return f"the sink failed: {type(error).__name__}: {error}"
        return self._accepted(delivery, began, new=new)

    async def _save(self, delivery: Delivery, why: str, began: float) -> Reply:
        """Return what to answer to a delivery that the sink does not have; empty ``why``: it was too slow."""
        kept = await self._spooled(delivery)
        why = why or f"the sink took longer than {self.budget:g} s"
        self._watch.tell(Spooled(key=delivery.key, why=why, kept=kept))
        return self._accepted(delivery, began, new=True) if kept else UNAVAILABLE

    def _accepted(self, delivery: Delivery, began: float, *, new: bool) -> Reply:
        if new and delivery.problem is not None:
            self._watch.tell(Quarantined(key=delivery.key, problem=delivery.problem))
        if self._watch.hears_all:
            self._watch.tell(Accepted(key=delivery.key, new=new, elapsed=self.clock.monotonic() - began))
        return ACCEPTED

    async def _spooled(self, delivery: Delivery) -> bool:
        if self._spool is None or not self._spools:
            return False
        with self.clock.scope(SPOOLING):
            try:
                await self._spool.accept(delivery)
            except BaseException as error:
                if (ours := of_the_caller(error)) is not None:
                    raise ours from None
                logger.warning("the spool failed", exc_info=True)
            else:
                return True
        return False
