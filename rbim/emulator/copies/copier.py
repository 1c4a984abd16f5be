"""Message copy: messages and changes of groups on the emulated platform are posted, signed, to the developer's server.

**Content.** Every message (see :class:`~rbim.emulator.Emulator`) and every change of a group that the dialect's
``notifications`` names, however it was made. Without a target nothing is copied (Delivery rules, 1), and what happened
before a target was set is never copied.

**Time.** Nothing runs by itself. A message waits from the moment it is sent, and is delivered by ``await
emulator.deliver()``, by ``await emulator.advance(...)``, or while ``async with emulator.copying()`` runs.

**Attempts.** Normal copy makes one attempt. High-guarantee copy makes another after each of the dialect's ``resend_after``
pauses, in seconds from the previous failure, with ``resendFlag`` 1; ``resend_signed_anew`` is whether it has a new
``CurTime``. Then it gives up. A delivery fails unless HTTP 200, exactly, comes before 5 seconds of the emulator's clock have
passed.

**Order.** Each conversation (a group, or two accounts) is delivered in the order of sending: a message that waits to be
resent holds up the later ones (the dialect's ``resend_holds_conversation``). Conversations are delivered concurrently, at
most ``concurrency`` deliveries at once. The order of the log is reproducible. The order in which receivers act at one moment
of an emulated clock is not reproducible on trio, whose scheduler is random.

**Emulated time** stands still while a receiver works: it answers at once, however long it takes in reality, so that a
database or a socket causes no timeout on an emulated clock. Time passes if a receiver waits for it (``clock.sleep``), and if
it has not answered after ``patience`` seconds of real time; then it has timed out. A delivery that has begun is completed,
so that ``deliver`` and ``advance`` may end up to 5 seconds later on the emulator's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbim._support import json
from rbim.callbacks.events.enums import ConvType
from rbim.emulator.copies.dispatch import Dispatch
from rbim.emulator.copies.messages import CopiedMessage
from rbim.emulator.copies.queue import QueuedDelivery
from rbim.emulator.faults.copies import CopyFaults, injection_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.credentials import Credentials
    from rbim.emulator.platform.rules import GroupChange, World

__all__ = ["Copier"]

FIRST_MESSAGE = 70010001


class Copier:
    """Turns messages and changes of groups in a ``world`` into deliveries, and queues them in its ``dispatch``.

    ``faults`` picks the faults of each message, from ``seed``.
    """

    def __init__(self, world: World, credentials: Credentials, seed: int) -> None:
        self.faults = CopyFaults(seed)
        self.dispatch = Dispatch(world.clock, world.dialect, credentials)
        self._world = world
        self._app_id = credentials.app_id
        self._count = 0
        world.listeners.append(self.notify)

    def notify(self, change: GroupChange) -> None:
        """Send the notification for a change of a group, if a target is set and the dialect has one for the cause."""
        if self.dispatch.destination is None:
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
        document = message.body(app_id=self._app_id, msg_id=message_id, sent=self._world.clock.now(), unit=unit)
        self._put(message.key, message_id, json.dumps(document), document)
        return message_id

    def send_raw(self, body: Mapping[str, Any] | bytes, key: str) -> None:
        """Send a body as given. Bytes are sent unchanged, without a ``resendFlag`` when they are resent."""
        message_id = self._next_id()
        if isinstance(body, bytes):
            self._put(key, message_id, body, None)
        else:
            self._put(key, str(body.get("msgId", message_id)), json.dumps(body), body)

    def send_again(self, number: int) -> None:
        """Deliver a message again that was delivered before, by its number, as a resend and without faults.

        Raises LookupError if the log has no delivery of it. Without a target, nothing is delivered.
        """
        attempts = [each for each in self.dispatch.deliveries if each.number == number]
        if not attempts:
            raise LookupError(f"the log has no delivery of a message {number}")
        whole = next((each for each in attempts if "tampered" not in each.trouble), attempts[0])
        document = whole.document or None
        if self.dispatch.destination is not None:
            delivery = QueuedDelivery(
                number=number,
                message_id=whole.message_id,
                key=whole.key,
                content=whole.body,
                document=document,
                attempt=max(each.attempt for each in attempts) + 1,
            )
            self.dispatch.queues.put(delivery, self._world.clock.monotonic())
            self.dispatch.changed()

    def reset_count(self) -> None:
        """Restart the message numbers and ids."""
        self._count = 0

    def _next_id(self) -> str:
        self._count += 1
        return f"m8{FIRST_MESSAGE + self._count - 1:013d}"

    def _put(self, key: str, message_id: str, content: bytes, document: Mapping[str, Any] | None) -> None:
        if self.dispatch.destination is None:
            return
        picked = self.faults.pick(document or {})
        first = injection_of(picked, 1)
        self.dispatch.queues.put(
            QueuedDelivery(
                number=self._count,
                message_id=message_id,
                key=key,
                content=content,
                document=document,
                picked=picked,
            ),
            self._world.clock.monotonic(),
            delay=first.delay,
            overtaken_by=first.overtaken_by,
            patience=first.patience,
        )
        self.dispatch.changed()
