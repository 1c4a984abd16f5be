"""The control interface of the emulator: its commands, and the kinds of faults with their fields."""

from __future__ import annotations

from typing import Any, get_args

import attrs

from _derive.markdown import code, table
from rbim.emulator.documents import kind_of
from rbim.emulator.faults import CopyEffect, Effect
from rbim.emulator.server.control import COMMANDS

__all__ = ["commands", "copy_faults", "request_faults"]


def commands() -> str:
    """Return the table of commands. Those of the plan of copies are left out: they are those of the plan of requests."""
    rows = [
        (code(f"{each.method} {each.path}"), each.help[0].lower() + each.help[1:].rstrip("."))
        for each in COMMANDS
        if "/copy-faults" not in each.path
    ]
    return f"\n{table(('command', 'effect'), rows)}\n"


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
