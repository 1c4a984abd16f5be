"""Choices: frozen classes whose fields each settle a gap of the interface description, and the forms of their values.

A field has three forms. Its *value* is that of Python. Its *document* is what TOML and JSON write: plain values, lists, and
for a mapping only the entries that differ from the default. Its *text* is what a flag or a variable writes: a list may be
entries with commas between them, and a list or a mapping may be JSON. No error shows a value that may be a secret.
"""

from __future__ import annotations

import collections.abc
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, timedelta, timezone, tzinfo
from inspect import cleandoc
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Self, TypeVar, cast, get_args, get_origin

import attrs
from attrs import frozen

from rbim._support import json
from rbim._support.text import quoted, quoted_key
from rbim.codes import Code, Grade
from rbim.errors import ApiError, InvalidRequest

__all__ = ["Choices", "Gap", "choice", "differences", "document_of", "read_value", "spelled"]

T = TypeVar("T")

NONE = "none"  # the document of None; as an entry of a mapping it removes the default's entry
MAX_DIGITS = 30  # characters of a number in a text
MAX_NUMBER = 2**31 - 1  # of a number
OFFSET = r"(?:UTC)?([+-])([0-9]{2}):?([0-9]{2})"
NEEDED: dict[Any, str] = {
    bool: "true or false",
    int: "a whole number from 1 to 2,147,483,647",
    float: "a number above 0, up to 2,147,483,647,",
    str: "a text that is not empty",
    tzinfo: "a time zone such as Asia/Shanghai or +08:00",
    Code: "the name of an error such as Throttled, or a table with the keys error, grade, note and before_effect,",
}


class Gap(NamedTuple):
    """One gap of the interface description, with the default that settles it.

    ``only`` is the only user of a choice that a client does not notice: "receiver", "emulator and receiver", "emulator".
    """

    name: str
    default: object
    settles: str
    section: str
    grade: Grade
    only: str


def choice(settles: str, section: str, grade: Grade = Grade.GUESS, *, default: T, only: str = "") -> T:
    """Return an attrs field with the gap that it settles."""
    metadata = {"settles": settles, "section": section, "grade": grade, "only": only}
    return attrs.field(default=default, hash=not isinstance(default, Mapping), metadata=metadata)


@frozen(kw_only=True)
class Choices:
    """Base class. A field takes a value, a document or a text; a wrong one raises InvalidRequest."""

    @classmethod
    def __attrs_init_subclass__(cls) -> None:
        attrs.resolve_types(cls, localns=dict(vars(collections.abc)))
        lines = (f"- ``{gap.name}``: {gap.settles} ({gap.section}; {gap.grade})" for gap in cls.gaps())
        # `help` shows each choice; only Python 3.13 and later remove the indentation
        cls.__doc__ = "\n".join([cleandoc(cls.__doc__ or ""), "", *lines])

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(type(self)):
            value = getattr(self, field.name)
            if value is not field.default:
                object.__setattr__(self, field.name, _read(field, value))

    @classmethod
    def gaps(cls) -> Iterator[Gap]:
        """Yield the gap that each field settles, with its default and grade, in order."""
        for each in attrs.fields(cls):
            yield Gap(name=each.name, default=each.default, **each.metadata)

    @classmethod
    def read(cls, name: str, given: object) -> Any:  # the field's type
        """Return the value of a field, from a document of what differs from its default. Raises InvalidRequest."""
        field = attrs.fields_dict(cls).get(name)
        if field is None:
            raise InvalidRequest(f"{quoted_key(name)}: there is no such field of {cls.__name__}", field=name)
        return _read(field, given, changes=isinstance(field.default, Mapping))

    @classmethod
    def from_document(cls, document: Mapping[str, object]) -> Self:
        """Return the object of a document: its fields differ from their defaults. Raises InvalidRequest."""
        return cls(**{name: cls.read(name, given) for name, given in document.items()})

    def to_document(self) -> dict[str, Any]:
        """Return the document of this object: the fields that differ from their defaults."""
        values = [(each, getattr(self, each.name)) for each in attrs.fields(type(self))]
        return {each.name: document_of(value, each.default) for each, value in values if value != each.default}


# ------------------------------------------------------------------------------ reading


def _read(field: attrs.Attribute[Any], given: object, *, changes: bool = False) -> Any:  # the value of the field
    """Return the value of a field; ``changes``: the entries of a mapping that differ from its default are given."""
    try:
        if changes:
            entries = {**cast("Mapping[str, Any]", field.default), **read_value(given, Mapping[str, Any])}
            given = {key: each for key, each in entries.items() if not (isinstance(each, str) and each == NONE)}
        return read_value(given, field.type)
    except ValueError as error:
        raise InvalidRequest(f"{field.name}: {error}", field=field.name) from None


def read_value(given: Any, kind: Any) -> Any:  # a type; a value of it
    """Return the value of a type from a value, a document or a text. Raises ValueError with what is needed."""
    origin, arguments = get_origin(kind), get_args(kind)
    if type(None) in arguments:  # X | None
        return None if given is None or given == NONE else read_value(given, arguments[0])
    if origin is Mapping:
        table = cast("Mapping[object, object]", entries) if isinstance(entries := _parsed(given), Mapping) else {None: None}
        if not all(isinstance(key, str) for key in table):
            raise ValueError(f'a table such as {{"KEY": "VALUE"}} is needed, not {quoted(given)}')
        found: dict[str, Any] = {}
        for key, each in table.items():
            try:
                found[str(key)] = read_value(each, arguments[1])
            except ValueError as error:
                raise ValueError(f"{quoted_key(str(key))}: {error}") from None
        return MappingProxyType(found)
    if origin in {frozenset, tuple}:
        entries = _parsed(given)
        if not isinstance(entries, (list, tuple, set, frozenset)):
            raise ValueError(f"a list is needed, not {quoted(given)}")
        return cast("Any", origin)(read_value(each, arguments[0]) for each in cast("Iterable[object]", entries))
    value = given if kind is Any else _single(given, arguments if origin is Literal else kind)
    if value is None:
        needed = NEEDED.get(kind) or f"one of {', '.join(map(str, cast('Iterable[object]', arguments or kind)))}"
        raise ValueError(f"{needed} is needed, not {quoted(given)}")
    return value


def _parsed(given: object) -> Any:  # JSON
    """Return the list or the table of a text; anything else as it is."""
    if not isinstance(given, str):
        return given
    if given.lstrip().startswith(("[", "{")):
        try:
            return json.loads(given.encode())
        except ValueError:
            raise ValueError("it begins like JSON, but is not") from None
    return [part.strip() for part in given.split(",") if part.strip()]


def _single(given: Any, kind: Any) -> Any:  # a type that is no collection
    """Return the value of a type, or None for what is none."""
    if kind is bool:
        given = {"true": True, "false": False}.get(given) if isinstance(given, str) else given
        return given if isinstance(given, bool) else None
    if kind in {int, float}:
        return _number(given, kind)
    if kind is str:
        return given if isinstance(given, str) and given else None
    if kind is tzinfo:
        return given if isinstance(given, tzinfo) else _zone(given)
    if kind is Code:
        return given if isinstance(given, Code) else _code(given)
    return next((each for each in kind if given == each), None)  # an enum, or the texts of a Literal


def _number(given: Any, kind: type[float]) -> float | None:
    if isinstance(given, bool) or not isinstance(given, (int, kind, str)):
        return None
    try:
        number = kind(given if not isinstance(given, str) else given[:MAX_DIGITS])
    except (ValueError, OverflowError):
        return None
    return number if 0 < number <= MAX_NUMBER else None


def _zone(given: object) -> tzinfo | None:
    if not isinstance(given, str) or not given:
        return None
    if given in {"UTC", "Z"}:
        return UTC
    from zoneinfo import ZoneInfo, available_timezones

    try:
        if found := re.fullmatch(OFFSET, given):
            offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
            return timezone(-offset if found[1] == "-" else offset)
        return ZoneInfo(given)
    except (LookupError, ValueError, OSError):  # no such zone, or no name of one
        if not available_timezones():
            raise ValueError("this machine has no time zones: python -m pip install tzdata") from None
        return None


def _code(given: object) -> Code | None:
    entries = dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {"error": given}
    error = next((each for each in _errors(ApiError) if each.__name__ == entries.get("error")), None)
    if error is None or entries.keys() - {"error", "grade", "note", "before_effect"}:
        return None
    grade, note = entries.get("grade", Grade.GUESS), entries.get("note", "")
    before_effect = read_value(entries.get("before_effect", False), bool)
    return Code(
        error=error, grade=read_value(grade, Grade), note=read_value(note, str) if note else "", before_effect=before_effect
    )


def _errors(kind: type[ApiError]) -> list[type[ApiError]]:
    return [kind, *(error for each in kind.__subclasses__() for error in _errors(each))]


# ------------------------------------------------------------------------------ writing


def document_of(value: Any, default: object = None) -> Any:  # a value; JSON
    """Return the document of a value; that of a mapping has what differs from its default."""
    if isinstance(value, Mapping):
        now, before = cast("Mapping[str, Any]", value), cast("Mapping[str, Any]", default)
        changed = {key: document_of(each) for key, each in now.items() if key not in before or before[key] != each}
        return changed | dict.fromkeys(before.keys() - now.keys(), NONE)
    if isinstance(value, Code):
        given = attrs.asdict(value, filter=lambda attribute, each: attribute.name == "error" or each != attribute.default)
        given["error"] = value.error.__name__
        return given if len(given) > 1 else given["error"]
    if isinstance(value, frozenset):
        return sorted(cast("frozenset[str]", value))
    if isinstance(value, tzinfo):
        return str(timezone(value.utcoffset(None)) if isinstance(value, timezone) else value)
    return NONE if value is None else list(cast("tuple[object, ...]", value)) if isinstance(value, tuple) else value


def spelled(document: object) -> str:
    """Return the text of a document."""
    return str(document) if isinstance(document, str) else json.dumps(document).decode()


def differences(kind: type[Choices], kept: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """Return the fields in which two documents differ, each with both values as text.

    A field that is not known here is one of a newer version.
    """
    fields = attrs.fields_dict(kind)
    found: dict[str, tuple[str, str]] = {}
    for name in [name for name in dict.fromkeys([*fields, *kept]) if kept.get(name) != given.get(name)]:
        default: Any = fields[name].default if name in fields else "unknown"
        default = dict[str, Any]() if isinstance(default, Mapping) else document_of(default)
        found[name] = spelled(kept.get(name, default)), spelled(given.get(name, default))
    return found
