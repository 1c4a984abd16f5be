"""Single values of the wire: dates, counts, flags, members, waits."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from rbim import CHINA
from rbim.callbacks.events.fields import accounts, flag
from rbim.clock import SystemClock
from rbim.wire.codec import _retry_after
from rbim.wire.quirks import read_count, read_date, read_flag, read_members, read_number, read_text, write_date
from rbim.wire.rows import EntryShape
from tests.fuzz.broken import require

WHAT = "dates, counts, flags, lists of members and entries, and Retry-After, as text and as JSON"
ORACLE = "each by hand, without regular expressions; what is written is read again; no entry of a list is lost"
INSTRUMENT = ["rbim"]
MOST = 300
WORDS = [
    *(
        b"2014-10-1 10:5:3",
        b"20130201155306",
        b"1412128800000",
        b"T",
        b".000",
        b"-",
        b":",
        b"0",
        b"9999-12-31 23:59:59",
        b"+1",
        b"-0",
    ),
    *(
        b"1,2",
        b"Fri, 02 Jan 2026 03:04:05 GMT",
        b"Friday, 02-Jan-26",
        b'{"member":["1"]}',
        b'["1",2]',
        b"true",
        b"null",
        b"\xd9\xa1",
    ),
    *(
        b'"[\\"1\\"]"',
        b'{"userName":"1"}',
        b'{"hit":"false"}',
        b" ",
        b"\xe3\x80\x80",
        b";",
        b"86401",
        b"1.5",
        b'{"fails":[{"member":"1"}]}',
    ),
]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SHAPE = EntryShape("fails", frozenset({"member", "reason"}), "member", {"userName": "member"})


class Clock(SystemClock):
    """The time stands still."""

    def now(self) -> datetime:
        return NOW


def seeds() -> list[bytes]:
    """Return values of each kind; the first byte is the reader."""
    texts = [
        *("2014-10-1 10:5:3", "2014-10-01T10:05:03.0", "20130201155306", "1412128800000", "yesterday", "2014-13-1 1:1:1"),
        *("3", "+3", "-03", "1,2", " 7 ", "99999999999999999999", "", "\u0661"),
        *("1", "1.5", "Fri, 02 Jan 2026 03:04:06 GMT", "1, 2", "Friday, 02-Jan-26 03:04:06 GMT", "Fri Jan  2 03:04:06 2026"),
        *(
            '["1001",7]',
            '{"member":["1"]}',
            '"[\\"1\\"]"',
            '[{"userName":"1"},{"account":"2"}]',
            '{"hit":"true"}',
            "0",
            "false",
            "null",
        ),
        *(
            '{"fails":[{"member":"1"}],"x":1}',
            '[{"fail":{"userName":"1","reason":"r"}},"2",0]',
            '{"a":[{"member":["1","2"]}]}',
        ),
    ]
    return [bytes([number % 6]) + text.encode() for text in texts for number in range(6)]


def check(data: bytes) -> None:
    """Read one value."""
    if not data:
        return
    try:
        text = data[1:].decode()
    except UnicodeDecodeError:
        text = data[1:].decode("latin-1")
    READERS[data[0] % len(READERS)](text)


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=lambda name: name)
    except (ValueError, RecursionError):
        return text


def _date(text: str) -> None:
    found = read_date(text, CHINA)
    require(found == date_by_hand(text), "another date", text, found)
    if found is not None:
        whole = found.replace(microsecond=0)  # a fraction is not written
        require(
            read_date(write_date(found.astimezone(CHINA)), CHINA) == whole,
            "a date that is written is read as another",
            found,
        )
    value = _json(text)
    read_date(value, CHINA)
    read_text(value)


def date_by_hand(text: str) -> datetime | None:
    """Return the moment of a date in one of the documented forms."""
    text = text.strip()
    try:
        if _digits(text) and len(text) in (12, 13):
            return EPOCH + timedelta(milliseconds=int(text))
        if _digits(text) and len(text) == 14:
            parts = [text[:4], *(text[place : place + 2] for place in range(4, 14, 2))]
        else:
            day, separator, clock = text.partition("T" if "T" in text and " " not in text else " ")
            clock, _dot, fraction = clock.partition(".")
            parts = [*day.split("-"), *clock.split(":")]
            if not separator or len(day.split("-")) != 3 or len(parts) != 6 or (fraction and not _digits(fraction)):
                return None
        if not all(map(_digits, parts)) or len(parts[0]) != 4 or any(len(part) > 2 for part in parts[1:]):
            return None
        return datetime(*map(int, parts), tzinfo=CHINA)  # type: ignore[arg-type, misc]
    except (ValueError, OverflowError):
        return None


def _digits(text: str) -> bool:
    return bool(text) and set(text) <= set("0123456789")


def _count(text: str) -> None:
    bare = text.strip()
    digits = bare[1:] if bare[:1] in ("+", "-") else bare
    expected = int(bare) if _digits(digits) and len(digits) <= 19 else None
    require(read_count(text, None) == expected, "another count", text, expected)
    try:
        number = read_number(text, None)
    except ValueError:
        number = None
    require(number == expected, "another number", text, expected)
    value = _json(text)
    if isinstance(value, int) and not isinstance(value, bool):
        require(read_count(value, None) == value, "another count", value)


DATE = re.compile(r"\A[A-Za-z]+, (?=[0-9])")  # its comma is not one between values: `Fri, 02 Jan 2026 08:00:02 GMT`


def _wait(text: str) -> None:
    found = _retry_after(text, Clock())
    require(found is None or 0 <= found <= 86_400, "a wait out of range", text, found)
    if _digits(text):
        require(found == min(86_400, int(text)), "another wait", text, found)
    elif "," not in DATE.sub("", text):
        try:
            moment = parsedate_to_datetime(text)
        except (ValueError, TypeError, OverflowError):
            moment = None
        if moment is not None and text.strip() == text and not text.endswith(";") and not text[0].isdigit():
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            require(
                found == min(86_400.0, max(0.0, (moment - NOW).total_seconds())), "another wait until a date", text, found
            )


def _members(text: str) -> None:
    value = _json(text)
    try:
        read_members(value, None)
    except KeyError:
        require(isinstance(value, dict), "members of another shape", value)
    found = accounts(value)
    require(all(isinstance(each.user, str) for each in found), "an account that is no text", found)
    if isinstance(value, list) and all(isinstance(each, str) and each.lstrip()[:1] not in set('[{"') for each in value):
        require([str(each) for each in found] == [each for each in value if each], "another account", value, found)


def _flag(text: str) -> None:
    value = _json(text)
    found = flag(value)
    if isinstance(value, (bool, int)):
        require(found is (value != 0), "another flag", value)
    try:
        read = read_flag(value)
    except ValueError:
        return
    require(read is found, "two readers of flags disagree", value)


def _entries(text: str) -> None:
    value = _json(text)
    if isinstance(value, str) and text and not text.isdigit():
        value = [value]
    found, beside = SHAPE.read([value])
    kept = json.dumps([found, beside], ensure_ascii=False)
    for leaf in _leaves(value):
        require(json.dumps(leaf, ensure_ascii=False) in kept, "an entry is lost", leaf, value, kept)


def _leaves(value: Any) -> list[Any]:
    """Return the single values that say something."""
    if isinstance(value, dict):
        return [leaf for each in value.values() for leaf in _leaves(each)]
    if isinstance(value, list):
        return [leaf for each in value for leaf in _leaves(each)]
    return [] if value is None or value == "" else [value]


READERS = [_date, _count, _wait, _members, _flag, _entries]
