"""Why a delivery is not accepted, in words, and what to do about it.

:func:`~rbim.callbacks.verify` says no and gives a reason; this tries what usually is the matter. It is for people
who look at one captured delivery, and too slow for a receiver. No text has a token, a header's value or a body's content in
it, but for applications' ids.
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
from rbim.callbacks.diagnosis.bodies import told_length, variant_of
from rbim.callbacks.diagnosis.checksums import Part, algorithm_of, explanation_of, pairs_of
from rbim.callbacks.diagnosis.headers import Read, read_digest, read_time
from rbim.callbacks.signature import Policy, Reason, Rejected, keys_of, verify

if TYPE_CHECKING:
    from rbim.callbacks.signature import Headers, Verified
    from rbim.credentials import Credentials

__all__ = ["Finding", "explain"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SIGNED = ("CheckSum", "MD5", "CurTime")
DESCRIBED = (
    "Described is the MD5 of AppId, AppToken, the MD5 header's text and CurTime, joined without anything between them"
)
ZONES = {timedelta(hours=hours) for hours in range(1, 15)} | {
    timedelta(minutes=minutes) for minutes in (210, 270, 330, 345, 390, 525, 570, 630, 765)
}
SKEW = timedelta(seconds=90)  # what is left of a difference that a time zone explains


@frozen
class Finding:
    """One thing about a delivery, in words. ``reason`` is None where nothing is wrong."""

    reason: Reason | None
    text: str


@frozen(kw_only=True)
class _Case:
    """A delivery taken apart. ``told`` are the three headers as they came, ``read`` what they look like and mean."""

    headers: Mapping[str, Sequence[bytes]]
    told: Mapping[str, bytes]
    read: Mapping[str, Read]
    body: bytes
    credentials: tuple[Credentials, ...]
    now: datetime
    policy: Policy

    def meant(self, name: str) -> bytes | None:
        """Return what was meant by one of the three headers, if anybody can say."""
        return self.read[name].meant if name in self.read else None

    def is_digest(self, name: str, content: bytes) -> bool:
        """Whether one of the headers is the digest of something."""
        digits = self.meant(name)
        return digits is not None and algorithm_of(digits)(content) == digits.lower()


def _case_of(
    pairs: list[tuple[str, bytes]], body: bytes, *, credentials: tuple[Credentials, ...], now: datetime, policy: Policy
) -> _Case:
    headers: dict[str, list[bytes]] = {}
    for name, value in pairs:
        headers.setdefault(name.lower(), []).append(value)
    told = {name: headers[name.lower()][0] for name in SIGNED if name.lower() in headers}
    read = {name: (read_time if name == "CurTime" else read_digest)(value) for name, value in told.items()}
    return _Case(headers=headers, told=told, read=read, body=body, credentials=credentials, now=now, policy=policy)


def explain(
    headers: Headers,
    body: bytes,
    *,
    credentials: Credentials | Iterable[Credentials],
    now: datetime,
    policy: Policy | None = None,
) -> tuple[Finding, ...]:
    """Say what is the matter with one delivery, the most decisive first, given its headers and its raw body as captured.

    The first finding's ``reason`` is None exactly where :func:`~rbim.callbacks.verify` accepts the delivery; it
    may then be followed by why its event would not be handled. Otherwise the reasons among the findings include that of
    ``verify``. Never raises, whatever was captured; ``now`` needs a time zone, and ``credentials`` at least one
    application's (InvalidRequest otherwise).
    """
    policy = policy or Policy()
    known = tuple(credentials) if isinstance(credentials, Iterable) else (credentials,)
    try:
        pairs = _pairs(headers)
    except Exception:  # whatever they are: verify says what is wrong with them
        pairs = None
    verdict = verify(headers if pairs is None else pairs, body, credentials=known, now=now, policy=policy)
    if pairs is None or not isinstance(cast("object", body), bytes):
        detail = verdict.detail if isinstance(verdict, Rejected) else "the headers cannot be read"
        return (Finding(Reason.BAD_FORMAT, detail),)
    case = _case_of(pairs, body, credentials=known, now=now, policy=policy)
    if isinstance(verdict, Rejected):
        return tuple(finding for stage in STAGES for finding in stage(case))
    return (_accepted(verdict), *_quarantine(case, verdict.key.app_id))


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
    told = "" if key.current else ". That token is no longer the current one: a rotation is not over"
    when = f"{_span(age)} old" if age >= 0 else f"{_span(-age)} ahead of this clock"
    return Finding(None, f"accepted: it was signed by application {key}, and is {when}{told}")


def _quarantine(case: _Case, app_id: str) -> Iterator[Finding]:
    """Say why the event of an authentic delivery would not be handled."""
    delivery = delivery_of(case.body, app_id=app_id, received=case.now)
    if delivery.problem is not None:
        reason = Reason.BAD_FORMAT if delivery.event is None else Reason.APP_MISMATCH
        text = one_line(delivery.problem.removeprefix(f"{reason}: "), 400)
        yield Finding(reason, f"it is kept, in quarantine, and not handled: {text}")


# --------------------------------------------------------------------------------------------------------------- rejected


def _size(case: _Case) -> Iterator[Finding]:
    limit, size = case.policy.max_body, len(case.body)
    if limit is not None and size > limit:
        yield Finding(Reason.TOO_LARGE, f"the body has {size} bytes, and at most {limit} are accepted (Policy.max_body)")


def _encoding(case: _Case) -> Iterator[Finding]:
    for encoding in case.headers.get("content-encoding", ()):
        if encoding.strip().lower() not in {b"", b"identity"}:
            text = (
                f"there is a Content-Encoding, {one_line(encoding.decode('latin-1'), 20)}. None is described, and"
                " what is signed is the body as it is sent: turn off whatever compresses requests on the way"
            )
            yield Finding(Reason.UNSUPPORTED_ENCODING, text)
            return


def _headers(case: _Case) -> Iterator[Finding]:
    if not case.told and not any(_alias(case, name) for name in SIGNED):
        text = (
            f"none of the headers {', '.join(SIGNED)} is there: this is no message copy, or a proxy or gateway on the way"
            " hands on only the headers that it knows"
        )
        yield Finding(Reason.MISSING_HEADER, text)
        return
    for name in SIGNED:
        values = case.headers.get(name.lower(), ())
        if not values:
            alias = _alias(case, name)
            instead = f", but there is {one_line(alias, 40)}: something on the way renames headers" if alias else ""
            yield Finding(Reason.MISSING_HEADER, f"there is no header {name}{instead}")
        elif len(values) > 1:
            same = "with the same value each time" if len(set(values)) == 1 else "with different values"
            text = f"the header {name} came {len(values)} times, {same}: a proxy, or the sender, adds what is there already"
            yield Finding(Reason.DUPLICATE_HEADER, text)
        for look in case.read[name].looks if name in case.read else ():
            yield Finding(look.reason, f"the header {name} {look.what}")


def _alias(case: _Case, name: str) -> str | None:
    """Return the name of a header that ends as another one should, dashes and such aside."""
    return next(
        (each for each in case.headers if each != name.lower() and _letters(each).endswith(name.lower())),
        None,
    )


def _letters(name: str) -> str:
    return "".join(c for c in name if c.isalnum())


def _checksum(case: _Case) -> Iterator[Finding]:
    checksum = case.meant("CheckSum")
    if checksum is None or "CurTime" not in case.told:
        return
    reason = Reason.CHECKSUM_MISMATCH
    if _interchanged(case):
        yield Finding(reason, "MD5 and CheckSum are interchanged: each header has the other one's value")
        return
    sender = _sender(case)
    unknown = sender if sender and all(sender != each.app_id for each in case.credentials) else None
    pairs = pairs_of(case.credentials, [unknown] if unknown and unknown.isascii() else [])
    found = explanation_of(checksum, pairs, _digests(case), _times(case))
    if found is None:
        yield Finding(reason, _unexplained(case, unknown))
    elif found.words:
        yield Finding(reason, f"CheckSum was made {' and '.join(found.words)}. {DESCRIBED}")


def _unexplained(case: _Case, unknown: str | None) -> str:
    if unknown is not None:
        return (
            "CheckSum was made with none of the tokens that are known here. The body's sender belongs to application"
            f" {one_line(unknown, 80)}, which is not known here: add its AppId and AppToken"
        )
    tokens = "the token that is" if len(case.credentials) == 1 else f"any of the {len(case.credentials)} tokens that are"
    return (
        f"CheckSum was not made with {tokens} known here, nor in any way that usually goes wrong. Compare AppId and AppToken"
        " with the application's in the console; the account's token, which belongs to another interface, is mistaken for it"
        " most often. A token that was renewed in the console, or somebody who is not the platform, looks the same"
    )


def _interchanged(case: _Case) -> bool:
    """Whether each of the two digests is in the other one's header."""
    digest = case.meant("MD5")
    if digest is None or not case.is_digest("CheckSum", case.body) or case.is_digest("MD5", case.body):
        return False
    pairs = pairs_of(case.credentials, [])
    return explanation_of(digest, pairs, [Part("", case.told["CheckSum"])], _times(case)[:1]) is not None


def _digests(case: _Case) -> Sequence[Part]:
    """Return what may have stood for the digest, first what is described."""
    checksum = case.meant("CheckSum") or b""
    own = algorithm_of(checksum)(case.body)
    parts: list[Part] = []
    told, meant = case.read.get("MD5"), case.meant("MD5")
    if told is not None:
        parts += [Part("", case.told["MD5"]), Part("", told.bare)]
    if meant is not None:
        parts += [
            Part("over the MD5 in upper case, which the header is not in", meant.upper()),
            Part("over the MD5 in lower case, which the header is not in", meant.lower()),
            Part("over the digest in Base64", b64encode(unhexlify(meant))),
            Part("over the digest's raw bytes, not its hexadecimal digits", unhexlify(meant)),
        ]
    words = "over the digest of the body as it is here, which is not that of the MD5 header" if meant is not None else ""
    parts += [
        Part(words, own.upper()),
        Part(words or "over the body's digest in lower case", own),
        Part("over the body itself in place of its digest", case.body),
    ]
    return _distinct(parts)


def _times(case: _Case) -> Sequence[Part]:
    """Return what may have stood for the time, first what is described."""
    parts = [Part("", case.told["CurTime"]), Part("", case.read["CurTime"].bare)]
    meant = case.meant("CurTime")
    if meant is not None:
        parts += [
            Part("over the time in milliseconds, which CurTime is not in", meant),
            Part("over the time in seconds", meant[:10]),
        ]
    return _distinct(parts)


def _distinct(parts: Iterable[Part]) -> Sequence[Part]:
    found: dict[bytes, Part] = {}
    for part in parts:
        found.setdefault(part.value, part)
    return tuple(found.values())


def _sender(case: _Case) -> str | None:
    """Return the application that the body says its sender belongs to."""
    event = delivery_of(case.body, app_id="", received=case.now).event
    return event.from_account.app_id if event is not None else None


def _body(case: _Case) -> Iterator[Finding]:
    digits = case.meant("MD5")
    if digits is None or case.is_digest("MD5", case.body) or _interchanged(case):
        return
    if not case.body:
        text = (
            "the body is empty here, and was not when it was signed. Most often something read it before (a form parser, a"
            " logger, a proxy): take the raw bytes first"
        )
        yield Finding(Reason.BODY_MISMATCH, text)
        return
    variant = variant_of(case.body, lambda made: case.is_digest("MD5", made))
    text = f"MD5 is the digest of {variant.text}" if variant else _other_length(case) or _another_body(case)
    yield Finding(Reason.BODY_MISMATCH, text)


def _other_length(case: _Case) -> str | None:
    told, size = told_length(case.headers.get("content-length", ())), len(case.body)
    if told is not None and told > size:
        return f"the body was cut: {size} bytes are here, and Content-Length says {told}"
    if told is not None and case.is_digest("MD5", case.body[:told]):
        return f"MD5 is the digest of the first {told} bytes, as many as Content-Length says: {size - told} more were added"
    return None


def _another_body(case: _Case) -> str:
    text = (
        "MD5 is not the digest of the body as it is here, and nothing that usually happens to a body explains it: it was"
        " changed, or the headers belong to another delivery"
    )
    return text if case.meant("CheckSum") is None else f"{text}. Compare with the bytes as the socket had them"


def _time(case: _Case) -> Iterator[Finding]:
    meant = case.meant("CurTime")
    if meant is None:
        return
    sent = EPOCH + timedelta(milliseconds=int(meant))  # 13 digits end in the year 2286
    age = (case.now - sent).total_seconds()
    back, ahead = case.policy.back, case.policy.ahead
    says = f"CurTime says {sent.isoformat(sep=' ', timespec='milliseconds')}"
    if back is not None and age > back:
        text = f"{says}, which is {_span(age)} ago, and the limit is {_span(back)} (Policy.back){_clock(age)}"
        yield Finding(Reason.STALE, text)
    elif ahead is not None and -age > ahead:
        text = f"{says}, which is {_span(-age)} ahead, and the limit is {_span(ahead)} (Policy.ahead){_clock(age)}"
        yield Finding(Reason.FUTURE, text)


def _clock(age: float) -> str:
    """Return what a difference between two clocks looks like."""
    difference = timedelta(seconds=abs(age))
    zone = min(ZONES, key=lambda each: abs(each - difference))
    if abs(zone - difference) <= SKEW:
        hours, minutes = divmod(int(zone.total_seconds()) // 60, 60)
        return (
            f". It differs by {hours} hours {minutes} minutes, as time zones do: a local time was used in place of UTC,"
            " there or by this machine's clock"
        )
    if age < 0:
        return ". Compare both machines' clocks with a time server"
    return (
        ". Where it has just come, compare both machines' clocks with a time server; where it is a resend, a receiver with"
        " an inbox accepts it all the same"
    )


def _content(case: _Case) -> Iterator[Finding]:
    """Say what else would keep it from being handled, where the body is the one that was signed."""
    checksum, told = case.meant("CheckSum"), b"".join(case.told.get(name, b"") for name in ("MD5", "CurTime"))
    key = keys_of(case.credentials).match(told, checksum.lower()) if checksum else None
    if key is not None and case.is_digest("MD5", case.body):
        yield from _quarantine(case, key.app_id)


STAGES = (_size, _encoding, _headers, _checksum, _body, _time, _content)

UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def _span(seconds: float) -> str:
    """Return a length of time in the two units that say most of it."""
    for (unit, size), (smaller, part) in pairwise(UNITS):
        if seconds >= size:
            count, rest = divmod(round(seconds), size)
            return _counted(count, unit) + (f" {_counted(rest // part, smaller)}" if rest >= part else "")
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _counted(count: int, unit: str) -> str:
    return f"{count} {unit}" if count == 1 else f"{count} {unit}s"
