"""Message copy: what is said on the emulated platform is posted to the developer's server, signed, within its rules.

**What is copied.** Everything that is said (see :class:`~rbim.emulator.Emulator`) and every change of a group that the
dialect's ``notifications`` names, by whichever door it came. With no target configured nothing is (Delivery rules, 1), and
what happened before one was configured stays uncopied.

**When.** Nothing runs by itself. A message waits from the moment it is sent, and is delivered by ``await
emulator.deliver()``, by ``await emulator.advance(...)``, or while ``async with emulator.copying()`` runs.

**How often.** Normal copy makes one attempt. High-guarantee copy makes another after each of the dialect's ``resend_after``
seconds, counted from the failure before, with ``resendFlag`` 1; ``resend_signed_anew`` says whether with a new ``CurTime``.
Then it gives up. A delivery has failed unless HTTP 200, exactly, comes within 5 seconds of the emulator's clock.

**In which order.** That in which messages were sent, for each conversation (a group, or two accounts): what is to be resent
holds up what was said after it. Conversations go side by side, at most ``concurrency`` deliveries at once. The log is in the
same order each time; on trio, whose scheduler draws lots, what receivers do at one moment of an emulated clock is not.

**Emulated time** stands still while a receiver works: however long it takes in reality, it answered at once, and an emulated
clock brings no time-out over a database or a socket. Time passes where a receiver waits for it (``clock.sleep``), and
for one that has not answered after ``patience`` seconds of real time, which then has timed out. A delivery once begun is
carried to its end, so that ``deliver`` and ``advance`` may end up to 5 seconds later on the emulator's clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rbim._support import json as jsontext
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
    """Turns what is said and what happens in a ``world`` into parcels, and hands them to its ``dispatch``.

    ``faults`` decide, from ``seed``, what gets in the way of which message.
    """

    def __init__(self, world: World, credentials: Credentials, seed: int) -> None:
        self.faults = CopyFaults(seed)
        self.dispatch = Dispatch(world.clock, world.dialect, credentials)
        self._world = world
        self._app_id = credentials.app_id
        self._count = 0
        world.listeners.append(self.tell)

    def tell(self, happening: GroupChange) -> None:
        """Send the notification that a change of a group causes, if it causes one and there is somebody to tell."""
        if self.dispatch.aim is None:
            return
        notice = self._world.choice("notifications").get(happening.cause)
        if notice is not None:
            self.send(
                CopiedMessage(
                    conv_type=ConvType.NOTIFY_TEAM,
                    to=happening.group_id,
                    sender=happening.actor,
                    msg_type=notice,
                    members=happening.members,
                )
            )

    def send(self, message: CopiedMessage) -> str:
        """Send one message now and return its id."""
        message_id = self._next_id()
        document = message.body(app_id=self._app_id, msg_id=message_id, sent=self._world.clock.now())
        self._put(message.key, message_id, jsontext.dumps(document), document)
        return message_id

    def send_raw(self, body: Mapping[str, Any] | bytes, key: str) -> None:
        """Send a body of the caller's own. Bytes go out as they stand, without a ``resendFlag`` when they are resent."""
        message_id = self._next_id()
        if isinstance(body, bytes):
            self._put(key, message_id, body, None)
        else:
            self._put(key, str(body.get("msgId", message_id)), jsontext.dumps(body), body)

    def count_anew(self) -> None:
        """Give the next message the number and the id of a first one."""
        self._count = 0

    def _next_id(self) -> str:
        self._count += 1
        return f"m8{FIRST_MESSAGE + self._count - 1:013d}"

    def _put(self, key: str, message_id: str, content: bytes, document: Mapping[str, Any] | None) -> None:
        if self.dispatch.aim is None:
            return
        picked = self.faults.judge(document or {})
        verdict = injection_of(picked, 1)
        self.dispatch.lanes.put(
            QueuedDelivery(
                number=self._count,
                message_id=message_id,
                key=key,
                content=content,
                document=document,
                picked=picked,
            ),
            self._world.clock.monotonic(),
            delay=verdict.delay,
            overtaken_by=verdict.overtaken_by,
            patience=verdict.patience,
        )
        self.dispatch.changed()
