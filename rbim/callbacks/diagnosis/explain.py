"""Explanations of a refused delivery: the finding, the cause, and the next step.

:func:`~rbim.callbacks.verify` only returns a reason; this module searches for the usual causes. It is for people who look at
one captured delivery, and too slow for a receiver. Apart from AppIds, no text contains a token, a header's value or a body's
content.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import unhexlify
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, cast

from attrs import frozen

from rbim._support.text import one_line
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.diagnosis.bodies import content_length, variant_of
from rbim.callbacks.diagnosis.checksums import Part, algorithm_of, explanation_of, pairs_of
from rbim.callbacks.diagnosis.headers import HeaderValue, read_digest, read_time
from rbim.callbacks.signature import Policy, Reason, Rejected, keys_of, verify

if TYPE_CHECKING:
    from rbim.callbacks.signature import Headers, Verified
    from rbim.credentials import Credentials

__all__ = ["Finding", "explain"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SIGNED = ("CheckSum", "MD5", "CurTime")
REQUIRED_SUM = (
    "Required: the MD5 of AppId, AppToken, the text of the MD5 header and CurTime, joined without separators. Correct the"
    " credentials here, or the sender"
)
REQUIRED = {
    "CheckSum": "32 hexadecimal digits",
    "MD5": "32 hexadecimal digits",
    "CurTime": "13 digits, milliseconds since 1970-01-01 UTC",
}
ZONES = {timedelta(hours=hours) for hours in range(1, 15)} | {
    timedelta(minutes=minutes) for minutes in (210, 270, 330, 345, 390, 525, 570, 630, 765)
}
SKEW = timedelta(seconds=90)  # most that a difference may deviate from a time zone's


@frozen
class Finding:
    """One finding about a delivery, in words. ``reason`` is None if nothing is wrong."""

    reason: Reason | None
    text: str


@frozen(kw_only=True)
class _Case:
    """The parts of a delivery: ``raw`` has the three headers as received, ``read`` their intended values and deviations."""

    headers: Mapping[str, Sequence[bytes]]
    raw: Mapping[str, bytes]
    read: Mapping[str, HeaderValue]
    body: bytes
    credentials: tuple[Credentials, ...]
    now: datetime
    policy: Policy

    def intended(self, name: str) -> bytes | None:
        """Return the intended value of one of the three headers, or None if it is unknown."""
        return self.read[name].intended if name in self.read else None

    def is_digest(self, name: str, content: bytes) -> bool:
        """Whether one of the headers is the digest of ``content``."""
        digits = self.intended(name)
        return digits is not None and algorithm_of(digits)(content) == digits.lower()


def _case_of(
    pairs: list[tuple[str, bytes]], body: bytes, *, credentials: tuple[Credentials, ...], now: datetime, policy: Policy
) -> _Case:
    headers: dict[str, list[bytes]] = {}
    for name, value in pairs:
        headers.setdefault(name.lower(), []).append(value)
    raw = {name: headers[name.lower()][0] for name in SIGNED if name.lower() in headers}
    read = {name: (read_time if name == "CurTime" else read_digest)(value) for name, value in raw.items()}
    return _Case(headers=headers, raw=raw, read=read, body=body, credentials=credentials, now=now, policy=policy)


def explain(
    headers: Headers,
    body: bytes,
    *,
    credentials: Credentials | Iterable[Credentials],
    now: datetime,
    policy: Policy | None = None,
) -> tuple[Finding, ...]:
    """Explain why one delivery is refused, given its headers and its raw body as captured.

    The most decisive finding comes first. Its ``reason`` is None if and only if :func:`~rbim.callbacks.verify` accepts the
    delivery; a second finding may then explain why its event would not be handled. Otherwise the findings' reasons include
    that of ``verify``. Never raises for any capture. ``now`` needs a time zone, and ``credentials`` at least one application
    (InvalidRequest otherwise).
    """
    policy = policy or Policy()
    known = tuple(credentials) if isinstance(credentials, Iterable) else (credentials,)
    try:
        pairs = _pairs(headers)
    except Exception:  # verify names the wrong type
        pairs = None
    result = verify(headers if pairs is None else pairs, body, credentials=known, now=now, policy=policy)
    if pairs is None or not isinstance(cast("object", body), bytes):
        detail = result.detail if isinstance(result, Rejected) else "the headers cannot be read"
        return (Finding(Reason.BAD_FORMAT, detail),)
    case = _case_of(pairs, body, credentials=known, now=now, policy=policy)
    if isinstance(result, Rejected):
        return tuple(finding for stage in STAGES for finding in stage(case))
    return (_accepted(result), *_quarantine(case, result.key.app_id))


def _pairs(headers: Headers) -> list[tuple[str, bytes]]:
    pairs = cast("Iterable[tuple[str | bytes, str | bytes]]", headers.items() if isinstance(headers, Mapping) else headers)
    return [
        (
            name.decode("latin-1") if isinstance(name, bytes) else name + "",
            value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"),
        )
        for name, value in pairs
    ]


# --------------------------------------------------------------------------------------------------------------- accepted


def _accepted(verified: Verified) -> Finding:
    age, key = verified.age, verified.key
    rotation = "" if key.current else ". That token is no longer the current one: the token rotation is not finished"
    when = f"{_duration(age)} old" if age >= 0 else f"{_duration(-age)} ahead of this clock"
    return Finding(None, f"accepted: it was signed by application {key}, and is {when}{rotation}")


def _quarantine(case: _Case, app_id: str) -> Iterator[Finding]:
    """Explain why the event of an authentic delivery would not be handled."""
    delivery = delivery_of(case.body, app_id=app_id, received=case.now)
    if delivery.problem is not None:
        reason = Reason.BAD_FORMAT if delivery.event is None else Reason.APP_MISMATCH
        text = one_line(delivery.problem.removeprefix(f"{reason}: "), 400)
        yield Finding(reason, f"it is stored in quarantine and not handled: {text}. A replay checks it again")


# --------------------------------------------------------------------------------------------------------------- rejected


def _size(case: _Case) -> Iterator[Finding]:
    limit, size = case.policy.max_body, len(case.body)
    if limit is not None and size > limit:
        yield Finding(
            Reason.TOO_LARGE, f"the body has {size} bytes; the limit is {limit}: raise Policy.max_body to accept it"
        )


def _encoding(case: _Case) -> Iterator[Finding]:
    for encoding in case.headers.get("content-encoding", ()):
        if encoding.strip().lower() not in {b"", b"identity"}:
            text = (
                f"the request has Content-Encoding {one_line(encoding.decode('latin-1'), 20)}. The description has none, and"
                " the signature covers the body as sent: turn off compression of requests on the way"
            )
            yield Finding(Reason.UNSUPPORTED_ENCODING, text)
            return


def _headers(case: _Case) -> Iterator[Finding]:
    if not case.raw and not any(_alias(case, name) for name in SIGNED):
        text = (
            f"the headers {', '.join(SIGNED)} are all missing: this is not a callback, or a proxy or gateway on the way"
            " drops headers that it does not know. Configure it to forward them"
        )
        yield Finding(Reason.MISSING_HEADER, text)
        return
    for name in SIGNED:
        values = case.headers.get(name.lower(), ())
        if not values:
            alias = _alias(case, name)
            renamed = (
                f", but {one_line(alias or '', 40)} is present: something on the way renames headers. Forward it as {name}"
            )
            dropped = ": find the proxy or gateway on the way that drops it"
            yield Finding(Reason.MISSING_HEADER, f"the header {name} is missing{renamed if alias else dropped}")
        elif len(values) > 1:
            same = "with the same value each time" if len(set(values)) == 1 else "with different values"
            text = f"the header {name} is present {len(values)} times, {same}: find the proxy or sender that adds it again"
            yield Finding(Reason.DUPLICATE_HEADER, text)
        for deviation in case.read[name].deviations if name in case.read else ():
            text = f"the header {name} {deviation.text}. Required: {REQUIRED[name]}. Forward the header unchanged"
            yield Finding(deviation.reason, text)


def _alias(case: _Case, name: str) -> str | None:
    """Return the name of a header that ends like ``name`` if only letters and digits count, or None."""
    return next(
        (each for each in case.headers if each != name.lower() and _letters(each).endswith(name.lower())),
        None,
    )


def _letters(name: str) -> str:
    return "".join(c for c in name if c.isalnum())


def _checksum(case: _Case) -> Iterator[Finding]:
    checksum = case.intended("CheckSum")
    if checksum is None or "CurTime" not in case.raw:
        return
    reason = Reason.CHECKSUM_MISMATCH
    if _swapped(case):
        yield Finding(
            reason, "MD5 and CheckSum are swapped: each header has the value of the other. Correct the code that sets them"
        )
        return
    sender = _sender(case)
    unknown = sender if sender and all(sender != each.app_id for each in case.credentials) else None
    pairs = pairs_of(case.credentials, [unknown] if unknown and unknown.isascii() else [])
    found = explanation_of(checksum, pairs, _digests(case), _times(case))
    if found is None:
        yield Finding(reason, _unexplained(case, unknown))
    elif found.mistakes:
        yield Finding(reason, f"CheckSum was computed {' and '.join(found.mistakes)}. {REQUIRED_SUM}")


def _unexplained(case: _Case, unknown: str | None) -> str:
    if unknown is not None:
        return (
            "CheckSum matches none of the tokens configured here. The body's sender belongs to application"
            f" {one_line(unknown, 80)}, which is not configured here: add its AppId and AppToken"
        )
    tokens = "the token" if len(case.credentials) == 1 else f"any of the {len(case.credentials)} tokens"
    return (
        f"CheckSum does not match {tokens} configured here, and no usual mistake explains it. Compare AppId and AppToken"
        " with the application's in the console. The most common mistake is the account's token, which belongs to another"
        " interface. A token that was renewed in the console, or a sender other than the platform, gives the same result"
    )


def _swapped(case: _Case) -> bool:
    """Whether each of the two digests is in the header of the other."""
    digest = case.intended("MD5")
    if digest is None or not case.is_digest("CheckSum", case.body) or case.is_digest("MD5", case.body):
        return False
    pairs = pairs_of(case.credentials, [])
    return explanation_of(digest, pairs, [Part("", case.raw["CheckSum"])], _times(case)[:1]) is not None


def _digests(case: _Case) -> Sequence[Part]:
    """Return values that may have been used as the digest, the described one first."""
    checksum = case.intended("CheckSum") or b""
    own = algorithm_of(checksum)(case.body)
    parts: list[Part] = []
    value, intended = case.read.get("MD5"), case.intended("MD5")
    if value is not None:
        parts += [Part("", case.raw["MD5"]), Part("", value.bare)]
    if intended is not None:
        parts += [
            Part("over MD5 in upper case, unlike the header", intended.upper()),
            Part("over MD5 in lower case, unlike the header", intended.lower()),
            Part("over the digest in Base64", b64encode(unhexlify(intended))),
            Part("over the digest's raw bytes, not its hexadecimal digits", unhexlify(intended)),
        ]
    text = "over the digest of the body received here, which differs from the MD5 header" if intended is not None else ""
    parts += [
        Part(text, own.upper()),
        Part(text or "over the body's digest in lower case", own),
        Part("over the body itself instead of its digest", case.body),
    ]
    return _distinct(parts)


def _times(case: _Case) -> Sequence[Part]:
    """Return values that may have been used as the time, the described one first; none without the header."""
    if "CurTime" not in case.raw:
        return ()
    parts = [Part("", case.raw["CurTime"]), Part("", case.read["CurTime"].bare)]
    intended = case.intended("CurTime")
    if intended is not None:
        parts += [
            Part("over the time in milliseconds, unlike CurTime", intended),
            Part("over the time in seconds", intended[:10]),
        ]
    return _distinct(parts)


def _distinct(parts: Iterable[Part]) -> Sequence[Part]:
    found: dict[bytes, Part] = {}
    for part in parts:
        found.setdefault(part.value, part)
    return tuple(found.values())


def _sender(case: _Case) -> str | None:
    """Return the application of the sender that the body names, or None."""
    event = delivery_of(case.body, app_id="", received=case.now).event
    return event.from_account.app_id if event is not None else None


def _body(case: _Case) -> Iterator[Finding]:
    digits = case.intended("MD5")
    if digits is None or case.is_digest("MD5", case.body) or _swapped(case):
        return
    if not case.body:
        text = (
            "the body is empty here, but was not when it was signed. Most often other code read it before (a form parser, a"
            " logger, a proxy): take the raw bytes first"
        )
        yield Finding(Reason.BODY_MISMATCH, text)
        return
    variant = variant_of(case.body, lambda body: case.is_digest("MD5", body))
    text = f"MD5 is the digest of {variant.text}" if variant else _other_length(case) or _another_body(case)
    yield Finding(Reason.BODY_MISMATCH, text)


def _other_length(case: _Case) -> str | None:
    length, size = content_length(case.headers.get("content-length", ())), len(case.body)
    if length is not None and length > size:
        return f"the body was cut off: it has {size} bytes here, Content-Length is {length}. Read or capture all of it"
    if length is not None and case.is_digest("MD5", case.body[:length]):
        return f"MD5 is the digest of the first {length} bytes (Content-Length): remove the {size - length} added after them"
    return None


def _another_body(case: _Case) -> str:
    text = (
        "MD5 is not the digest of the body received here, and no usual change explains it: the body was changed, or the"
        " headers belong to another delivery"
    )
    return text if case.intended("CheckSum") is None else f"{text}. Compare it with the bytes received on the socket"


def _time(case: _Case) -> Iterator[Finding]:
    intended = case.intended("CurTime")
    if intended is None:
        return
    sent = EPOCH + timedelta(milliseconds=int(intended))  # 13 digits end in the year 2286
    age = (case.now - sent).total_seconds()
    back, ahead = case.policy.back, case.policy.ahead
    time = f"CurTime is {sent.isoformat(sep=' ', timespec='milliseconds')}"
    if back is not None and age > back:
        text = f"{time}, which is {_duration(age)} ago; the limit is {_duration(back)} (Policy.back){_advice(age)}"
        yield Finding(Reason.STALE, text)
    elif ahead is not None and -age > ahead:
        text = f"{time}, which is {_duration(-age)} ahead; the limit is {_duration(ahead)} (Policy.ahead){_advice(age)}"
        yield Finding(Reason.FUTURE, text)


def _advice(age: float) -> str:
    """Return the probable cause of a difference between two clocks, and the next step."""
    difference = timedelta(seconds=abs(age))
    zone = min(ZONES, key=lambda each: abs(each - difference))
    if abs(zone - difference) <= SKEW:
        hours, minutes = divmod(int(zone.total_seconds()) // 60, 60)
        return (
            f". The difference is {hours} hours {minutes} minutes, like a time zone's: the sender or this machine's clock"
            " used local time instead of UTC. Correct that one"
        )
    arrived = "If it has just arrived, compare" if age > 0 else "Compare"
    return (
        f". {arrived} both machines' clocks with a time server. A receiver with a durable inbox accepts it all the same in"
        " normal mode; in high-guarantee mode it does so if it is a resend"
    )


def _content(case: _Case) -> Iterator[Finding]:
    """Explain what else would prevent handling, if the body is the signed one."""
    checksum, signed = case.intended("CheckSum"), b"".join(case.raw.get(name, b"") for name in ("MD5", "CurTime"))
    key = keys_of(case.credentials).match(signed, checksum.lower()) if checksum else None
    if key is not None and case.is_digest("MD5", case.body):
        yield from _quarantine(case, key.app_id)


STAGES = (_size, _encoding, _headers, _checksum, _body, _time, _content)

UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def _duration(seconds: float) -> str:
    """Return a duration in its two largest units."""
    for (unit, size), (smaller, part) in pairwise(UNITS):
        if seconds >= size:
            count, rest = divmod(round(seconds), size)
            return _plural(count, unit) + (f" {_plural(rest // part, smaller)}" if rest >= part else "")
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _plural(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
