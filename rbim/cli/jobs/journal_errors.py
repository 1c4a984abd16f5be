"""The next step after an error of a job: which file was meant, which flag is wrong, which dialect the journal has."""

from __future__ import annotations

import glob
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rbim.bulk.journal.facts import DIALECT, job_facts
from rbim.choices import differences
from rbim.cli.context import configuration
from rbim.cli.global_flags import command_line
from rbim.dialect import Dialect, client_document
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["explaining"]

SHOWN = 3  # journals

FLAGS = {"chunk", "concurrency", "declared", "encoding", "group", "isolate", "journal", "limit", "patience", "user_name"}
"""Settings of a job that have flags."""


@contextmanager
def explaining(journal: Path, verb: str = "") -> Generator[None]:
    """Let errors of the block name flags, and add the commands that were meant.

    ``verb``: of a command that takes only a journal; a folder or the input may have been given in its place.
    """
    try:
        yield
    except InvalidRequest as error:
        name, colon, rest = error.message.partition(": ")
        if name == error.field and name in FLAGS:
            error.message = f"--{name.replace('_', '-')}{colon}{rest}"
        is_file_wrong = bool(verb) and error.field == "journal"
        if is_file_wrong and journal.is_dir():
            error.add_note(f"It is a folder. To list its journals:\n{command_line('job', 'list', journal)}")
        elif is_file_wrong and not journal.name.endswith(".journal"):
            found = sorted(journal.parent.glob(f"{glob.escape(journal.name)}.*.journal"))[:SHOWN]
            if found:
                commands = "\n".join(command_line("job", verb, journal.parent / each.name) for each in found)
                error.add_note(f"The journal is the file that the job wrote:\n{commands}")
        elif error.field == DIALECT and error.message.startswith(f"{journal}: "):
            given = client_document(configuration().dialect)
            different = differences(Dialect, job_facts(journal).settings[DIALECT], given)
            words = [word for name, (text, _) in different.items() for word in ("--dialect", f"{name}={text}")]
            if different.keys() <= {gap.name for gap in Dialect.gaps()}:  # not those of a newer version
                error.add_note(f"To use the dialect of the journal: {shlex.join(words)}")
        raise
