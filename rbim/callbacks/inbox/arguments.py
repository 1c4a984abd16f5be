"""Checks of the arguments that both inboxes take: limits of pages, times, kinds of events."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import cast

from rbim.callbacks.events.types import Event, class_names
from rbim.errors import InvalidRequest

__all__ = ["classes", "epoch", "msg_type_of", "page_limit", "since_epoch"]


def page_limit(limit: int) -> int:
    """Return a limit of at least 1. Raises InvalidRequest."""
    if limit < 1:
        raise InvalidRequest(f"limit: use at least 1, not {limit!r}", field="limit", limit=1)
    return limit


def since_epoch(since: datetime | None) -> float:
    """Return a time in epoch seconds, or minus infinity. Raises InvalidRequest."""
    return -inf if since is None else epoch(since, "since")


def epoch(time: datetime, name: str) -> float:
    """Return a time in epoch seconds. Raises InvalidRequest if it has no time zone."""
    if not isinstance(cast("object", time), datetime) or time.tzinfo is None:
        raise InvalidRequest(f"{name}: pass a datetime with a time zone, not {time!r}", field=name)
    return time.timestamp()


def classes(kind: type[Event] | str | None) -> frozenset[str] | None:
    """Return the names of a class and its subclasses, or None for any. Raises InvalidRequest."""
    if kind is None or isinstance(kind, str) or kind is Event:
        return None
    given = cast("object", kind)
    if not isinstance(given, type) or not issubclass(given, Event):
        raise InvalidRequest(f"kind: pass a class of events or the text of a msgType, not {kind!r}", field="kind")
    return class_names(given)


def msg_type_of(kind: type[Event] | str | None) -> str | None:
    """Return the text of a ``msgType``, or None for any."""
    return str(kind) if isinstance(kind, str) else None
