"""What the headers ``CheckSum``, ``MD5`` and ``CurTime`` look like when they are not of their form, and what was meant.

Two tables, one for digests and one for times, each of what is usually seen instead. No text here repeats a header's value.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Callable  # noqa: TC003  # attrs resolves them
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

from attrs import frozen

from rbim.callbacks.signature import Reason

__all__ = ["Look", "Read", "read_digest", "read_time"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TICKS_AT_EPOCH = 621_355_968_000_000_000  # of 100 ns, since the year 1
DIGEST = re.compile(rb"[0-9A-Fa-f]{32}|[0-9A-Fa-f]{40}|[0-9A-Fa-f]{64}")
MILLISECONDS = re.compile(rb"[0-9]{13}")
AT_MOST = 5  # looks one upon the other: a quoted text with a semicolon after it


@frozen
class Look:
    """One thing that a header's value may be instead of what it should: what it is, and how to get what was meant."""

    what: str
    form: re.Pattern[bytes]
    repair: Callable[[bytes], bytes] = bytes
    reason: Reason = Reason.BAD_FORMAT


@frozen
class Read:
    """A header's value: what was meant by it (None where nobody can say), what is left of it without what stands around it
    (``bare``), and how it looks where it is not of its form.
    """

    meant: bytes | None
    bare: bytes
    looks: tuple[Look, ...] = ()


def _form(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern, re.DOTALL)


def _first(value: bytes) -> bytes:
    return value.partition(b",")[0].strip()


def _decoded(value: bytes) -> bytes:
    return b64decode(
        value.rstrip(b"=") + b"=" * (-len(value.rstrip(b"=")) % 4), altchars=b"-_" if _URL_SAFE(value) else None
    )


_URL_SAFE = re.compile(rb"[-_]").search

COSMETICS = (
    Look("is empty", _form(rb"\s*"), lambda _: b""),
    Look("has white space around it", _form(rb"(\s.*|.*\s)"), bytes.strip),
    Look("is the same text twice with a comma between: two headers were joined into one", _form(rb"([^,]+),\s*\1"), _first),
    Look(
        "is several texts with commas between: two headers were joined into one",
        _form(rb"[0-9A-Za-z=+/]+(,\s*[0-9A-Za-z=+/]+)+"),
    ),
    Look("ends in ';' (the platform's own samples of headers do)", _form(rb".+;"), lambda value: value.rstrip(b"; ")),
    Look("is written as Python shows bytes, b'...'", _form(rb"b(['\"]).*\1"), lambda value: value[2:-1]),
    Look("stands in quotes", _form(rb"(['\"]).*\1"), lambda value: value[1:-1]),
    Look("is a word for nothing: what sends it had no value", _form(rb"(?i:null|none|undefined|nil|nan)"), lambda _: b""),
)
"""What happens to any header."""

DIGESTS = (
    *COSMETICS,
    Look("begins with 0x", _form(rb"0[xX][0-9A-Fa-f]+"), lambda value: value[2:]),
    Look(
        "has the 16 bytes apart, with dashes, colons or spaces between them (.NET's BitConverter writes them so)",
        _form(rb"[0-9A-Fa-f]{2}([-: ][0-9A-Fa-f]{2}){15}"),
        lambda value: re.sub(rb"[-: ]", b"", value),
    ),
    Look(
        "is Base64 of the digest, not hexadecimal digits",
        _form(rb"[0-9A-Za-z+/_-]{22}(==)?"),
        lambda v: _decoded(v).hex().encode(),
    ),
    Look("is Base64 of the hexadecimal digits", _form(rb"[0-9A-Za-z+/_-]{43}="), _decoded),
    Look(
        "is the digest's 16 raw bytes, not hexadecimal digits",
        _form(rb"(?=.*[^0-9A-Za-z]).{16}"),
        lambda v: v.hex().encode(),
    ),
    Look("has 16 hexadecimal digits: the short form, the middle of the 32", _form(rb"[0-9A-Fa-f]{16}")),
    Look(
        "lacks leading zeros (a digest made a number and written with %x, or by Java's BigInteger, loses them)",
        _form(rb"[0-9A-Fa-f]{28,31}"),
        lambda value: value.rjust(32, b"0"),
    ),
    Look("has 40 hexadecimal digits: it is SHA-1, where MD5 is described", _form(rb"[0-9A-Fa-f]{40}")),
    Look("has 64 hexadecimal digits: it is SHA-256, where MD5 is described", _form(rb"[0-9A-Fa-f]{64}")),
    Look("has characters outside ASCII", _form(rb".*[^\x00-\x7f].*")),
)
"""What digests look like that are not 32 hexadecimal digits."""


def _of(unit: float) -> Callable[[bytes], bytes]:
    """Return what makes milliseconds of a number of units, given in milliseconds."""
    return lambda value: b"%d" % (float(value) * unit)


def _milliseconds(moment: datetime) -> bytes:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return b"%d" % ((moment - EPOCH) // timedelta(milliseconds=1))


def _written(form: str) -> Callable[[bytes], bytes]:
    return lambda value: _milliseconds(datetime.strptime(value.decode(), form).replace(tzinfo=UTC))


TIMES = (
    *COSMETICS,
    Look("is in seconds, not milliseconds", _form(rb"[0-9]{10}"), _of(1000), Reason.SECONDS_NOT_MILLISECONDS),
    Look("is in seconds with a fraction, not milliseconds", _form(rb"[0-9]{10}\.[0-9]+"), _of(1000)),
    Look("is in milliseconds with a fraction", _form(rb"[0-9]{13}\.[0-9]+"), _of(1)),
    Look("is written with an exponent", _form(rb"[0-9](\.[0-9]+)?[eE]\+?[0-9]{1,2}"), _of(1)),
    Look("is in microseconds, not milliseconds", _form(rb"[0-9]{16}"), lambda value: value[:13]),
    Look("is in nanoseconds, not milliseconds", _form(rb"[0-9]{19}"), lambda value: value[:13]),
    Look("is a date, yyyyMMddHHmmss, not milliseconds since 1970", _form(rb"[0-9]{14}"), _written("%Y%m%d%H%M%S")),
    Look("is a date, yyyyMMddHHmmssSSS, not milliseconds since 1970", _form(rb"[0-9]{17}"), _written("%Y%m%d%H%M%S%f")),
    Look(
        "is in ticks of 100 ns since the year 1 (.NET's), not milliseconds since 1970",
        _form(rb"[0-9]{18}"),
        lambda value: b"%d" % ((int(value) - TICKS_AT_EPOCH) // 10_000),
    ),
    Look(
        "is a date, not milliseconds since 1970",
        _form(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}.*"),
        lambda value: _milliseconds(datetime.fromisoformat(value.decode())),
    ),
    Look(
        "is a date as HTTP and mail write it, not milliseconds since 1970",
        _form(rb"[A-Z][a-z]{2}, .*"),
        lambda value: _milliseconds(parsedate_to_datetime(value.decode())),
    ),
    Look("is negative", _form(rb"-[0-9]+")),
    Look("has characters outside ASCII", _form(rb".*[^\x00-\x7f].*")),
    Look("has another number of digits", _form(rb"[0-9]+")),
)
"""What times look like that are not 13 digits."""


def read_digest(value: bytes) -> Read:
    """Say what a digest looks like, and return it as hexadecimal digits, 32 of MD5, 40 of SHA-1 or 64 of SHA-256."""
    return _read(value, DIGESTS, DIGEST, wanted=rb"[0-9A-Fa-f]{32}", unknown="is not 32 hexadecimal digits")


def read_time(value: bytes) -> Read:
    """Say what a time looks like, and return it as 13 digits, if it can be read."""
    return _read(value, TIMES, MILLISECONDS, wanted=rb"[0-9]{13}", unknown="is not 13 digits")


def _read(value: bytes, table: tuple[Look, ...], form: re.Pattern[bytes], *, wanted: bytes, unknown: str) -> Read:
    looks: list[Look] = []
    bare = value
    while not re.fullmatch(wanted, value):
        look = next((each for each in table if each.form.fullmatch(value)), None)
        if look is None or len(looks) == AT_MOST:
            if not looks:
                looks.append(Look(f"{unknown}, but {len(value)} other characters", form))
            break
        looks.append(look)
        repaired = _repaired(look, value)
        if repaired in {value, b""}:
            break
        value = repaired
        if look in COSMETICS:
            bare = value
    return Read(value if form.fullmatch(value) else None, bare, tuple(looks))


def _repaired(look: Look, value: bytes) -> bytes:
    try:
        return look.repair(value)
    except (ValueError, OverflowError, TypeError):  # digits that are no date
        return value
