"""Lock of a job: one process at a time runs it. The system releases the lock when its holder ends in any way.

It is a ``flock`` of the journal itself, so every name of the file meets it, hard links too; SQLite uses locks of another
kind. Only the journal's owner can open the file, so no other user can take it. On Windows, where a lock keeps others from
reading, it is a lock of the file ``JOURNAL-lock``, which is empty and stays.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING

from rbim._support.private_files import create_private
from rbim.errors import InvalidRequest

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["JobLock", "is_locked"]

RUNS = "another process runs this job: wait for it, or stop it"
LOCK_TIMEOUT = 0.2  # seconds: `is_locked` holds the lock for a moment
PAUSE = 0.01

# Closing any descriptor of a file releases SQLite's locks of this process on it. So a journal whose lock this process holds
# is not opened again, and the descriptor with the lock is closed after the run has closed its connections.
_held: dict[tuple[int, int], int] = {}  # descriptors by device and inode
_changing = Lock()


class JobLock:
    """The right to run the job of a journal: in a block, or between :meth:`acquire` and :meth:`release`, in any thread.

    Release it after all connections of SQLite to the journal are closed.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._key: tuple[int, int] | None = None

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def acquire(self) -> None:
        """Take the lock; create the journal, empty and with mode 0600, if it is missing.

        Raises InvalidRequest if another run has the lock, or if the journal cannot be opened or belongs to another user.
        """
        parent = self._journal.parent
        if not parent.is_dir():
            raise InvalidRequest(f"{self._journal}: there is no directory {parent}: create it first", field="journal")
        try:
            create_private(self._journal)
            file = _lock_file(self._journal)
            create_private(file)
            give_up = time.monotonic() + LOCK_TIMEOUT
            while self._key is None:
                with _changing:
                    self._key = _take(file)
                if self._key is None and time.monotonic() > give_up:
                    raise InvalidRequest(f"{self._journal}: {RUNS}", field="journal")
                if self._key is None:
                    time.sleep(PAUSE)
        except OSError as error:
            raise InvalidRequest(f"{self._journal}: {error.strerror or error}", field="journal") from error

    def release(self) -> None:
        """Release the lock."""
        with _changing:
            if self._key in _held:
                os.close(_held.pop(self._key))
        self._key = None


def is_locked(journal: Path) -> bool:
    """Return whether a process runs the job now. Raises InvalidRequest if this cannot be found out."""
    try:
        with _changing:
            key = _take(_lock_file(journal), shared=True)
            if key is not None:
                os.close(_held.pop(key))
    except FileNotFoundError:
        return False
    except OSError as error:
        cause = f"cannot find out whether a process runs this job: {error.strerror or error}"
        raise InvalidRequest(f"{journal}: {cause}", field="journal") from error
    return key is None


def _take(file: Path, *, shared: bool = False) -> tuple[int, int] | None:
    """Lock a file and return its device and inode; None if it is locked. Called with ``_changing``."""
    if _key(file.stat()) in _held:
        return None
    access = (os.O_RDONLY if shared else os.O_RDWR) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    number = os.open(file, access)
    key = _key(os.fstat(number))
    if not _lock(number, shared=shared) or key != _key(file.stat()):  # it was replaced meanwhile
        os.close(number)
        return None
    _held[key] = number
    return key


def _key(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


if sys.platform == "win32":
    import msvcrt

    def _lock_file(journal: Path) -> Path:
        real = journal.resolve()  # a symbolic link to the file is the same job
        return real.with_name(f"{real.name}-lock")

    def _lock(number: int, *, shared: bool) -> bool:
        del shared
        with suppress(OSError):
            msvcrt.locking(number, msvcrt.LK_NBLCK, 1)
            return True
        return False

else:
    import fcntl

    def _lock_file(journal: Path) -> Path:
        return journal

    def _lock(number: int, *, shared: bool) -> bool:
        try:
            fcntl.flock(number, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EACCES}:
                raise
            return False
        return True

    def _leave_to_parent() -> None:
        """Close the descriptors in a forked child, so that the locks end with the parent."""
        for number in _held.values():
            os.close(number)
        _held.clear()
        _changing.release()

    os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_leave_to_parent)
