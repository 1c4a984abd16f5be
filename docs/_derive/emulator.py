"""The control interface of the emulator: its commands, and the kinds of faults with their fields."""

from __future__ import annotations

from typing import Any, get_args, is_typeddict

import attrs

from _derive.markdown import code, table
from rbim.emulator.documents import kind_of
from rbim.emulator.faults import CopyEffect, Effect
from rbim.emulator.server.commands import COMMANDS

__all__ = ["commands", "copy_faults", "request_faults"]


def commands() -> str:
    """Return the table of commands, with the fields of each body; those that may be left out are in brackets."""
    rows = [
        (code(f"{each.method} {each.path}"), _body(each.reads), each.help[0].lower() + each.help[1:].rstrip("."))
        for each in COMMANDS
    ]
    return f"\n{table(('command', 'body', 'effect'), rows)}\n"


def _body(kind: Any) -> str:
    if kind is None or kind is object:
        return "" if kind is None else "JSON"
    if is_typeddict(kind):
        required, optional = [*kind.__required_keys__], [*kind.__optional_keys__]
        order = list(kind.__annotations__)
        required, optional = sorted(required, key=order.index), sorted(optional, key=order.index)
    else:
        required = [each.name for each in attrs.fields(kind) if each.default is attrs.NOTHING]
        optional = [each.name for each in attrs.fields(kind) if each.default is not attrs.NOTHING]
    return ", ".join([*map(code, required), *(f"[{code(name)}]" for name in optional)])


def request_faults() -> str:
    """Return the table of the kinds of faults of requests."""
    return _kinds(Effect)


def copy_faults() -> str:
    """Return the table of the kinds of faults of copies."""
    return _kinds(CopyEffect)


def _kinds(effects: Any) -> str:  # a union of classes
    rows = [
        (code(kind_of(kind)), ", ".join(code(each.name) for each in attrs.fields(kind)), _first_sentence(kind))
        for kind in get_args(effects)
    ]
    return f"\n{table(('kind', 'fields', 'effect'), rows)}\n"


def _first_sentence(kind: type[Any]) -> str:
    text = (kind.__doc__ or "").splitlines()[0].replace("``", "")
    return f"{text.partition('. ')[0].rstrip('.')}."
