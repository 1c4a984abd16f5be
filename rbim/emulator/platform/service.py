"""From a request to an answer: routing, signature, reading, faults, rules, request log. Nothing here waits."""

from __future__ import annotations

import re
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Any, cast

from attrs import frozen

from rbim._support import json
from rbim.codes import MALFORMED, UNKNOWN_OPERATION
from rbim.dialect import MembersShape
from rbim.emulator.platform.rules import RULES, DependsOnDialect, Refusal, Rule, World
from rbim.errors import InvalidRequest
from rbim.http import Response
from rbim.operations import catalogue
from rbim.operations.groups import GROUP
from rbim.wire.codec import SUCCESS
from rbim.wire.converter import Converters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rbim.emulator.faults import Faults, Injection
    from rbim.emulator.platform.signature import SignatureCheck
    from rbim.emulator.request_log import RequestLog
    from rbim.operations.base import Operation

__all__ = ["Platform", "ServedAnswer"]

JSON = {"content-type": "application/json;charset=utf-8"}
HTML = {"content-type": "text/html;charset=utf-8"}
DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")  # a version, as the description writes it
ROUTES = 1024  # cached paths: clients can make up any number of versions
SHOWN = 200  # characters of a path in a message
SLASHES = re.compile("//+")

_shared = lru_cache(Converters)  # compiling costs milliseconds: emulators of the same dialect share the result


@frozen
class ServedAnswer:
    """A response, and the faults to inject into its delivery."""

    response: Response
    injection: Injection


class Platform:
    """The described behaviour over one world."""

    def __init__(self, world: World, signature_check: SignatureCheck, faults: Faults, requests: RequestLog) -> None:
        self.world = world
        self.faults = faults
        self.requests = requests
        self._signature_check = signature_check
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
        if method != "POST":
            raise Refusal(f"{method} is not described: operations are posted", code=MALFORMED)
        self._signature_check.check(_app_id(path), query, {name.lower(): value for name, value in headers.items()})

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
