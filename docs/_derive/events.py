"""The tables of the page on callbacks: the fields of an event, and the classes of events."""

from __future__ import annotations

import re

from attrs import fields

from _derive.markdown import code, inline, table
from rbim.callbacks.events import Event, Message, Notification, UnknownEvent

__all__ = ["event_classes", "event_fields"]

MEANINGS = {
    "msg_type": "the kind of message or change",
    "conv_type": "the kind of conversation",
    "to": "the receiver's account, or the group",
    "from_account": "the sender, or the account that caused the change",
    "from_nick": "the sender's nickname",
    "from_client_type": "the sender's client",
    "from_device_id": "the sender's device",
    "msg_timestamp": "milliseconds since 1970 (UTC), or None; `sent_at` is the same as a datetime",
    "msg_timestamp_text": "the same as text",
    "msg_id": "the message's identifier",
    "body": "the text",
    "attach": "the address of an attachment",
    "t_members": "the accounts that a change concerns, or the receivers of a push",
    "at_user": "mentioned accounts",
    "link_info": "the content of a link",
    "ext": "the sender's extension field",
    "resend_flag": "a resend",
    "custom_save_flag": "stored for offline receivers",
    "custom_apns_flag": "receivers get a push notification",
    "custom_apns_text": "the text of that notification",
    "antispam": "the check for black words matched",
    "event_type": "1: a message",
    "extra": "fields outside the description",
    "document": "the whole JSON object",
}


def event_fields() -> str:
    """Return a table of the fields of all events."""
    known = {each.name for each in fields(Event)}
    if known != MEANINGS.keys():
        raise LookupError(f"docs/_derive/events.py and the fields of Event differ: {sorted(known ^ MEANINGS.keys())}")
    return table(("attribute", "meaning"), ((code(name), meaning) for name, meaning in MEANINGS.items()))


def event_classes() -> str:
    """Return a table of the classes of events; the page says that their names are those of the ``msgType``."""
    kinds = (*Message.__subclasses__(), *Notification.__subclasses__())
    for kind in kinds:
        derived = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).upper()
        if kind.type_name.value != derived:
            raise LookupError(f"docs/callbacks.md says that {kind.__name__} is {derived}; it is {kind.type_name.value}")
    rows = [(code(kind.__name__), inline(kind.__doc__ or "")) for kind in kinds]
    rows.append((code(UnknownEvent.__name__), "An event that is not in the description."))
    return table(("class", "meaning"), rows)
