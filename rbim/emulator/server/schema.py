"""JSON Schema (2020-12, as in OpenAPI 3.1) of the documents of the control interface, derived from Python types.

A class becomes a component that has its name; no other field is allowed in its document. Fields are described by
``described`` or by a text beside the type. Types are written as :mod:`rbim.emulator.platform.snapshot` writes them: sets
and mappings by identifier as lists, times as ISO 8601.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping, Sequence, Set as AbstractSet
from datetime import date, datetime
from enum import Enum, IntEnum
from functools import partial
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import attrs

from rbim._support.text import one_line
from rbim.emulator.copies.log import DeliveryAttempt
from rbim.emulator.faults.copies import COPY_KINDS, CopyFault, CopyFaults, CopyInjection
from rbim.emulator.faults.plan import within
from rbim.emulator.faults.requests import KINDS, Fault, Faults, Injection
from rbim.emulator.platform.snapshot import VERSION
from rbim.emulator.platform.state import State
from rbim.emulator.request_log import RecordedRequest
from rbim.operations import catalogue
from rbim.operations.base import description_of, fields_of
from rbim.operations.call_tasks import CallPolicy, NoCallPolicy

__all__ = ["Schema", "Schemas", "schema_name"]

Schema = dict[str, Any]

LONGEST = 300  # characters of a description
_SENTENCE = re.compile(r"(?<=[.])\s")
PLAIN: Mapping[Any, Schema] = {
    str: {"type": "string"},
    bytes: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    None: {"type": "null"},
    datetime: {"type": "string", "format": "date-time"},
    date: {"type": "string", "format": "date"},
    Any: {},
    object: {},
    NoCallPolicy: {"type": "string", "description": "A no-call policy as on the wire."},
}
WHOLE = (RecordedRequest, DeliveryAttempt)  # logs: every field is always there, but those that ABSENT names
ABSENT: Mapping[Any, tuple[str, ...]] = {RecordedRequest: ("operation",)}
PLANS: Mapping[Any, tuple[type[Any], Mapping[str, type[Any]]]] = {
    Faults: (Fault, KINDS),
    CopyFaults: (CopyFault, COPY_KINDS),
}


def schema_name(kind: type[Any]) -> str:
    """Return the name of a class among the components."""
    return kind.__name__.lstrip("_")


class Schemas:
    """Makes schemas, and collects those of classes in ``components``, by name."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def of(self, kind: Any) -> Schema:  # a type expression
        """Return the schema of a type. Raises TypeError for a type that has none."""
        origin, arguments = get_origin(kind), get_args(kind)
        if kind in PLANS:
            fault, kinds = PLANS[kind]
            return {"type": "array", "items": self._reference(fault, lambda: self._fault(fault, kinds))}
        if _is_hashable_key(kind) and kind in PLAIN:
            return dict(PLAIN[kind])
        if origin is Annotated:
            return self.of(arguments[0]) | {"description": next(each for each in arguments[1:] if isinstance(each, str))}
        if origin is Literal:
            return {"type": "string", "enum": [*arguments]}
        if origin in (Union, types.UnionType):
            return _any_of([self.of(each) for each in arguments])
        if isinstance(origin, type):
            return self._collection(kind, origin, arguments)
        if isinstance(kind, type):
            return self._class(kind)
        raise TypeError(f"no schema for {kind!r}")

    def _collection(self, kind: Any, origin: type[Any], arguments: tuple[Any, ...]) -> Schema:
        if issubclass(origin, Mapping):
            _, value = arguments
            if value in (None, type(None)):  # an ordered set
                return {"type": "array", "items": self.of(str)}
            by_identifier = isinstance(value, type) and attrs.has(value)
            items = self.of(value)
            return {"type": "array", "items": items} if by_identifier else {"type": "object", "additionalProperties": items}
        if issubclass(origin, (Sequence, AbstractSet)):
            return {"type": "array", "items": self.of(arguments[0])}
        raise TypeError(f"no schema for {kind!r}")

    def _class(self, kind: type[Any]) -> Schema:
        if issubclass(kind, Enum):
            return _enum(kind)
        if kind is CallPolicy:
            entry: dict[str, Schema] = {
                "type": {"const": CallPolicy.type},
                "policy": {"type": "array", "items": {"type": "string"}},
            }
            return self._reference(kind, lambda: _object(entry, [*entry], _about(kind)))
        if kind is State:
            return self._reference(kind, self._state)
        if is_typeddict(kind):
            hints = get_type_hints(kind, include_extras=True)
            needed = [name for name in hints if name in kind.__required_keys__]
            return self._reference(
                kind, lambda: _object({name: self.of(each) for name, each in hints.items()}, needed, _about(kind))
            )
        if attrs.has(kind):
            return self._reference(kind, lambda: self._attrs(kind))
        raise TypeError(f"no schema for {kind!r}")

    def _reference(self, kind: type[Any], make: Callable[[], Schema], suffix: str = "") -> Schema:
        name = schema_name(kind) + suffix
        if name not in self.components:
            self.components[name] = {}  # a class may contain itself
            self.components[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}

    def _attrs(self, kind: type[Any], **own: Schema) -> Schema:
        hints = get_type_hints(kind, include_extras=True)
        fields: dict[str, Schema] = {}
        for each in attrs.fields(kind):
            if not each.init:
                continue
            special = own.get(each.name) or _special(kind, each.name)
            schema = self.of(hints[each.name]) if special is None else special
            text = description_of(each)
            fields[each.name] = schema | _bounds(each, schema) | ({} if text is None else {"description": text})
            if each.name == "operation" and kind is RecordedRequest:
                fields["values"] = self._values()
        needed = [
            each.name
            for each in attrs.fields(kind)
            if each.init and (each.default is attrs.NOTHING or kind in WHOLE) and each.name not in ABSENT.get(kind, ())
        ]
        return _object(fields, needed, _about(kind))

    def _values(self) -> Schema:
        """Return the schema of the values of an operation in the log of requests."""
        kinds = [entry.operation for entry in catalogue.entries()]
        each = [self._reference(kind, partial(self._logged, kind), suffix="Values") for kind in kinds]
        text = "The values of the operation, by the field names of the client; absent if the request could not be read."
        return {"anyOf": each, "description": text}

    def _logged(self, kind: type[Any]) -> Schema:
        fields = {a.name: _logged(a.type) | _described(a) for a in fields_of(kind)}
        return _object(fields, [*fields], _about(kind))

    def _fault(self, fault: type[Any], kinds: Mapping[str, type[Any]]) -> Schema:
        of_kinds = [self._reference(effect, partial(self._effect, name, effect)) for name, effect in kinds.items()]
        mapping = {name: each["$ref"] for name, each in zip(kinds, of_kinds, strict=True)}
        effect = {"oneOf": of_kinds, "discriminator": {"propertyName": "kind", "mapping": mapping}}
        # a plan that was made in Python may have a function, which a document cannot show
        match = {"anyOf": [{"type": "object"}, {"const": "a function"}]}
        return self._attrs(fault, effect=effect, match=match)

    def _effect(self, name: str, effect: type[Any]) -> Schema:
        found = self._attrs(effect)
        kind = {"kind": {"const": name, "description": "The kind of the fault."}}
        return found | {"properties": kind | found["properties"], "required": ["kind", *found["required"]]}

    def _state(self) -> Schema:
        found = self._attrs(State)
        version = {"version": {"const": VERSION, "description": "The version of the format."}}
        return found | {"properties": version | found["properties"], "required": ["version", *found["required"]]}


def _special(kind: type[Any], name: str) -> Schema | None:
    """Return the schema of a field with a choice of texts that its type does not name; None for any other field."""
    if name == "operation":
        return {"type": "string", "enum": [entry.operation.spec.name for entry in catalogue.entries()]}
    if name == "trouble":
        injection, silent = (Injection, "message") if kind is RecordedRequest else (CopyInjection, "patience")
        names = [each.name for each in attrs.fields(injection) if each.name != silent]
        return {"type": "array", "items": {"type": "string", "enum": names}}
    return None


def _is_hashable_key(kind: Any) -> bool:
    try:
        hash(kind)
    except TypeError:
        return False
    return True


def _about(kind: type[Any]) -> str:
    """Return the first sentence of a class's docstring."""
    text = " ".join((kind.__doc__ or "").partition("\n\n")[0].split()).replace("``", "")
    return one_line(_SENTENCE.split(text)[0], LONGEST)


def _object(fields: dict[str, Schema], needed: list[str], about: str) -> Schema:
    return {
        "type": "object",
        "description": about,
        "properties": fields,
        "required": needed,
        "additionalProperties": False,
    }


def _any_of(schemas: list[Schema]) -> Schema:
    """Return a schema for one of several; null beside a plain type is written as a list of types."""
    others = [each for each in schemas if each != {"type": "null"}]
    if len(others) == 1 and len(schemas) > 1:
        (only,) = others
        if isinstance(only.get("type"), str) and "enum" not in only:
            return only | {"type": [only["type"], "null"]}
    return {"anyOf": schemas}


def _enum(kind: type[Enum]) -> Schema:
    values = [member.value for member in kind]
    named = ", ".join(f"{member.value} ({member.name.lower()})" for member in kind if str(member.value) != member.name)
    schema: Schema = {"type": "integer" if issubclass(kind, IntEnum) else "string", "enum": values}
    return schema | ({"description": f"{named}."} if named else {})


def _bounds(attribute: attrs.Attribute[Any], schema: Schema) -> Schema:
    """Return the bounds of a number, or those of each entry of a list."""
    bounds = attribute.validator
    if not isinstance(bounds, within):
        return {}
    limits: Schema = {"minimum": bounds.low} | ({} if bounds.high == float("inf") else {"maximum": bounds.high})
    return {"items": schema["items"] | limits} if schema.get("type") == "array" else limits


def _described(attribute: attrs.Attribute[Any]) -> Schema:
    text = description_of(attribute)
    return {} if text is None else {"description": text}


def _logged(kind: Any) -> Schema:  # a type expression
    """Return the schema of a value of an operation in the log of requests."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        schemas: list[Schema] = []
        for each in map(_logged, arguments):
            if each not in schemas:
                schemas.append(each)
        return schemas[0] if len(schemas) == 1 else _any_of(schemas)
    if isinstance(origin, type) and issubclass(origin, tuple):
        return {"type": "array", "items": _logged(arguments[0])}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _enum(kind)
    return dict(PLAIN[kind]) if kind in (bool, int, type(None)) else {"type": "string"}
