"""One process at a time runs a job: an exclusive lock of SQLite's on a small file beside the journal.

The system gives it back when its holder ends, however that comes about. The file stays: to delete it would let two
processes hold a lock on two files of the same name.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JobLock", "is_locked"]

PATIENCE = 0.2  # seconds: who only looks holds it for a moment


def _beside(journal: Path) -> Path:
    own = journal.resolve()  # another name for it is no other job
    return own.with_name(f"{own.name}-lock")


class JobLock:
    """The right to run the job of a journal, between :meth:`acquire` and :meth:`release`. Any thread may call either."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._connection: sqlite3.Connection | None = None

    def acquire(self) -> None:
        """Take it. Raises InvalidRequest where another process has it, or the file cannot be made."""
        path = _beside(self._journal)
        if not path.parent.is_dir():
            raise InvalidRequest(f"{self._journal}: there is no directory {path.parent}", field="journal")
        try:
            connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except BaseException:
                connection.close()
                raise
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            why = "another process runs this job" if busy else f"{path}: {error}"
            raise InvalidRequest(f"{self._journal}: {why}", field="journal") from error
        self._connection = connection

    def release(self) -> None:
        """Give it back."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def is_locked(journal: Path) -> bool:
    """Tell whether a process runs the job right now."""
    path = _beside(journal)
    if not path.exists():
        return False
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None)) as look:
        try:
            look.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
    return False
