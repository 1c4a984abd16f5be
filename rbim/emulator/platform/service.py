"""From a request to an answer: routing, signature, reading, faults, rules, request log. Nothing here waits.

The check of the signature is written from the written scheme; it shares no code with the signer. ``sig`` is compared without
regard to case: official text requires upper case, several clients send lower case. The timestamp is valid for 24 hours, in
the dialect's zone.
"""

from __future__ import annotations

import binascii
import re
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import md5
from hmac import compare_digest
from math import ceil
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from attrs import frozen

from rbim._support import json
from rbim.codes import MALFORMED, UNKNOWN_OPERATION
from rbim.dialect import MembersShape
from rbim.emulator.platform.rules import RULES, DependsOnDialect, Refusal, Rule, World
from rbim.errors import AuthenticationError, InvalidRequest, TimestampExpired
from rbim.http import Response
from rbim.operations import catalogue
from rbim.operations.groups import GROUP
from rbim.wire.codec import SUCCESS
from rbim.wire.converter import Converters

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from rbim.credentials import Credentials
    from rbim.emulator.faults import Faults, Injection
    from rbim.emulator.logs import RequestLog
    from rbim.operations.base import Operation

__all__ = ["Platform", "ServedAnswer"]

JSON = {"content-type": "application/json;charset=utf-8"}
HTML = {"content-type": "text/html;charset=utf-8"}
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")  # a version, as the description writes it
ROUTES = 1024  # cached paths: clients can make up any number of versions
SHOWN = 200  # characters of a path in a message
SLASHES = re.compile("//+")
STAMP = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})([0-9]{2})")
VALID_FOR = timedelta(hours=24)  # as in the vendor's sister product (Authentication; O)

_shared = lru_cache(Converters)  # compiling costs milliseconds: emulators of the same dialect share the result


@frozen
class ServedAnswer:
    """A response, and the faults to inject into its delivery."""

    response: Response
    injection: Injection


class Platform:
    """The described behaviour over one world, for the one application with these credentials."""

    def __init__(self, world: World, credentials: Credentials, faults: Faults, requests: RequestLog) -> None:
        self.world = world
        self.credentials = credentials
        self.faults = faults
        self.requests = requests
        self._converters = _shared(world.dialect.zone, world.dialect.members_shape)
        self._route = lru_cache(ROUTES)(catalogue.find)

    def serve(
        self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> ServedAnswer:
        """Answer one request. Every answer is JSON with a code, unless the fault plan changes it."""
        world = self.world
        kind = self._route(path)
        endpoint = kind.endpoint if kind is not None else GROUP
        op: Operation[Any] | None = None
        rule: Rule | None = None
        refusal: Refusal | None = None

        def note(injection: Injection, code: str | None, *, effect: bool = False, reason: str = "") -> None:
            at = world.clock.monotonic()
            self.requests.note(op, at=at, path=path, code=code, effect=effect, reason=reason, trouble=injection.names)

        try:
            self._check_request(method, path, query, headers)
            rule, op = self._read(kind, path, body)
        except Refusal as error:
            refusal = error
        except DependsOnDialect:
            note(self.faults.next_injection(None), None)
            raise
        injection = self.faults.next_injection(op)
        answer: dict[str, Any] | None = None
        if injection.code is not None:
            refusal = Refusal(injection.message, code=injection.code)
        elif rule is not None and op is not None and not injection.prevents_effect:
            try:
                answer = self._converters.fast.unstructure(rule(world, op))
            except Refusal as error:
                refusal = error
            except DependsOnDialect:
                note(injection, None)
                raise
        code = SUCCESS if refusal is None else refusal.code or world.dialect.code_of(refusal.kind)
        document: dict[str, Any] = {endpoint.code: code}
        if answer is None or endpoint.payload is not None:  # a group operation's success carries no message
            document[endpoint.message] = "success" if refusal is None else refusal.reason
        if answer is not None:
            document |= answer if endpoint.payload is None else {endpoint.payload: answer}
        told = None if injection.prevents_code else code
        note(injection, told, effect=answer is not None, reason="" if told is None or refusal is None else refusal.reason)
        return ServedAnswer(_with_faults(json.dumps(document), injection), injection)

    def _check_request(self, method: str, path: str, query: Mapping[str, str], headers: Mapping[str, str]) -> None:
        """Refuse a request that is not posted, or not signed by the application in its path.

        The id may be percent-encoded there; a path that names no application is of another API.
        """
        if method != "POST":
            raise Refusal(f"{method} is not described: operations are posted", code=MALFORMED)
        claimed, stamp = _authorization({name.lower(): value for name, value in headers.items()}.get("authorization", ""))
        own, token = self.credentials.app_id, self.credentials.app_token.reveal()
        expected = md5((claimed + token + stamp).encode(), usedforsecurity=False).hexdigest()
        matches = compare_digest(query.get("sig", "").lower().encode(), expected.encode())
        if not matches or claimed != own or _app_id(path) not in (None, own, quote(own, safe="")):
            raise Refusal("the signature is not that of this application", kind=AuthenticationError)
        if abs(self.world.clock.now() - _moment(stamp, self.world.dialect.zone)) > VALID_FOR:
            raise Refusal(f"the timestamp {stamp} is more than 24 hours off", kind=TimestampExpired)

    def _require_form(self, kind: type[Operation[Any]], path: str) -> None:
        """Refuse a path with a version that is none, or in another form than the dialect's if the rules refuse it."""
        world, dialect, parts = self.world, self.world.dialect, path.split("/")
        names = next(each for each in (path.split("/") for path in kind.spec.paths) if len(each) == len(parts))
        version = parts[names.index("{api_version}")] if "{api_version}" in names else dialect.api_version
        if version != dialect.api_version:
            world.assume("api_versions")  # every date: the samples of the description use several (Versioning; G)
            if DATE.fullmatch(version) is None:
                accepted = f"{dialect.api_version} and every date YYYY-MM-DD"
                raise Refusal(f"the path has the version {version}, this platform takes {accepted}", code=MALFORMED)
        template = kind.path(dialect)
        if parts[-1] != template.rpartition("/")[2] and world.choice("other_forms_refused"):
            raise Refusal(f"the path ends in {parts[-1]}, this platform has {template}", code=MALFORMED)

    def _require_shape(self, kind: type[Operation[Any]], document: object) -> None:  # JSON
        """Refuse members in another shape than the dialect's, if the rules refuse it."""
        if not isinstance(document, dict) or not hasattr(kind, "members"):
            return
        shape, members = self.world.dialect.members_shape, cast("dict[str, object]", document).get("members")
        other = members and isinstance(members, dict) is not (shape is MembersShape.NESTED)
        if other and self.world.choice("other_forms_refused"):
            raise Refusal(f"members: this platform takes the {shape} shape", code=MALFORMED)

    def _read(self, kind: type[Operation[Any]] | None, path: str, body: bytes) -> tuple[Rule, Operation[Any]]:
        """Return the operation of a request with its rule. Raises Refusal."""
        rule = None if kind is None else RULES.get(kind)
        if kind is None or rule is None:
            usual = SLASHES.sub("/", path).rstrip("/")
            meant = f"; did you mean {usual[:SHOWN]}?" if usual != path and catalogue.find(usual) is not None else ""
            raise Refusal(f"the emulator has no operation at {path[:SHOWN]}{meant}", code=UNKNOWN_OPERATION)
        self._require_form(kind, path)
        try:
            document = json.loads(body)
            if rb"\u" in body:  # it may escape a lone surrogate, which no answer can repeat
                json.dumps(document)
        except json.NotJson as error:
            raise Refusal(str(error), code=MALFORMED) from None
        except (ValueError, RecursionError):
            raise Refusal("a character that UTF-8 cannot carry", code=MALFORMED) from None
        self._require_shape(kind, document)
        try:
            op: Operation[Any] = self._converters.fast.structure(document, kind)
            op.check(self.world.effects, self.world.clock)
            op.check_lengths(self.world.effects)
        except InvalidRequest as error:
            raise Refusal(error.message, code=MALFORMED) from None
        except DependsOnDialect:
            raise
        except Exception:
            raise Refusal(self._converters.explain(document, kind), code=MALFORMED) from None
        return rule, op


def _with_faults(body: bytes, injection: Injection) -> Response:
    """Return the response with this body, and with the injected faults."""
    extra = {} if injection.retry_after is None else {"retry-after": str(ceil(injection.retry_after))}
    if injection.status is not None:
        page = f"<html><body><h1>{injection.status}</h1>a fault of the emulator's plan</body></html>"
        return Response(injection.status, HTML | extra, page.encode())
    if injection.duplicate_fields:
        body = b"{" + body[1:-1] + b"," + body[1:]
    if injection.invalid_json:
        body = body[:-1] + b",'"
    return Response(200, JSON | extra if extra else JSON, body)


def _app_id(path: str) -> str | None:
    """Return the application id in the path, in either path shape; None if the path names no application."""
    parts = path.split("/")
    names = [part.lower() for part in parts]
    at = names.index("application") + 1 if "application" in names else len(parts)
    return parts[at] if at < len(parts) else None


def _authorization(header: str) -> tuple[str, str]:
    try:
        decoded = binascii.a2b_base64(header.strip().rstrip(";").encode("ascii"), strict_mode=True).decode("ascii")
    except (ValueError, UnicodeError):
        decoded = ""
    app_id, colon, stamp = decoded.rpartition(":")
    if not colon or not app_id:
        raise Refusal("Authorization is not the Base64 of application id, colon and timestamp", kind=AuthenticationError)
    return app_id, stamp


def _moment(stamp: str, zone: tzinfo) -> datetime:
    parts = STAMP.fullmatch(stamp)
    try:
        year, month, day, hour, minute, second = map(int, parts.groups() if parts else ())
        return datetime(year, month, day, hour, minute, second, tzinfo=zone)
    except ValueError:
        raise Refusal(f"the timestamp {stamp!r} is not of the form yyyyMMddHHmmss", kind=AuthenticationError) from None
