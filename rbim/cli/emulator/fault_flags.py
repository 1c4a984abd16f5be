"""The flags of ``rbim emulator faults add`` and ``copy-faults add``, from the kinds of faults and their fields."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast, get_args, get_type_hints

import attrs
from cyclopts import Parameter

from rbim._support import json
from rbim.emulator.faults.copies import COPY_KINDS, CopyFault
from rbim.emulator.faults.requests import KINDS
from rbim.errors import InvalidRequest
from rbim.operations import catalogue
from rbim.operations.base import description_of

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KIND", "fault_of", "fault_parameters"]

KIND = "kind"
MATCH_HELP = (
    "Only with this value, such as group_id=g80000049837291. It can be repeated. A list or a switch is written as in JSON."
)
WORDS = {"true": True, "false": False, "null": None}


def fault_parameters(fault: type[Any]) -> list[inspect.Parameter]:
    """Return the parameters: the kind, the fields of every kind, and those that select."""
    kinds = _kinds(fault)
    flag = Parameter(help="The kind of the fault.", show_default=False, negative=())
    choice = cast("Any", Annotated)[cast("Any", Literal)[tuple(kinds)], flag]
    found = [inspect.Parameter(KIND, inspect.Parameter.POSITIONAL_ONLY, annotation=choice)]
    for name in dict.fromkeys(each.name for kind in kinds.values() for each in attrs.fields(kind)):
        of = {word: attrs.fields_dict(kind)[name] for word, kind in kinds.items() if name in attrs.fields_dict(kind)}
        text = next(description_of(each) or "" for each in of.values())
        found.append(_flag(name, get_type_hints(kinds[next(iter(of))])[name], f"{', '.join(of)}: {text}"))
    hints = get_type_hints(fault)
    for each in attrs.fields(fault):
        if each.name == "operation":
            names = tuple(entry.operation.spec.name for entry in catalogue.entries())
            found.append(_flag(each.name, cast("Any", Literal)[names], description_of(each) or ""))
        elif each.name == "match":
            found.append(_flag(each.name, tuple[str, ...], MATCH_HELP))
        elif each.name != "effect":
            found.append(_flag(each.name, hints[each.name], description_of(each) or ""))
    return found


def fault_of(fault: type[Any], given: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a fault. Raises InvalidRequest for a flag of another kind, and for one that is missing."""
    kind = given[KIND]
    own = attrs.fields_dict(_kinds(fault)[kind])
    others = {name for each in _kinds(fault).values() for name in attrs.fields_dict(each)} - {*own}
    wrong = next((name for name in given if name in others), None)
    if wrong is not None:
        takes = f"it takes {', '.join(map(_spelled, own))}" if own else "it has no fields"
        raise InvalidRequest(f"{wrong}: is not for {kind}: {takes}", field=wrong)
    missing = next((name for name, each in own.items() if each.default is attrs.NOTHING and name not in given), None)
    if missing is not None:
        raise InvalidRequest(f"{missing}: is required for {kind}", field=missing)
    effect = {name: given[name] for name in own if name in given}
    document = {name: value for name, value in given.items() if name not in {KIND, "match", *own}}
    if "match" in given:
        document["match"] = dict(map(_pair, given["match"]))
    return {"effect": {"kind": kind} | effect} | document


def _kinds(fault: type[Any]) -> Mapping[str, type[Any]]:
    return COPY_KINDS if fault is CopyFault else KINDS


def _spelled(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _flag(name: str, kind: Any, text: str) -> inspect.Parameter:  # a type expression
    arms = [each for each in get_args(kind) if each not in (type(None), ...)]
    several = str(kind).startswith("tuple")
    one = arms[0] if arms and not str(kind).startswith("typing.Literal") else kind
    flag = Parameter(name=_spelled(name), help=text, show_default=False, negative=(), consume_multiple=several)
    annotation = Annotated[(list[one] if several else one) | None, flag]  # type: ignore[valid-type]  # made from the field's
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _pair(text: str) -> tuple[str, Any]:
    """Return name and value of ``NAME=VALUE``. A value is a text: accounts are digits. Only lists and words are JSON."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidRequest(f"match: {text!r} is not NAME=VALUE, such as group_id=g80000049837291", field="match")
    if value in WORDS:
        return name, WORDS[value]
    if value.startswith(("[", "{", '"')):
        try:
            return name, json.loads(value.encode())
        except json.NotJson as error:
            raise InvalidRequest(f"match: {name}: {error}", field="match") from None
    return name, value
