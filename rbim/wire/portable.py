"""Operations, answers and errors as JSON documents and back: for queues, logs, and processes on other machines.

A document is a plain ``dict`` of JSON values, which any JSON library writes and reads. It names what it holds by the
operation's name in the catalogue and by Python field names, never by modules, so that reading one runs no code that the
document chooses. It does not depend on a dialect.

=================================================  =============================================================
document                                           holds
=================================================  =============================================================
``{"rbim": 1, "operation": ..., "values": {}}``    an operation: all its fields
``{"rbim": 1, "operation": ..., "answer": {}}``    an answer to the operation: all its fields
``{"rbim": 1, "error": ..., "message": ...}``      an error: class, outcome, attempts, code, and what else it carries
=================================================  =============================================================

Values are written by their declared types:

- an enum as its value; a ``date``, ``time`` or ``datetime`` as ISO 8601; a datetime in a named zone has the name behind it
  (RFC 9557): ``2026-03-04T05:06:07+08:00[Asia/Shanghai]``;
- tuples and sets as arrays; bytes as base64;
- where a field takes one of several attrs classes, the object names its class under ``class``.

No document holds credentials: operations and answers have none, and the client removes them from errors. Of an error the
cause (``__cause__``) is left out, and its ``body`` is cut to 4,096 bytes.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Set as AbstractSet
from datetime import date, datetime, time
from enum import Enum
from functools import cache, partial
from math import isfinite
from types import UnionType
from typing import TYPE_CHECKING, Any, TypeVar, Union, cast, get_args, get_origin
from zoneinfo import ZoneInfo

import attrs
from cattrs import Converter

from rbim import errors
from rbim._support.text import quoted
from rbim.errors import (
    AnswerTooLarge,
    ApiError,
    Attempt,
    CallbackRejected,
    InvalidRequest,
    Outcome,
    ProtocolError,
    RbimError,
)
from rbim.operations import catalogue
from rbim.operations.base import Operation, fields_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "VERSION",
    "answer_from_json",
    "answer_to_json",
    "error_from_json",
    "error_to_json",
    "operation_from_json",
    "operation_to_json",
]

R = TypeVar("R")

VERSION = 1
"""The version of the documents; others are refused."""

BODY = 4096
"""Bytes of an error's ``body`` that are kept."""

CLASS = "class"  # a keyword, so no field has this name
NONE_TYPE = type(None)

FIELDS: dict[type[RbimError], tuple[str, ...]] = {
    InvalidRequest: ("field", "limit", "length"),
    AnswerTooLarge: ("limit",),
    ProtocolError: ("reason", "status", "body", "retry_after"),
    ApiError: ("code", "platform_message", "status", "body", "retry_after"),
    CallbackRejected: ("reason", "body"),
}
"""What an error has beyond message, operation, client, outcome and attempts, by class."""

KINDS = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, RbimError)}


# ------------------------------------------------------------------------------ operations and answers


def operation_to_json(operation: Operation[Any]) -> dict[str, Any]:
    """Return the document of an operation.

    Raises InvalidRequest for an operation that is in no namespace: a reader could not find it by its name.
    """
    kind = type(operation)
    name = _name_of(kind)
    return {"rbim": VERSION, "operation": name, "values": _converter().unstructure(operation, kind)}


def operation_from_json(document: object) -> Operation[Any]:
    """Return the operation of a document.

    Raises InvalidRequest for another version, an operation that is not in the catalogue (the module that declares it must be
    imported), unknown fields, and values that the operation refuses.
    """
    fields = _document(document)
    kind = _kind_of(fields)
    values = fields.get("values")
    if not isinstance(values, dict):
        raise InvalidRequest("values: an object with the fields of the operation is needed", field="values")
    given = cast("dict[str, Any]", values)
    if unknown := given.keys() - _names_of(kind.spec.name):
        raise InvalidRequest(
            f"values: {kind.spec.name} has no field {quoted(min(unknown))} here: update rbim", field="values"
        )
    made: Operation[Any] = _structured(given, kind, "values")
    return made


def answer_to_json(operation: Operation[R] | type[Operation[R]], answer: R) -> dict[str, Any]:
    """Return the document of an answer to an operation. Raises InvalidRequest like :func:`operation_to_json`."""
    kind: type[Operation[Any]] = operation if isinstance(operation, type) else type(operation)
    name = _name_of(kind)
    return {"rbim": VERSION, "operation": name, "answer": _converter().unstructure(answer, kind.spec.answer)}


def answer_from_json(document: object) -> Any:  # the answer of the operation that the document names
    """Return the answer of a document. Unknown fields are ignored.

    Raises InvalidRequest like :func:`operation_from_json`.
    """
    fields = _document(document)
    return _structured(fields.get("answer"), _kind_of(fields).spec.answer, "answer")


@cache
def _names_of(name: str) -> frozenset[str]:
    return frozenset(each.name for each in fields_of(_known(name)))


def _name_of(kind: type[Operation[Any]]) -> str:
    spec = getattr(kind, "spec", None)
    name = kind.__name__ if spec is None else str(spec.name)
    if _declared(name) is not kind:
        raise InvalidRequest(
            f"operation: {name} is in no namespace: declare a Method of it in a subclass of Namespace", field="operation"
        )
    return name


def _kind_of(fields: Mapping[str, Any]) -> type[Operation[Any]]:
    name = fields.get("operation")
    kind = _declared(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidRequest(
            f"operation: unknown operation {quoted(name)}: import the module that declares it, or update rbim",
            field="operation",
        )
    return kind


@cache
def _known(name: str) -> type[Operation[Any]]:
    for entry in catalogue.entries():
        if entry.operation.spec.name == name:
            return entry.operation
    raise LookupError(name)  # not remembered: it may be declared later


def _declared(name: str) -> type[Operation[Any]] | None:
    try:
        return _known(name)
    except LookupError:
        return None


def _document(document: object) -> dict[str, Any]:
    """Return the fields of a document of this version."""
    if not isinstance(document, dict):
        raise InvalidRequest(f"document: an object is needed, not {type(document).__name__}", field="document")
    fields = cast("dict[str, Any]", document)
    version = fields.get("rbim")
    if version is True or version != VERSION:  # True equals 1
        raise InvalidRequest(
            f"document: version {quoted(version)} is unknown, this rbim reads version {VERSION}: use the same rbim on both"
            " sides",
            field="rbim",
        )
    return fields


def _structured(value: object, kind: type[Any], field: str) -> Any:  # a value of the class
    try:
        return _converter().structure(value, kind)
    except InvalidRequest:
        raise
    except Exception as error:  # hooks raise whatever their conversion raises
        cause = f"{type(error).__name__}: {error}"
        raise InvalidRequest(f"{field}: cannot be read as {kind.__name__}: {cause}", field=field) from error


# ------------------------------------------------------------------------------ errors


def error_to_json(error: RbimError) -> dict[str, Any]:
    """Return the document of an error. A class that is not rbim's own is written as its nearest base that is."""
    kind = _own_class(error)
    more: dict[str, Any] = {}
    for name in _fields_of(kind):
        value = getattr(error, name)
        if name == "body":
            value = b64encode(value[:BODY]).decode()
        elif isinstance(value, float) and not isfinite(value):
            value = None
        more[name] = value
    return {
        "rbim": VERSION,
        "error": kind.__name__,
        "operation": error.operation,
        "client": error.client,
        "message": error.message,
        "outcome": str(error.outcome),
        "attempts": [attrs.asdict(each) | {"outcome": each.outcome and str(each.outcome)} for each in error.attempts],
        "notes": list(getattr(error, "__notes__", ())),
        "fields": more,
    }


def error_from_json(document: object) -> RbimError:
    """Return the error of a document. Raises InvalidRequest for another version, and for a class that is not rbim's."""
    fields = _document(document)
    kind = KINDS.get(str(fields.get("error")))
    if kind is None:
        raise InvalidRequest(f"error: unknown error {quoted(fields.get('error'))}: update rbim", field="error")
    try:
        message = str(fields["message"])
        error = kind.__new__(kind, message)
        error.args = (message,)
        error.message = message
        error.operation, error.client = fields["operation"], str(fields["client"])
        error.outcome = Outcome(fields["outcome"])
        error.attempts = tuple(_attempt(each) for each in fields["attempts"])
        more: dict[str, Any] = fields["fields"]
        for name in _fields_of(kind):
            setattr(error, name, b64decode(more[name], validate=True) if name == "body" else more[name])
        for note in fields["notes"]:
            error.add_note(note)
    except (LookupError, TypeError, ValueError, AttributeError) as cause:
        text = f"error: cannot be read as {kind.__name__}: {type(cause).__name__}: {cause}"
        raise InvalidRequest(text, field="error") from cause
    return error


def _own_class(error: RbimError) -> type[RbimError]:
    return next(kind for kind in type(error).__mro__ if KINDS.get(kind.__name__) is kind)


def _fields_of(kind: type[RbimError]) -> tuple[str, ...]:
    return next((names for base, names in FIELDS.items() if issubclass(kind, base)), ())


def _attempt(values: dict[str, Any]) -> Attempt:
    known = dict(values)
    outcome = known.pop("outcome")
    return Attempt(**known, outcome=None if outcome is None else Outcome(outcome))


# ------------------------------------------------------------------------------ values


@cache
def _converter() -> Converter:
    converter = Converter(unstruct_collection_overrides={AbstractSet: list}, detailed_validation=False)
    for plain in (str, int, float, bool):
        converter.register_structure_hook(plain, _exactly)
    converter.register_unstructure_hook(bytes, lambda value: b64encode(value).decode())
    converter.register_structure_hook(bytes, lambda value, _: b64decode(value, validate=True))
    converter.register_unstructure_hook(date, date.isoformat)
    converter.register_structure_hook(date, lambda value, _: date.fromisoformat(value))
    converter.register_unstructure_hook(time, time.isoformat)
    converter.register_structure_hook(time, lambda value, _: time.fromisoformat(value))
    converter.register_unstructure_hook(datetime, _write_moment)
    converter.register_structure_hook(datetime, lambda value, _: _read_moment(value))
    converter.register_structure_hook_factory(_is_choice, partial(_choice_reader, converter))
    converter.register_unstructure_hook_factory(_has_classes, partial(_class_writer, converter))
    return converter


def _exactly(value: Any, kind: Any) -> Any:  # JSON, and a type
    """Return a value of the type; others are not converted, but a whole number to a float. A boolean is no number."""
    if issubclass(kind, Enum):  # cattrs takes a hook for its subclasses, too
        return kind(value)
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)
    raise TypeError(f"{kind.__name__} is needed, not {type(value).__name__}")


def _write_moment(moment: datetime) -> str:
    zone = f"[{moment.tzinfo.key}]" if isinstance(moment.tzinfo, ZoneInfo) else ""
    return f"{moment.isoformat()}{zone}"


def _read_moment(text: str) -> datetime:
    """Return the moment; where the zone is not known here, with the offset alone."""
    found = re.fullmatch(r"([^\[\]]+)(?:\[([^\[\]]+)\])?", text)
    if found is None:
        raise ValueError(text)
    moment = datetime.fromisoformat(found[1])
    if found[2] is None:
        return moment
    try:
        return moment.astimezone(ZoneInfo(found[2]))
    except (OSError, ValueError, LookupError):
        return moment


def _arms(kind: Any) -> tuple[Any, ...]:  # a type expression
    """Return the alternatives of a union without None; a single type has none."""
    if get_origin(kind) not in {Union, UnionType}:
        return ()
    return tuple(each for each in get_args(kind) if each is not NONE_TYPE)


def _is_choice(kind: Any) -> bool:  # a type expression
    return len(_arms(kind)) > 1


def _element(arm: Any) -> Any:  # a type expression
    """Return the type of a tuple's elements, ``tuple[X, ...]``; of another type that itself."""
    return get_args(arm)[0] if get_origin(arm) is tuple else arm


def _has_classes(kind: Any) -> bool:  # a type expression
    """Whether a type takes one of several attrs classes, or tuples of them."""
    return _is_choice(kind) and all(attrs.has(_element(arm)) for arm in _arms(kind))


def _class_writer(converter: Converter, kind: Any) -> Callable[[Any], Any]:
    """Return the function that writes a value of one of several attrs classes, with the name of its class."""
    in_tuples = get_origin(_arms(kind)[0]) is tuple

    def write(value: Any) -> Any:
        return {CLASS: type(value).__name__, **converter.unstructure(value)}

    def write_any(value: Any) -> Any:
        return None if value is None else [write(each) for each in value] if in_tuples else write(value)

    return write_any


def _choice_reader(converter: Converter, kind: Any) -> Callable[[Any, Any], Any]:
    """Return the function that reads a value of one of several types."""
    arms, optional = _arms(kind), NONE_TYPE in get_args(kind)
    if _has_classes(kind):
        read = _class_reader(converter, arms)
    else:
        # an enum before the text that stands for what is in no enum
        ordered = sorted(arms, key=lambda arm: not (isinstance(arm, type) and issubclass(arm, Enum)))
        read = partial(_read_first, converter, ordered)

    def read_or_none(value: Any, _: Any) -> Any:
        return None if value is None and optional else read(value)

    return read_or_none


def _class_reader(converter: Converter, arms: tuple[Any, ...]) -> Callable[[Any], Any]:
    """Return the function that reads a value of one of several attrs classes, or a tuple of such values."""
    classes = {_element(arm).__name__: _element(arm) for arm in arms}

    def read(value: Any) -> Any:
        return converter.structure({name: each for name, each in value.items() if name != CLASS}, classes[value[CLASS]])

    def read_several(value: Any) -> Any:
        return tuple(read(each) for each in value)

    return read_several if get_origin(arms[0]) is tuple else read


def _read_first(converter: Converter, kinds: list[Any], value: Any) -> Any:
    """Return the value as the first of the types that takes it."""
    for kind in kinds[:-1]:
        try:
            return converter.structure(value, kind)
        except (TypeError, ValueError):
            continue
    return converter.structure(value, kinds[-1])
