"""A delivery: an authentic body, the key that identifies its event in resends, and its conversation."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from rbim._support.text import one_line
from rbim.callbacks.events import (
    IN_GROUPS,
    Account,
    ConvType,
    accounts,
    conversation_of,
    document_of,
    event_class,
    flag,
    parse,
)
from rbim.callbacks.signature import Reason
from rbim.errors import CallbackRejected
from rbim.wire.quirks import read_text

if TYPE_CHECKING:
    from datetime import datetime

    from rbim.callbacks.events import Event

__all__ = ["Delivery", "delivery_of"]


PROBLEM = 300  # most characters of a problem's text


class Delivery(NamedTuple):  # not an attrs class: those take longer to create, and every delivery pays for it
    """An authentic delivery: one POST whose signature is valid.

    ``key`` (32 hexadecimal digits) is the same in every delivery of one event. It is a hash of application, ``msgId``,
    ``convType``, ``msgType``, receiver and ``eventType`` (the description has one value for it), or of the body's content
    if there is no ``msgId``. ``conversation`` is the event's conversation within the application, or ``key`` if it has none;
    events of one conversation are handled in the order of acceptance. ``problem`` is the reason for quarantine (default:
    None): the body cannot be read (then ``kind`` is None), or it belongs to another application. ``kind`` is the class of
    the event, ``msg_type`` the platform's word for it, ``resent`` whether the body claims to be a resend. ``received`` has a
    time zone.
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
        """The event, parsed from the body at each access by the default dialect; None if the body cannot be read."""
        return None if self.kind is None else parse(self.body)


def delivery_of(body: bytes, *, app_id: str, received: datetime) -> Delivery:
    """Return the delivery for an authentic body that ``app_id`` signed. Never raises, for any bytes.

    Parses only the fields that identify a delivery, because the platform waits for the answer meanwhile.
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
    event_type, conv_type, msg_type, to, sender, msg_id = raw
    kind = event_class(event_type, conv_type, msg_type)
    try:
        "".join(raw)  # the fastest check that all are strings
    except TypeError:
        event_type, conv_type, msg_type, to, sender, msg_id = map(read_text, raw)
    from_app, number_sign, _ = sender.partition("#")
    if conv_type in IN_GROUPS:
        conversation, pushed = to and f"team/{to}", ""
    else:
        members = accounts(get("tMembers")) if conv_type == ConvType.CUSTOM_PERSON else ()
        conversation = conversation_of(conv_type, to, Account.of(sender), members)
        pushed = "\n".join(sorted(map(str, members)))
    if msg_id:
        event_type = event_type or "1"
        key = _digest(  # the lengths make the parts unambiguous
            f"{app_id} {len(event_type)},{len(msg_id)},{len(conv_type)},{len(msg_type)},{len(to)}:"
            f"{event_type}{msg_id}{conv_type}{msg_type}{to}{pushed}"
        )
    else:  # a resend differs in resendFlag only
        content = {name: value for name, value in document.items() if name != "resendFlag"}
        key = _digest(f"{app_id} {json.dumps(content, sort_keys=True)}")
    problem = None
    if number_sign and from_app and from_app != app_id:
        mismatch = f"{Reason.APP_MISMATCH}: signed by application {app_id}, sent by an account of {from_app}"
        problem = one_line(mismatch, PROBLEM)
    scoped = f"{app_id}/{conversation}" if conversation else key
    fields = (key, scoped, app_id, body, received, kind, msg_type, flag(get("resendFlag")), problem)
    delivery: Delivery = _new(Delivery, fields)
    return delivery


_new = cast("Any", tuple).__new__  # in half of the time of Delivery's own, which gathers its arguments into such a tuple


_EMPTY = blake2b(digest_size=16)


def _digest(text: str) -> str:
    digest = _EMPTY.copy()  # twice as fast as a new one
    digest.update(text.encode("utf-8", "surrogatepass"))  # a message of another program may have lone surrogates
    return digest.hexdigest()
