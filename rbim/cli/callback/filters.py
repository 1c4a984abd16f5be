"""Times and kinds of events, in flags and in messages."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from rbim.cli.printable import printable
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.callbacks.events import Event

__all__ = ["kind_of", "moment_ago", "moment_of", "shown_kinds"]

MOST_KINDS = 10
_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}


def moment_ago(text: str, flag: str) -> datetime:
    """Return the time of a flag's text: 7d, 24h or 30m ago, or a time with a zone. Raises InvalidRequest."""
    ago = re.fullmatch(r"([0-9]{1,9})([dhms])", text)
    if ago is None:
        return moment_of(text, flag, "7d, 24h, 30m or ")
    try:
        return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def moment_of(text: str, flag: str, others: str = "") -> datetime:
    """Return the time of a flag's text. Raises InvalidRequest unless it has a zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRequest(
            f"{flag}: invalid time {text!r}: use {others}a time with its zone, such as 2026-01-31T09:00:00+08:00", field=flag
        )
    return moment


def kind_of(text: str) -> type[Event] | str:
    """Return a class of events by its name, or a ``msgType``: a known one in any case, an unknown one in upper case."""
    from rbim.callbacks import events

    classes: dict[str, type[Event]] = {name.lower(): getattr(events, name) for name in events.class_names(events.Event)}
    written = text.replace("-", "_")
    if text.lower() in classes and not text.isupper():
        return classes[text.lower()]
    if written.upper() in {*events.MsgType, *events.Notice} or written.isupper():
        return written.upper()
    names = ", ".join(sorted(kind.__name__ for kind in classes.values()))
    raise InvalidRequest(f"--kind: unknown kind {text!r}: use a msgType such as TEAM_KICK or one of {names}", field="--kind")


def shown_kinds(kinds: Mapping[str, int]) -> str:
    """Return how many events there are of each ``msgType``, for people: the first ten."""
    words = [f"{printable(kind) or '-'} {count}" for kind, count in kinds.items()]
    return ", ".join([*words[:MOST_KINDS], *(["..."] if len(words) > MOST_KINDS else [])])
