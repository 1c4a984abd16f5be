"""The conversion of rbim's values to JSON values, for answers, reports, events, records and errors."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, time
from enum import Enum
from math import isfinite
from typing import Any, cast

import attrs

__all__ = ["ToDict", "json_values"]


class ToDict:
    """The base class of values that can be written as JSON."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        r"""Return the fields by name, as JSON values: ``json.dumps`` accepts them.

        Dates and times are ISO 8601 text, enums their value on the wire, accounts the text that the platform wrote, bytes
        their text in UTF-8 (other bytes as ``\xff``), NaN and infinity None. Unknown fields are in ``extra``, which is left
        out if it is empty. So are fields that do not count in comparisons, such as ``document`` of an event. Secrets are
        ``***``.
        """
        return _fields(self)


def json_values(value: object) -> Any:  # any value in, JSON out
    """Return a value as JSON values, by the rules of :meth:`ToDict.to_dict`; of a named tuple, its fields by name."""
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else None
    if isinstance(value, ToDict):
        return value.to_dict()
    if attrs.has(type(value)) and type(value).__str__ is object.__str__:  # an Account has a text of its own
        return _fields(value)
    if (named := getattr(value, "_asdict", None)) is not None:
        value = cast("object", named())
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value).items()
        return {str(json_values(key)): json_values(each) for key, each in entries}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [json_values(each) for each in cast("Any", value)]
    return _text(value)


def _fields(value: object) -> dict[str, Any]:
    found = {a.name: getattr(value, a.name) for a in attrs.fields(cast("Any", type(value))) if a.eq}
    return {name: json_values(each) for name, each in found.items() if name != "extra" or each}


def _text(value: object) -> str:
    if isinstance(value, (date, time)):
        return value.isoformat()
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
