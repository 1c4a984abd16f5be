"""The next step after a job is refused because of its dialect: the flags that choose the dialect of the journal."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, TypeVar

from rbim.bulk.journal.facts import DIALECT, job_facts
from rbim.dialect_text import NAMES, client_document, dialect_differences, flag_of
from rbim.errors import InvalidRequest, RbimError

if TYPE_CHECKING:
    from pathlib import Path

    from rbim.dialect import Dialect

__all__ = ["with_flags"]

E = TypeVar("E", bound=RbimError)


def with_flags(error: E, journal: Path, dialect: Dialect | None) -> E:
    """Return the error. If ``dialect`` is refused, a note has the flags that choose the dialect of the journal."""
    if isinstance(error, InvalidRequest) and error.field == DIALECT and dialect is not None:
        different = dialect_differences(job_facts(journal).settings[DIALECT], client_document(dialect))
        words = [word for name, (text, _) in different.items() for word in (flag_of(name), text)]
        if set(different) <= set(NAMES):  # not those of a newer version
            error.add_note(f"To use the dialect of the journal: {shlex.join(words)}")
    return error
