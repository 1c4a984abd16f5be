"""The next step after an error about a journal: which file was meant."""

from __future__ import annotations

import glob
import shlex
from typing import TYPE_CHECKING, TypeVar

from rbim.bulk.journal.facts import DIALECT, job_facts
from rbim.choices import differences
from rbim.cli.global_flags import command_line
from rbim.dialect import Dialect, client_document
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from pathlib import Path


__all__ = ["explained", "with_flags"]

SHOWN = 3  # journals

E = TypeVar("E", bound=RbimError)


def explained(error: RbimError, journal: Path, verb: str) -> RbimError:
    """Return the error; if a folder or the input was given in a journal's place, notes have the commands that were meant."""
    if not isinstance(error, InvalidRequest) or error.field != "journal":
        return error
    if journal.is_dir():
        error.add_note(f"It is a folder. To list its journals:\n{command_line('job', 'list', journal)}")
    elif not journal.name.endswith(".journal"):
        found = sorted(journal.parent.glob(f"{glob.escape(journal.name)}.*.journal"))[:SHOWN]
        if found:
            commands = "\n".join(command_line("job", verb, journal.parent / each.name) for each in found)
            error.add_note(f"The journal is the file that the job wrote:\n{commands}")
    return error


def with_flags(error: E, journal: Path, dialect: Dialect | None) -> E:
    """Return the error. If ``dialect`` is refused, a note has the flags that choose the dialect of the journal."""
    if isinstance(error, InvalidRequest) and error.field == DIALECT and dialect is not None:
        different = differences(Dialect, job_facts(journal).settings[DIALECT], client_document(dialect))
        words = [word for name, (text, _) in different.items() for word in ("--dialect", f"{name}={text}")]
        if different.keys() <= {gap.name for gap in Dialect.gaps()}:  # not those of a newer version
            error.add_note(f"To use the dialect of the journal: {shlex.join(words)}")
    return error
