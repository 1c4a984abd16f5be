"""Forms: how values of a type are written in documents (TOML, JSON) and as one line of text, derived from the type.

A document is a value of TOML or JSON. :func:`form_of` returns the form of a type; :class:`Form` says what a form does.
"""

from __future__ import annotations

import collections.abc
import re
import types
from datetime import UTC, timedelta, timezone, tzinfo
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Union, cast, get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

import attrs
from attrs import frozen

from rbim._support import json
from rbim._support.text import quoted, quoted_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

__all__ = ["EVERY", "NONE", "Form", "form_of", "types_of"]

NONE = "none"
"""The word for None; as an entry of a mapping, it removes the default's entry."""

EVERY = "*"
"""The key for all entries of a mapping's default."""

WORDS = {"true": True, "false": False, "yes": True, "no": False}
OFFSET = re.compile(r"(?:UTC)?([+-])([0-9]{2}):?([0-9]{2})")
NOTHING_TYPE = type(None)


@frozen(kw_only=True)
class Form:
    """The form of a type.

    ``expected`` describes the allowed values for error messages, ``metavar`` names a value in a help. ``choices`` are the
    allowed texts, if these are few. ``several``: the text is a list, separated by commas.
    """

    expected: str
    metavar: str
    choices: tuple[str, ...] = ()
    several: bool = False

    def parse(self, text: str) -> object:
        """Return the document of a text; a text that is not readable is returned as it is, or raises ValueError."""
        return text

    def read(self, document: object) -> Any:
        """Return the value of a document; values of the type itself are accepted, too. Raises ValueError."""
        raise self.wrong(document)

    def write(self, value: Any) -> object:
        """Return the document of a value."""
        return value

    def write_whole(self, value: Any) -> object:
        """Return the document of a value, for a mapping with all its entries."""
        return self.write(value)

    def spell(self, document: Any) -> str:
        """Return the text of a document."""
        return str(document)

    def wrong(self, document: object) -> ValueError:
        """Return the error for a document that is not allowed."""
        return ValueError(f"{self.expected} is needed, not {quoted(document)}")


@frozen(kw_only=True)
class _Bool(Form):
    def parse(self, text: str) -> object:
        return WORDS.get(text.lower(), text)

    def read(self, document: object) -> bool:
        if not isinstance(document, bool):
            raise self.wrong(document)
        return document

    def spell(self, document: Any) -> str:
        return "true" if document else "false"


@frozen(kw_only=True)
class _Number(Form):
    kind: type[int | float]

    def parse(self, text: str) -> object:
        try:
            return self.kind(text)
        except ValueError:
            return text

    def read(self, document: object) -> float:
        if isinstance(document, bool) or not isinstance(document, (int, self.kind)):
            raise self.wrong(document)
        try:
            return self.kind(document)
        except OverflowError:
            raise self.wrong(document) from None

    def spell(self, document: Any) -> str:
        return str(document).removesuffix(".0")


@frozen(kw_only=True)
class _Text(Form):
    def read(self, document: object) -> str:
        if not isinstance(document, str):
            raise self.wrong(document)
        return document


@frozen(kw_only=True)
class _Word(Form):
    """One of several values, each with a word."""

    known: Callable[[], Mapping[str, Any]]  # the values by word, as they are now

    def read(self, document: object) -> Any:
        known = self.known()
        if isinstance(document, str) and document in known:
            return known[document]
        if document in known.values():
            return document
        raise ValueError(f"{_one_of(known)} is needed, not {quoted(document)}")

    def write(self, value: Any) -> object:
        return next((word for word, each in self.known().items() if each is value), str(value))


@frozen(kw_only=True)
class _Zone(Form):
    def read(self, document: object) -> tzinfo:
        if isinstance(document, tzinfo):
            return document
        if not isinstance(document, str) or not document:
            raise self.wrong(document)
        if document in {"UTC", "Z"}:
            return UTC
        try:
            if found := OFFSET.fullmatch(document):
                offset = timedelta(hours=int(found[2]), minutes=int(found[3]))
                return timezone(-offset if found[1] == "-" else offset)
            return ZoneInfo(document)
        except (LookupError, ValueError, OSError):  # no such zone, or no name of one
            raise self.wrong(document) from None

    def write(self, value: Any) -> object:
        if isinstance(value, timezone):
            return str(timezone(value.utcoffset(None)))  # not the name it may have
        return str(value)


@frozen(kw_only=True)
class _Optional(Form):
    inner: Form

    def parse(self, text: str) -> object:
        return text if text == NONE else self.inner.parse(text)

    def read(self, document: object) -> Any:
        if document is None or document == NONE:
            return None
        try:
            return self.inner.read(document)
        except ValueError as error:
            raise ValueError(f"{error} ({NONE} is allowed, too)") from None

    def write(self, value: Any) -> object:
        return NONE if value is None else self.inner.write(value)

    def spell(self, document: Any) -> str:
        return NONE if document == NONE else self.inner.spell(document)


@frozen(kw_only=True)
class _Entries(Form):
    """A tuple, list or set; as text, its entries with commas between them, or a JSON list."""

    one: Form
    collect: Callable[[Any], Collection[Any]]

    def parse(self, text: str) -> object:
        return _json(text) if text.lstrip().startswith("[") else [self.one.parse(part) for part in _split(text)]

    def read(self, document: object) -> Any:
        if not isinstance(document, (list, tuple, set, frozenset)):
            raise self.wrong(document)
        return self.collect(self.one.read(each) for each in cast("Collection[object]", document))

    def write(self, value: Any) -> object:
        entries = [self.one.write(each) for each in value]
        return entries if self.collect in {tuple, list} else sorted(entries, key=str)  # a set has no order

    def spell(self, document: Any) -> str:
        return _shortest(self, document, ",".join(map(self.one.spell, document)))


@frozen(kw_only=True)
class _Table(Form):
    """A mapping, written as its changes of a default; as text, ``KEY=VALUE`` with commas between them, or a JSON object.

    The value ``none`` removes the entry of the default; the key ``*`` with ``none`` removes all of them.
    """

    key: Form
    one: Form
    default: Mapping[Any, Any]

    def parse(self, text: str) -> object:
        if text.lstrip().startswith("{"):
            return _json(text)
        texts: dict[str, str] = {}
        last = ""
        for part in _split(text):
            key, equals, value = (each.strip() for each in part.partition("="))
            if equals and key in texts:
                raise ValueError(f"{quoted_key(key)} is given twice")
            if equals:
                texts[key], last = value, key
            elif last and self.one.several:  # another entry of a list
                texts[last] += f",{part}"
            else:
                raise self.wrong(part)
        return {key: value if value == NONE else self.one.parse(value) for key, value in texts.items()}

    def read(self, document: object) -> Any:
        if not isinstance(document, collections.abc.Mapping):
            raise self.wrong(document)
        changes = dict(cast("Mapping[object, object]", document))
        if not changes:
            return self.default
        every = changes.pop(EVERY, None)
        if every is not None and every != NONE:
            raise ValueError(f"{EVERY}: only {NONE} is allowed, which removes every entry of the default")
        entries = {} if every else dict(self.default)
        for name, each in changes.items():
            try:
                self._change(entries, self.key.read(name), each)
            except ValueError as error:
                raise ValueError(f"{quoted_key(name)}: {error}") from None
        return MappingProxyType(entries)

    def _change(self, entries: dict[Any, Any], key: Any, document: object) -> None:
        if document != NONE:
            entries[key] = self.one.read(document)
        elif key in entries:
            del entries[key]
        else:
            raise ValueError(f"no such entry to remove; the default has {', '.join(map(str, self.default)) or 'none'}")

    def write(self, value: Any) -> object:
        kept = [key for key, each in self.default.items() if key in value and value[key] == each]
        gone = [EVERY] if self.default and not kept else [self.key.write(key) for key in self.default if key not in value]
        changed = {self.key.write(key): self.one.write(each) for key, each in value.items() if key not in kept}
        return dict.fromkeys(gone, NONE) | changed

    def write_whole(self, value: Any) -> object:
        return {self.key.write(key): self.one.write(each) for key, each in value.items()}

    def spell(self, document: Any) -> str:
        simple = (f"{key}={NONE if each == NONE else self.one.spell(each)}" for key, each in document.items())
        return _shortest(self, document, ",".join(simple))


@frozen(kw_only=True)
class _Record(Form):
    """An object of an attrs class, as a table of its fields, or as the only field without a default."""

    kind: type[Any]
    fields: Mapping[str, Form]
    short: str  # the only field without a default; empty if there are several

    def parse(self, text: str) -> object:
        return _json(text) if text.lstrip().startswith("{") or not self.short else self.fields[self.short].parse(text)

    def read(self, document: object) -> Any:
        if isinstance(document, self.kind):
            return document
        if not isinstance(document, collections.abc.Mapping):
            if not self.short:
                raise self.wrong(document)
            return self.kind(**{self.short: self.fields[self.short].read(document)})
        values: dict[str, Any] = {}
        for name, each in cast("Mapping[str, object]", document).items():
            if name not in self.fields:
                raise ValueError(f"unknown key {quoted_key(name)}; the keys are {', '.join(self.fields)}")
            try:
                values[name] = self.fields[name].read(each)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        if missing := [a.name for a in attrs.fields(self.kind) if a.default is attrs.NOTHING and a.name not in values]:
            raise ValueError(f"{', '.join(missing)} is needed")
        return self.kind(**values)

    def write(self, value: Any) -> object:
        given = {
            each.name: self.fields[each.name].write(getattr(value, each.name))
            for each in attrs.fields(self.kind)
            if getattr(value, each.name) != each.default
        }
        return given[self.short] if list(given) == [self.short] else given

    def spell(self, document: object) -> str:
        if self.short and not isinstance(document, dict):
            return self.fields[self.short].spell(document)
        return _dumped(cast("Any", document))


# ------------------------------------------------------------------------------ the form of a type


def form_of(kind: Any, default: object = None) -> Form:  # a type expression
    """Return the form of a type. ``default`` is the value that a mapping changes. Raises TypeError for an unknown type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType} and len(arguments) == 2 and NOTHING_TYPE in arguments:  # noqa: PLR2004  # X | None
        inner = form_of(next(each for each in arguments if each is not NOTHING_TYPE), default)
        return _Optional(
            inner=inner,
            expected=f"{inner.expected} or {NONE}",
            metavar=f"{inner.metavar}|{NONE}",
            choices=(*inner.choices, NONE) if inner.choices else (),
            several=inner.several,
        )
    if origin is type:
        return _classes(arguments[0])
    if origin is collections.abc.Mapping:
        return _table(arguments, cast("Mapping[Any, Any]", default or {}))
    if origin in {tuple, list, set, frozenset} and arguments[1:] in {(), (...,)}:
        one = form_of(arguments[0])
        wanted = f"a list, each entry {one.expected},"
        return _Entries(one=one, collect=origin, expected=wanted, metavar=f"{one.metavar},...", several=True)
    if isinstance(kind, type):
        return _simple(kind)
    raise TypeError(f"{kind!r} has no form")


def types_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of an attrs class's fields by name, also those that it imports only for type checkers."""
    return get_type_hints(kind, localns=vars(collections.abc))


def _simple(kind: type[Any]) -> Form:
    if kind is bool:
        return _Bool(expected="true or false", metavar="true|false", choices=("true", "false"))
    if kind in {int, float}:
        return _Number(kind=kind, expected="a whole number" if kind is int else "a number", metavar="N")
    if kind is str:
        return _Text(expected="a text", metavar="TEXT")
    if kind is tzinfo:
        return _Zone(expected="a time zone such as Asia/Shanghai or +08:00", metavar="ZONE")
    if issubclass(kind, Enum):
        words: dict[str, Enum] = {str(member.value): member for member in kind}
        return _Word(known=lambda: words, expected=_one_of(words), metavar="|".join(words), choices=tuple(words))
    if attrs.has(kind):
        fields = {name: form_of(each) for name, each in types_of(kind).items()}
        wanted = f"a table with the keys {', '.join(fields)}"
        required = [each.name for each in attrs.fields(kind) if each.default is attrs.NOTHING]
        short = required[0] if len(required) == 1 else ""
        return _Record(kind=kind, fields=fields, short=short, expected=wanted, metavar=kind.__name__)
    raise TypeError(f"{kind!r} has no form")


def _classes(base: type[Any]) -> Form:
    def known() -> dict[str, type[Any]]:
        found = {base.__name__: base}
        waiting = [base]
        while waiting:
            below = waiting.pop(0).__subclasses__()
            found |= {each.__name__: each for each in below}
            waiting += below
        return found

    return _Word(known=known, expected=f"the name of a kind of {base.__name__}", metavar="NAME")


def _table(arguments: tuple[Any, ...], default: Mapping[Any, Any]) -> Form:
    key, one = form_of(arguments[0]), form_of(arguments[1])
    return _Table(
        key=key,
        one=one,
        default=default,
        expected=f"a table, or entries such as {_example(key, one, default)},",
        metavar="KEY=VALUE,...",
        several=True,
    )


def _example(key: Form, one: Form, default: Mapping[Any, Any]) -> str:
    for name, value in default.items():
        document = one.write(value)
        if isinstance(document, dict) and isinstance(one, _Record):  # its only field without a default will do
            document = cast("dict[str, object]", document).get(one.short)
        if document and not isinstance(document, dict):
            return f"{key.write(name)}={one.spell(document)}"
    return "KEY=VALUE"


# ------------------------------------------------------------------------------ texts


def _one_of(words: Collection[str]) -> str:
    return " or ".join(words) if len(words) <= 2 else f"one of {', '.join(words)}"  # noqa: PLR2004  # a pair


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _json(text: str) -> object:
    try:
        return json.loads(text.encode())
    except ValueError as error:
        raise ValueError(f"it begins like JSON, but is not: {error}") from None


def _shortest(form: Form, document: object, simple: str) -> str:
    """Return the simple text if it means the document, else JSON."""
    try:
        return simple if simple and form.parse(simple) == document else _dumped(document)
    except ValueError:
        return _dumped(document)


def _dumped(document: object) -> str:
    return json.dumps(document).decode()
