"""Lock of a job: one process at a time runs it, by an exclusive SQLite lock on a small file beside the journal.

The system releases it when its holder ends in any way. The file is never deleted: two processes could otherwise lock two
files of the same name.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JobLock", "is_locked"]

PATIENCE = 0.2  # seconds: `is_locked` holds the lock for a moment


def _lock_path(journal: Path) -> Path:
    resolved = journal.resolve()  # another name of the file is the same job
    return resolved.with_name(f"{resolved.name}-lock")


class JobLock:
    """The right to run the job of a journal, between :meth:`acquire` and :meth:`release`; any thread may call them."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._connection: sqlite3.Connection | None = None

    def acquire(self) -> None:
        """Take the lock. Raises InvalidRequest if another process holds it or the file cannot be created."""
        path = _lock_path(self._journal)
        if not path.parent.is_dir():
            raise InvalidRequest(f"{self._journal}: there is no directory {path.parent}: create it first", field="journal")
        try:
            connection = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("BEGIN EXCLUSIVE")
            except BaseException:
                connection.close()
                raise
        except sqlite3.OperationalError as error:
            busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
            cause = "another process runs this job: wait for it, or stop it" if busy else f"{path}: {error}"
            raise InvalidRequest(f"{self._journal}: {cause}", field="journal") from error
        self._connection = connection

    def release(self) -> None:
        """Release the lock."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def is_locked(journal: Path) -> bool:
    """Return whether a process runs the job now."""
    path = _lock_path(journal)
    if not path.exists():
        return False
    with closing(
        sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True, timeout=0, isolation_level=None)
    ) as connection:
        try:
            connection.execute("BEGIN EXCLUSIVE")
        except sqlite3.OperationalError:
            return True
    return False
