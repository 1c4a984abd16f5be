"""Checks of the arguments that both inboxes take: limits of pages, times, kinds of events."""

from __future__ import annotations

from datetime import datetime
from math import inf
from typing import TYPE_CHECKING, cast

from attrs import frozen

from rbim.callbacks.events import Event, class_names
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from rbim.callbacks.delivery import Delivery

__all__ = ["LARGEST", "EventFilter", "epoch", "event_filter", "numbers_of", "page"]

LARGEST = 2**63 - 1
"""The largest number that SQLite stores."""


@frozen(kw_only=True)
class EventFilter:
    """Chooses events: ``since`` in epoch seconds, names of classes, a ``msgType``, a conversation (None: any)."""

    since: float = -inf
    classes: Collection[str] | None = None
    msg_type: str | None = None
    conversation: str | None = None
    dead_only: bool = False

    def matches(self, delivery: Delivery) -> bool:
        """Return whether a delivery is chosen, dead letter or not, of whatever conversation."""
        name = "" if delivery.kind is None else delivery.kind.__name__
        return (
            delivery.received.timestamp() >= self.since
            and (self.classes is None or name in self.classes)
            and (self.msg_type is None or delivery.msg_type == self.msg_type)
        )


def event_filter(
    since: datetime | None,
    kind: type[Event] | str | None,
    conversation: str | None = None,
    *,
    dead_only: bool = False,
) -> EventFilter:
    """Return the filter of a caller's arguments. Raises InvalidRequest."""
    for name, text in (("kind", kind), ("conversation", conversation)):
        if isinstance(text, str):
            try:
                text.encode()
            except UnicodeEncodeError:
                cause = f"{name}: characters that cannot be encoded in UTF-8 in {text!r}"
                raise InvalidRequest(cause, field=name) from None
    return EventFilter(
        since=-inf if since is None else epoch(since, "since"),
        classes=_classes(kind),
        msg_type=str(kind) if isinstance(kind, str) else None,
        conversation=conversation,
        dead_only=dead_only,
    )


def page(limit: int, after: int) -> tuple[int, int]:
    """Return the limit of a page and the number after which it begins, as SQLite can have them. Raises InvalidRequest."""
    if limit < 1:
        raise InvalidRequest(f"limit: use at least 1, not {limit!r}", field="limit", limit=1)
    return min(limit, LARGEST), min(max(after, 0), LARGEST)


def numbers_of(given: Iterable[int]) -> tuple[int, ...]:
    """Return each number once, without those that no event can have."""
    return tuple(number for number in dict.fromkeys(given) if 0 < number <= LARGEST)


def epoch(time: datetime, name: str) -> float:
    """Return a time in epoch seconds. Raises InvalidRequest if it has no time zone."""
    if not isinstance(cast("object", time), datetime) or time.tzinfo is None:
        raise InvalidRequest(f"{name}: pass a datetime with a time zone, not {time!r}", field=name)
    return time.timestamp()


def _classes(kind: type[Event] | str | None) -> frozenset[str] | None:
    """Return the names of a class and its subclasses, or None for any. Raises InvalidRequest."""
    if kind is None or isinstance(kind, str) or kind is Event:
        return None
    given = cast("object", kind)
    if not isinstance(given, type) or not issubclass(given, Event):
        raise InvalidRequest(f"kind: pass a class of events or the text of a msgType, not {kind!r}", field="kind")
    return class_names(given)
