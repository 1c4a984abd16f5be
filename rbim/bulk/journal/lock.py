"""Lock of a job: one process at a time runs it, by a lock on the journal itself.

The lock belongs to the file, not to its name: a hard link or a symbolic link meets the same lock. It is an open file
description lock of one byte far beyond the end of the file, so that it does not meet SQLite's locks. Only the journal's
owner can open the file, so no other user can take it. The system releases it when its holder ends in any way. Descriptors
stay open in the process, because closing one would release SQLite's locks on the same file.

Where there are no such locks (outside Linux, in some sandboxes), the lock is an exclusive SQLite lock on a small file beside
the journal. That file is never deleted, because two processes could otherwise lock two files of the same name.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import struct
import sys
from contextlib import closing, suppress
from pathlib import Path
from threading import Lock
from typing import Protocol

from rbim._support.private_files import create_private, require_trusted
from rbim.errors import InvalidRequest

__all__ = ["JobLock", "is_locked"]

RUNS = "another process runs this job: wait for it, or stop it"
UNSUPPORTED = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
PATIENCE = 0.2  # seconds: `is_locked` holds the lock for a moment


class JobLock:
    """The right to run the job of a journal, between :meth:`acquire` and :meth:`release`; any thread may call them.

    Neither closes a descriptor of the journal while this process may have connections of SQLite to it.
    """

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._held: _Held | None = None

    def acquire(self) -> None:
        """Take the lock; create the journal, empty and with mode 0600, if it is missing.

        Raises InvalidRequest if another run has the lock, or if the journal cannot be opened or belongs to another user.
        """
        parent = self._journal.parent
        if not parent.is_dir():
            raise InvalidRequest(f"{self._journal}: there is no directory {parent}: create it first", field="journal")
        try:
            create_private(self._journal)
            self._held = _take(self._journal)
        except (OSError, sqlite3.Error) as error:
            raise InvalidRequest(f"{self._journal}: {_cause(error)}", field="journal") from error
        if self._held is None:
            raise InvalidRequest(f"{self._journal}: {RUNS}", field="journal")

    def release(self) -> None:
        """Release the lock."""
        if self._held is not None:
            self._held.close()
            self._held = None


def is_locked(journal: Path) -> bool:
    """Return whether a process runs the job now. Raises InvalidRequest if this cannot be found out."""
    try:
        return _is_taken(journal)
    except FileNotFoundError:
        return False
    except (OSError, sqlite3.Error) as error:
        raise InvalidRequest(
            f"{journal}: cannot find out whether a process runs this job: {_cause(error)}", field="journal"
        ) from error


def _cause(error: OSError | sqlite3.Error) -> str:
    return getattr(error, "strerror", None) or str(error)


class _Held(Protocol):
    def close(self) -> None:
        """Release the lock."""
        ...


if sys.platform == "linux":
    import fcntl

    PLACE = 1 << 62  # of the locked byte; SQLite locks bytes between 2**30 and 2**30 + 512
    MOST_IDLE = 8  # descriptors that stay open without a look whether they can be closed

    _files: dict[tuple[int, int, int], int] = {}
    """Descriptors of journals by device, inode and access. They stay open after use: see :func:`_close_idle`."""
    _held: set[tuple[int, int]] = set()
    """Journals whose lock this process has, by device and inode."""
    _changing = Lock()

    class _ByteLock:
        """The lock of a journal's byte."""

        def __init__(self, number: int, key: tuple[int, int]) -> None:
            self._number = number
            self._key = key

        def close(self) -> None:
            with _changing:
                if self._key in _held:
                    _held.remove(self._key)
                    fcntl.fcntl(self._number, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK))
                    _close_idle()

    def _take_file(journal: Path) -> _Held | None:
        with _changing:
            number, key = _opened(journal, os.O_RDWR)
            if key in _held:
                return None
            try:
                fcntl.fcntl(number, fcntl.F_OFD_SETLK, _request(fcntl.F_WRLCK))
            except BlockingIOError:
                return None
            if key != _key(journal.stat()):  # it was replaced meanwhile
                fcntl.fcntl(number, fcntl.F_OFD_SETLK, _request(fcntl.F_UNLCK))
                return None
            _held.add(key)
            return _ByteLock(number, key)

    def _is_file_taken(journal: Path) -> bool:
        with _changing:
            number, key = _opened(journal, os.O_RDONLY)
            answer = fcntl.fcntl(number, fcntl.F_OFD_GETLK, _request(fcntl.F_WRLCK))
            return key in _held or bool(struct.unpack(FLOCK, answer)[0] != fcntl.F_UNLCK)

    def _opened(journal: Path, access: int) -> tuple[int, tuple[int, int]]:
        """Return a descriptor of a journal, and its device and inode."""
        number = _files.get((*_key(journal.stat()), access))
        if number is None:
            number = os.open(journal, access | os.O_NONBLOCK | os.O_CLOEXEC)
            key = _key(os.fstat(number))
            _files[(*key, access)] = number  # another one of the same file, if there is one, stays open, too
        return number, _key(os.fstat(number))

    def _close_idle() -> None:
        """Close descriptors of many journals, if this process has no other descriptor of them.

        Closing any descriptor of a file releases all POSIX locks of the process on it, and SQLite has such locks while a
        connection is open: without them, another process would delete the log that this one reads or writes.
        """
        if len(_files) <= MOST_IDLE:
            return
        used = set[tuple[int, int]](_held)
        own = set(_files.values())
        for each in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                if int(each.name) not in own:
                    used.add(_key(os.fstat(int(each.name))))
        for (device, inode, access), number in list(_files.items()):
            if (device, inode) not in used:
                del _files[device, inode, access]
                os.close(number)

    FLOCK = "hhqqi"  # struct flock: type, whence, start, length, process

    def _request(kind: int) -> bytes:
        return struct.pack(FLOCK, kind, os.SEEK_SET, PLACE, 1, 0)

    def _key(found: os.stat_result) -> tuple[int, int]:
        return found.st_dev, found.st_ino

    def _leave_to_parent() -> None:
        """Close the descriptors in a forked child, so that the locks end with the parent."""
        for number in _files.values():
            os.close(number)
        _files.clear()
        _held.clear()
        _changing.release()

    os.register_at_fork(before=_changing.acquire, after_in_parent=_changing.release, after_in_child=_leave_to_parent)

else:

    def _take_file(_: Path) -> _Held | None:
        raise OSError(errno.ENOTSUP, "no locks of open files on this system")

    def _is_file_taken(_: Path) -> bool:
        raise OSError(errno.ENOTSUP, "no locks of open files on this system")


def _take(journal: Path) -> _Held | None:
    try:
        return _take_file(journal)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return _take_beside(journal)


def _is_taken(journal: Path) -> bool:
    try:
        return _is_file_taken(journal)
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
    return _is_beside_taken(journal)


# ------------------------------------------------------------------------------ where files have no such locks


def _lock_path(journal: Path) -> Path:
    resolved = journal.resolve()  # a symbolic link to the file is the same job
    return resolved.with_name(f"{resolved.name}-lock")


def _take_beside(journal: Path) -> _Held | None:
    path = _lock_path(journal)
    create_private(path)
    connection = _connected(path, PATIENCE)
    if connection is None:
        return None
    return connection


def _is_beside_taken(journal: Path) -> bool:
    path = _lock_path(journal)
    if not path.exists():
        return False
    require_trusted(path)
    connection = _connected(path, 0)
    if connection is None:
        return True
    with closing(connection):
        return False


def _connected(path: Path, timeout: float) -> sqlite3.Connection | None:
    connection = sqlite3.connect(path, timeout=timeout, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return None
        raise
    return connection
