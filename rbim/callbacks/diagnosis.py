"""Why a delivery is refused: the usual causes, in order, each with its next step.

:func:`~rbim.callbacks.verify` only returns a reason. This module is for people who look at one captured delivery, and too
slow for a receiver. Apart from application ids, no text contains a token, a header's value or a body's content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from hashlib import md5
from itertools import product
from typing import TYPE_CHECKING, cast

from attrs import frozen

from rbim._support import json as rbim_json
from rbim._support.text import one_line
from rbim.callbacks.delivery import delivery_of
from rbim.callbacks.signature import Policy, Reason, Rejected, Verified, verify

if TYPE_CHECKING:
    from rbim.callbacks.signature import Headers
    from rbim.credentials import Credentials

__all__ = ["Finding", "explain"]

SIGNED = {
    "checksum": ("CheckSum", "32 hexadecimal digits"),
    "md5": ("MD5", "32 hexadecimal digits"),
    "curtime": ("CurTime", "13 digits, milliseconds since 1970-01-01 UTC"),
}
FORMS = {
    re.compile(rb"\s*|null|none|undefined", re.IGNORECASE): "is empty: its sender had no value",
    re.compile(rb"[0-9]{10}"): "is in seconds, not milliseconds",
    re.compile(rb"[0-9]{14}|[0-9]{17}|[0-9]{4}-[0-9]{2}-.*|[A-Z][a-z]{2}, .*"): "is a date, not milliseconds since 1970",
    re.compile(rb".*,.*"): "is several values, separated by commas: several headers were merged into one",
    re.compile(rb"\s.*|.*\s|(['\"]).*\1|.*;|b'.*'"): "has blanks, quotes or ';' around it",
    re.compile(rb"[0-9A-Za-z+/_-]{22}==|[0-9A-Za-z+/_-]{43}="): "is Base64, not hexadecimal digits",
}
"""Usual forms of a header that are not the required one."""

RAW = "Verify the raw bytes as received, before anything parses or decodes them"
REQUIRED_SUM = "Required: the MD5 of AppId, AppToken, the text of the MD5 header and CurTime, joined without separators"
ZONES = {timedelta(minutes=30 * halves) for halves in range(2, 29)}
SKEW = timedelta(seconds=90)  # most that a difference may deviate from a time zone's


@frozen
class Finding:
    """Why a delivery is refused, in words. ``reason`` is that of ``verify``; None if the delivery is accepted."""

    reason: Reason | None
    text: str


def explain(  # noqa: C901  # a case for each reason
    headers: Headers,
    body: bytes,
    *,
    credentials: Credentials | Iterable[Credentials],
    now: datetime,
    policy: Policy | None = None,
) -> Finding:
    """Explain why one delivery is refused, given its headers and its raw body as captured.

    The finding's ``reason`` is that of :func:`~rbim.callbacks.verify`. It is None for a delivery that is accepted; the text
    then also says whether its event would go into quarantine. Never raises for any capture. ``now`` needs a time zone, and
    ``credentials`` at least one application (InvalidRequest otherwise).
    """
    known = tuple(credentials) if isinstance(credentials, Iterable) else (credentials,)
    policy = policy or Policy()
    try:
        pairs = _pairs(headers)
    except Exception:  # other types
        pairs = None
    result = verify(headers if pairs is None else pairs, body, credentials=known, now=now, policy=policy)
    if pairs is None:
        return Finding(Reason.BAD_FORMAT, "headers: pass a mapping of strings, or pairs of strings or bytes")
    if isinstance(result, Verified):
        return Finding(None, _accepted(result, body, now))
    if not isinstance(cast("object", body), bytes):
        return Finding(result.reason, result.detail)
    signed = {name.lower(): value for name, value in reversed(pairs)}
    match result.reason:
        case Reason.TOO_LARGE:
            text = f"{result.detail}: raise Policy.max_body to accept it"
        case Reason.UNSUPPORTED_ENCODING:
            text = (
                "the request has a Content-Encoding. The description has none, and the signature covers the body as sent:"
                " turn off compression of requests on the way"
            )
        case Reason.MISSING_HEADER:
            text = _missing(signed)
        case Reason.DUPLICATE_HEADER:
            text = f"{result.detail}: find the proxy or sender that adds it again"
        case Reason.BODY_MISMATCH:
            text = _changed_body(signed, body)
        case Reason.CHECKSUM_MISMATCH:
            text = _wrong_checksum(signed, body, known, now)
        case Reason.STALE | Reason.FUTURE:
            text = _clock(result, now)
        case _:
            name = next((each for each, (spelt, _) in SIGNED.items() if result.detail.startswith(spelt)), "curtime")
            what = next((text for form, text in FORMS.items() if form.fullmatch(signed[name])), "has an unknown format")
            text = f"the header {SIGNED[name][0]} {what}. Required: {SIGNED[name][1]}. Forward the header unchanged"
    return Finding(result.reason, text)


def _pairs(headers: Headers) -> list[tuple[str, bytes]]:
    pairs = cast("Iterable[tuple[str | bytes, str | bytes]]", headers.items() if isinstance(headers, Mapping) else headers)
    return [
        (
            name.decode("latin-1") if isinstance(name, bytes) else name + "",
            value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"),
        )
        for name, value in pairs
    ]


def _accepted(verified: Verified, body: bytes, now: datetime) -> str:
    age, key = verified.age, verified.key
    text = f"accepted: application {key} signed it {f'{age:.3f} s ago' if age >= 0 else f'{-age:.3f} s ahead of this clock'}"
    if not key.current:
        text += ". That token is no longer the current one: the token rotation is not finished"
    problem = delivery_of(body, app_id=key.app_id, received=now).problem
    if problem is not None:
        text += f". But it is stored in quarantine and not handled: {one_line(problem, 400)}. A replay checks it again"
    return text


def _missing(headers: Mapping[str, bytes]) -> str:
    letters = {name: "".join(c for c in name if c.isalnum()) for name in headers}
    renamed = {
        name: next((each for each, plain in letters.items() if each != name and plain.endswith(name)), None)
        for name in SIGNED
        if name not in headers
    }
    if len(renamed) == len(SIGNED) and not any(renamed.values()):
        return (
            "the headers CheckSum, MD5 and CurTime are all missing: this is not a callback, or a proxy or gateway on the way"
            " drops headers that it does not know. Configure it to forward them"
        )
    name, alias = next(iter(renamed.items()))
    if alias is None:
        return f"the header {SIGNED[name][0]} is missing: find the proxy or gateway on the way that drops it"
    return (
        f"the header {SIGNED[name][0]} is missing, but {one_line(alias, 40)} is present: something on the way renames"
        f" headers. Forward it as {SIGNED[name][0]}"
    )


def _changed_body(headers: Mapping[str, bytes], body: bytes) -> str:
    digest = headers["md5"].lower()
    if not body:
        return (
            "the body is empty here, but was not when it was signed. Most often other code read it before (a form parser, a"
            " logger, a proxy): take the raw bytes first"
        )
    length = headers.get("content-length", b"").strip()
    if re.fullmatch(rb"[0-9]{1,12}", length) and int(length) > len(body):
        return f"the body was cut off: it has {len(body)} bytes here, Content-Length is {int(length)}. Capture all of it"
    for text, made in _sent_bodies(body):
        if md5(made, usedforsecurity=False).hexdigest().encode() == digest:
            return f"the body was changed after it was signed: {text}. {RAW}"
    return (
        "MD5 is not the digest of this body, and no usual change explains it: the body was changed, or the headers belong to"
        " another delivery. Compare it with the bytes received on the socket"
    )


def _sent_bodies(body: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield bodies of which this one may have been made, with the change."""
    yield "a newline at its end was removed (editors and shells do that)", body + b"\n"
    yield "a newline at its end was removed (editors and shells do that)", body + b"\r\n"
    yield "white space around it was added", body.strip()
    yield "its line ends were converted", re.sub(rb"\r?\n", b"\r\n", body)
    yield "its line ends were converted", body.replace(b"\r\n", b"\n")
    yield from (("it was parsed and serialized again", each) for each in _serialized(body))
    for was, now in (("gb18030", "utf-8"), ("utf-8", "gb18030"), ("latin-1", "utf-8"), ("utf-8", "latin-1")):
        with suppress(ValueError):
            yield f"it was decoded and encoded again ({was} became {now})", body.decode(now).encode(was)


def _serialized(body: bytes) -> Iterator[bytes]:
    """Yield the body's JSON as other programs write it; nothing if it is no JSON."""
    try:
        document = rbim_json.loads(body)
        for separators, ascii_only, ordered in product(
            ((",", ":"), (", ", ": "), (",", ": ")), (False, True), (False, True)
        ):
            text = json.dumps(document, ensure_ascii=ascii_only, separators=separators, sort_keys=ordered)
            yield text.encode()
            yield text.replace("/", "\\/").encode()  # PHP
        for indent in (2, 4):
            yield json.dumps(document, ensure_ascii=False, indent=indent).encode()
    except (ValueError, RecursionError):
        return


def _wrong_checksum(headers: Mapping[str, bytes], body: bytes, credentials: Sequence[Credentials], now: datetime) -> str:
    of_body = md5(body, usedforsecurity=False).hexdigest().encode()
    checksum = headers["checksum"].lower()
    if checksum == of_body != headers["md5"].lower():
        return "MD5 and CheckSum are swapped: each header has the value of the other. Correct the code that sets them"
    event = delivery_of(body, app_id="", received=now).event
    sender = None if event is None else event.from_account.app_id
    if sender is not None and any(sender == each.app_id for each in credentials):
        sender = None
    for text, joined in _checksums(headers["md5"], headers["curtime"], credentials, sender):
        if md5(joined, usedforsecurity=False).hexdigest().encode() == checksum:
            return f"CheckSum was computed {text}. {REQUIRED_SUM}. Correct the credentials here, or the sender"
    if sender is not None:
        return (
            f"CheckSum matches none of the tokens configured here. The body's sender belongs to application"
            f" {one_line(sender, 80)}, which is not configured here: add its AppId and AppToken"
        )
    count = len(credentials)
    which = "does not match the token" if count == 1 else f"matches none of the {count} tokens"
    return (
        f"CheckSum {which} configured here, and no usual mistake explains it: a token was renewed, or it is"
        " the account's token in place of the application's. Compare them with the console"
    )


def _checksums(
    digest: bytes, time: bytes, credentials: Sequence[Credentials], sender: str | None
) -> Iterator[tuple[str, bytes]]:
    """Yield what may have been hashed, with the mistake."""
    known = [(each.app_id, each.app_id.encode(), each.app_token.reveal().encode()) for each in credentials]
    for name, app_id, token in known:
        yield "with AppId and AppToken swapped: check that they are not swapped here", token + app_id + digest + time
        for what, other in {
            "without the blanks or quotes around it: remove them here": token.strip(b" \t\r\n'\""),
            "with a newline at its end (echo and editors append one)": token + b"\n",
            "in lower case": token.lower(),
            "in upper case": token.upper(),
        }.items():
            if other != token:
                yield f"with the AppToken of application {name} {what}", app_id + other + digest + time
        for case, other in {"lower": digest.lower(), "upper": digest.upper()}.items():
            if other != digest:
                yield f"over MD5 in {case} case, unlike the header", app_id + token + other + time
        yield "over the time in seconds", app_id + token + digest + time[:10]
        for joined in (app_id + token + time + digest, digest + time + app_id + token):
            yield "with its parts in a wrong order", joined
        for joined in (app_id + token + time, token + digest + time, app_id + digest + time):
            yield "without one of its parts", joined
        if sender is not None:
            yield (
                f"with AppId {one_line(sender, 80)}, which is not configured here, and the AppToken of application {name}",
                sender.encode("utf-8", "surrogatepass") + token + digest + time,
            )
        for another, _, its_token in known:
            yield f"with AppId {name} and the AppToken of application {another}", app_id + its_token + digest + time


def _clock(rejected: Rejected, now: datetime) -> str:
    """Return how far two clocks are apart, the probable cause, and the next step."""
    age, behind = timedelta(seconds=rejected.age or 0.0), rejected.reason is Reason.STALE
    sent = (now - age).astimezone(UTC).isoformat(" ", "seconds")
    text = f"CurTime is {sent}: {rejected.detail} (Policy.{'back' if behind else 'ahead'})"
    apart = abs(age)
    zone = min(ZONES, key=lambda each: abs(each - apart))
    if abs(zone - apart) <= SKEW:
        hours, minutes = divmod(int(zone.total_seconds()) // 60, 60)
        return (
            f"{text}. The difference is {hours} hours {minutes} minutes, like a time zone's: the sender or this machine's"
            " clock used local time instead of UTC. Correct that one"
        )
    return (
        f"{text}. {'If it has just arrived, compare' if behind else 'Compare'} both machines' clocks with a time server. A"
        " receiver with a durable inbox accepts it all the same in normal mode, and in high-guarantee mode if it is a resend"
    )
