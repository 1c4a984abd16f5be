"""Wrong formats of the headers ``CheckSum``, ``MD5`` and ``CurTime``, and how to recover the intended value.

Two tables of common deviations, one for digests and one for times. No text here repeats a header's value.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable  # noqa: TC003  # attrs resolves them
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from attrs import frozen

from rbim.callbacks.signature import Reason

__all__ = ["Deviation", "HeaderValue", "read_digest", "read_time"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICKS_AT_EPOCH = 621_355_968_000_000_000  # ticks of 100 ns since the year 1
DIGEST = re.compile(rb"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{40}|[0-9A-Fa-f]{64}")
MILLISECONDS = re.compile(rb"[0-9]{13}")
MOST_DEVIATIONS = 5  # in one value, such as quotes and a semicolon after them


@frozen
class Deviation:
    """One wrong format of a header's value: a description for people, and a function that recovers the intended value."""

    text: str
    form: re.Pattern[bytes]
    repair: Callable[[bytes], bytes] = bytes
    reason: Reason = Reason.BAD_FORMAT


@frozen
class HeaderValue:
    """A header's value as it was read.

    ``intended`` is the value in the required format, or None if it cannot be recovered. ``bare`` is the value without quotes
    and other wrappers. ``deviations`` lists its differences from the required format.
    """

    intended: bytes | None
    bare: bytes
    deviations: tuple[Deviation, ...] = ()


def _form(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)


def _first(value: bytes) -> bytes:
    return value.partition(b",")[0].strip()


def _decoded(value: bytes) -> bytes:
    return b64decode(
        value.rstrip(b"=") + b"=" * (-len(value.rstrip(b"=")) % 4), altchars=b"-_" if _URL_SAFE(value) else None
    )


_URL_SAFE = re.compile(rb"[-_]").search

COMMON = (
    Deviation("is empty", _form(rb"\s*"), lambda _: b""),
    Deviation("has white space around it", _form(rb"(\s.*|.*\s)"), bytes.strip),
    Deviation(
        "is the same value twice, separated by a comma: two headers were merged into one", _form(rb"([^,]+),\s*\1"), _first
    ),
    Deviation(
        "is several values, separated by commas: several headers were merged into one",
        _form(rb"[0-9A-Za-z=+/]+(,\s*[0-9A-Za-z=+/]+)+"),
    ),
    Deviation("ends with ';' (as in the platform's own header samples)", _form(rb".+;"), lambda value: value.rstrip(b"; ")),
    Deviation("is a Python bytes literal, b'...'", _form(rb"b(['\"]).*\1"), lambda value: value[2:-1]),
    Deviation("is in quotes", _form(rb"(['\"]).*\1"), lambda value: value[1:-1]),
    Deviation(
        "is a null value (null, none, undefined, nil, nan): its sender had no value",
        _form(rb"(?i:null|none|undefined|nil|nan)"),
        lambda _: b"",
    ),
)
"""Deviations that any header may have."""

DIGESTS = (
    *COMMON,
    Deviation("starts with 0x", _form(rb"0[xX][0-9A-Fa-f]+"), lambda value: value[2:]),
    Deviation(
        "has dashes, colons or spaces between its 16 bytes (as .NET's BitConverter writes them)",
        _form(rb"[0-9A-Fa-f]{2}([-: ][0-9A-Fa-f]{2}){15}"),
        lambda value: re.sub(rb"[-: ]", b"", value),
    ),
    Deviation(
        "is Base64 of the digest, not hexadecimal digits",
        _form(rb"[0-9A-Za-z+/_-]{22}(==)?"),
        lambda v: _decoded(v).hex().encode(),
    ),
    Deviation("is Base64 of the hexadecimal digits", _form(rb"[0-9A-Za-z+/_-]{43}="), _decoded),
    Deviation(
        "is the digest's 16 raw bytes, not hexadecimal digits",
        _form(rb"(?=.*[^0-9A-Za-z]).{16}"),
        lambda v: v.hex().encode(),
    ),
    Deviation("has 16 hexadecimal digits: the short form of MD5, the middle 16 of 32", _form(rb"[0-9A-Fa-f]{16}")),
    Deviation(
        "lacks leading zeros (a digest printed as a number loses them: %x, Java's BigInteger)",
        _form(rb"[0-9A-Fa-f]{28,31}"),
        lambda value: value.rjust(32, b"0"),
    ),
    Deviation("has 40 hexadecimal digits: SHA-1 instead of MD5", _form(rb"[0-9A-Fa-f]{40}")),
    Deviation("has 64 hexadecimal digits: SHA-256 instead of MD5", _form(rb"[0-9A-Fa-f]{64}")),
    Deviation("has non-ASCII characters", _form(rb".*[^\x00-\x7f].*")),
)
"""Deviations of digests from 32 hexadecimal digits."""


def _from_unit(unit: float) -> Callable[[bytes], bytes]:
    """Return a function that converts a number of units to milliseconds; ``unit`` is in milliseconds."""
    return lambda value: b"%d" % (float(value) * unit)


def _milliseconds_of(moment: datetime) -> bytes:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return b"%d" % ((moment - EPOCH) // timedelta(milliseconds=1))


def _from_date(form: str) -> Callable[[bytes], bytes]:
    return lambda value: _milliseconds_of(datetime.strptime(value.decode(), form).replace(tzinfo=UTC))


TIMES = (
    *COMMON,
    Deviation("is in seconds, not milliseconds", _form(rb"[0-9]{10}"), _from_unit(1000), Reason.SECONDS_NOT_MILLISECONDS),
    Deviation("is in seconds with a fraction, not milliseconds", _form(rb"[0-9]{10}\.[0-9]+"), _from_unit(1000)),
    Deviation("is in milliseconds with a fraction", _form(rb"[0-9]{13}\.[0-9]+"), _from_unit(1)),
    Deviation("is in exponent notation", _form(rb"[0-9](\.[0-9]+)?[eE]\+?[0-9]{1,2}"), _from_unit(1)),
    Deviation("is in microseconds, not milliseconds", _form(rb"[0-9]{16}"), lambda value: value[:13]),
    Deviation("is in nanoseconds, not milliseconds", _form(rb"[0-9]{19}"), lambda value: value[:13]),
    Deviation("is a date, yyyyMMddHHmmss, not milliseconds since 1970", _form(rb"[0-9]{14}"), _from_date("%Y%m%d%H%M%S")),
    Deviation(
        "is a date, yyyyMMddHHmmssSSS, not milliseconds since 1970", _form(rb"[0-9]{17}"), _from_date("%Y%m%d%H%M%S%f")
    ),
    Deviation(
        "is in ticks of 100 ns since the year 1 (.NET's), not milliseconds since 1970",
        _form(rb"[0-9]{18}"),
        lambda value: b"%d" % ((int(value) - TICKS_AT_EPOCH) // 10_000),
    ),
    Deviation(
        "is a date, not milliseconds since 1970",
        _form(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}.*"),
        lambda value: _milliseconds_of(datetime.fromisoformat(value.decode())),
    ),
    Deviation(
        "is a date in HTTP or e-mail format, not milliseconds since 1970",
        _form(rb"[A-Z][a-z]{2}, .*"),
        lambda value: _milliseconds_of(parsedate_to_datetime(value.decode())),
    ),
    Deviation("is negative", _form(rb"-[0-9]+")),
    Deviation("has non-ASCII characters", _form(rb".*[^\x00-\x7f].*")),
    Deviation("has a wrong number of digits", _form(rb"[0-9]+")),
)
"""Deviations of times from 13 digits."""


def read_digest(value: bytes) -> HeaderValue:
    """Return a digest's value and its deviations from the format.

    The intended value is hexadecimal digits: 32 of MD5, 40 of SHA-1 or 64 of SHA-256.
    """
    return _read(value, DIGESTS, DIGEST, wanted=rb"[0-9A-Fa-f]{32}", unknown="is not 32 hexadecimal digits")


def read_time(value: bytes) -> HeaderValue:
    """Return a time's value and its deviations from the format. The intended value is 13 digits."""
    return _read(value, TIMES, MILLISECONDS, wanted=rb"[0-9]{13}", unknown="is not 13 digits")


def _read(
    value: bytes, table: tuple[Deviation, ...], form: re.Pattern[bytes], *, wanted: bytes, unknown: str
) -> HeaderValue:
    deviations: list[Deviation] = []
    bare = value
    while not re.fullmatch(wanted, value):
        deviation = next((each for each in table if each.form.fullmatch(value)), None)
        if deviation is None or len(deviations) == MOST_DEVIATIONS:
            if not deviations:
                deviations.append(Deviation(f"{unknown} but {len(value)} characters of an unknown format", form))
            break
        deviations.append(deviation)
        repaired = _repaired(deviation, value)
        if repaired in {value, b""}:
            break
        value = repaired
        if deviation in COMMON:
            bare = value
    return HeaderValue(value if form.fullmatch(value) else None, bare, tuple(deviations))


def _repaired(deviation: Deviation, value: bytes) -> bytes:
    try:
        return deviation.repair(value)
    except (ValueError, OverflowError, TypeError):  # such as digits that form no valid date
        return value
