"""The wire's quirks: one function each, which converts a single JSON value to Python or back.

The comment above each shows the wire text that requires it. ``rbim.wire.converter`` chooses the function for each field.
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
"""A cattrs structure hook: called with the value and the target type."""


# `"declared": null`, `"name": 12345`, `"reason": {"code": 7}`
def read_text(value: Any, _: Any = None) -> str:  # JSON
    """Return text: numbers, booleans and objects become their JSON, null becomes the empty text."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    return str(value) if type(value) is int else _as_json(value)


_as_json = json.JSONEncoder(ensure_ascii=False).encode


# `{"statusCode": "000000", "groupId": ""}`: a required text must not be empty
def read_required(value: Any, _: Any) -> str:  # JSON
    """Return text; raise KeyError if it is missing or empty."""
    if value is None or value == "" or isinstance(value, (dict, list, bool)):
        raise KeyError
    return read_text(value)


# Patterns are plain texts: `re` compiles and caches each on first use, so that the import stays fast.
_INTEGER = r"[+-]?[0-9]{1,19}"  # a long has up to 19


# `"count": "3"`, `"count": 3`, `"count": "1,2"`
def read_count(value: Any, _: Any) -> int | None:  # JSON
    """Return the number, or None if it cannot be read."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and re.fullmatch(_INTEGER, value := value.strip()) else None


_UNPADDED = r"\s*([0-9]{4})-([0-9]{1,2})-([0-9]{1,2})[ T]([0-9]{1,2}):([0-9]{1,2}):([0-9]{1,2})(?:\.[0-9]*)?\s*"
_COMPACT = r"\s*([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})\s*"
_MILLISECONDS = r"\s*([0-9]{12,13})\s*"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


# `"dateCreated": "2014-10-1 10:5:3"`, `"20130201155306"`, `"1412128800000"`, `1412128800000`, `""`, `"yesterday"`
def read_date(value: Any, zone: tzinfo) -> datetime | None:  # JSON
    """Return the moment (text without a zone is in ``zone``), or None if it cannot be read."""
    text = read_text(value)
    try:
        if match := re.fullmatch(_UNPADDED, text) or re.fullmatch(_COMPACT, text):
            year, month, day, hour, minute, second = map(int, match.groups())
            return datetime(year, month, day, hour, minute, second, tzinfo=zone)
        if match := re.fullmatch(_MILLISECONDS, text):
            return (_EPOCH + timedelta(milliseconds=int(match[1]))).astimezone(zone)
    except (ValueError, OverflowError):
        pass  # a 13th month or a 61st minute is unreadable too
    return None


# `"type": "7"`, `"permission": 1`, `"target": ""`
def read_choice(value: Any, members: Mapping[str, Enum]) -> Any:  # JSON in, a member or its text out
    """Return the enum member, the text if it is not in the enum, or None if it is empty."""
    text = read_text(value)
    return members.get(text, text or None)


# `"confirm": "0"`, `"isrecord": 1`
def read_mapped(python: Mapping[str, Any]) -> Hook:
    """Return a hook that maps wire texts to values; ``python`` is the mapping."""

    def read(value: Any, _: Any) -> Any:  # JSON in, the mapped value out
        text = read_text(value)
        if text not in python:
            raise ValueError(f"{text!r} is not one of {', '.join(python)}")
        return python[text]

    return read


# `"muted": "0"`, `"muted": 1`, `"muted": true`, in answers to an application's own operations
def read_flag(value: Any, _: Any = None) -> bool:  # JSON
    """Return a flag as bool; raise ValueError for other texts, since ``bool("0")`` is True."""
    flag = {"true": True, "1": True, "false": False, "0": False}.get(read_text(value).strip().lower())
    if flag is None:
        raise ValueError(f"{read_text(value)!r} is not a flag (true, false, 1 or 0)")
    return flag


# `"members": ["1001"]`, `{"member": ["1001"]}`, `{"member": "1001"}`, `"1001"`, `[1001]`
def read_members(value: Any, _: Any) -> tuple[str, ...]:  # JSON
    """Return accounts from any of these shapes."""
    if isinstance(value, dict):
        return read_members(cast("dict[str, Any]", value)["member"], _)
    if isinstance(value, list):
        return tuple(read_text(each) for each in cast("Iterable[Any]", value))
    return (read_text(value),)


def read_moment(value: Any, zone: tzinfo) -> datetime:  # JSON
    """Return the moment; raise ValueError if it cannot be read."""
    moment = read_date(value, zone)
    if moment is None:
        raise ValueError(f"{read_text(value)!r} is not a time")
    return moment


# `"start_date": "2026-01-05"`, not shorter or longer
def read_day(value: Any, _: Any) -> date:  # JSON
    """Return the day; raise ValueError for ISO's other forms, which the platform does not use."""
    day = date.fromisoformat(value)
    if day.isoformat() != value:
        raise ValueError(f"a date of the form YYYY-MM-DD is needed, not {value!r}")
    return day


# `"bot_id": 7`, `"bot_id": "7"`
def read_number(value: Any, _: Any) -> int:  # JSON
    """Return the whole number; raise ValueError if it cannot be read."""
    number = None if isinstance(value, bool) else read_count(value, _)
    if number is None:
        raise ValueError(f"a whole number is needed, not {value!r}")
    return number


def write_date(moment: datetime) -> str:
    """Return a moment in the platform's form: only the year is padded."""
    day = f"{moment.year:04}-{moment.month}-{moment.day}"
    return f"{day} {moment.hour}:{moment.minute}:{moment.second}"


def write_nested_members(value: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Return accounts in the shape of the older interface."""
    return {"member": value}
