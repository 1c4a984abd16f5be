"""Reading JSON documents strictly: fault plans, states and the bodies of commands, with errors that name the wrong place."""

import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Literal, cast, get_args, get_origin

from attrs import has
from cattrs import Converter, ForbiddenExtraKeysError, transform_error
from cattrs.v import format_exception

from rbim.errors import InvalidRequest

__all__ = ["exactly", "kind_of", "one_of", "read_document", "strict_converter"]

EXACT: Mapping[type[Any], str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    dict: "an object",
    list: "a list",
}


def exactly(value: Any, kind: type[Any]) -> Any:  # JSON
    """Return a value of exactly this type: cattrs would make a text of null, and a list of a text's characters."""
    if type(value) is not kind and not (kind is float and type(value) is int):
        shown = type(value).__name__ if kind in {dict, list} else repr(value)
        raise InvalidRequest(f"must be {EXACT[kind]}, not {shown}")
    try:
        return float(value) if kind is float else value
    except OverflowError:
        raise InvalidRequest("must be a number that a float can hold") from None


def one_of(value: object, choices: Iterable[str], field: str = "") -> Any:  # a text
    """Return the value if it is one of the choices. Raises InvalidRequest that lists them."""
    if value not in (names := list(choices)):
        raise InvalidRequest(f"{f'{field}: ' if field else ''}{value!r} is not one of {', '.join(names)}", field=field)
    return value


def kind_of(kind: type[Any]) -> str:
    """Return the name of a class in a document: ``ResetAfter`` is ``reset_after``."""
    return re.sub(r"\B([A-Z])", r"_\1", kind.__name__).lower()


def strict_converter() -> Converter:
    """Return a cattrs converter that takes no unknown key, and no value of another type than the one that is declared."""
    converter = Converter(forbid_extra_keys=True)
    for kind in (str, int, float, bool):
        converter.register_structure_hook(kind, exactly)
    converter.register_structure_hook(StrEnum, lambda value, kind: kind(one_of(value, kind)))
    converter.register_structure_hook_func(_has_origin(Literal), lambda value, kind: one_of(value, get_args(kind)))
    converter.register_structure_hook_func(
        _has_origin(tuple),
        lambda value, kind: tuple(converter.structure(exactly(value, list), cast("Any", list)[get_args(kind)[0]])),
    )
    return converter


def _has_origin(origin: object) -> Callable[[Any], bool]:
    return lambda kind: get_origin(kind) == origin


def read_document(converter: Converter, document: Any, kind: Any, *, field: str = "", most: int | None = None) -> Any:
    """Return the object of a document. Raises InvalidRequest for ``field`` that names the wrong places, at most ``most``."""
    try:
        return converter.structure(document, kind)
    except Exception as error:  # any error in a document
        wrong = transform_error(error, format_exception=_in_words)
        more = f"; and {len(wrong) - most} more" if most is not None and len(wrong) > most else ""
        raise InvalidRequest(f"{'; '.join(wrong[:most])}{more}", field=field) from None


def _in_words(error: BaseException, kind: type[Any] | None) -> str:
    if isinstance(error, InvalidRequest):
        return error.message
    if isinstance(error, ForbiddenExtraKeysError):
        return f"extra fields found ({', '.join(sorted(error.extra_fields))})"
    # Python's own errors for a value that is not a mapping
    if isinstance(error, AttributeError) or (isinstance(error, TypeError) and kind is not None and has(kind)):
        return "must be an object"
    return str(error) if type(error) in {TypeError, ValueError} else format_exception(error, kind)
