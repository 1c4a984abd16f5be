"""Deliveries that have the key of another one and other content. Pure functions."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from rbim.callbacks.events import document_of
from rbim.errors import CallbackRejected

if TYPE_CHECKING:
    from rbim.callbacks.delivery import Delivery

__all__ = ["OTHER_CONTENT", "is_resend", "with_own_key"]

OTHER_CONTENT = "other content under the msgId of event "
"""The beginning of the ``error`` of such an event, before the other one's number."""


def is_resend(body: bytes, known: bytes) -> bool:
    """Return whether two bodies with one key are the same document, apart from ``resendFlag``."""
    return body == known or _content(body) == _content(known)


def with_own_key(delivery: Delivery, event: int | str) -> Delivery:
    """Return the delivery for quarantine, under a key made of its key and its content: its resends have the same.

    ``event``: the number or the key of the event that has its key.
    """
    content = json.dumps(_content(delivery.body), sort_keys=True, default=bytes.hex)
    key = blake2b(f"{delivery.key} {content}".encode(), digest_size=16).hexdigest()
    return delivery._replace(key=key, problem=f"{OTHER_CONTENT}{event}")


def _content(body: bytes) -> Any:  # a JSON document, or the bytes
    try:
        return {name: value for name, value in document_of(body).items() if name != "resendFlag"}
    except CallbackRejected:
        return body
