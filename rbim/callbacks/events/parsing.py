"""The parser: from the bytes of an authentic delivery to an event."""

from __future__ import annotations

from datetime import UTC
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve

from rbim._support import json
from rbim.callbacks.events.types import DOCUMENT, Event, event_class
from rbim.dialect import MembersShape, TimeUnit
from rbim.errors import CallbackRejected
from rbim.wire.converter import make_converter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cattrs import Converter

    from rbim.dialect import Dialect

__all__ = ["document_of", "parse"]

MOST_LEVELS = 64  # of nested arrays and objects; the description has two


@cache
def _converter() -> Converter:
    return make_converter(UTC, MembersShape.PLAIN)


def parse(body: bytes, *, dialect: Dialect | None = None) -> Event:
    """Return the event in the body of a delivery. Verify the delivery first: this checks no signature.

    ``dialect`` has the unit of ``msgTimestamp`` (default: milliseconds).

    Of a duplicate key the last value counts. Lone surrogates (a nickname cut inside an emoji) become U+FFFD, so that every
    text can be stored. Raises CallbackRejected, and nothing else, if the bytes are not a JSON object, are nested more than
    64 levels deep, or have a number out of range. Interface: Events, Conversation message event body.
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
        document = json.loads(body)
    except json.NotJson as error:
        raise _unreadable(str(error), body) from None
    if body.count(b"[") + body.count(b"{") > MOST_LEVELS and _is_deep(document):
        cause = f"nested more than {MOST_LEVELS} levels deep"
        raise _unreadable(cause, body)
    if b"\\u" in body:
        document = _without_surrogates(document)
    if not isinstance(document, dict):
        cause = f"it must be a JSON object, not {type(document).__name__}"
        raise _unreadable(cause, body)
    return cast("dict[str, Any]", document)


def _is_deep(document: Any) -> bool:  # JSON
    level: list[Any] = [document]
    for _ in range(MOST_LEVELS):
        level = [child for each in level for child in _children(each)]
    return any(isinstance(each, (list, dict)) for each in level)


def _children(value: Any) -> Iterable[Any]:  # JSON
    if isinstance(value, dict):
        return cast("Mapping[str, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, list) else ()


def _unreadable(cause: str, body: bytes) -> CallbackRejected:
    return CallbackRejected(f"the body cannot be read: {cause}", reason="bad_format", body=body)


# `"fromNick": "\ud83d"`
def _without_surrogates(value: Any) -> Any:  # JSON
    if isinstance(value, str):
        return value if _encodes(value) else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_without_surrogates(each) for each in cast("Iterable[Any]", value)]
    if isinstance(value, dict):
        return {
            _without_surrogates(key): _without_surrogates(each) for key, each in cast("Mapping[str, Any]", value).items()
        }
    return value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
