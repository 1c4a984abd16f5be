"""The path of one delivery through the receiver: checked, stored in sink or spool, answered."""

from __future__ import annotations

from inspect import signature
from math import inf
from typing import TYPE_CHECKING, Any, cast

from anyio import Event
from attrs import define, evolve

from rbim._support.asgi import TooLarge, body_of
from rbim._support.text import one_line
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.events.parsing import as_utf8
from rbim.callbacks.inbox.protocols import OtherContent
from rbim.callbacks.observers import (
    Accepted,
    DeliveryEnded,
    DeliveryStarted,
    NotEntered,
    OldToken,
    Quarantined,
    Refused,
    Skewed,
    Spooled,
)
from rbim.callbacks.receiver.replies import ACCEPTED, INCOMPLETE, UNAVAILABLE, Reply, refusal
from rbim.callbacks.signature import Policy, Reason, Rejected, verify
from rbim.callbacks.worker.attempt import caller_error
from rbim.dialect import OutOfTime
from rbim.storage.group_commit import Chain
from rbim.timeouts import deadlines_of, is_unshielded

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from datetime import datetime

    from rbim._support.asgi import Receive
    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Sink
    from rbim.callbacks.observers import Observers
    from rbim.callbacks.receiver.key_ring import KeyRing
    from rbim.callbacks.receiver.spool import Spool
    from rbim.callbacks.signature import Headers, Verified
    from rbim.clock import Clock
    from rbim.timeouts import Deadlines

__all__ = ["Arrival", "Intake"]

# Theory of operation: the answer to one delivery.
#
#   refused      verify() rejects it, or its time is outside the policy's limits and it is not accepted all the same: 401,
#                413 or 415. Nothing is stored.
#   probe        It is authentic and its body is an empty object: 200. Nothing is stored.
#   accepted     The sink stored it now, or knew its key already: 200.
#   spooled      Normal mode only. The sink failed, exceeded the budget, is not ready, or must wait for earlier deliveries of
#                the conversation in the spool; the spool stored it: 200. The spool forwards it to the sink later.
#   unavailable  Nothing stored it, or the intake is closed: 503. In high-guarantee mode the platform resends.
#
# _checked() ends in refused, probe, unavailable (closed) or a delivery; store() takes that delivery to accepted, spooled or
# unavailable. What must always hold:
#
# - Apart from a probe, 200 means that the sink or the spool has the delivery.
# - With a spool, deliveries of a conversation do not overtake each other; while the spool holds an earlier one, later ones
#   follow it there. A sink without chains gets them one at a time. One with chains gets them at once, as one chain: if it
#   does not store one of them (an error, or the budget is over before its transaction), it stores none of those behind it
#   either, which follow into the spool in the same order. Deliveries that come after such a failure wait until those on
#   their way have ended, and then go one at a time until the sink has stored one.
# - A delivery whose budget is over during its transaction goes into the spool, too; those behind it are stored after it, or
#   fail with it.
# - Reading the body and the sink share the budget; then the spool has SPOOL_BUDGET. By default both end within the
#   platform's 5 seconds (Delivery rules, 4).
# - If the slow sink and the spool both store a delivery, the sink recognises its key, and it is handled once.

# Deliveries outside the policy's limits. A replay of a delivery has the same CurTime and the same key as the original, and
# one machine's clock measures both. Let a delivery be accepted up to `back` seconds after its CurTime and up to `ahead`
# seconds before it: then a replay can be accepted at most `back + ahead` seconds after the original. A durable sink knows
# the key of the original for `retention` seconds. So as long as back + ahead <= retention, no replay is handled again,
# however wide the limits are: here each side gets half of the retention, or less if the policy's other side needs more. A
# sink that is not durable forgets its keys when the process ends; then only the policy's limits protect against replays, and
# nothing outside them is accepted.

SPOOL_BUDGET = 1.0  # seconds that the spool has to store a delivery
FAILING = 10.0  # seconds for which a delivery that could not be stored makes the receiver unhealthy
CANCEL_EVERY = 0.05  # seconds between two cancellations of a body that does not end
LONGEST_RETENTION = 3650 * 86_400.0  # seconds: a policy's limits are finite
MOST_OF_LINE = 300
IN_SPOOL = "an earlier delivery of the conversation is in the spool"
NOT_READY = "the sink is not ready"
MOST_OF_PROBE = 16  # bytes of a probe's body: an empty object with white space


@define
class Arrival:
    """A delivery on its way, for observers: its key as soon as it is known."""

    key: str | None = None


class _Line:
    """The deliveries of one conversation on their way to the sink, by the numbers that :meth:`enter` gives them.

    Those that may go are in ``_going``, in their order; the others wait in ``_waiting``, and only while some go. With
    ``at_once`` several may go, as one chain.
    """

    __slots__ = ("_alone", "_at_once", "_going", "_left", "_numbers", "_waiting", "_woken", "chain")

    def __init__(self, *, at_once: bool) -> None:
        self.chain = Chain()
        self._at_once = at_once
        self._numbers = 0
        self._going: dict[int, None] = {}
        self._alone = not at_once
        self._woken = False  # one that may go does not know it yet: none may overtake it
        self._waiting: dict[int, Event] = {}
        self._left: Event | None = None

    def enter(self) -> int | None:
        """Return the number of a delivery that may go at once; then it must :meth:`leave`. None if it must wait."""
        if self._going and (not self._at_once or self.chain.broken is not None or self._waiting or self._woken):
            return None
        self._numbers += 1
        self._going[self._numbers] = None
        return self._numbers

    async def wait(self) -> int:
        """Return the number of a delivery once it may go; then it must :meth:`leave`."""
        self._numbers += 1
        number = self._numbers
        turn = self._waiting[number] = Event()
        try:
            await turn.wait()
        except BaseException:
            if self._waiting.pop(number, None) is None:
                self._pass_on()
                self.leave(number)
            raise
        self._pass_on()
        return number

    def _wake(self) -> None:
        """Let the first of those that wait go."""
        number = next(iter(self._waiting))
        self._going[number] = None
        self._woken = True
        self._waiting.pop(number).set()

    def _pass_on(self) -> None:
        """One that was woken goes now; unless it is to go alone, wake the next."""
        self._woken = False
        if self._waiting and not self._alone:
            self._wake()

    async def earlier_left(self, number: int) -> None:
        """Wait until a delivery is the first of those that may go: after a failure they go into the spool in order."""
        while next(iter(self._going)) != number:
            if self._left is None:
                self._left = Event()
            await self._left.wait()

    @property
    def empty(self) -> bool:
        """Whether no delivery is in the line."""
        return not self._going

    def leave(self, number: int) -> None:
        """End the way of a delivery that may go; after the last one, let others go. An empty line is of no use any more."""
        del self._going[number]
        if self._left is not None:
            self._left.set()
            self._left = None
        if self._waiting and not self._going:
            self._alone = not self._at_once or self.chain.broken is not None
            self.chain = Chain()
            self._wake()


class Intake:
    """Checks and stores deliveries while it is ``open``; handling is left to a worker.

    If ``spools`` is set, ``spool`` stores deliveries that ``sink`` does not; a spool that is left over from before still
    goes first, so that order is kept.
    """

    def __init__(  # noqa: PLR0913  # the parts that the receiver puts together
        self,
        *,
        ring: KeyRing,
        policy: Policy,
        out_of_time: OutOfTime,
        sink: Sink,
        spool: Spool | None,
        spools: bool,
        budget: float,
        clock: Clock,
        observers: Observers,
    ) -> None:
        self.open = False
        self._begun = False  # entered once, or reported that it is not
        self._failed: tuple[float, str] | None = None  # the last delivery that neither sink nor spool stored
        self.policy = policy
        self.budget = budget
        self.clock = clock
        self._deadlines: Deadlines | None = None
        self._scope = _may_expire(clock)
        self._shares_scope = True
        self._most_of_body = inf if policy.max_body is None else policy.max_body
        self._ring = ring
        self._sink = sink
        self._spool = spool
        self._spools = spools
        self._observers = observers
        self.take = self._observed if observers.present else self.answer
        self._accept_now: Callable[[Delivery], bool | OtherContent | None] | None = getattr(sink, "accept_now", None)
        self._lines: dict[str, _Line] = {}
        self._arrived = 0  # deliveries that came to be stored
        self._chained = "chain" in signature(sink.accept).parameters
        self._out_of_time = out_of_time if sink.durable else OutOfTime.REFUSED
        self._window = policy
        if self._out_of_time is not OutOfTime.REFUSED:
            self._window = _widened(policy, min(sink.retention, LONGEST_RETENTION))

    def begin(self) -> None:
        """Start to accept deliveries, in the running event loop."""
        self._deadlines = deadlines_of(self.clock, again=CANCEL_EVERY)
        self._scope = _may_expire(self._deadlines or self.clock)
        self._shares_scope = self._deadlines is None or is_unshielded(getattr(type(self._sink), "accept", None))
        self.open = self._begun = True
        self._failed = None

    def end(self) -> None:
        """Accept no more deliveries; a later ``begin`` may be in another event loop."""
        self.open = False
        self._deadlines, self._scope, self._shares_scope = None, _may_expire(self.clock), True

    @property
    def failure(self) -> str | None:
        """Why the last delivery could not be stored, for ``FAILING`` seconds after that; otherwise None."""
        if self._failed is None or self.clock.monotonic() - self._failed[0] >= FAILING:
            return None
        return self._failed[1]

    async def _observed(self, headers: Headers, body: bytes, receive: Receive | None = None) -> Reply | None:
        """Like :meth:`answer`; observers see the start and the end of the delivery."""
        receiver, began = self._observers.receiver, self.clock.monotonic()
        arrival, reply = Arrival(), None
        self._observers.notify(DeliveryStarted(receiver=receiver))
        try:
            reply = await self.answer(headers, body, receive, arrival)
        finally:
            status = None if reply is None else reply.status
            elapsed = self.clock.monotonic() - began
            self._observers.notify(DeliveryEnded(receiver=receiver, key=arrival.key, status=status, elapsed=elapsed))
        return reply

    async def answer(  # noqa: C901, PLR0912  # the whole way: each coroutine more would cost each delivery
        self, headers: Headers, body: bytes, receive: Receive | None = None, arrival: Arrival | None = None
    ) -> Reply | None:
        """Check and store a delivery, and return the answer; None if the client has disconnected.

        With ``receive`` the body is read first. One scope limits all that waits: the body, new keys, the sink. But a sink
        that may have shields gets a scope of the clock, because those of ``timeouts`` heed none.
        """
        if not self._begun:
            self._begun = True
            self._observers.notify(NotEntered(receiver=self._observers.receiver))
        began = self.clock.monotonic()
        whole = False  # the body
        verified: Verified | Rejected | None = None
        delivery: Delivery | None = None
        cause, order = "", 0  # the sink was too slow; its place among those that came to be stored
        with self._scope(self.budget):
            if receive is not None:
                message = await receive()
                found: Any = message.get("body")
                if found.__class__ is not bytes or len(found) > self._most_of_body or message.get("more_body"):
                    try:
                        found = await body_of(receive, self._most_of_body, message)
                    except TooLarge as error:
                        return self._refuse(Rejected(reason=Reason.TOO_LARGE, detail=str(error)))
                    if found is None:
                        return None
                body = found
            whole = True
            now = self.clock.now()
            verified = self._verified(headers, body, now)
            question = self._ring.arrived()
            if question is not None:
                while _no_key_matched(verified) and await self._ring.changed(question):
                    verified = self._verified(headers, body, now := self.clock.now())
            checked = self._checked(verified, body, now)
            if isinstance(checked, Reply):
                return checked
            delivery = checked
            self._arrived = order = self._arrived + 1
            if arrival is not None:
                arrival.key = delivery.key
            if self._accept_now is not None and (reply := self._without_waiting(delivery, began)) is not None:
                return reply
            if self._shares_scope:
                answer = await self.store(delivery, began)
                if isinstance(answer, Reply):
                    return answer
                cause = answer
        if not whole:
            return INCOMPLETE
        if delivery is None:  # no other keys came in time
            return self._refuse(cast("Rejected", verified))
        if not self._shares_scope:
            with self.clock.scope(self.budget - (self.clock.monotonic() - began)):
                answer = await self.store(delivery, began)
                if isinstance(answer, Reply):
                    return answer
                cause = answer
        return await self._spool_or_503(delivery, cause, began, order)

    def _verified(self, headers: Headers, body: bytes, now: datetime) -> Verified | Rejected | None:
        keys = self._ring.keys
        if keys is None:
            return None
        return verify(headers, body, credentials=keys, now=now, policy=self._window)

    def _checked(self, verified: Verified | Rejected | None, body: bytes, now: datetime) -> Delivery | Reply:
        """Return the delivery to store, or the answer if there is nothing to store."""
        if isinstance(verified, Rejected):
            return self._refuse(verified)
        if verified is None:
            return UNAVAILABLE
        key, age = verified.key, verified.age
        if key.index:
            self._observers.notify(OldToken(receiver=self._observers.receiver, key=key))
        delivery = delivery_of(body, app_id=key.app_id, received=now)
        if self._window is not self.policy and (outside := self.policy.rejection(age)) is not None:
            if self._out_of_time is OutOfTime.RESENDS and not delivery.resent:
                return self._refuse(outside)
            self._observers.notify(Skewed(receiver=self._observers.receiver, skew=age, accepted=True))
        if len(body) <= MOST_OF_PROBE and b"".join(as_utf8(body).split()) == b"{}":
            return ACCEPTED
        return delivery if self.open else UNAVAILABLE

    def _refuse(self, rejected: Rejected) -> Reply:
        """Notify the observers of a refused delivery and return the answer."""
        if rejected.age is not None:
            self._observers.notify(Skewed(receiver=self._observers.receiver, skew=rejected.age, accepted=False))
        self._observers.notify(Refused(receiver=self._observers.receiver, reason=rejected.reason, detail=rejected.detail))
        return refusal(rejected.reason)

    def _without_waiting(self, delivery: Delivery, began: float) -> Reply | None:
        """Return the answer if the sink accepts the delivery without waiting, otherwise None."""
        if self._accept_now is None:
            return None
        if self._spool is not None and (self._spool.holds(delivery.conversation) or delivery.conversation in self._lines):
            return None
        new = self._accept_now(delivery)
        return None if new is None else self._accepted(delivery, began, new=new)

    async def store(self, delivery: Delivery, began: float) -> Reply | str:  # noqa: C901, PLR0912  # as for `answer`
        """Return the answer once the sink has stored a delivery, or the cause if it has not.

        ``began`` is the clock's time at which it began to arrive. If the sink does not store it, the next delivery of its
        conversation finds it in the spool and cannot overtake it.
        """
        spool, line, number = self._spool, None, 0  # numbers begin with 1
        if spool is not None:
            line = self._lines.get(delivery.conversation)
            if line is None:
                line = self._lines[delivery.conversation] = _Line(at_once=self._chained)
        try:
            if line is not None:
                number = line.enter() or await line.wait()
            answer: Reply | str = IN_SPOOL
            if line is not None and self._spools and getattr(self._sink, "ready", True) is False:
                answer = NOT_READY
                line.chain.fail(ConnectionError(answer))
            elif spool is None or not spool.holds(delivery.conversation):
                try:
                    if line is not None and self._chained:
                        sink: Any = self._sink
                        new = await sink.accept(delivery, chain=line.chain)
                    else:
                        new = await self._sink.accept(delivery)
                except BaseException as error:
                    answer = self._failure(error, line)
                else:
                    return self._accepted(delivery, began, new=new)
            if line is not None:
                await line.earlier_left(number)
            return answer
        finally:
            if line is not None:
                if number:
                    line.leave(number)
                if line.empty:
                    del self._lines[delivery.conversation]

    def _failure(self, error: BaseException, line: _Line | None) -> str:
        """Return the cause for the failure of the sink. Raises what is not the sink's."""
        if (ending := caller_error(error)) is not None:
            raise ending from None
        if line is not None:
            line.chain.fail(error)
        self._observers.log.warning("the sink failed", exc_info=error)
        return f"the sink failed: {type(error).__name__}: {error}"

    async def _spool_or_503(self, delivery: Delivery, cause: str, began: float, order: int) -> Reply:
        """Return the answer to a delivery that the sink has not stored. An empty ``cause`` means that it was too slow."""
        kept = await self._spooled(delivery, order)
        cause = cause or f"the sink took longer than {self.budget:g} s"
        self._observers.notify(Spooled(receiver=self._observers.receiver, key=delivery.key, why=cause, kept=kept))
        if kept:
            return self._accepted(delivery, began, new=True)
        self._failed = (self.clock.monotonic(), one_line(cause, MOST_OF_LINE))
        return UNAVAILABLE

    def _accepted(self, delivery: Delivery, began: float, *, new: bool | OtherContent) -> Reply:
        self._failed = None
        other = isinstance(new, OtherContent)
        if isinstance(new, OtherContent):
            delivery, new = delivery._replace(key=new.key, problem=new.problem), True
        if new and delivery.problem is not None:
            self._observers.notify(
                Quarantined(
                    receiver=self._observers.receiver, key=delivery.key, problem=delivery.problem, other_content=other
                )
            )
        if self._observers.wants_successes:
            self._observers.notify(
                Accepted(
                    receiver=self._observers.receiver, key=delivery.key, new=new, elapsed=self.clock.monotonic() - began
                )
            )
        return ACCEPTED

    async def _spooled(self, delivery: Delivery, order: int) -> bool:
        if self._spool is None or not self._spools:
            return False
        with self.clock.scope(SPOOL_BUDGET):
            try:
                await self._spool.accept(delivery, order)
            except BaseException as error:
                if (ending := caller_error(error)) is not None:
                    raise ending from None
                self._observers.log.warning("the spool failed", exc_info=True)
            else:
                return True
        return False


def _may_expire(scopes: Deadlines | Clock) -> Callable[[float], AbstractContextManager[object, bool]]:
    """Return the factory of scopes whose block may end before its last line, which the protocol does not say."""
    return cast("Callable[[float], AbstractContextManager[object, bool]]", scopes.scope)


def _no_key_matched(verified: Verified | Rejected | None) -> bool:
    return isinstance(verified, Rejected) and verified.reason is Reason.CHECKSUM_MISMATCH


def _widened(policy: Policy, retention: float) -> Policy:
    """Return the policy with limits as wide as the sink recognises replays; no limit gets narrower."""
    back, ahead = policy.back, policy.ahead
    if back is not None:
        back = max(back, min(retention / 2, retention - (ahead or 0)))
    if ahead is not None:
        ahead = max(ahead, min(retention / 2, retention - (back or 0)))
    return evolve(policy, back=back, ahead=ahead)
