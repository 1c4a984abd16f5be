"""Message copy: messages and changes of groups on the emulated platform are posted, signed, to the developer's server.

Without a target nothing is copied (Delivery rules, 1), and what happened before a target was set is never copied. Nothing
runs by itself: a message waits from the moment it is sent until ``await emulator.deliver()``, ``await
emulator.advance(...)`` or ``async with emulator.copying()``.

**Attempts.** Normal copy makes one attempt. High-guarantee copy makes another after each of the rules' ``resend_after``
pauses, in seconds from the previous failure, with ``resendFlag`` 1 and a new ``CurTime``. Then it gives up. A delivery fails
unless HTTP 200, exactly, comes before 5 seconds of the emulator's clock have passed.

**Order.** Each conversation (a group, or two accounts) is delivered in the order of sending: a message that waits to be
resent holds up the later ones (Delivery rules; G). Conversations are delivered concurrently, at most ``concurrency``
deliveries at once. The order of the log is reproducible. The order in which receivers act at one moment
of an emulated clock is not reproducible on trio, whose scheduler is random.

**Emulated time** stands still while a receiver works: it answers at once, however long it takes in reality, so that a
database or a socket causes no timeout on an emulated clock. Time passes if a receiver waits for it (``clock.sleep``), and if
it has not answered after 5 seconds of real time; then it has timed out. A delivery that has begun is completed,
so that ``deliver`` and ``advance`` may end up to 5 seconds later on the emulator's clock.

**States.** A delivery waits in the queue; then it is taken for an attempt, which is active until it has a result; then it is
done, or waits again until its next attempt is due. At most one delivery of a conversation is active. If a block fails or is
cancelled, its active deliveries wait again, with the same attempt number.
"""

from __future__ import annotations

from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from math import inf
from typing import TYPE_CHECKING, Any

import anyio
from anyio.lowlevel import checkpoint
from attrs import define

from rbim._support import json
from rbim.callbacks.events import ConvType
from rbim.emulator.clock import ROUNDS, SLEEPERS, EmulatedClock
from rbim.emulator.copies.messages import CopiedMessage, milliseconds
from rbim.emulator.copies.targets import NoAnswer, open_sender, signed
from rbim.emulator.faults import CopyFaults, CopyInjection, injection_of
from rbim.emulator.logs import OK, DeliveryAttempt, DeliveryLog
from rbim.queues import KeyedQueue

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from anyio.abc import TaskGroup, TaskStatus

    from rbim.credentials import Credentials
    from rbim.emulator.copies.targets import Destination, Headers, Sender
    from rbim.emulator.faults import Picked
    from rbim.emulator.platform.rules import GroupChange, World

__all__ = ["Copier"]

LIMIT = 5.0  # the seconds within which a receiver must answer (Limits, callback answer time)
CLOCK_TIMEOUT = 5.0  # seconds of real time that a receiver may take before an emulated clock advances without it
LEEWAY = 1.0  # seconds by which a transport's own timeout exceeds the limit, so that the limit applies first
RESENT = {"resendFlag": "1"}
FIRST_MESSAGE = 70010001


@define(kw_only=True, eq=False)
class _QueuedDelivery:
    """One message to deliver. ``document`` is None if ``content`` is sent unchanged.

    ``key`` is its conversation. ``number`` counts messages from 1, ``attempt`` the attempts to deliver this one; ``due`` is
    the time of its next attempt. ``to_pass`` is the number of later messages that have yet to overtake it.
    """

    number: int
    message_id: str
    key: str
    content: bytes
    document: Mapping[str, Any] | None
    picked: tuple[Picked, ...] = ()
    attempt: int = 1
    due: float = 0.0
    to_pass: int = 0


class _DeliveryQueue:
    """Deliveries by conversation. At most one of each is taken at a time; the later ones wait until it is done."""

    def __init__(self) -> None:
        self._queue = KeyedQueue[str, _QueuedDelivery]()
        self._taken = set[str]()
        self._held: list[_QueuedDelivery] = []  # until later ones have overtaken them

    def __len__(self) -> int:
        return len(self._queue) + len(self._held)

    def put(self, delivery: _QueuedDelivery, now: float) -> None:
        """Put a delivery at the end of its conversation.

        One with ``to_pass`` is held until that many later ones are queued, then goes behind them, or until it is due.
        """
        if delivery.to_pass == 0:
            self._append(delivery, now)
        held, self._held = self._held, []
        for each in held:
            each.to_pass -= each.key == delivery.key
            if each.to_pass:
                self._held.append(each)
            else:
                each.due = now
                self._append(each, now)
        if delivery.to_pass:
            self._held.append(delivery)

    def take(self, now: float) -> _QueuedDelivery | None:
        """Take the delivery whose turn it is, or None if none is due. The later ones wait until it is done or put back."""
        for each in [each for each in self._held if each.due <= now]:
            self._held.remove(each)
            self._append(each, now)
        leased = self._queue.lease(now)
        if leased is None:
            return None
        self._taken.add(leased[0])
        return leased[1]

    def done(self, delivery: _QueuedDelivery, now: float) -> None:
        """End a delivery that was taken: the next one of its conversation can be taken when it is due."""
        following = self._queue.take(delivery.key)
        if following is not None:
            self._queue.put(delivery.key, following, first=True)
            self._pause(following, now)
        self._taken.remove(delivery.key)
        self._queue.release(delivery.key)

    def put_back(self, delivery: _QueuedDelivery, now: float) -> None:
        """Put a delivery that was taken back, before the later ones of its conversation, with the time when it is due."""
        self._queue.put(delivery.key, delivery, first=True)
        self.done(delivery, now)

    def next_due(self, now: float) -> float | None:
        """Return when the next delivery can be taken, or None if none waits."""
        ready = self._queue.next_at(now)
        due = min([inf if ready is None else ready, *(each.due for each in self._held)])
        return None if due == inf else due

    def _append(self, delivery: _QueuedDelivery, now: float) -> None:
        if delivery.key not in self._queue and delivery.key not in self._taken:
            self._pause(delivery, now)
        self._queue.put(delivery.key, delivery)

    def _pause(self, first: _QueuedDelivery, now: float) -> None:
        """Let a conversation wait until its first delivery is due."""
        if first.due > now:
            self._queue.pause(first.key, first.due)


class _Sleepers(set[object]):
    """The sleeps on the emulated clock of one attempt's receiver; ``on_add`` is called for each new one."""

    def __init__(self, on_add: Callable[[], None]) -> None:
        super().__init__()
        self._on_add = on_add

    def add(self, element: object, /) -> None:
        super().add(element)
        self._on_add()


@define(eq=False)
class _ActiveAttempt:
    """An attempt in progress. ``sleepers`` are its sleeps on the emulated clock."""

    delivery: _QueuedDelivery
    queue: _DeliveryQueue
    sender: Sender
    sleepers: _Sleepers


class Copier:
    """Turns messages and changes of groups in a ``world`` into deliveries, and delivers them to its ``destination``.

    ``deliveries`` logs the results. ``faults`` picks the faults of each message, from ``seed``.
    """

    def __init__(self, world: World, credentials: Credentials, seed: int) -> None:
        self.credentials = credentials
        self.faults = CopyFaults(seed)
        self.queue = _DeliveryQueue()
        self.deliveries = DeliveryLog()
        self.changes = 0
        """A number that grows whenever a delivery is added, begins or ends."""
        self.destination: Destination | None = None
        """The destination of copies; None: there are no copies. :meth:`copy_to` sets it."""
        self._world = world
        self._clock = world.clock
        self._count = 0
        self._active: set[_ActiveAttempt] = set()
        self._next_change: anyio.Event | None = None  # set at the next change, if a task waits for it
        world.listeners.append(self.notify)

    # Messages.

    def notify(self, change: GroupChange) -> None:
        """Send the notification for a change of a group, if a target is set and the rules have one for the cause."""
        if self.destination is None:
            return
        notice = self._world.choice("notifications").get(change.cause)
        if notice is not None:
            self.send(
                CopiedMessage(
                    conv_type=ConvType.NOTIFY_TEAM,
                    to=change.group_id,
                    sender=change.actor,
                    msg_type=notice,
                    members=change.members,
                )
            )

    def send(self, message: CopiedMessage) -> str:
        """Send one message now and return its id."""
        message_id = self._next_id()
        unit = self._world.dialect.message_time_unit
        document = message.body(app_id=self.credentials.app_id, msg_id=message_id, sent=self._world.clock.now(), unit=unit)
        self._put(message.key, message_id, json.dumps(document), document)
        return message_id

    def send_raw(self, body: Mapping[str, Any] | bytes, key: str) -> None:
        """Send a body as given. Bytes are resent without a ``resendFlag``."""
        message_id = self._next_id()
        if isinstance(body, bytes):
            self._put(key, message_id, body, None)
        else:
            self._put(key, str(body.get("msgId", message_id)), json.dumps(body), body)

    def send_again(self, number: int) -> None:
        """Deliver a message again that was delivered before, by its number, as a resend and without faults."""
        attempts = [each for each in self.deliveries if each.number == number]
        if not attempts:
            raise LookupError(f"the log has no delivery of a message {number}")
        whole = next((each for each in attempts if "tampered" not in each.trouble), attempts[0])
        if self.destination is not None:
            self._enqueue(
                _QueuedDelivery(
                    number=number,
                    message_id=whole.message_id,
                    key=whole.key,
                    content=whole.body,
                    document=whole.document or None,
                    attempt=max(each.attempt for each in attempts) + 1,
                )
            )

    def reset(self, destination: Destination | None) -> None:
        """Drop the deliveries, forget the earlier ones, restart the message numbers and ids, and copy to a destination."""
        self.copy_to(None)
        self.deliveries.clear()
        self._count = 0
        self.copy_to(destination)

    def _next_id(self) -> str:
        self._count += 1
        return f"m8{FIRST_MESSAGE + self._count - 1:013d}"

    def _put(self, key: str, message_id: str, content: bytes, document: Mapping[str, Any] | None) -> None:
        if self.destination is None:
            return
        picked = self.faults.pick(document or {})
        first = injection_of(picked, 1)
        self._enqueue(
            _QueuedDelivery(
                number=self._count,
                message_id=message_id,
                key=key,
                content=content,
                document=document,
                picked=picked,
                to_pass=first.overtaken_by,
            ),
            first.delay + first.patience,
        )

    def _enqueue(self, delivery: _QueuedDelivery, delay: float = 0.0) -> None:
        """Queue a delivery, due in ``delay`` seconds."""
        now = self._clock.monotonic()
        delivery.due = now + delay
        self.queue.put(delivery, now)
        self.changed()

    # Deliveries.

    def copy_to(self, destination: Destination | None) -> None:
        """Set the destination of copies. None: there are no copies, and those that wait are dropped."""
        self.destination = destination
        if destination is None:
            self.queue = _DeliveryQueue()
        self.changed()

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Deliver while the block runs, and at its end all that is due then. After an error the rest keeps waiting."""
        attempts: set[_ActiveAttempt] = set()
        failure: BaseException | None = None
        try:
            async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
                tasks.start_soon(self._start_attempts, tasks, stack, attempts)
                yield
                await self._finish()
                tasks.cancel_scope.cancel()
        except BaseExceptionGroup as group:
            rest = group.split(anyio.get_cancelled_exc_class())[1]
            failure = (rest or group).exceptions[0]  # if possible one that is not a cancellation
        finally:
            now = self._clock.monotonic()
            for active in attempts:  # interrupted: the delivery waits again
                active.delivery.due = now
                active.queue.put_back(active.delivery, now)
            self._active -= attempts
            self.changed()
        if failure is not None:
            raise failure

    async def advance(self, clock: EmulatedClock, seconds: float) -> None:
        """Advance an emulated clock and deliver each message at the time when it is due."""
        until = clock.after(seconds)
        async with self.running():
            while True:
                await self._wait_until_idle()
                due = clock.next_due()
                if due is None or due > until:
                    break
                await clock.advance(max(0.0, due - clock.elapsed))
            await clock.advance(max(0.0, until - clock.elapsed))

    async def _start_attempts(self, tasks: TaskGroup, stack: AsyncExitStack, attempts: set[_ActiveAttempt]) -> None:
        """Start the attempts that are due, at most ``concurrency`` at once, until cancelled."""
        opened: tuple[Destination, Sender] | None = None
        while True:
            destination, now = self.destination, self._clock.monotonic()
            due = self.queue.next_due(now)
            if destination is None or due is None or len(self._active) >= destination.concurrency:
                await self._wait_for_change(None)
            elif due > now:
                await self._wait_for_change(due - now)
            elif opened is None or opened[0] is not destination:
                opened = destination, await open_sender(destination, stack, timeout=LIMIT + LEEWAY)
            elif (delivery := self.queue.take(now)) is not None:
                active = _ActiveAttempt(delivery, self.queue, opened[1], _Sleepers(self.changed))
                attempts.add(active)
                self._active.add(active)
                self.changed()
                await tasks.start(self._make_attempt, active, attempts)  # one by one: receivers are called in this order

    async def _make_attempt(
        self, active: _ActiveAttempt, attempts: set[_ActiveAttempt], *, task_status: TaskStatus[None]
    ) -> None:
        """Make one of the attempts of a block, and decide whether there will be another."""
        SLEEPERS.set(active.sleepers)
        task_status.started()
        delivery = active.delivery
        injection = injection_of(delivery.picked, delivery.attempt)
        body = delivery.content
        if delivery.attempt > 1 and delivery.document is not None:
            body = json.dumps({**delivery.document, **RESENT})
        stamp = milliseconds(self._clock.now())  # of a resend, too: CurTime is "the current time" (Delivery rules; G)
        headers = signed(body, self.credentials, stamp - round(injection.stale * 1000))
        if injection.tampered is not None:
            at = int(injection.tampered * len(body))
            body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :] if body else b" "
        accepted = await self._deliver(active, headers, body, injection)
        for duplicate in range(injection.duplicates):
            await self._deliver(active, headers, body, injection, duplicate=duplicate + 1)
        pauses = self._world.rules.resend_after if self.destination is not None and self.destination.high else ()
        now = self._clock.monotonic()
        if accepted or delivery.attempt > len(pauses):
            active.queue.done(delivery, now)
        else:
            delivery.attempt += 1
            delivery.due = now + pauses[delivery.attempt - 2] + injection_of(delivery.picked, delivery.attempt).delay
            active.queue.put_back(delivery, now)
        attempts.remove(active)
        self._active.remove(active)
        self.changed()

    async def _deliver(
        self, active: _ActiveAttempt, headers: Headers, body: bytes, injection: CopyInjection, *, duplicate: int = 0
    ) -> bool:
        """Deliver once, record the result, and return whether the receiver accepted it."""
        delivery = active.delivery
        began = self._clock.monotonic()
        status, reason = None, "interrupted"
        try:
            with self._clock.scope(LIMIT) as scope:
                try:
                    status = await active.sender(dict(headers), body)
                    reason = "" if status == OK else f"status {status}"
                except NoAnswer as error:
                    reason = str(error)
                except Exception as error:  # an error in the receiver: a server would answer 500
                    reason = f"{type(error).__name__}: {error}"
            if scope.cancelled_caught:
                reason = f"timed out: no answer within {LIMIT:g} s"
        finally:
            self.deliveries.note(
                DeliveryAttempt(
                    at=began,
                    took=self._clock.monotonic() - began,
                    key=delivery.key,
                    number=delivery.number,
                    message_id=delivery.message_id,
                    attempt=delivery.attempt,
                    duplicate=duplicate,
                    status=status,
                    reason=reason,
                    trouble=injection.names,
                    headers=headers,
                    body=body,
                )
            )
        return status == OK

    # Waiting.

    def changed(self) -> None:
        """Wake all tasks that wait for a change."""
        self.changes += 1
        if self._next_change is not None:
            self._next_change.set()
            self._next_change = None

    async def _wait_for_change(self, seconds: float | None) -> None:
        """Wait until a delivery is added, begins or ends; at most ``seconds`` of the emulator's clock."""
        if self._next_change is None:
            self._next_change = anyio.Event()
        with nullcontext() if seconds is None else self._clock.scope(seconds):
            await self._next_change.wait()

    def _is_busy(self) -> bool:
        """Return whether an attempt is in progress or due."""
        now = self._clock.monotonic()
        due = self.queue.next_due(now)
        return bool(self._active) or (self.destination is not None and due is not None and due <= now)

    async def _finish(self) -> None:
        """Wait until no attempt is in progress or due. Emulated time passes if attempts in progress wait for it."""
        while True:
            if isinstance(self._clock, EmulatedClock):
                await self._wait_until_idle()
            if not self._is_busy():
                return
            if isinstance(self._clock, EmulatedClock):
                due = self._clock.next_due()
                await self._clock.advance(0 if due is None else max(0.0, due - self._clock.elapsed))
            else:
                await self._wait_for_change(None)

    async def _wait_until_idle(self) -> None:
        """Wait until no attempt is in progress, or all wait for emulated time; no longer than CLOCK_TIMEOUT."""
        while True:
            changes = self.changes
            for _ in range(ROUNDS):
                await checkpoint()
            if changes != self.changes:
                continue
            if not self._is_busy() or (self._active and all(active.sleepers for active in self._active)):
                return
            with anyio.move_on_after(CLOCK_TIMEOUT) as limit:
                await self._wait_for_change(None)
            if limit.cancelled_caught:
                return
