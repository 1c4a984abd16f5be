"""One flag for each field of an operation: its name, its choices, and how its text becomes a value.

Everything follows from the field's declaration: its type, its default, and what docstrings say of it.
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

from rbim import jsontext
from rbim.calls import NoCallPolicy, default_no_call_policies
from rbim.operation import fields_of

if TYPE_CHECKING:
    from cyclopts import Token

    from rbim.operation import Operation

__all__ = ["flags_of", "help_of"]

Reader = Callable[[str], Any]

NOTHING_TYPE = type(None)
KEEP = "keep"  # the word for None where None is not what a missing flag means
FIRST = "group_id"  # the field that may be given without its flag, where it is required
WORDS: dict[Any, dict[str, Callable[[], Sequence[Any]]]] = {
    NoCallPolicy: {"default": default_no_call_policies, "none": tuple[()]}
}
"""Words that stand for several values of a type."""


def flags_of(kind: type[Operation[Any]]) -> list[inspect.Parameter]:
    """Return a parameter, annotated for cyclopts, for each field of the operation; the positional one comes first."""
    parameters = [_parameter(attribute, kind) for attribute in fields_of(kind) if attribute.init]
    return sorted(parameters, key=lambda parameter: (parameter.kind, parameter.default is not parameter.empty))


def _parameter(attribute: attrs.Attribute[Any], kind: type[Operation[Any]]) -> inspect.Parameter:
    required = attribute.default is attrs.NOTHING
    first = attribute.name == FIRST and required
    annotation, shown, keep = _annotation(attribute)
    told = Parameter(
        name=f"--{attribute.name.strip('_').replace('_', '-')}",
        help=_inherited_help(attribute, kind),
        negative=None if annotation is bool else (),
        show_default=shown is not None,
        **_conversion(attribute, annotation, keep=keep),
    )
    return inspect.Parameter(
        attribute.alias or attribute.name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD if first else inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[annotation, told],
        default=inspect.Parameter.empty if required else shown,
    )


def _conversion(attribute: attrs.Attribute[Any], annotation: Any, *, keep: bool) -> dict[str, Any]:
    """Return how cyclopts is to read the flag: switches by itself, everything else by our readers."""
    if annotation is bool:
        return {}
    one = _several(attribute.type)
    if one is not None:
        return {"converter": _read_several(one), "consume_multiple": True}
    return {"converter": _read_single(_reader(attribute.type), keep=keep)}


def _annotation(attribute: attrs.Attribute[Any]) -> tuple[Any, Any, bool]:
    """Return what cyclopts is told of the type, the default as help shows it, and whether ``keep`` is a choice."""
    options, default = _options(attribute.type), attribute.default
    keep = NOTHING_TYPE in _arms(attribute.type) and default is not None
    if options == (bool,) and not keep:
        return bool, None if default is attrs.NOTHING else default, keep
    one = _several(attribute.type)
    choices = _choices(options if one is None else (one,))
    if keep and choices:
        choices = (*choices, KEEP)
    single = cast("Any", Literal)[choices] if choices else str
    shown = _name(default) if isinstance(default, (Enum, str, int, float, date, time)) else None
    return (single if one is None else cast("Any", tuple)[single, ...]), shown, keep


def _arms(kind: Any) -> tuple[Any, ...]:  # a type expression
    return get_args(kind) if isinstance(kind, UnionType) or get_origin(kind) is Union else (kind,)


def _options(kind: Any) -> tuple[Any, ...]:  # a type expression
    return tuple(arm for arm in _arms(kind) if arm is not NOTHING_TYPE)


def _several(kind: Any) -> Any:  # type expressions
    """Return the type of the entries where a field takes several of one kind, else None."""
    for option in _options(kind):
        origin, arguments = get_origin(option), [each for each in get_args(option) if each is not ...]
        if isinstance(origin, type) and issubclass(origin, (Sequence, frozenset, set)) and len(arguments) == 1:
            return arguments[0]
    return None


def _name(value: Any) -> str:  # a default
    return value.name.lower() if isinstance(value, Enum) else str(value)


def _choices(options: tuple[Any, ...]) -> tuple[str, ...]:
    enums = [option for option in options if isinstance(option, type) and issubclass(option, Enum)]
    return tuple(_name(member) for option in enums for member in option) if len(enums) == len(options) else ()


def _read_single(read: Reader, *, keep: bool) -> Callable[[Any, Sequence[Token]], Any]:
    return lambda _, tokens: None if keep and tokens[0].value == KEEP else read(tokens[0].value)


def _read_several(one: Any) -> Callable[[Any, Sequence[Token]], tuple[Any, ...]]:
    read, words = _reader(one), WORDS.get(one, {})

    def convert(_: Any, tokens: Sequence[Token]) -> tuple[Any, ...]:
        found: list[Any] = []
        for token in tokens:
            found += words[token.value]() if token.value in words else [read(token.value)]
        return tuple(found)

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
        return NoCallPolicy.from_entry
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _member_of(kind)
    return READERS.get(kind, _json)


def _member_of(kind: type[Enum]) -> Reader:
    named = {_name(member): member for member in kind} | {str(member.value): member for member in kind}

    def read(text: str) -> Enum:
        member = named.get(text, named.get(text.lower().replace("-", "_")))
        if member is None:
            reason = f"{text!r} is none of {', '.join(map(_name, kind))}"
            raise ValueError(reason)
        return member

    return read


def _reading(read: Reader, what: str) -> Reader:
    def convert(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            reason = f"{what} is needed, not {text!r}"
            raise ValueError(reason) from None

    return convert


def _switch(text: str) -> bool:
    if text not in SWITCH:
        raise ValueError(text)
    return SWITCH[text]


def _json(text: str) -> Any:
    try:
        return jsontext.loads(text.encode())
    except ValueError as error:
        reason = f"a JSON value is needed: {error}"
        raise ValueError(reason) from None


SWITCH = {"yes": True, "true": True, "no": False, "false": False}
READERS: dict[Any, Reader] = {
    str: str,
    int: _reading(int, "a whole number"),
    float: _reading(float, "a number"),
    bool: _reading(_switch, "yes or no"),
    date: _reading(date.fromisoformat, "a date such as 2026-01-31"),
    datetime: _reading(datetime.fromisoformat, "a time such as 2026-01-31T09:00:00+08:00"),
    time: _reading(time.fromisoformat, "a time of day such as 09:00:00"),
}
"""How a text becomes a value, by the field's type; any other type is read as JSON."""


# ---------------------------------------------------------------- help, from docstrings

_LITERAL = re.compile(r"``(\w+)``")
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")
_SENTENCE = re.compile(r"(?<=[.;])\s+")


def help_of(kind: type[Any]) -> str:
    """Return an operation's docstring with fields and choices as the command line spells them."""
    return _spelled(inspect.getdoc(kind) or "", kind)


def _spelled(text: str, kind: type[Any]) -> str:
    fields = {attribute.name for attribute in fields_of(kind)}
    members = {choice.upper() for a in fields_of(kind) for choice in _choices(_options(a.type))}

    def spell(match: re.Match[str]) -> str:
        word = match[1]
        if word in fields:
            return f"--{word.replace('_', '-')}"
        return word.lower() if word in members else word

    return _ROLE.sub(r"\1", _LITERAL.sub(spell, text))


def _inherited_help(attribute: attrs.Attribute[Any], kind: type[Any]) -> str | None:
    """Return what a base class says of a field that it hands down: the operation's own docstring does not."""
    for base in kind.__mro__[1:]:
        for sentence in _SENTENCE.split(vars(base).get("__doc__") or ""):
            if attribute.inherited and f"``{attribute.name}``" in sentence:
                return " ".join(_spelled(sentence, kind).split())
    return None
