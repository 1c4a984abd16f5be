"""Operations to requests, responses to answers. Pure: the clock and the random digits are arguments.

A response is decoded by the first rule that matches:

1. A key of a status code twice in one object, or any key if one contains "fail": a ``ProtocolError`` of unknown outcome.
2. HTTP 200 with the success code: the answer, read tolerantly.
3. Any other readable code: an ``ApiError`` from the dialect's table. A code has six digits, or is in the table.
4. HTTP 429 without a readable code: ``Throttled``.
5. A page, or any other status than 2xx: an ``IntermediaryError``, whose outcome follows from the status.
6. Anything else: a ``ProtocolError`` of unknown outcome.

Where codes and status disagree, the less certain outcome holds: it is unknown with HTTP 5xx, with HTTP 408 (which a proxy
sends whatever the platform does), with a code that leaves it unknown, and with two codes of which one is the success code.
"""

from __future__ import annotations

import re
from datetime import UTC
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

from attrs import NOTHING

from rbim._support import json
from rbim._support.text import excerpt, quoted
from rbim.errors import ApiError, AuthenticationError, InvalidRequest, NotFound, Outcome, ProtocolError, RbimError, Throttled
from rbim.http import filled
from rbim.operations.base import Answer, Operation, Repeat, fields_of, wire_names, wire_of
from rbim.validators import origin
from rbim.wire.intermediaries import page_of

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    from cattrs import Converter

    from rbim.clock import Clock
    from rbim.dialect import Dialect
    from rbim.http import Request, Response

__all__ = ["SUCCESS", "Codec", "wrong_origin"]

MAX_RETRY_AFTER = 86_400.0  # seconds of a ``Retry-After`` that count: a longer one becomes a day
_NUMBER = r"[0-9]+(\.[0-9]+)?"
_BETWEEN = r",(?!\s*[0-9]{1,2}[ -][A-Za-z])"  # a comma, except that of a date: `Fri, 02 Jan 2026`, `Friday, 02-Jan-26`


def _retry_after(text: str | None, clock: Clock) -> float | None:
    """Return a ``Retry-After`` header as seconds from now, at most a day, or None if it is missing or unreadable.

    The header is a number of seconds or an HTTP date, in each of the three forms of RFC 9110. A fraction is rounded up; of
    several values, as of a header that was sent twice, the largest counts.
    """
    if text is None:
        return None
    found = [_seconds(each.strip().rstrip(";"), clock) for each in re.split(_BETWEEN, text)]
    return max((each for each in found if each is not None), default=None)


def _seconds(text: str, clock: Clock) -> float | None:
    if re.fullmatch(_NUMBER, text):
        whole, _, fraction = text.partition(".")
        digits = whole.lstrip("0")
        long = len(digits) > len(str(int(MAX_RETRY_AFTER)))
        return MAX_RETRY_AFTER if long else min(MAX_RETRY_AFTER, int(digits or 0) + float(fraction.strip("0") != ""))
    from email.utils import parsedate_to_datetime

    try:
        date = parsedate_to_datetime(text)
        date = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return min(MAX_RETRY_AFTER, max(0.0, (date - clock.now()).total_seconds()))
    except (ValueError, TypeError, OverflowError):
        return None


DIGITS = 6  # digits of a status code


def _code_of(value: object, known: Container[str]) -> str | None:
    """Return the code in a field of an answer, or None if its value is not one of the platform's, such as an HTTP status.

    A code has six digits, or is a ``known`` one; a code of zeros may have lost some, a number all of them.
    """
    if value == SUCCESS:
        return SUCCESS
    if isinstance(value, int) and not isinstance(value, bool):
        code = f"{value:0{DIGITS}d}"
        return code if code in known or not value or (len(code) == DIGITS and value > 0 and code[0] != "0") else None
    if not isinstance(value, str) or not value:
        return None
    if value.strip("0") == "":
        return value.rjust(DIGITS, "0")
    return value if value in known or (len(value) == DIGITS and value.isascii() and value.isdigit()) else None


MAX_VALUES = 120_000
"""Values that an answer has at most, so that it blocks the event loop for about half a second at most. A search that finds
15,000 groups with all their fields has fewer."""


AN_OBJECT = "an object is needed"


def _document_of(body: bytes) -> tuple[dict[str, Any] | None, bytes, str]:
    """Return the JSON object of an answer, or None; its text in UTF-8; and why there is none."""
    if len(body) > MAX_VALUES and sum(map(body.count, (b",", b"[", b"{"))) > MAX_VALUES:  # each value follows one of them
        return None, body, f"more than {MAX_VALUES:,} values"
    try:
        document, text = json.loads_repaired(body)
    except json.NotJson as error:
        return None, body, str(error) if body.strip() else "an empty answer"
    if not isinstance(document, dict):
        return None, text, f"{AN_OBJECT}, not {type(document).__name__}"
    return cast("dict[str, Any]", document), text, ""


_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")  # only in a key that is written to look like another one


def _deciding_key_twice(document: dict[str, Any], body: bytes, code: str) -> str | None:
    """Return the key that makes an answer ambiguous, because an object has it twice: parsers take the last, or the first.

    It is a key of a status code, or any key if one in the answer contains "fail". An answer is parsed for this a second time
    only if there may be such a key: if it has no more colons than keys, none is there twice.
    """
    colons = body.count(b":")
    if colons == len(document):
        return None
    if (
        body.count(b'ode"') <= 1
        and b"fail" not in body.lower()
        and code in CODE_FIELDS
        and not (b"\\u00" in body and _ESCAPED_LETTER.search(body))
    ):
        return None
    if colons == _count_keys(document):
        return None
    keys, twice = json.keys_of(body)
    any_key = any("fail" in key.casefold() for key in keys)
    return next((key for key in twice if any_key or key == code or key in CODE_FIELDS), None)


def _count_keys(document: dict[str, Any]) -> int:
    count, waiting = 0, [cast("Any", document)]
    for value in waiting:  # which grows meanwhile
        if value.__class__ is dict:
            count += len(value)
            waiting += value.values()
        elif value.__class__ is list:
            waiting += value
    return count


R = TypeVar("R")

SUCCESS = "000000"
HEADERS = MappingProxyType(
    {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json;charset=utf-8",
    }
)
UNSIGNED: Mapping[str, str] = MappingProxyType({})
REMEMBERED = 1024  # bytes of a success body that is remembered, at most
OK = 200
SUCCESSES = range(200, 300)
UNCERTAIN = frozenset({408, *range(500, 600)})  # HTTP statuses that do not show whether the platform has acted
EMOJI = "\U0001f600"  # one code point, two UTF-16 units
CODE_FIELDS = ("statusCode", "code")  # the fields with the status code of the two families of operations
BY_STATUS: dict[int, type[ApiError]] = {  # of a refusal whose code is not in the table
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFound,
    429: Throttled,
}


class _Plan(NamedTuple):
    """The parts that all requests and answers of one operation class share."""

    origin: str
    path: str
    headers: Mapping[str, str]
    write: Callable[[Any], dict[str, Any]]
    read: Callable[[Any, Any], Any]
    answer: type[Any]
    plain: bool
    checks: bool
    own_headers: bool
    completes: bool
    other_code: str | None
    limits: tuple[tuple[str, int], ...]
    user_key: str | None
    in_headers: tuple[tuple[str, str], ...]


class Codec:
    """The codec of one application: encodes operations and decodes their answers."""

    def __init__(  # noqa: PLR0913  # options, each by keyword
        self,
        *,
        app_id: str,
        base_url: str,
        call_base_url: str | None = None,
        dialect: Dialect,
        clock: Clock,
        digits: Callable[[], str] | None = None,
        hooks: Callable[[Converter], None] | None = None,
        user_agent: Callable[[], str] | None = None,
    ) -> None:
        from rbim.wire.converter import converters_for  # imports cattrs: not before there is a client

        self.app_id = app_id
        self.origins = {
            name: _origin(url, name, dialect.api_version) for name, url in _addresses(base_url, call_base_url).items()
        }
        self.dialect = dialect
        self.clock = clock
        self.digits = digits or _random_digits
        self.converters = converters_for(dialect, hooks)
        self._has_hooks = hooks is not None
        self._user_agent = user_agent
        self._known_codes = frozenset(dialect.codes).union(*dialect.already_so.values())
        self._plans: dict[type[Any], _Plan] = {}
        # by operation class: the last body with only a success code and message, and its document without the code
        self._successes: dict[type[Any], tuple[bytes, dict[str, Any]]] = {}

    def encode(self, op: Operation[Any], user_name: str | None = None) -> Request:
        """Return the unsigned request; ``user_name`` is the acting account if the operation has none.

        Raises InvalidRequest if the operation breaks a rule that depends on the dialect or the clock, TypeError for a value
        that is not an operation.
        """
        plan = self._plans.get(type(op)) or self._plan(type(op))
        if plan.checks:
            op.check(self.dialect, self.clock)
        for name, limit in plan.limits:  # `op.check_lengths`, in less time
            text: str | None = getattr(op, name)
            if text is not None and 2 * len(text) > limit:
                op.check_lengths(self.dialect)
        document = plan.write(op)
        if plan.user_key is not None and user_name is not None:
            document.setdefault(plan.user_key, user_name)
        try:
            body = json.dumps(document)
        except (ValueError, TypeError, RecursionError):
            raise _unwritable(type(op), document) from None
        headers = plan.headers
        if plan.in_headers or plan.own_headers:
            fields = {header: str(value) for name, header in plan.in_headers if (value := getattr(op, name)) is not None}
            headers = {**headers, **fields, **op.headers(self.digits)}
        return filled("POST", plan.origin, plan.path, UNSIGNED, headers, body, repeatable=op.repeat is not Repeat.NEVER)

    def prepare(self, kind: type[Operation[Any]]) -> None:
        """Compile the conversions of an operation class; otherwise its first call does so."""
        if kind not in self._plans:
            self._plan(kind)

    def _plan(self, kind: type[Operation[Any]]) -> _Plan:
        if getattr(kind, "spec", None) is None:
            raise TypeError(
                f"an operation is needed, such as QueryGroupDetail(group_id='g1'), not a value of {kind.__name__}"
            )
        path = kind.path(self.dialect)
        parts = {"{app_id}": self.app_id, "{api_version}": self.dialect.api_version}
        for name, value in parts.items():
            path = path.replace(name, quote(value, safe=""))
        base: type[Operation[Any]] = Operation
        plan = _Plan(
            origin=self.origins[kind.endpoint.origin],
            path=path,
            headers=HEADERS if self._user_agent is None else MappingProxyType({**HEADERS, "User-Agent": self._user_agent()}),
            write=cast("Callable[[Any], dict[str, Any]]", self.converters.fast.get_unstructure_hook(kind)),
            read=self.converters.fast.get_structure_hook(kind.spec.answer),
            answer=kind.spec.answer,
            plain=not self._has_hooks and _has_only_defaults(kind.spec.answer),
            checks=kind.check is not base.check,
            own_headers=kind.headers is not base.headers,
            completes=kind.complete is not base.complete,
            other_code=_other_code_field(kind),
            # in code points a text has been checked when the operation was made
            limits=kind.spec.limits if self.dialect.character.length(EMOJI) > 1 else (),
            user_key=wire_names(kind).get("user_name"),
            in_headers=tuple((a.name, header) for a in fields_of(kind) if (header := wire_of(a).header)),
        )
        self._plans[kind] = plan
        return plan

    def decode(self, op: Operation[R], response: Response) -> R:
        """Return the answer. Raises ApiError or ProtocolError."""
        plan = self._plans.get(type(op)) or self._plan(type(op))
        known = self._successes.get(type(op))
        if known is not None and known[0] == response.body and response.status == OK:
            fields, plain = known[1].copy(), plan.plain
        else:
            fields, plain = self._fields(op, plan, response), False
        try:
            # the fields of a known success are all unknown ones: mostly it can be made without the converter
            answer: R = plan.answer(extra=fields) if plain else plan.read(fields, plan.answer)
            return op.complete(answer, app_id=self.app_id, confirmed=False) if plan.completes else answer
        except Exception as error:  # hooks may raise any exception: the answer cannot be read
            payload = op.endpoint.payload
            reason = self.converters.explain(fields, plan.answer, "$" if payload is None else f"$.{payload}")
            raise ProtocolError(reason, status=response.status, body=response.body) from error

    def _fields(self, op: Operation[Any], plan: _Plan, response: Response) -> dict[str, Any]:
        """Return the fields of a success, without its code. Raises ApiError or ProtocolError."""
        document, text, reason = _document_of(response.body)
        if document is not None and (key := _deciding_key_twice(document, text, op.endpoint.code)):
            wait = _retry_after(response.headers.get("retry-after"), self.clock)
            reason = f"the key {quoted(key)} twice in an object"
            raise ProtocolError(reason, status=response.status, body=response.body, retry_after=wait)
        known_codes = self._known_codes
        code = None if document is None else _code_of(document.get(op.endpoint.code), known_codes)
        other = None if document is None or not plan.other_code else _code_of(document.get(plan.other_code), known_codes)
        if other is not None and other != SUCCESS and other not in self.dialect.codes:
            other = None  # another field of that name
        if code != SUCCESS or response.status != OK or reason or (other is not None and other != SUCCESS):
            raise self._refusal(op, response, document, code, other=other, reason=reason)
        fields = cast("dict[str, Any]", document)
        del fields[op.endpoint.code]
        message = op.endpoint.message
        if fields.keys() <= {message} and isinstance(fields.get(message, ""), str) and len(response.body) <= REMEMBERED:
            self._successes[type(op)] = bytes(response.body), fields.copy()
        payload = op.endpoint.payload
        return _unfolded(fields, payload) if payload is not None and isinstance(fields.get(payload), dict) else fields

    def confirmed(self, op: Operation[R], error: RbimError) -> R | None:
        """Return a success answer if the error's code means "already in the wanted state", otherwise None.

        Call it only after an attempt of unknown outcome.
        """
        if not isinstance(error, ApiError) or error.code not in self.dialect.already_so.get(op.spec.name, ()):
            return None
        try:
            answer = self.converters.fast.structure({}, op.spec.answer)
            return op.complete(answer, app_id=self.app_id, confirmed=True)
        except Exception:  # an answer with required fields cannot be made without data
            return None

    def _refusal(  # noqa: PLR0913  # the facts of an answer
        self,
        op: Operation[Any],
        response: Response,
        document: dict[str, Any] | None,
        code: str | None,
        *,
        other: str | None,
        reason: str,
    ) -> RbimError:
        """Return the error for an answer that is no success; ``other``: the code in the other family's field."""
        status = response.status
        wait = _retry_after(response.headers.get("retry-after"), self.clock)
        outcome = Outcome.UNKNOWN if status in UNCERTAIN or SUCCESS in {code, other} else Outcome.REFUSED
        code = other if code is None and other != SUCCESS else code
        throttled = status == TOO_MANY and outcome is Outcome.REFUSED
        if (
            code is None
            and other is None
            and not throttled
            and _is_page(response, reason, (document or {}).get(op.endpoint.code))
        ):
            plan = self._plans[type(op)]
            return page_of(response, op.endpoint.origin, f"{plan.origin}{plan.path}", plan.path, retry_after=wait)
        if code == SUCCESS or (code is None and not throttled):
            if not reason and code != SUCCESS:
                reason = f"required field missing @ $.{op.endpoint.code}"
            elif not reason:
                reason = "the success code, but only HTTP 200 is a success"
                reason = f"the success code, and the code {other}" if status == OK else reason
            return ProtocolError(reason, status=status, body=response.body, retry_after=wait)
        kind = ApiError
        for each in (code, other):
            if each is not None and each != SUCCESS:
                by_code = self.dialect.error_of(each)
                outcome |= by_code.outcome
                kind = by_code if kind is ApiError else kind
        if kind is ApiError or status == TOO_MANY:
            kind = BY_STATUS.get(status, kind)
        message = (document or {}).get(op.endpoint.message)
        if not isinstance(message, str):
            message = "" if code is not None or not response.body else excerpt(response.body)
        return kind(message, code=code or "", status=status, body=response.body, retry_after=wait, outcome=outcome)


def _is_page(response: Response, reason: str, value: object) -> bool:
    """Return whether an answer without a code is not the platform's; ``value`` is in the field of the code."""
    if response.status not in SUCCESSES:
        return True
    if reason:
        return not reason.startswith(AN_OBJECT) and response.body.strip()[:1] not in {b"", b"{", b"["}
    return bool(value) and isinstance(value, (str, int)) and value is not True  # a gateway's own code


TOO_MANY = 429
BESIDE = "$"  # in `extra`: the fields beside the payload whose keys the payload has as well


def _unfolded(document: dict[str, Any], payload: str) -> dict[str, Any]:
    """Return the fields of the payload and those beside it; of two with the same key, the one beside is below ``$``."""
    inner: dict[str, Any] = document.pop(payload)
    twice = {key: document[key] for key in document.keys() & inner.keys() if document[key] != inner[key]}
    return document | inner | ({BESIDE: twice} if twice else {})


def _has_only_defaults(answer: type[Any]) -> bool:
    """Whether an answer of this class without any field but unknown ones is made of defaults and ``extra``."""
    if not issubclass(answer, Answer):
        return False
    fields = fields_of(answer)
    return any(each.name == "extra" for each in fields) and all(each.default is not NOTHING for each in fields)


def _other_code_field(kind: type[Operation[Any]]) -> str | None:
    """Return the field with the code of the other family of operations, unless the answer has a field of that name."""
    if kind.endpoint.code not in CODE_FIELDS:
        return None
    other = CODE_FIELDS[not CODE_FIELDS.index(kind.endpoint.code)]
    answer = kind.spec.answer
    return other if issubclass(answer, Answer) and other not in wire_names(answer).values() else None


def wrong_origin(base_url: object, call_base_url: object, version: str) -> InvalidRequest | None:
    """Return the error of the first address that is not an origin, or None; no traceback of it shows the address."""
    for name, url in _addresses(base_url, call_base_url).items():
        try:
            _origin(url, name, version)
        except InvalidRequest as error:
            message = error.message
        else:
            continue
        return InvalidRequest(message, field=name)  # a new one, without the frames of the first
    return None


def _addresses(base_url: object, call_base_url: object) -> dict[str, object]:
    return {
        "base_url": base_url,
        "call_base_url": base_url if call_base_url is None or call_base_url == "" else call_base_url,
    }


def _origin(url: object, name: str, version: str) -> str:
    try:
        return origin(url, version)
    except ValueError as error:
        raise InvalidRequest(f"{name}: {error}", field=name) from None


def _unwritable(kind: type[Operation[Any]], document: Mapping[str, Any]) -> InvalidRequest:
    """Return the error that names the first field that cannot be written as JSON in UTF-8."""
    names = {key: name for name, key in wire_names(kind).items()}
    for key, value in document.items():
        try:
            json.dumps(value)
        except UnicodeEncodeError:
            cause = "it has a character that UTF-8 cannot encode (a lone surrogate)"
        except (ValueError, TypeError, RecursionError) as error:
            cause = f"it cannot be written as JSON ({error}); use wire(write=...) to convert it"
        else:
            continue
        return InvalidRequest(f"{names[key]}: {cause}", field=names[key])
    return InvalidRequest("the request cannot be written as JSON")


def _random_digits() -> str:
    from random import SystemRandom

    return str(SystemRandom().randrange(10**5, 10**6))
