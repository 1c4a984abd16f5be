"""Who sent a delivery: the signature of a message copy, made and checked over raw bytes.

The interface's five steps (Authentication, 3) never compare the ``MD5`` header with the body, so that one captured delivery
would vouch for any other body, and join the parts without separators, so that digits could be shifted between them. Here the
digest of the body must be the ``MD5`` header, and each header has exactly its form before anything is computed from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from hashlib import md5
from hmac import compare_digest
from typing import Any, cast

from attrs import field, frozen

from rbim.credentials import Credentials
from rbim.errors import CallbackRejected, InvalidRequest
from rbim.validators import above_zero, at_least_one, finite, or_none

__all__ = ["Headers", "Key", "Keys", "Policy", "Reason", "Rejected", "Verified", "keys_of", "sign", "verify"]

Headers = Mapping[str, str] | Iterable[tuple[str | bytes, str | bytes]]
"""A delivery's HTTP headers: a mapping, or pairs as ASGI has them, which show where a name came twice."""

LIMIT = 1024 * 1024
EPOCH, MILLISECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(milliseconds=1)


class Reason(StrEnum):
    """Why a delivery is not accepted."""

    MISSING_HEADER = "missing_header"
    """``CheckSum``, ``MD5`` or ``CurTime`` is not there."""

    DUPLICATE_HEADER = "duplicate_header"
    """One of the three is there more than once."""

    BAD_FORMAT = "bad_format"
    """One of the three is not of its form, or the body is no bytes; of a body in quarantine: it cannot be read."""

    BODY_MISMATCH = "body_mismatch"
    """The digest of the body is not what ``MD5`` says, though ``CheckSum`` is right: it is another body."""

    CHECKSUM_MISMATCH = "checksum_mismatch"
    """``CheckSum`` was not made with any of the tokens."""

    STALE = "stale"
    """It is authentic, and older than the policy allows."""

    FUTURE = "future"
    """It is authentic, and further ahead of this machine's clock than the policy allows."""

    SECONDS_NOT_MILLISECONDS = "seconds_not_milliseconds"
    """``CurTime`` has ten digits: seconds, where milliseconds are described."""

    TOO_LARGE = "too_large"
    """The body is longer than the policy allows."""

    UNSUPPORTED_ENCODING = "unsupported_encoding"
    """There is a ``Content-Encoding``: what is signed is the body as it is sent, and none is described."""

    APP_MISMATCH = "app_mismatch"
    """It was signed by one application, and its sender belongs to another."""


@frozen(kw_only=True)
class Policy:
    """What is accepted: ``back`` and ``ahead`` are the seconds by which ``CurTime`` may differ from now (None: any), and
    ``max_body`` the bytes of a body (None: any number). No number turns a check off; None does.
    """

    back: float | None = field(default=300.0, validator=(or_none(above_zero), or_none(finite)))
    ahead: float | None = field(default=60.0, validator=(or_none(above_zero), or_none(finite)))
    max_body: int | None = field(default=LIMIT, validator=or_none(at_least_one))


@frozen
class Key:
    """Which token a delivery was signed with: one of ``app_id``, ``index`` counting from 0 in the order they were given in.

    The first is the current one; a match on another says that a rotation is not over.
    """

    app_id: str
    index: int = 0

    @property
    def current(self) -> bool:
        """Whether it is the application's first."""
        return self.index == 0

    def __str__(self) -> str:
        return self.app_id if self.current else f"{self.app_id} (older token {self.index})"


@frozen(kw_only=True)
class Verified:
    """A delivery is authentic.

    ``key`` names the token that it was signed with; ``age`` counts the seconds from ``CurTime`` until now, below 0 where it
    lies ahead; ``cur_time`` is ``CurTime``, milliseconds since 1970-01-01 00:00:00 UTC.
    """

    key: Key
    age: float
    cur_time: int


@frozen(kw_only=True)
class Rejected:
    """A delivery is not accepted, and why; ``detail`` says it in words, without any secret."""

    reason: Reason
    detail: str

    @property
    def error(self) -> CallbackRejected:
        """The same as an exception, for who would rather raise."""
        return CallbackRejected(self.detail, reason=self.reason)


class Keys:
    """The tokens that deliveries may be signed with, hashed once.

    Several applications may be given, and several tokens of each: the current one first, older ones while a rotation lasts.
    Raises InvalidRequest where there is none.
    """

    def __init__(self, *credentials: Credentials) -> None:
        if not credentials:
            raise InvalidRequest("credentials: at least one application's Credentials are needed", field="credentials")
        count: dict[str, int] = {}
        self._keys: list[tuple[Key, Any]] = []
        for each in credentials:
            index = count.setdefault(each.app_id, 0)
            count[each.app_id] += 1
            self._keys.append((Key(each.app_id, index), _hashed(each)))

    def __repr__(self) -> str:
        return f"Keys({', '.join(str(key) for key, _ in self._keys)})"

    def match(self, told: bytes, checksum: bytes) -> Key | None:
        """Return the key with which ``checksum`` (hex in lower case) was made of ``told``. All are tried, match or not."""
        matching: Key | None = None
        for key, hashed in self._keys:
            digest = hashed.copy()
            digest.update(told)
            if compare_digest(digest.hexdigest().encode(), checksum) and matching is None:
                matching = key
        return matching


def _hashed(credentials: Credentials) -> Any:  # a hash object; no frame keeps the token
    return md5((credentials.app_id + credentials.app_token.reveal()).encode(), usedforsecurity=False)


@lru_cache(maxsize=64)
def _keys(credentials: tuple[Credentials, ...]) -> Keys:
    return Keys(*credentials)


def keys_of(credentials: Credentials | Iterable[Credentials] | Keys) -> Keys:
    """Return the keys of credentials; the same again for the same credentials."""
    if isinstance(credentials, Keys):
        return credentials
    return _keys((credentials,) if isinstance(credentials, Credentials) else tuple(credentials))


def sign(body: bytes, *, credentials: Credentials, now: datetime) -> dict[str, str]:
    """Return the headers ``MD5``, ``CurTime`` and ``CheckSum`` that the platform would send with a body at that time.

    Raises InvalidRequest for a body that is not bytes and a time without a zone.
    """
    if not isinstance(cast("object", body), bytes):
        raise InvalidRequest(_not_bytes(body), field="body")
    digest = md5(body, usedforsecurity=False).hexdigest().upper()
    moment = str(_milliseconds(now))
    checksum = _hashed(credentials)
    checksum.update((digest + moment).encode())
    return {"MD5": digest, "CurTime": moment, "CheckSum": checksum.hexdigest().upper()}


DEFAULT = Policy()


def verify(
    headers: Headers,
    body: bytes,
    *,
    credentials: Credentials | Iterable[Credentials] | Keys,
    now: datetime,
    policy: Policy = DEFAULT,
) -> Verified | Rejected:
    """Say whether a delivery is authentic, from its headers and its raw body as they came.

    Never raises, whatever came: what does not even have the right type is rejected with a ``detail`` that says so. ``now``
    needs a time zone (InvalidRequest otherwise). Hexadecimal digits may be in either case, header names as well;
    ``CheckSum`` is of the ``MD5`` header's text as it stands. Both comparisons take the same time wherever the difference
    is, and both are always made. Interface: Authentication, 3.
    """
    moment, keys = _milliseconds(now), credentials if isinstance(credentials, Keys) else keys_of(credentials)
    if not isinstance(cast("object", body), bytes):
        return Rejected(reason=Reason.BAD_FORMAT, detail=_not_bytes(body))
    if policy.max_body is not None and len(body) > policy.max_body:
        return Rejected(reason=Reason.TOO_LARGE, detail=f"the body has {len(body)} bytes, more than {policy.max_body}")
    try:
        told = _told(headers)
    except Exception as error:
        what = f"{type(headers).__name__} ({type(error).__name__})"
        detail = f"headers are a mapping of texts, or pairs of texts or bytes, not {what}"
        return Rejected(reason=Reason.BAD_FORMAT, detail=detail)
    if isinstance(told, Rejected):
        return told
    checksum, digest, cur_time = told
    same_body = compare_digest(md5(body, usedforsecurity=False).hexdigest().encode(), digest.lower())
    key = keys.match(digest + cur_time, checksum.lower())
    if key is None:
        return Rejected(reason=Reason.CHECKSUM_MISMATCH, detail="CheckSum was made with none of the tokens")
    if not same_body:
        return Rejected(reason=Reason.BODY_MISMATCH, detail="the digest of the body is not what MD5 says")
    sent = int(cur_time)
    age = (moment - sent) / 1000
    if policy.back is not None and age > policy.back:
        return Rejected(reason=Reason.STALE, detail=f"it is {age:.3f} s old, at most {policy.back:g} s are accepted")
    if policy.ahead is not None and -age > policy.ahead:
        return Rejected(reason=Reason.FUTURE, detail=f"it is {-age:.3f} s ahead, at most {policy.ahead:g} s are accepted")
    return Verified(key=key, age=age, cur_time=sent)


_HEX = re.compile(rb"[0-9A-Fa-f]{32}")
_MILLISECONDS = re.compile(rb"[0-9]{13}")
_SECONDS = re.compile(rb"[0-9]{10}")
_NAMES = ("CheckSum", "MD5", "CurTime", "Content-Encoding")
_SLOTS: dict[str | bytes, int] = {
    spelt: slot for slot, name in enumerate(_NAMES) for spelt in (name.lower(), name.lower().encode())
}
_ENCODING = 3
_PLAIN = (b"", b"identity")


def _told(headers: Headers) -> tuple[bytes, bytes, bytes] | Rejected:
    """Return CheckSum, MD5 and CurTime, each of its form; or what is wrong with them."""
    pairs = cast("Iterable[tuple[str | bytes, str | bytes]]", headers.items() if isinstance(headers, Mapping) else headers)
    found: list[bytes | None] = [None] * 3
    for name, value in pairs:
        slot = _SLOTS.get(name.lower())
        if slot is not None:
            told = value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass")
            if slot == _ENCODING:
                if told.strip().lower() not in _PLAIN:
                    return Rejected(reason=Reason.UNSUPPORTED_ENCODING, detail="a Content-Encoding is not supported")
            elif found[slot] is not None:
                return Rejected(reason=Reason.DUPLICATE_HEADER, detail=f"the header {_NAMES[slot]} came more than once")
            else:
                found[slot] = told
    checksum, digest, cur_time = found
    if checksum is None or digest is None or cur_time is None:
        missing = _NAMES[found.index(None)]
        return Rejected(reason=Reason.MISSING_HEADER, detail=f"there is no header {missing}")
    if not _HEX.fullmatch(checksum) or not _HEX.fullmatch(digest):
        name = "MD5" if _HEX.fullmatch(checksum) else "CheckSum"
        return Rejected(reason=Reason.BAD_FORMAT, detail=f"{name} is not 32 hexadecimal digits")
    if not _MILLISECONDS.fullmatch(cur_time):
        if _SECONDS.fullmatch(cur_time):
            return Rejected(reason=Reason.SECONDS_NOT_MILLISECONDS, detail="CurTime is in seconds, not milliseconds")
        return Rejected(reason=Reason.BAD_FORMAT, detail="CurTime is not 13 digits")
    return checksum, digest, cur_time


def _not_bytes(body: object) -> str:
    return (
        f"body: the raw bytes of the request are needed, as they came, not {type(body).__name__}: what is decoded or parsed "
        "and encoded again has another digest"
    )


def _milliseconds(now: datetime) -> int:
    if now.utcoffset() is None:
        raise InvalidRequest("now: a datetime with a time zone is needed", field="now")
    return (now - EPOCH) // MILLISECOND
