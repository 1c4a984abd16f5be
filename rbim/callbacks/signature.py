"""The signature of a delivery, created and verified over raw bytes.

The five steps of the interface description (Authentication, 3) never compare the ``MD5`` header with the body, so one
captured delivery would authenticate any other body. They also join the parts without separators, so digits could move
between parts. Here the body's digest must equal the ``MD5`` header, and each header must match its exact format before use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from enum import StrEnum
from functools import lru_cache
from hashlib import md5
from hmac import compare_digest
from typing import TYPE_CHECKING, Any, Self, cast

from attrs import field, frozen

from rbim.credentials import Credentials
from rbim.errors import CallbackRejected, InvalidRequest
from rbim.validators import above_zero, at_least_one, finite, or_none

if TYPE_CHECKING:
    from datetime import datetime

    from rbim.dialect import Dialect

__all__ = ["Headers", "Key", "Keys", "Policy", "Reason", "Rejected", "Verified", "keys_of", "sign", "verify"]

Headers = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
"""A delivery's HTTP headers: a mapping, or pairs as in ASGI. Only pairs reveal a header that was sent twice."""

MAX_BODY = 1024 * 1024  # bytes


class Reason(StrEnum):
    """The reason why a delivery is refused or quarantined."""

    MISSING_HEADER = "missing_header"
    """``CheckSum``, ``MD5`` or ``CurTime`` is missing."""

    DUPLICATE_HEADER = "duplicate_header"
    """One of the three headers is present more than once."""

    BAD_FORMAT = "bad_format"
    """One of the three headers has a wrong format, or the body is not bytes; in quarantine: the body cannot be read."""

    BODY_MISMATCH = "body_mismatch"
    """The body's digest differs from ``MD5``, though ``CheckSum`` is valid: it is a different body."""

    CHECKSUM_MISMATCH = "checksum_mismatch"
    """``CheckSum`` matches none of the tokens."""

    STALE = "stale"
    """It is authentic, but older than the policy allows."""

    FUTURE = "future"
    """It is authentic, but further ahead of this machine's clock than the policy allows."""

    SECONDS_NOT_MILLISECONDS = "seconds_not_milliseconds"
    """``CurTime`` has ten digits: seconds. The description requires milliseconds."""

    TOO_LARGE = "too_large"
    """The body is longer than the policy allows."""

    UNSUPPORTED_ENCODING = "unsupported_encoding"
    """There is a ``Content-Encoding``; the description has none, and the signature covers the body as sent."""

    APP_MISMATCH = "app_mismatch"
    """One application signed it, but its sender belongs to another."""


@frozen(kw_only=True)
class Policy:
    """Limits for accepted deliveries.

    ``back`` and ``ahead`` are the seconds by which ``CurTime`` may lie in the past and in the future (defaults: 300 and 60),
    ``max_body`` the most bytes of a body (default: 1 MiB). None turns a check off; no number does. A receiver can accept
    deliveries outside these times all the same: see ``normal_out_of_time`` of the dialect.
    """

    back: float | None = field(default=300.0, validator=(or_none(above_zero), or_none(finite)))
    ahead: float | None = field(default=60.0, validator=(or_none(above_zero), or_none(finite)))
    max_body: int | None = field(default=MAX_BODY, validator=or_none(at_least_one))

    @classmethod
    def of(cls, dialect: Dialect) -> Self:
        """Return the limits of a dialect: its ``delivery_max_age`` and ``delivery_max_ahead``."""
        return cls(back=dialect.delivery_max_age, ahead=dialect.delivery_max_ahead)

    def rejection(self, age: float) -> Rejected | None:
        """Return the rejection of an authentic delivery for its ``age`` in seconds, or None if it is in time."""
        if self.back is not None and age > self.back:
            detail = f"it is {age:.3f} s old, the limit is {self.back:g} s"
            return Rejected(reason=Reason.STALE, detail=detail, age=age)
        if self.ahead is not None and -age > self.ahead:
            detail = f"it is {-age:.3f} s ahead, the limit is {self.ahead:g} s"
            return Rejected(reason=Reason.FUTURE, detail=detail, age=age)
        return None


@frozen
class Key:
    """The token that signed a delivery: number ``index`` of the tokens given for ``app_id``, counting from 0.

    Index 0 is the current token; a match on another means that a token rotation is not finished.
    """

    app_id: str
    index: int = 0

    @property
    def current(self) -> bool:
        """Whether it is the application's current token."""
        return self.index == 0

    def __str__(self) -> str:
        return self.app_id if self.current else f"{self.app_id} (older token {self.index})"


@frozen(kw_only=True)
class Verified:
    """The result for an authentic delivery.

    ``key`` identifies the token that signed it; ``age`` is the seconds from ``CurTime`` until now, negative if ``CurTime``
    lies ahead; ``cur_time`` is ``CurTime``, milliseconds since 1970-01-01 00:00:00 UTC.
    """

    key: Key
    age: float
    cur_time: int


@frozen(kw_only=True)
class Rejected:
    """The result for a refused delivery; ``detail`` explains the ``reason`` in words, without secrets.

    ``age`` is the seconds from ``CurTime`` until now, negative if ``CurTime`` lies ahead, of a delivery that is refused for
    its time alone; None for any other reason.
    """

    reason: Reason
    detail: str
    age: float | None = None

    @property
    def error(self) -> CallbackRejected:
        """The same as an exception that can be raised."""
        return CallbackRejected(self.detail, reason=self.reason)


class Keys:
    """The tokens that deliveries may be signed with, hashed once.

    Accepts several applications and several tokens of each: first the current one, then older ones during a rotation.
    ``retired`` tokens are accepted as older ones, too, even if their application has no other. Raises InvalidRequest if none
    is given.
    """

    def __init__(self, *credentials: Credentials, retired: Iterable[Credentials] = ()) -> None:
        if not credentials:
            raise InvalidRequest("credentials: none given; pass at least one application's Credentials", field="credentials")
        count: dict[str, int] = {}
        self._keys: list[tuple[Key, Any]] = []
        for each in credentials:
            index = count.setdefault(each.app_id, 0)
            count[each.app_id] += 1
            self._keys.append((Key(each.app_id, index), _hashed(each)))
        for each in retired:
            index = count[each.app_id] = max(count.get(each.app_id, 0), 1) + 1
            self._keys.append((Key(each.app_id, index - 1), _hashed(each)))

    def __repr__(self) -> str:
        return f"Keys({', '.join(str(key) for key, _ in self._keys)})"

    def match(self, signed: bytes, checksum: bytes) -> Key | None:
        """Return the key that makes ``checksum`` (lower-case hex) from ``signed`` (``MD5`` + ``CurTime``), or None.

        Always tries every key, so the time does not depend on which one matches.
        """
        matching: Key | None = None
        for key, hashed in self._keys:
            digest = hashed.copy()
            digest.update(signed)
            if compare_digest(digest.hexdigest().encode(), checksum) and matching is None:
                matching = key
        return matching


def _hashed(credentials: Credentials) -> Any:  # a hash object, so that no stack frame keeps the token
    return md5((credentials.app_id + credentials.app_token.reveal()).encode(), usedforsecurity=False)


@lru_cache(maxsize=64)
def _keys(credentials: tuple[Credentials, ...]) -> Keys:
    return Keys(*credentials)


def keys_of(credentials: Credentials | Iterable[Credentials] | Keys) -> Keys:
    """Return the keys of credentials; cached, the same object for the same credentials."""
    if isinstance(credentials, Keys):
        return credentials
    return _keys((credentials,) if isinstance(credentials, Credentials) else tuple(credentials))


def sign(body: bytes, *, credentials: Credentials, now: datetime) -> dict[str, str]:
    """Return the headers ``MD5``, ``CurTime`` and ``CheckSum`` that the platform sends with a body at a time.

    Raises InvalidRequest if ``body`` is not bytes or ``now`` has no time zone.
    """
    if not isinstance(cast("object", body), bytes):
        raise InvalidRequest(_not_bytes(body), field="body")
    digest = md5(body, usedforsecurity=False).hexdigest().upper()
    moment = str(_milliseconds(now))
    checksum = _hashed(credentials)
    checksum.update((digest + moment).encode())
    return {"MD5": digest, "CurTime": moment, "CheckSum": checksum.hexdigest().upper()}


DEFAULT_POLICY = Policy()


def verify(
    headers: Headers,
    body: bytes,
    *,
    credentials: Credentials | Iterable[Credentials] | Keys,
    now: datetime,
    policy: Policy = DEFAULT_POLICY,
) -> Verified | Rejected:
    """Verify that a delivery is authentic, given its headers and its raw body as received.

    Never raises for any delivery: headers or a body of the wrong type are rejected, and ``detail`` names the type. ``now``
    needs a time zone (InvalidRequest otherwise). Hexadecimal digits and header names may be in either case; ``CheckSum``
    covers the text of the ``MD5`` header as received. Both digests are always compared, in constant time. Interface:
    Authentication, 3.
    """
    moment, keys = _milliseconds(now), credentials if isinstance(credentials, Keys) else keys_of(credentials)
    if body.__class__ is not bytes and not isinstance(cast("object", body), bytes):
        return Rejected(reason=Reason.BAD_FORMAT, detail=_not_bytes(body))
    if policy.max_body is not None and len(body) > policy.max_body:
        return Rejected(reason=Reason.TOO_LARGE, detail=f"the body has {len(body)} bytes, the limit is {policy.max_body}")
    try:
        signed = _signed_headers(headers)
    except Exception as error:
        given = f"{type(headers).__name__} ({type(error).__name__})"
        detail = f"headers: pass a mapping of strings, or pairs of strings or bytes, not {given}"
        return Rejected(reason=Reason.BAD_FORMAT, detail=detail)
    if isinstance(signed, Rejected):
        return signed
    checksum, digest, cur_time = signed
    of_body = _EMPTY.copy()  # twice as fast as a new one
    of_body.update(body)
    same_body = compare_digest(of_body.hexdigest().encode(), digest.lower())
    key = keys.match(digest + cur_time, checksum.lower())
    if key is None or not same_body or len(cur_time) != DIGITS or not cur_time.isdigit():
        return _wrong_format(checksum, digest, cur_time) or (_NO_KEY if key is None else _OTHER_BODY)
    sent = int(cur_time)  # digests that match have the right format
    age = (moment - sent) / 1000
    return policy.rejection(age) or Verified(key=key, age=age, cur_time=sent)


_EMPTY = md5(usedforsecurity=False)
_NO_KEY = Rejected(reason=Reason.CHECKSUM_MISMATCH, detail="CheckSum matches none of the tokens")
_OTHER_BODY = Rejected(reason=Reason.BODY_MISMATCH, detail="the digest of the body differs from MD5")

_HEX = re.compile(rb"[0-9A-Fa-f]{32}")
_SECONDS = re.compile(rb"[0-9]{10}")
DIGITS = 13
_NAMES = ("CheckSum", "MD5", "CurTime", "Content-Encoding")
_SLOTS: dict[str | bytes, int] = {
    spelt: slot for slot, name in enumerate(_NAMES) for spelt in (name.lower(), name.lower().encode())
}
_ENCODING = 3
_PLAIN = (b"", b"identity")


def _signed_headers(headers: Headers) -> tuple[bytes, bytes, bytes] | Rejected:
    """Return CheckSum, MD5 and CurTime as received, or the first rejection."""
    is_mapping = headers.__class__ is not list and isinstance(headers, Mapping)  # a list, as from ASGI, is known faster
    given = cast("Any", headers)
    pairs: Iterable[tuple[str | bytes, str | bytes]] = given.items() if is_mapping else given
    found: list[bytes | None] = [None] * 3
    for name, value in pairs:
        slot = _SLOTS.get(name.lower())
        if slot is not None:
            raw = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            if slot == _ENCODING:
                if raw.strip().lower() not in _PLAIN:
                    return Rejected(reason=Reason.UNSUPPORTED_ENCODING, detail="a Content-Encoding is not supported")
            elif found[slot] is not None:
                return Rejected(
                    reason=Reason.DUPLICATE_HEADER, detail=f"the header {_NAMES[slot]} is present more than once"
                )
            else:
                found[slot] = raw
    checksum, digest, cur_time = found
    if checksum is None or digest is None or cur_time is None:
        missing = _NAMES[found.index(None)]
        return Rejected(reason=Reason.MISSING_HEADER, detail=f"the header {missing} is missing")
    return checksum, digest, cur_time


def _wrong_format(checksum: bytes, digest: bytes, cur_time: bytes) -> Rejected | None:
    """Return the rejection of the first header with a wrong format."""
    if not _HEX.fullmatch(checksum) or not _HEX.fullmatch(digest):
        name = "MD5" if _HEX.fullmatch(checksum) else "CheckSum"
        return Rejected(reason=Reason.BAD_FORMAT, detail=f"{name} is not 32 hexadecimal digits")
    if len(cur_time) == DIGITS and cur_time.isdigit():
        return None
    if _SECONDS.fullmatch(cur_time):
        return Rejected(reason=Reason.SECONDS_NOT_MILLISECONDS, detail="CurTime is in seconds, not milliseconds")
    return Rejected(reason=Reason.BAD_FORMAT, detail=f"CurTime is not {DIGITS} digits")


def _not_bytes(body: object) -> str:
    return (
        f"body: pass the raw bytes of the request as received, not {type(body).__name__}: a body that was decoded or parsed "
        "and encoded again has a different digest"
    )


def _milliseconds(now: datetime) -> int:
    if now.tzinfo is not UTC and now.utcoffset() is None:
        raise InvalidRequest("now: a datetime without a time zone; pass one with a time zone", field="now")
    return round(now.timestamp() * 1e6) // 1000  # a float holds microseconds exactly
