"""The tables of the page on callbacks: the fields of an event, and the classes of events."""

from __future__ import annotations

from typing import get_type_hints

from attrs import fields

from _derive.markdown import code, inline, table
from rbim.callbacks.events import Event, Message, Notification, UnknownEvent
from rbim.operations.base import wire_names

__all__ = ["event_classes", "event_fields"]

MEANINGS = {
    "msg_type": "what kind of message or change",
    "conv_type": "what kind of conversation",
    "to": "the receiver's account, or the group",
    "from_account": "the sender, or the account that caused the change",
    "from_nick": "the sender's nickname",
    "from_client_type": "the sender's client",
    "from_device_id": "the sender's device",
    "msg_timestamp": "milliseconds since 1970 (UTC); `sent_at` is the same as a datetime",
    "msg_timestamp_text": "the same as the platform wrote it",
    "msg_id": "the message's identifier",
    "body": "the text",
    "attach": "the address of a picture, recording, video or file",
    "t_members": "the accounts that a change concerns, or the receivers of a push",
    "at_user": "the accounts that are mentioned",
    "link_info": "the content of a link",
    "ext": "the sender's extension field",
    "resend_flag": "the platform sends it again",
    "custom_save_flag": "it is stored for receivers that are offline",
    "custom_apns_flag": "they get a push notification",
    "custom_apns_text": "the text of that notification",
    "antispam": "the check for black words matched",
    "event_type": "1: a message",
    "extra": "fields that are not in the description",
    "document": "the whole JSON object",
}


def event_fields() -> str:
    """Return a table of the fields of all events."""
    hints, wire = get_type_hints(Event), wire_names(Event)
    known = {each.name for each in fields(Event)}
    if known != MEANINGS.keys():
        raise LookupError(f"docs/_derive/events.py and the fields of Event differ: {sorted(known ^ MEANINGS.keys())}")
    rows = (
        (code(name), "" if name in {"extra", "document"} else code(wire[name]), code(_type_name(hints[name])), meaning)
        for name, meaning in MEANINGS.items()
    )
    return table(("attribute", "on the wire", "type", "meaning"), rows)


def event_classes() -> str:
    """Return a table of the classes of events."""
    rows = [
        (code(kind.__name__), code(kind.type_name.value), inline(kind.__doc__ or ""))
        for kind in (*Message.__subclasses__(), *Notification.__subclasses__())
    ]
    rows.append((code(UnknownEvent.__name__), "any other", "An event that is not in the description."))
    return table(("class", "`msgType`", "meaning"), rows)


def _type_name(hint: object) -> str:
    text = hint.__name__ if isinstance(hint, type) and not getattr(hint, "__args__", ()) else str(hint)
    for prefix in ("rbim.callbacks.events.", "rbim.callbacks.events.", "collections.abc.", "typing."):
        text = text.replace(prefix, "")
    return text
