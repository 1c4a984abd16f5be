"""Another value than the default for each field of the dialect, made from the type of the field alone."""

import collections.abc
from enum import Enum
from typing import get_args, get_origin, get_type_hints
from zoneinfo import ZoneInfo

import attrs

from rbim import Dialect

FIELDS = [each.name for each in attrs.fields(Dialect)]
DEFAULT = Dialect()
TYPES = get_type_hints(Dialect, localns=vars(collections.abc))


def other(name):
    return _other(TYPES[name], getattr(DEFAULT, name))


def dialect_with(name):
    return Dialect(**{name: other(name)})


def _other(kind, default):
    origin, arguments = get_origin(kind), [each for each in get_args(kind) if each is not type(None)]
    if default is None or (not isinstance(origin, type) and arguments):
        return None if default is not None else _some(arguments[0])
    if isinstance(default, bool):
        return not default
    if isinstance(default, Enum):
        return next(member for member in type(default) if member is not default)
    if isinstance(default, (int, float)):
        return default + 1
    if isinstance(default, str):
        return f"{default}.x" if not default.isdigit() else str(1 - int(default) % 2)
    if isinstance(default, collections.abc.Mapping):  # an entry less, another value, a new key
        first, *rest = default
        changed = {each: default[each] for each in rest}
        return changed | ({rest[-1]: default[first]} if rest else {}) | {_new_key(first): default[first]}
    if isinstance(default, (tuple, frozenset)):
        return type(default)([*default, _some(arguments[0])][1:] or [_some(arguments[0])])
    return ZoneInfo("Asia/Tokyo")


def _new_key(key):
    return next(each for each in type(key)) if isinstance(key, Enum) else f"{key}-new"


def _some(kind):
    return {int: 7, float: 7.5, str: "a, b=c", bool: True}.get(kind) or next(iter(kind))
