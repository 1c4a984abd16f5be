"""A delivery: an authentic body, the key that recognises it when it is sent again, and its conversation."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple

from rbim._support.text import one_line
from rbim.callbacks.events.enums import ConvType
from rbim.callbacks.events.fields import Account, accounts, flag
from rbim.callbacks.events.parsing import document_of, parse
from rbim.callbacks.events.types import IN_GROUPS, conversation_of, event_class
from rbim.callbacks.signature import Reason
from rbim.errors import CallbackRejected
from rbim.wire.quirks import read_text

if TYPE_CHECKING:
    from datetime import datetime

    from rbim.callbacks.events.types import Event

__all__ = ["Delivery", "delivery_of"]


PROBLEM = 300  # characters of what is said of a delivery


class Delivery(NamedTuple):  # and no attrs class, which takes longer to make: every delivery pays for it
    """An authentic delivery.

    ``key`` (32 hexadecimal digits) is the same for every copy of one event: application, ``msgId``, ``convType``,
    ``msgType``, receiver (and ``eventType``, of which one is described), or, without a ``msgId``, the body's content.
    ``conversation`` is that of the event within the application, the key where there is none: its events are handled in the
    order in which they were accepted. ``problem`` says why it goes to quarantine: it cannot be read (``kind`` is None then),
    or belongs to another application. ``kind`` is the class of its event, ``msg_type`` what the platform calls that,
    ``resent`` whether it says that it is a resend. ``received`` has a time zone.
    """

    key: str
    conversation: str
    app_id: str
    body: bytes
    received: datetime
    kind: type[Event] | None
    msg_type: str = ""
    resent: bool = False
    problem: str | None = None

    @property
    def event(self) -> Event | None:
        """The event, read anew from the body each time; None where it cannot be read."""
        return None if self.kind is None else parse(self.body)


def delivery_of(body: bytes, *, app_id: str, received: datetime) -> Delivery:
    """Return the delivery of an authentic body that was signed by an application. Never raises, whatever the bytes.

    Reads what it takes to tell deliveries apart, and no more: this is what the platform waits for.
    """
    try:
        document = document_of(body)
    except CallbackRejected as error:
        key = _digest(f"{app_id} {body.hex()}")
        return Delivery(
            key=key, conversation=key, app_id=app_id, body=body, received=received, kind=None, problem=error.message
        )
    get = document.get
    raw: tuple[Any, ...] = (get("eventType"), get("convType"), get("msgType"), get("to"), get("fromAccount"), get("msgId"))
    kind = event_class(*raw[:3])
    try:
        "".join(raw)  # the quickest way to see that all are texts
    except TypeError:
        raw = tuple(map(read_text, raw))
    event_type, conv_type, msg_type, to, sender, msg_id = raw
    from_app, number_sign, _ = sender.partition("#")
    if conv_type in IN_GROUPS:
        conversation, pushed = to and f"team/{to}", ""
    else:
        members = accounts(get("tMembers")) if conv_type == ConvType.CUSTOM_PERSON else ()
        conversation = conversation_of(conv_type, to, Account.of(sender), members)
        pushed = "\n".join(sorted(map(str, members)))
    if msg_id:
        event_type = event_type or "1"
        lengths = f"{len(event_type)},{len(msg_id)},{len(conv_type)},{len(msg_type)},{len(to)}"  # they keep the parts apart
        key = _digest(f"{app_id} {lengths}:{event_type}{msg_id}{conv_type}{msg_type}{to}{pushed}")
    else:  # a resend differs in its resendFlag
        content = {name: value for name, value in document.items() if name != "resendFlag"}
        key = _digest(f"{app_id} {json.dumps(content, sort_keys=True)}")
    problem = None
    if number_sign and from_app and from_app != app_id:
        what = f"{Reason.APP_MISMATCH}: signed by application {app_id}, sent by an account of {from_app}"
        problem = one_line(what, PROBLEM)
    lane = f"{app_id}/{conversation}" if conversation else key
    return Delivery(key, lane, app_id, body, received, kind, msg_type, flag(get("resendFlag")), problem)


def _digest(told: str) -> str:
    return blake2b(told.encode(), digest_size=16).hexdigest()
