"""The wire's quirks, one function each: how a single JSON value becomes a Python value, and the other way round.

Above each stands the wire text that made it necessary. Which field gets which is decided in ``rbim.wire.hooks``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from enum import Enum

__all__ = [
    "Hook",
    "as_it_is",
    "read_choice",
    "read_count",
    "read_date",
    "read_day",
    "read_flag",
    "read_mapped",
    "read_members",
    "read_moment",
    "read_number",
    "read_required",
    "read_text",
    "write_date",
    "write_nested_members",
]

Hook = Callable[[Any, Any], Any]
"""What cattrs calls: the value, and the type that is wanted."""


# `"declared": null`, `"name": 12345`, `"reason": {"code": 7}`
def read_text(value: Any, _: Any = None) -> str:  # JSON
    """Return text: numbers, booleans and whole objects become their JSON, null becomes empty."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return json.dumps(value, ensure_ascii=False)


# `{"statusCode": "000000", "groupId": ""}`: the one thing that cannot be missing
def read_required(value: Any, _: Any) -> str:  # JSON
    """Return text; raise KeyError where there is none."""
    if value is None or value == "" or isinstance(value, (dict, list, bool)):
        raise KeyError
    return read_text(value)


# Patterns are texts: `re` compiles each when it is first needed and keeps it, and importing this stays cheap.
_INTEGER = r"\s*[+-]?[0-9]{1,19}\s*"  # a long has up to 19


# `"count": "3"`, `"count": 3`, `"count": "1,2"`
def read_count(value: Any, _: Any) -> int | None:  # JSON
    """Return the number, or None where it cannot be read."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(_INTEGER, value) else None


_UNPADDED = r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})[ T]([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.[0-9]*)?\s*"
_COMPACT = r"\s*([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})\s*"
_MILLISECONDS = r"\s*([0-9]{12,13})\s*"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# `"dateCreated": "2014-10-1 10:5:3"`, `"20130201155306"`, `"1412128800000"`, `1412128800000`, `""`, `"yesterday"`
def read_date(value: Any, zone: tzinfo) -> datetime | None:  # JSON
    """Return the moment, in ``zone`` where the text names none, or None where it cannot be read."""
    text = read_text(value)
    try:
        if match := re.fullmatch(_UNPADDED, text) or re.fullmatch(_COMPACT, text):
            year, month, day, hour, minute, second = map(int, match.groups())
            return datetime(year, month, day, hour, minute, second, tzinfo=zone)
        if match := re.fullmatch(_MILLISECONDS, text):
            return (_EPOCH + timedelta(milliseconds=int(match[1]))).astimezone(zone)
    except (ValueError, OverflowError):
        pass  # a 13th month or a 61st minute is as unreadable as any other text
    return None


# `"type": "7"`, `"permission": 1`, `"target": ""`
def read_choice(value: Any, members: Mapping[str, Enum]) -> Any:  # JSON in, a member or its text out
    """Return the member of an enum, or the text where it is outside it, or None where there is none."""
    text = read_text(value)
    return members.get(text, text or None)


# `"confirm": "0"`, `"isrecord": 1`
def read_mapped(python: Mapping[str, Any]) -> Hook:
    """Return a reader of what stands for something else: ``python`` maps the wire's texts to values."""

    def read(value: Any, _: Any) -> Any:  # JSON in, what it stands for out
        text = read_text(value)
        if text not in python:
            raise ValueError(f"{text!r} is none of {', '.join(python)}")
        return python[text]

    return read


# `"muted": "0"`, `"muted": 1`, `"muted": true`, in answers to operations of one's own
def read_flag(value: Any, _: Any = None) -> bool:  # JSON
    """Return what a flag says; raise ValueError for what is none: any text but the empty one is true to Python."""
    flag = {"true": True, "1": True, "false": False, "0": False}.get(read_text(value).strip().lower())
    if flag is None:
        raise ValueError(f"{read_text(value)!r} is no flag")
    return flag


# `"members": ["1001"]`, `{"member": ["1001"]}`, `{"member": "1001"}`, `"1001"`, `[1001]`
def read_members(value: Any, _: Any) -> tuple[str, ...]:  # JSON
    """Return accounts, in whichever shape they came."""
    if isinstance(value, dict):
        return read_members(cast("dict[str, Any]", value)["member"], _)
    if isinstance(value, list):
        return tuple(read_text(each) for each in cast("Iterable[Any]", value))
    return (read_text(value),)


def read_moment(value: Any, zone: tzinfo) -> datetime:  # JSON
    """Return the moment; raise ValueError where it cannot be read."""
    moment = read_date(value, zone)
    if moment is None:
        raise ValueError(f"{read_text(value)!r} is no time")
    return moment


# `"start_date": "2026-01-05"`, and nothing shorter or longer
def read_day(value: Any, _: Any) -> date:  # JSON
    """Return the day; ISO's other ways to write one are none of the platform's."""
    day = date.fromisoformat(value)
    if day.isoformat() != value:
        raise ValueError(f"a date of the form YYYY-MM-DD is needed, not {value!r}")
    return day


# `"bot_id": 7`, `"bot_id": "7"`
def read_number(value: Any, _: Any) -> int:  # JSON
    """Return the whole number."""
    number = None if isinstance(value, bool) else read_count(value, _)
    if number is None:
        raise ValueError(f"a whole number is needed, not {value!r}")
    return number


def write_date(moment: datetime) -> str:
    """Write a moment as the platform does: nothing padded but the year."""
    day = f"{moment.year:04}-{moment.month}-{moment.day}"
    return f"{day} {moment.hour}:{moment.minute}:{moment.second}"


def as_it_is(value: Any) -> Any:  # what needs no change
    """Return what needs no change."""
    return value


def write_nested_members(value: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Wrap accounts as the older interface does."""
    return {"member": value}
