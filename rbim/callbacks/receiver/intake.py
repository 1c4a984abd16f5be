"""The path of one delivery through the receiver: from the ASGI server to the answer."""

from __future__ import annotations

from inspect import signature
from math import inf
from typing import TYPE_CHECKING, Any, cast

from anyio import Event
from attrs import define, evolve, field

from rbim._support.asgi import TooLarge, body_of, lifespan
from rbim._support.text import one_line
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.events import as_utf8
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
from rbim.callbacks.receiver.replies import ACCEPTED, INCOMPLETE, NOT_POST, REFUSALS, UNAVAILABLE, Reply, reply_of
from rbim.callbacks.signature import Policy, Reason, Rejected, verify
from rbim.callbacks.worker.attempt import caller_error
from rbim.clock import monotonic_of
from rbim.dialect import OutOfTime
from rbim.storage.group_commit import Chain
from rbim.timeouts import deadlines_of, is_unshielded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    from rbim._support.asgi import Receive, Scope, Send
    from rbim.callbacks.delivery import Delivery
    from rbim.callbacks.inbox.protocols import Sink
    from rbim.callbacks.observers import Observers
    from rbim.callbacks.receiver.key_ring import KeyRing
    from rbim.callbacks.receiver.replies import Health
    from rbim.callbacks.receiver.spool import Spool
    from rbim.callbacks.signature import Headers, Verified
    from rbim.clock import Clock

    Expiring = Callable[[float], AbstractContextManager[object, bool]]  # a block that may end before its last line

__all__ = ["AsgiApp", "Intake"]

# Theory of operation: the answer to one delivery.
#
#   refused      verify() rejects it, or its time is outside the policy's limits and it is not accepted all the same: 401,
#                413 or 415. Nothing is stored.
#   probe        It is authentic and its body is an empty object: 200. Nothing is stored.
#   accepted     The sink stored it now, or knew its key already: 200.
#   spooled      The sink failed, exceeded the budget, is away, or the spool holds anything; the spool stored it: 200. The
#                spool forwards it to the sink later. In high-guarantee mode only while a spool that is left over holds any.
#   unavailable  Nothing stored it, or the intake is closed: 503. In high-guarantee mode the platform resends.
#
# What must always hold:
#
# - Apart from a probe, 200 means that the sink or the spool has the delivery.
# - With a spool, deliveries of a conversation do not overtake each other. Those on their way stand in a line. To a sink
#   without chains they go one at a time. To one with chains they go at once, all conversations as one chain: if it does not
#   store one of them (an error, or the budget is over before its transaction), it stores none of those behind it either.
#   What the sink has not stored goes into the spool in the order of the line; and while the spool holds anything, or the
#   chain is broken and some of it are still on their way, nothing else is offered to the sink.
# - A delivery whose budget is over during its transaction goes into the spool, too; those behind it are stored after it, or
#   fail with it. If sink and spool both store a delivery, the sink recognises its key, and it is handled once.
# - Body, keys and sink share the budget; then the spool has SPOOL_BUDGET. By default both end within the platform's 5
#   seconds (Delivery rules, 4).
#
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
IN_SPOOL = "earlier deliveries are in the spool"
NOT_READY = "the sink is not ready"
MOST_OF_PROBE = 16  # bytes of a probe's body: an empty object with white space

Line = dict[int, Event | None]
"""The deliveries of one conversation on their way, in order; with an event for each that waits until it is the first."""


class AsgiApp:
    """The ASGI application of a receiver; it takes deliveries at every path, and a GET at the path ``health_path``.

    Served alone, it enters and leaves the receiver on the server's lifespan events. It is an object and not a method because
    servers look at ``__call__`` to tell ASGI 3 from ASGI 2.
    """

    def __init__(
        self,
        intake: Intake,
        receiver: AbstractAsyncContextManager[object],
        health: Callable[[], Awaitable[Health]],
        health_path: str | None,
    ) -> None:
        self._intake = intake
        self._receiver = receiver
        self._health = health
        self._health_path = health_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        if scope["type"] == "http":
            if scope["method"] == "POST":
                reply = await self._intake.take(scope["headers"], b"", receive)
            else:
                reply = await self._other(scope)
            if reply is not None:
                start, body = reply.asgi
                await send(start)
                await send(body)
        elif scope["type"] == "lifespan":
            await lifespan(receive, send, self._receiver)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})
        else:
            raise ValueError(f"an ASGI scope of the unknown type {scope['type']!r}")

    async def _other(self, scope: Scope) -> Reply:
        path, root = str(scope["path"]), str(scope.get("root_path", ""))
        if root and path.startswith(f"{root}/"):  # the application is mounted there
            path = path[len(root) :]
        if self._health_path is None or scope["method"] not in ("GET", "HEAD") or path != self._health_path:
            return NOT_POST
        reply = reply_of(await self._health())
        return evolve(reply, body=b"") if scope["method"] == "HEAD" else reply


@define(eq=False, repr=False, kw_only=True)
class Intake:
    """Checks and stores deliveries while it is ``open``; handling is left to a worker.

    ``spools``: whether ``spool`` takes what ``sink`` does not store. Otherwise a spool is only emptied. ``sink_entered`` is
    False while the sink could not be entered.
    """

    ring: KeyRing
    policy: Policy
    out_of_time: OutOfTime
    sink: Sink
    spool: Spool | None
    spools: bool
    budget: float
    clock: Clock
    observers: Observers
    open: bool = field(default=False, init=False)
    sink_entered: bool = field(default=False, init=False)
    take: Callable[..., Awaitable[Reply | None]] = field(init=False)
    _monotonic: Callable[[], float] = field(init=False)
    _window: Policy = field(init=False)
    _begun: bool = field(default=False, init=False)  # entered once, or reported that it is not
    _failed: tuple[float, str] | None = field(default=None, init=False)  # the last one that neither sink nor spool stored
    _scope: Expiring = field(init=False)
    _chained: bool = field(init=False)
    _lines: dict[str, Line] = field(factory=dict[str, Line], init=False)
    _chain: Chain = field(factory=Chain, init=False)
    _arrived: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.end()
        self._monotonic = monotonic_of(self.clock)
        observed = self.observers.wants(DeliveryStarted) or self.observers.wants(DeliveryEnded)
        self.take = self._observed if observed else self.receive
        self._chained = "chain" in signature(self.sink.accept).parameters
        if not self.sink.durable:
            self.out_of_time = OutOfTime.REFUSED
        self._window = self.policy
        if self.out_of_time is not OutOfTime.REFUSED:
            self._window = _widened(self.policy, min(self.sink.retention, LONGEST_RETENTION))

    def begin(self) -> None:
        """Start to accept deliveries, in the running event loop."""
        if is_unshielded(getattr(type(self.sink), "accept", None)):  # the shared timer heeds no shields
            self._scope = cast("Expiring", (deadlines_of(self.clock, again=CANCEL_EVERY) or self.clock).scope)
        self.open = self._begun = True
        self._failed = None

    def end(self) -> None:
        """Accept no more deliveries; a later ``begin`` may be in another event loop."""
        self.open = False
        self._scope = cast("Expiring", self.clock.scope)

    @property
    def failure(self) -> str | None:
        """Why the last delivery could not be stored, for ``FAILING`` seconds after that; otherwise None."""
        if self._failed is None or self._monotonic() - self._failed[0] >= FAILING:
            return None
        return self._failed[1]

    async def _observed(self, headers: Headers, body: bytes, receive: Receive | None = None) -> Reply | None:
        """Like :meth:`receive`; observers see the start and the end of the delivery."""
        began, keys, reply = self._monotonic(), list[str](), None
        self.observers.notify(DeliveryStarted)
        try:
            reply = await self.receive(headers, body, receive, keys)
        finally:
            status = None if reply is None else reply.status
            elapsed = self._monotonic() - began
            self.observers.notify(DeliveryEnded, key=keys[0] if keys else None, status=status, elapsed=elapsed)
        return reply

    async def receive(  # noqa: C901, PLR0912, PLR0915  # the whole way, in order; a coroutine more would cost each delivery
        self, headers: Headers, body: bytes, receive: Receive | None = None, found_keys: list[str] | None = None
    ) -> Reply | None:
        """Check and store a delivery, and return the answer; None if the client has disconnected.

        With ``receive`` the body is read first. ``found_keys`` gets the delivery's key as soon as it is known.
        """
        if not self._begun:
            self._begun = True
            self.observers.notify(NotEntered)
        began, spool, most = self._monotonic(), self.spool, self.policy.max_body or inf
        verified: Verified | Rejected | None = None
        delivery: Delivery | None = None
        line: Line | None = None
        place, cause = 0, ""
        try:
            with self._scope(self.budget):
                # 1. The body.
                if receive is not None:
                    message = await receive()
                    found: Any = message.get("body")
                    if found.__class__ is not bytes or len(found) > most or message.get("more_body"):
                        try:
                            found = await body_of(receive, most, message)
                        except TooLarge as error:
                            return self._refuse(Rejected(reason=Reason.TOO_LARGE, detail=str(error)))
                        if found is None:
                            return None
                    body = found

                # 2. Is it authentic? If no key matches, a provider of credentials may have other ones by now.
                ring = self.ring
                question = ring.arrived() if ring.asks else 0
                while True:
                    now, keys = self.clock.now(), ring.keys
                    if keys is None:
                        return UNAVAILABLE
                    verified = verify(headers, body, credentials=keys, now=now, policy=self.policy)
                    if not (isinstance(verified, Rejected) and verified.reason is Reason.CHECKSUM_MISMATCH):
                        break
                    if not ring.asks or not await ring.changed(question):
                        break
                outside = verified if isinstance(verified, Rejected) and verified.age is not None else None
                if outside is not None:  # it is authentic
                    verified = verify(headers, body, credentials=keys, now=now, policy=self._window)
                if isinstance(verified, Rejected):
                    return self._refuse(verified)
                if verified.key.index:
                    self.observers.notify(OldToken, key=verified.key)
                delivery = delivery_of(body, app_id=verified.key.app_id, received=now)
                if outside is not None:
                    if self.out_of_time is OutOfTime.RESENDS and not delivery.resent:
                        return self._refuse(outside)
                    self.observers.notify(Skewed, skew=verified.age, accepted=True)
                if len(body) <= MOST_OF_PROBE and b"".join(as_utf8(body).split()) == b"{}":
                    return ACCEPTED
                if not self.open:
                    return UNAVAILABLE
                if found_keys is not None:
                    found_keys.append(delivery.key)

                # 3. The sink, unless others have to go first.
                if spool is not None:
                    line = self._lines.setdefault(delivery.conversation, {})
                    self._arrived = place = self._arrived + 1
                    line[place] = None
                    if not self._chained:
                        await self._first_in(line, place)
                if not self.sink_entered or (self.spools and getattr(self.sink, "ready", True) is False):
                    cause = NOT_READY
                elif spool is not None and (spool.holds or self._chain.broken is not None):
                    cause = IN_SPOOL
                else:
                    try:
                        accept: Callable[..., Any] = self.sink.accept
                        chained = self._chained and line is not None
                        new = await (accept(delivery, chain=self._chain) if chained else accept(delivery))
                    except BaseException as error:
                        if (ending := caller_error(error)) is not None:
                            raise ending from None
                        if self._chained:
                            self._chain.fail(error)
                        self.observers.log.warning("the sink failed", exc_info=error)
                        cause = f"the sink failed: {type(error).__name__}: {error}"
                    else:
                        return self._accepted(delivery, began, new=new)
            if verified is None:  # the time was over before the body came
                return INCOMPLETE
            if delivery is None:  # or before other keys came
                return self._refuse(cast("Rejected", verified))
            cause = cause or f"the sink took longer than {self.budget:g} s"

            # 4. The spool.
            kept = False
            if spool is not None and line is not None and (self.spools or spool.holds):
                kept = await self._keep(spool, delivery, line, place)
            self.observers.notify(Spooled, key=delivery.key, why=cause, kept=kept)
            if kept:
                return self._accepted(delivery, began, new=True)
            self._failed = (self._monotonic(), one_line(cause, MOST_OF_LINE))
            return UNAVAILABLE
        finally:
            if line is not None and delivery is not None:
                self._leave(delivery.conversation, place)

    async def _first_in(self, line: Line, place: int) -> None:
        """Wait until a delivery is the first in its line."""
        while next(iter(line)) != place:
            turn = line[place] = Event()
            await turn.wait()

    async def _keep(self, spool: Spool, delivery: Delivery, line: Line, place: int) -> bool:
        """Store a delivery in the spool once it is the first in its line; return whether it is durable there in time."""
        with self.clock.scope(SPOOL_BUDGET):
            try:
                await self._first_in(line, place)
                stored = spool.put(delivery)
                self._leave(delivery.conversation, place)
                await stored()
            except BaseException as error:
                if (ending := caller_error(error)) is not None:
                    raise ending from None
                self.observers.log.warning("the spool failed", exc_info=True)
            else:
                return True
        return False

    def _leave(self, conversation: str, place: int) -> None:
        """Take a delivery out of its line if it is there. A broken chain is over once no delivery is on its way."""
        line = self._lines.get(conversation, {})
        if place not in line:
            return
        del line[place]
        if not line:
            del self._lines[conversation]
            if self._chain.broken is not None and not self._lines:
                self._chain = Chain()
        elif (turn := next(iter(line.values()))) is not None:
            turn.set()

    def _refuse(self, rejected: Rejected) -> Reply:
        """Notify the observers of a refused delivery and return the answer."""
        if rejected.age is not None:
            self.observers.notify(Skewed, skew=rejected.age, accepted=False)
        self.observers.notify(Refused, reason=rejected.reason, detail=rejected.detail)
        return REFUSALS[rejected.reason]

    def _accepted(self, delivery: Delivery, began: float, *, new: bool | OtherContent) -> Reply:
        self._failed = None
        other = isinstance(new, OtherContent)
        if isinstance(new, OtherContent):
            delivery, new = delivery._replace(key=new.key, problem=new.problem), True
        if new and delivery.problem is not None:
            self.observers.notify(Quarantined, key=delivery.key, problem=delivery.problem, other_content=other)
        self.observers.notify(Accepted, key=delivery.key, new=new, elapsed=self._monotonic() - began)
        return ACCEPTED


def _widened(policy: Policy, retention: float) -> Policy:
    """Return the policy with limits as wide as the sink recognises replays; no limit gets narrower."""
    back, ahead = policy.back, policy.ahead
    if back is not None:
        back = max(back, min(retention / 2, retention - (ahead or 0)))
    if ahead is not None:
        ahead = max(ahead, min(retention / 2, retention - (back or 0)))
    return evolve(policy, back=back, ahead=ahead)
