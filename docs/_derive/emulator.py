"""The control interface of the emulator: its commands, and the kinds of faults with their fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from _derive.markdown import code, table
from rbim.emulator.faults import COPY_KINDS, KINDS
from rbim.emulator.server.commands import COMMANDS

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    return _kinds(KINDS)


def copy_faults() -> str:
    """Return the table of the kinds of faults of copies."""
    return _kinds(COPY_KINDS)


def _kinds(kinds: Mapping[str, Any]) -> str:
    rows = [
        (code(name), ", ".join(code(each.name) for each in attrs.fields(kind)), _first_sentence(kind))
        for name, kind in kinds.items()
    ]
    return f"\n{table(('kind', 'fields', 'effect'), rows)}\n"


def _first_sentence(kind: type[Any]) -> str:
    text = (kind.__doc__ or "").splitlines()[0].replace("``", "")
    return f"{text.partition('. ')[0].rstrip('.')}."
