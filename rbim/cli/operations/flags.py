"""One flag for each field of an operation: its name, its choices, and the conversion of its text.

All are derived from the declaration of the field: its type, its default, and the docstrings.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from datetime import date, datetime, time
from enum import Enum
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, cast, get_args, get_origin

import attrs
from cyclopts import Parameter

from rbim._support import json
from rbim.cli.lists import one_value
from rbim.operations.base import description_of, fields_of
from rbim.operations.call_tasks import CallPolicy, NoCallPolicy, default_no_call_policies

if TYPE_CHECKING:
    from cyclopts import Token

    from rbim.operations.base import Operation

__all__ = ["empty_word", "flag_of", "flags_of", "help_of"]

Reader = Callable[[str], Any]

NOTHING_TYPE = type(None)
COMMAND_LINE = "cli"  # the source of tokens that do not come from a file
KEEP = "keep"  # the word for None if the default is not None
FIRST = "group_id"  # the positional field, if it is required
COLLECTIONS = (list, set, frozenset)  # any other collection becomes a tuple
WORDS: dict[Any, dict[str, Callable[[], Sequence[Any]]]] = {
    NoCallPolicy: {"default": default_no_call_policies, "none": tuple[NoCallPolicy]}
}
"""Words that stand for several values, by type."""


class _AsRead:
    """An annotation that keeps pydantic from checking a value that a reader has already converted.

    cyclopts passes values to pydantic if it is imported, and pydantic would refuse a GroupType, because the type given to
    cyclopts lists its names. pydantic calls this method of the annotation; the schema it returns accepts any value.
    """

    @staticmethod
    def __get_pydantic_core_schema__(*_: object) -> dict[str, str]:
        return {"type": "any"}


def flags_of(kind: type[Operation[Any]]) -> list[inspect.Parameter]:
    """Return a parameter, annotated for cyclopts, for each field of the operation.

    The positional field comes first, then required fields; fields of a base class come last.
    """
    own = inspect.get_annotations(kind)
    fields = sorted((a for a in fields_of(kind) if a.init), key=lambda attribute: attribute.name not in own)
    parameters = [_parameter(attribute, kind) for attribute in fields]
    return sorted(parameters, key=lambda parameter: (parameter.kind, parameter.default is not parameter.empty))


def flag_of(attribute: attrs.Attribute[Any]) -> str:
    """Return the name of a field's flag."""
    return f"--{attribute.name.strip('_').replace('_', '-')}"


def empty_word(attribute: attrs.Attribute[Any]) -> str | None:
    """Return the word that stands for no values of a field; None if the field needs a value."""
    words = WORDS.get(_several(attribute.type), {})
    return next((word for word, values in words.items() if not values()), None)


def _parameter(attribute: attrs.Attribute[Any], kind: type[Operation[Any]]) -> inspect.Parameter:
    required = attribute.default is attrs.NOTHING
    first = attribute.name == FIRST and required
    annotation, shown, keep = _annotation(attribute)
    parameter = Parameter(
        name=flag_of(attribute),
        help=_help(attribute, kind),
        negative=None if annotation is bool else (),
        show_default=_name if shown is not None else False,
        **_conversion(attribute, annotation, keep=keep),
    )
    return inspect.Parameter(
        attribute.alias or attribute.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if first else inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[annotation, parameter, _AsRead],
        default=inspect.Parameter.empty if required else shown,
    )


def _conversion(attribute: attrs.Attribute[Any], annotation: Any, *, keep: bool) -> dict[str, Any]:
    """Return the options for reading the flag: cyclopts reads switches, our readers everything else."""
    if annotation is bool:
        return {}
    if _several(attribute.type) is not None:
        return {"converter": _read_several(attribute.type), "consume_multiple": True}
    return {"converter": _read_single(_reader(attribute.type), keep=keep)}


def _annotation(attribute: attrs.Attribute[Any]) -> tuple[Any, Any, bool]:
    """Return the type for cyclopts, the default for the help, and whether ``keep`` is a choice."""
    options, default = _options(attribute.type), attribute.default
    keep = NOTHING_TYPE in _arms(attribute.type) and default is not None
    if options == (bool,) and not keep:
        return bool, None if default is attrs.NOTHING else default, keep
    one = _several(attribute.type)
    choices = _choices(options if one is None else (one,))
    if keep and choices:
        choices = (*choices, KEEP)
    seen = (options[0] if options[0] in READERS else str) if one is None else str
    single = cast("Any", Literal)[choices] if choices else seen
    shown = _name(default) if isinstance(default, (Enum, str, int, float, date, time)) else None
    return (single if one is None else cast("Any", list)[single]), shown, keep


def _arms(kind: Any) -> tuple[Any, ...]:  # a type expression
    return get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)


def _options(kind: Any) -> tuple[Any, ...]:  # a type expression
    return tuple(arm for arm in _arms(kind) if arm is not NOTHING_TYPE)


def _several(kind: Any) -> Any:  # type expressions
    """Return the type of the entries if the field is a collection, else None."""
    for option in _options(kind):
        origin, arguments = get_origin(option), [each for each in get_args(option) if each is not ...]
        if isinstance(origin, type) and issubclass(origin, (Sequence, frozenset, set)) and len(arguments) == 1:
            return arguments[0]
    return None


def _name(value: Any) -> str:  # a default or a choice
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value.name.lower() if isinstance(value, Enum) else str(value)


def _named(kind: Any) -> dict[str, Any]:  # a type expression in, its values by the words for them out
    if kind is bool:
        return {_name(value): value for value in (True, False)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {_name(member): member for member in kind}
    return {str(value): value for value in get_args(kind)} if get_origin(kind) is Literal else {}


def _choices(options: tuple[Any, ...]) -> tuple[str, ...]:
    named = [_named(option) for option in options]
    return tuple(word for words in named for word in words) if all(named) else ()


def _read_single(read: Reader, *, keep: bool) -> Callable[[Any, Sequence[Token]], Any]:
    return lambda _, tokens: None if keep and tokens[0].value == KEEP else read(tokens[0].value)


def _read_several(kind: Any) -> Callable[[Any, Sequence[Token]], Any]:  # a type expression
    one = _several(kind)
    read, words = _reader(one), WORDS.get(one, {})
    collect = next((get_origin(o) for o in _options(kind) if get_origin(o) in COLLECTIONS), tuple)

    def convert(_: Any, tokens: Sequence[Token]) -> Any:
        found: list[Any] = []
        for token in tokens:
            if one is str and token.source == COMMAND_LINE:
                one_value(token.value, "--file")
            found += words[token.value]() if token.value in words else [read(token.value)]
        return collect(found)

    return convert


def _reader(kind: Any) -> Reader:  # a type expression
    readers = [_reader_of_one(option) for option in _options(kind)]

    def read(text: str) -> Any:
        for each in readers[:-1]:
            try:
                return each(text)
            except ValueError:
                pass
        return readers[-1](text)

    return read if len(readers) > 1 else readers[0]


def _reader_of_one(kind: Any) -> Reader:  # a type expression
    if kind is NoCallPolicy:
        return _policy
    named = _named(kind)
    return _choosing(named) if named else READERS.get(kind, _json)


def _policy(text: str) -> NoCallPolicy | CallPolicy:
    """Return a policy from its entry, or a call policy object, which holds such entries."""
    try:
        document = json.loads(text.encode())
    except ValueError:
        document = None
    if isinstance(document, dict) and "policy" in document:
        return CallPolicy.from_wire(cast("dict[str, Any]", document))
    return NoCallPolicy.from_entry(text)


def _choosing(named: dict[str, Any]) -> Reader:
    """Return a reader that takes a choice's name, in any case, or its value on the wire."""
    known = {str(value.value): value for value in named.values() if isinstance(value, Enum)} | named

    def read(text: str) -> Any:
        for spelling in (text, text.lower().replace("-", "_")):
            if spelling in known:
                return known[spelling]
        raise ValueError(f"{text!r} is not one of {', '.join(named)}")

    return read


def _reading(read: Reader, expected: str) -> Reader:
    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            raise ValueError(f"{text!r} is not {expected}") from None

    return convert


def _json(text: str) -> Any:
    try:
        return json.loads(text.encode())
    except ValueError as error:
        raise ValueError(f"a JSON value is required: {error}") from None


READERS: dict[Any, Reader] = {
    str: str,
    int: _reading(int, "a whole number"),
    float: _reading(float, "a number"),
    date: _reading(date.fromisoformat, "a date such as 2026-01-31"),
    datetime: _reading(datetime.fromisoformat, "a time such as 2026-01-31T09:00:00+08:00"),
    time: _reading(time.fromisoformat, "a time of day such as 09:00:00"),
}
"""The readers of texts, by the type of the field; any other type is read as JSON."""


# ---------------------------------------------------------------- help, from docstrings

_NONE = re.compile(r"\bNone\b")
_LITERAL = re.compile(r"``(\w+)``")
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_SENTENCE = re.compile(r"(?<=[.;])\s+")


def help_of(kind: type[Any]) -> str:
    """Return the docstring of an operation with fields and choices spelled as on the command line."""
    return _spelled(inspect.getdoc(kind) or "", kind)


def _spelled(text: str, kind: type[Any]) -> str:
    fields = {attribute.name for attribute in fields_of(kind)}
    members = {choice.upper() for a in fields_of(kind) for choice in _choices(_options(a.type))}

    def spell(match: re.Match[str]) -> str:
        word = match[1]
        if word in fields:
            return f"--{word.replace('_', '-')}"
        return word.lower() if word in members else word

    text = _ROLE.sub(r"\1", _LITERAL.sub(spell, text))
    return _NONE.sub(KEEP, text) if any(_annotation(a)[2] for a in fields_of(kind)) else text


def _help(attribute: attrs.Attribute[Any], kind: type[Operation[Any]]) -> str | None:
    """Return the description of a field, the words that it takes, and its limit."""
    described = description_of(attribute) or _inherited_help(attribute, kind)
    words = WORDS.get(_several(attribute.type))
    parts = [described, f"Takes {', '.join(words)}, or entries in the format of the wire." if words else None]
    parts += [f"At most {limit} characters." for name, limit in kind.spec.limits if name == attribute.name]
    return " ".join(part for part in parts if part) or None


def _inherited_help(attribute: attrs.Attribute[Any], kind: type[Any]) -> str | None:
    """Return the help of an inherited field from the docstring of its base class."""
    if attribute.name in inspect.get_annotations(kind):
        return None
    for base in kind.__mro__[1:]:
        for sentence in _SENTENCE.split(vars(base).get("__doc__") or ""):
            if f"``{attribute.name}``" in sentence:
                text = sentence.removeprefix(f"``{attribute.name}`` is ")
                return " ".join(_spelled(text[:1].upper() + text[1:], kind).split())
    return None
