"""The next step after an error about a journal: which file was meant."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rbim.cli.command_lines import command_line
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

    from rbim.errors import RbimError

__all__ = ["explained"]

SHOWN = 3  # journals


def explained(error: RbimError, journal: Path, verb: str) -> RbimError:
    """Return the error; if a folder or the input was given in a journal's place, notes have the commands that were meant."""
    if not isinstance(error, InvalidRequest) or error.field != "journal":
        return error
    if journal.is_dir():
        error.add_note(f"It is a folder. To list its journals:\n{command_line('job', 'list', journal)}")
    elif not journal.name.endswith(".journal"):
        found = sorted(journal.parent.glob(f"{_escaped(journal.name)}.*.journal"))[:SHOWN]
        if found:
            commands = "\n".join(command_line("job", verb, journal.parent / each.name) for each in found)
            error.add_note(f"The journal is the file that the job wrote:\n{commands}")
    return error


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)
