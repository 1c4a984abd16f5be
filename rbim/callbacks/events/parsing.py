"""From the bytes of an authentic delivery to an event."""

from __future__ import annotations

from datetime import UTC
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from attrs import evolve

from rbim._support import json as jsontext
from rbim.callbacks.events.types import Event, UnknownEvent, event_class
from rbim.dialect import MembersShape
from rbim.errors import CallbackRejected
from rbim.wire.converter import make_converter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cattrs import Converter

__all__ = ["document_of", "parse"]

DEEP = 64  # levels of arrays and objects: the description has two


@cache
def _converter() -> Converter:
    return make_converter(UTC, MembersShape.PLAIN)


def parse(body: bytes) -> Event:
    """Return the event that the body of a delivery tells of. Verify first: this looks at no signature.

    Of a key that comes twice the last counts. Halves of surrogate pairs (a nickname cut through an emoji) become U+FFFD, so
    that every text can be stored. Raises CallbackRejected, and nothing else, where the bytes are no JSON object or one that
    is nested or has numbers without end. Interface: Events, Conversation message event body.
    """
    fields = document_of(body)
    kind = event_class(fields.get("eventType"), fields.get("convType"), fields.get("msgType"))
    event = _converter().structure(fields, kind)
    return evolve(event, document=fields) if isinstance(event, UnknownEvent) else event


def document_of(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a delivery's body. Raises CallbackRejected as :func:`parse` does."""
    plain = jsontext.loads_plain(body)
    if plain is not None:  # nothing of what follows is in it, halves of surrogate pairs included
        return plain
    try:
        document = jsontext.loads(body)
    except jsontext.NotJson as error:
        raise _unreadable(str(error), body) from None
    if body.count(b"[") + body.count(b"{") > DEEP and _is_deep(document):
        why = f"nested more than {DEEP} deep"
        raise _unreadable(why, body)
    if b"\\u" in body:
        document = _whole(document)
    if not isinstance(document, dict):
        why = f"an object is needed, not {type(document).__name__}"
        raise _unreadable(why, body)
    return cast("dict[str, Any]", document)


def _is_deep(document: Any) -> bool:  # JSON
    level: list[Any] = [document]
    for _ in range(DEEP):
        level = [inside for each in level for inside in _inside(each)]
    return any(isinstance(each, (list, dict)) for each in level)


def _inside(value: Any) -> Iterable[Any]:  # JSON
    if isinstance(value, dict):
        return cast("Mapping[str, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, list) else ()


def _unreadable(why: str, body: bytes) -> CallbackRejected:
    return CallbackRejected(f"the body cannot be read: {why}", reason="bad_format", body=body)


# `"fromNick": "\ud83d"`
def _whole(value: Any) -> Any:  # JSON
    if isinstance(value, str):
        return value if _encodes(value) else value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_whole(each) for each in cast("Iterable[Any]", value)]
    if isinstance(value, dict):
        return {_whole(key): _whole(each) for key, each in cast("Mapping[str, Any]", value).items()}
    return value


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
