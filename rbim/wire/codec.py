"""Operations to requests, responses to answers. Pure: the clock and the random digits are arguments.

A response is decoded by the first rule that matches:

1. HTTP 200 with the success code: the answer, read tolerantly.
2. Any other readable code: an ``ApiError`` from the dialect's table; with HTTP 5xx its outcome is unknown.
3. HTTP 4xx without a readable code: an ``ApiError`` by the status alone.
4. Anything else: a ``ProtocolError`` of unknown outcome.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast
from urllib.parse import quote

from attrs import NOTHING

from rbim._support import json
from rbim._support.text import excerpt
from rbim.errors import ApiError, AuthenticationError, InvalidRequest, NotFound, Outcome, ProtocolError, RbimError, Throttled
from rbim.http import filled
from rbim.operations.base import Answer, Operation, Repeat, fields_of, wire_names, wire_of
from rbim.validators import origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cattrs import Converter

    from rbim.clock import Clock
    from rbim.dialect import Dialect
    from rbim.http import Request, Response

__all__ = ["SUCCESS", "Codec", "retry_after"]


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
CLIENT_ERRORS = range(400, 500)
SERVER_ERRORS = range(500, 600)
BY_STATUS: dict[int, type[ApiError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFound,
    429: Throttled,
}


class _Plan(NamedTuple):
    """The parts that all requests of one operation class share."""

    origin: str
    path: str
    headers: Mapping[str, str]
    write: Callable[[Any], dict[str, Any]]
    read: Callable[[Any, Any], Any]
    answer: type[Any]
    plain: bool
    completes: bool
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
    ) -> None:
        from rbim.wire.converter import converters_for  # imports cattrs: not before there is a client

        call_origin = base_url if call_base_url is None or call_base_url == "" else call_base_url
        self.app_id = app_id
        self.origins = {
            "base_url": _origin(base_url, "base_url", dialect.version),
            "call_base_url": _origin(call_origin, "call_base_url", dialect.version),
        }
        self.dialect = dialect
        self.clock = clock
        self.digits = digits or _random_digits
        self.converters = converters_for(dialect, hooks)
        self._has_hooks = hooks is not None
        self._plans: dict[type[Any], _Plan] = {}
        # by operation class: the last body with only a success code and message, its document without the code, the plan
        self._successes: dict[type[Any], tuple[bytes, dict[str, Any], _Plan]] = {}

    def encode(self, op: Operation[Any], user_name: str | None = None) -> Request:
        """Return the unsigned request; ``user_name`` is the acting account if the operation has none.

        Raises InvalidRequest if the operation breaks a rule that depends on the dialect or the clock, TypeError for a value
        that is not an operation.
        """
        plan = self._plan_of(op)
        op.check(self.dialect, self.clock)
        document = plan.write(op)
        if plan.user_key is not None and user_name is not None:
            document.setdefault(plan.user_key, user_name)
        try:
            body = json.dumps(document)
        except (ValueError, TypeError, RecursionError):
            raise _unwritable(type(op), document) from None
        headers, own = plan.headers, op.headers(self.digits)
        if own or plan.in_headers:
            fields = {header: str(value) for name, header in plan.in_headers if (value := getattr(op, name)) is not None}
            headers = {**headers, **fields, **own}
        return filled("POST", plan.origin, plan.path, UNSIGNED, headers, body, repeatable=op.repeat != Repeat.NEVER)

    def _plan_of(self, op: Operation[Any]) -> _Plan:
        return self._plans.get(type(op)) or self._plan(type(op))

    def _plan(self, kind: type[Operation[Any]]) -> _Plan:
        if getattr(kind, "spec", None) is None:
            raise TypeError(
                f"an operation is needed, such as QueryGroupDetail(group_id='g1'), not a value of {kind.__name__}"
            )
        path = kind.path(self.dialect)
        parts = {"{app_id}": self.app_id, "{version}": self.dialect.version}
        for name, value in parts.items():
            path = path.replace(name, quote(value, safe=""))
        plan = _Plan(
            origin=self.origins[kind.endpoint.origin],
            path=path,
            headers=HEADERS,
            write=cast("Callable[[Any], dict[str, Any]]", self.converters.fast.get_unstructure_hook(kind)),
            read=self.converters.fast.get_structure_hook(kind.spec.answer),
            answer=kind.spec.answer,
            plain=not self._has_hooks and _has_only_defaults(kind.spec.answer),
            completes=kind.complete is not cast("type[Operation[Any]]", Operation).complete,
            user_key=wire_names(kind).get("user_name"),
            in_headers=tuple((a.name, header) for a in fields_of(kind) if (header := wire_of(a).header)),
        )
        self._plans[kind] = plan
        return plan

    def decode(self, op: Operation[R], response: Response) -> R:
        """Return the answer. Raises ApiError or ProtocolError."""
        known = self._successes.get(type(op))
        if known is not None and known[0] == response.body and response.status == OK:
            return self._answer(op, known[2], known[1].copy(), response, plain=known[2].plain)
        document, reason = _document(response.body)
        code = self.code_in(op, document)
        if code != SUCCESS or response.status != OK:
            raise self._refusal(op, response, document, code, reason)
        fields = cast("dict[str, Any]", document)
        del fields[op.endpoint.code]
        message, plan = op.endpoint.message, self._plan_of(op)
        if fields.keys() <= {message} and isinstance(fields.get(message, ""), str) and len(response.body) <= REMEMBERED:
            self._successes[type(op)] = bytes(response.body), fields.copy(), plan
        payload = op.endpoint.payload
        if payload is not None and isinstance(fields.get(payload), dict):
            fields = _unfolded(fields, payload)
        return self._answer(op, plan, fields, response)

    def code_in(self, op: Operation[Any], document: dict[str, Any] | None) -> str | None:
        """Return the status code in an answer's document, or None."""
        code = None if document is None else document.get(op.endpoint.code)
        if isinstance(code, int) and not isinstance(code, bool):
            return f"{code:06d}"  # a code sent as a number has lost its leading zeros
        return code if isinstance(code, str) and code else None

    def _answer(
        self, op: Operation[R], plan: _Plan, fields: dict[str, Any], response: Response, *, plain: bool = False
    ) -> R:
        """Return the answer; ``plain``: its fields are all unknown ones, so it can be made without the converter."""
        try:
            answer: R = plan.answer(extra=fields) if plain else plan.read(fields, plan.answer)
            return op.complete(answer, app_id=self.app_id, confirmed=False) if plan.completes else answer
        except Exception as error:  # hooks may raise any exception: the answer cannot be read
            payload = op.endpoint.payload
            reason = self.converters.explain(fields, plan.answer, "$" if payload is None else f"$.{payload}")
            raise ProtocolError(reason, status=response.status, body=response.body) from error

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

    def _refusal(
        self,
        op: Operation[Any],
        response: Response,
        document: dict[str, Any] | None,
        code: str | None,
        reason: str,
    ) -> RbimError:
        status = response.status
        wait = retry_after(response.headers.get("retry-after"), self.clock)
        has_error_code = code is not None and code != SUCCESS
        by_status = BY_STATUS.get(status, ApiError) if status in CLIENT_ERRORS and code != SUCCESS else None
        if not has_error_code and by_status is None:
            reason = reason or f"required field missing @ $.{op.endpoint.code}"
            if code == SUCCESS:
                reason = "the success code, but only HTTP 200 is a success"
            return ProtocolError(reason, status=status, body=response.body, retry_after=wait)
        kind = self.dialect.error_of(code) if code is not None and has_error_code else ApiError
        if kind is ApiError or status == TOO_MANY:
            kind = by_status or kind
        message = (document or {}).get(op.endpoint.message)
        if not isinstance(message, str):
            message = "" if has_error_code or not response.body else excerpt(response.body)
        return kind(
            message,
            code=code or "",
            status=status,
            body=response.body,
            retry_after=wait,
            outcome=Outcome.UNKNOWN if status in SERVER_ERRORS else None,
        )


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


def _document(body: bytes) -> tuple[dict[str, Any] | None, str]:
    """Return the JSON object of an answer, or None and the reason."""
    try:
        document = json.loads(body)
    except json.NotJson as error:
        return None, str(error) if body.strip() else "an empty answer"
    if not isinstance(document, dict):
        return None, f"an object is needed, not {type(document).__name__}"
    return cast("dict[str, Any]", document), ""


_SECONDS = r"\s*[0-9]{1,9}\s*"


def retry_after(text: str | None, clock: Clock) -> float | None:
    """Return a ``Retry-After`` header as seconds from now, or None if it is missing or unreadable.

    The header is a number of seconds or an HTTP date.
    """
    if text is None:
        return None
    if re.fullmatch(_SECONDS, text):
        return float(text)
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, (parsedate_to_datetime(text) - clock.now()).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


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
