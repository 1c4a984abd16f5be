"""The parser: from the bytes of an authentic delivery to an event."""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from datetime import UTC
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve

from rbim._support import json
from rbim.callbacks.events.fields import without_surrogates
from rbim.callbacks.events.types import DOCUMENT, Event, event_class
from rbim.dialect import MembersShape, TimeUnit
from rbim.errors import CallbackRejected
from rbim.wire.converter import make_converter

if TYPE_CHECKING:
    from cattrs import Converter

    from rbim.dialect import Dialect

__all__ = ["as_utf8", "document_of", "parse"]

MARKS = {  # those of UTF-32 first: one begins like a mark of UTF-16
    BOM_UTF32_LE: "utf-32-le",
    BOM_UTF32_BE: "utf-32-be",
    BOM_UTF8: "utf-8",
    BOM_UTF16_LE: "utf-16-le",
    BOM_UTF16_BE: "utf-16-be",
}


@cache
def _converter() -> Converter:
    return make_converter(UTC, MembersShape.PLAIN)


def parse(body: bytes, *, dialect: Dialect | None = None) -> Event:
    """Return the event in the body of a delivery. Verify the delivery first: this checks no signature.

    ``dialect`` has the unit of ``msgTimestamp`` (default: milliseconds).

    The document is UTF-8, or begins with a byte order mark (of UTF-8, UTF-16 or UTF-32). Of a duplicate key the last value
    counts. Control characters in texts are read. Emoji in CESU-8 are joined; lone surrogates (a nickname cut inside an
    emoji) and bytes that are not UTF-8 become U+FFFD, so that every text can be stored; a whole body may be GB18030. Raises
    CallbackRejected, and nothing else, if the bytes are not a JSON object, are nested more than 64 levels deep, or have a
    number out of range. Interface: Events, Conversation message event body.
    """
    fields = document_of(body)
    kind = event_class(fields.get("eventType"), fields.get("convType"), fields.get("msgType"))
    event: Event = _converter().structure({**fields, DOCUMENT: fields}, kind)
    if event.msg_timestamp is None or dialect is None or dialect.message_time_unit is TimeUnit.MILLISECONDS:
        return event
    return evolve(event, msg_timestamp=event.msg_timestamp * 1000)


def document_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a delivery's body. Raises CallbackRejected like :func:`parse`."""
    plain = json.loads_plain(body)
    if plain is not None:  # none of the special cases below is in it, including lone surrogates
        return plain
    try:
        document, text = json.loads_repaired(as_utf8(body))
    except json.NotJson as error:
        raise _unreadable(str(error), body) from None
    if b"\\u" in text:
        document = without_surrogates(document)
    if not isinstance(document, dict):
        cause = f"it must be a JSON object, not {type(document).__name__}"
        raise _unreadable(cause, body)
    return cast("dict[str, Any]", document)


def as_utf8(body: bytes) -> bytes:
    """Return a body that begins with a byte order mark as UTF-8 without the mark; any other body unchanged."""
    for mark, encoding in MARKS.items():
        if body.startswith(mark):
            try:
                return body[len(mark) :].decode(encoding).encode()
            except UnicodeDecodeError:
                return body
    return body


def _unreadable(cause: str, body: bytes) -> CallbackRejected:
    return CallbackRejected(f"the body cannot be read: {cause}", reason="bad_format", body=body)
